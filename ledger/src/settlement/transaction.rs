//! The settlement transaction, in two round trips: lock, complete and release; then, after planning, charge, promote
//! and commit. In SQL, `weir_complete.sql` does the same for one job, and `native/tests/suite/differential.rs` compares
//! them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use postgres_types::ToSql;
use serde_json::{Map, Value};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::changes::{self, Changes, Charges, Key, LockedHolder, Released};
use super::ended::{Ended, Settled};
use super::promoted::Promoted;
use super::statements::SettlementStatements;
use crate::committer::{GroupFailure, Locking, Transact};
use crate::database::session::{Connection, before_commit};
use crate::database::{DatabaseError, Failure, Notifier, Phase};
use crate::holder::Holder;
use crate::job_metadata::USED;
use crate::json::json_bytes;
use crate::meter::Meter;
use crate::plans::Plan;
use crate::rules::Rules;

/// Settles groups of ended attempts.
pub(super) struct Settle {
    pub(super) rules: Arc<Rules>,
    pub(super) after_commit: AfterCommit,
}

/// Receives the promotions of committed transactions.
#[derive(Clone)]
pub(super) struct AfterCommit {
    pub(super) promoted: Promoted,
    pub(super) notifier: Notifier,
}

impl Transact for Settle {
    type Item = Ended;
    type Output = Settled;
    type Statements = SettlementStatements;

    const MAX_GROUP: usize = 512;
    const MAX_QUEUE: usize = 20_000;
    const MAX_QUEUE_BYTES: usize = 128 * 1024 * 1024;
    const BLOCKED_TIMEOUT: Duration = Duration::from_secs(15);

    fn holder(ended: &Ended) -> Option<Uuid> {
        ended.holder
    }

    fn id(ended: &Ended) -> Uuid {
        Uuid::from_u64_pair(0, ended.job_id.unsigned_abs())
    }

    fn bytes(ended: &Ended) -> usize {
        128 + ended
            .success
            .as_ref()
            .map_or(0, |success| json_bytes(&success.output))
    }

    async fn run(
        &self,
        connection: &Connection<SettlementStatements>,
        group: &[&Ended],
        locking: &Locking,
    ) -> Result<Vec<Settled>, GroupFailure> {
        let started = Instant::now();
        // Another writer may have inserted a usage event for one of the jobs. This is checked only after a conflict.
        let settled = match transact(connection, self, group, locking, false).await {
            Err(SettleFailure::AlreadyCharged) => {
                roll_back(connection).await?;
                transact(connection, self, group, locking, true).await
            }
            other => other,
        };
        let settled = settled.map_err(|unsettled| match unsettled {
            SettleFailure::Failed(failure) => failure,
            SettleFailure::AlreadyCharged => Failure::Conflict(DatabaseError::Contended).into(),
        })?;
        metrics::histogram!("weir_settlement_duration_seconds").record(started.elapsed().as_secs_f64());
        Ok(settled)
    }

    async fn blocked(
        &self,
        connection: &Connection<SettlementStatements>,
        group: &[&Ended],
    ) -> Result<Vec<(usize, Uuid)>, Failure> {
        let Connection { client, statements, .. } = connection;
        let ids: Vec<i64> = group.iter().map(|one| one.job_id).collect();
        let params: [&(dyn ToSql + Sync); 1] = [&ids];
        let ((), free, ()) = tokio::try_join!(
            biased;
            connection.begin(),
            client.query(&statements.free_jobs, &params),
            client.batch_execute("ROLLBACK"),
        )
        .map_err(|error| Failure::of(error, Phase::Open))?;
        let free: HashSet<i64> = free.iter().map(|row| row.get("job_id")).collect();
        let members = group.iter().enumerate();
        Ok(members
            .filter(|(_, one)| !free.contains(&one.job_id))
            .map(|(index, one)| (index, Self::id(one)))
            .collect())
    }

    /// A counter that has drifted below its rows violates its CHECK, and would make PostgreSQL refuse all settlements
    /// of its holder. This rebuilds it from its rows.
    async fn repair(
        &self,
        connection: &Connection<SettlementStatements>,
        ended: &Ended,
        error: &DatabaseError,
    ) -> Result<bool, Failure> {
        let Connection { client, statements, .. } = connection;
        let open = |error| Failure::of(error, Phase::Open);
        let is_drifted = match error {
            DatabaseError::Postgres(postgres) => postgres.code() == Some(&SqlState::CHECK_VIOLATION),
            // The holder's row may be missing. Then there is nothing to lock.
            _ => {
                let made = client.execute(&statements.create_holder, &[&ended.job_id]).await;
                made.map_err(open)? > 0
            }
        };
        if !is_drifted {
            return Ok(false);
        }
        let job: [&(dyn ToSql + Sync); 1] = [&ended.job_id];
        let ((), rows) = tokio::try_join!(
            biased;
            connection.begin(),
            client.query(&statements.rebuild_lock, &job),
        )
        .map_err(open)?;
        let Some(holder) = rows.first().map(|row| row.get::<_, Uuid>("holder")) else {
            roll_back(connection).await?;
            return Ok(false);
        };
        let params: [&(dyn ToSql + Sync); 1] = [&holder];
        tokio::try_join!(
            biased;
            client.execute(&statements.rebuild_holders, &params),
            client.execute(&statements.rebuild_balances, &params),
            connection.commit(),
        )
        .map_err(|error| Failure::of(error, Phase::Committing))?;
        metrics::counter!("weir_counter_repairs_total").increment(1);
        tracing::error!(
            job = ended.job_id,
            %holder,
            reason = %error,
            "rebuilt a holder's counters, which did not match their rows or were missing"
        );
        Ok(true)
    }
}

async fn roll_back(connection: &Connection<SettlementStatements>) -> Result<(), Failure> {
    let rolled_back = connection.client.batch_execute("ROLLBACK").await;
    rolled_back.map_err(|error| Failure::of(error, Phase::Open))
}

enum SettleFailure {
    /// One of the jobs already has a usage event.
    AlreadyCharged,
    Failed(GroupFailure),
}

impl From<Failure> for SettleFailure {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure.into())
    }
}

/// The first round trip and its results.
struct Planned {
    locked: BTreeMap<Key, LockedHolder>,
    released: Vec<Released>,
    /// The jobs that it completed.
    completed: HashSet<i64>,
    changes: Changes,
}

async fn transact(
    connection: &Connection<SettlementStatements>,
    settle: &Settle,
    group: &[&Ended],
    locking: &Locking,
    look_for_charges: bool,
) -> Result<Vec<Settled>, SettleFailure> {
    let planned = before_commit(lock_and_plan(
        connection,
        &settle.rules,
        group,
        locking,
        look_for_charges,
    ))
    .await?;
    let written = write(connection, &planned.changes, &planned.locked, &settle.after_commit).await;
    if let Err(error) = written {
        // The only unique key written here is the job of a usage event.
        let already_charged = error.code() == Some(&SqlState::UNIQUE_VIOLATION) && !look_for_charges;
        return Err(if already_charged {
            SettleFailure::AlreadyCharged
        } else {
            Failure::of(error, Phase::Committing).into()
        });
    }
    let Charges { jobs, amounts, .. } = planned.changes.charges;
    let charges: HashMap<i64, i64> = jobs.into_iter().zip(amounts).collect();
    record(&planned.released, &charges);
    Ok(group
        .iter()
        .map(|one| match one.success {
            Some(_) if !planned.completed.contains(&one.job_id) => Settled::FencedOut,
            _ => Settled::Done {
                charged: charges.get(&one.job_id).copied().unwrap_or(0),
            },
        })
        .collect())
}

async fn lock_and_plan(
    connection: &Connection<SettlementStatements>,
    rules: &Rules,
    group: &[&Ended],
    locking: &Locking,
    look_for_charges: bool,
) -> Result<Planned, SettleFailure> {
    let Connection { client, statements, .. } = connection;
    let ids: Vec<i64> = group.iter().map(|one| one.job_id).collect();
    let mut others = Vec::new();
    let (mut done_ids, mut attempts, mut metadata, mut created) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut outputs: Vec<&Value> = Vec::new();
    for one in group {
        let Some(success) = &one.success else {
            others.push(one.job_id);
            continue;
        };
        done_ids.push(one.job_id);
        attempts.push(success.attempt);
        created.push(success.job_created_at);
        outputs.push(&success.output);
        let mut members = Map::new();
        if let Some(used) = success.used {
            members.insert(USED.to_owned(), used.into());
        }
        metadata.push(Value::Object(members));
    }
    let (lock, avoid): (_, Vec<Uuid>) = match locking {
        Locking::Wait(avoid) => (&statements.lock, avoid.iter().copied().collect()),
        Locking::Skip => (&statements.lock_skipping, Vec::new()),
    };
    let (no_holders, no_meters): ([Uuid; 0], [Meter; 0]) = ([], []);
    let lock_params: [&(dyn ToSql + Sync); 4] = [&ids, &avoid, &&no_holders[..], &&no_meters[..]];
    let charged_params: [&(dyn ToSql + Sync); 1] = [&ids];
    let complete: [&(dyn ToSql + Sync); 5] = [&done_ids, &attempts, &metadata, &created, &outputs];
    let release: [&(dyn ToSql + Sync); 1] = [&others];
    // A statement without work is not sent.
    let query = async |statement, needed: bool, params: &[&(dyn ToSql + Sync)]| match needed {
        true => client.query(statement, params).await,
        false => Ok(Vec::new()),
    };
    let ((), locked, completed, released, charged) = tokio::try_join!(
        biased;
        connection.begin(),
        client.query(lock, &lock_params),
        query(&statements.complete, !done_ids.is_empty(), &complete),
        query(&statements.release, !others.is_empty(), &release),
        query(&statements.charged, look_for_charges, &charged_params),
    )
    .map_err(|error| Failure::of(error, Phase::Open))?;
    let locked: BTreeMap<Key, LockedHolder> = locked.iter().map(locked_holder).collect();
    let mut released: Vec<Released> = released.iter().map(released_before).collect();
    let used: HashMap<i64, Option<i64>> = group
        .iter()
        .filter_map(|one| Some((one.job_id, one.success.as_ref()?.used)))
        .collect();
    let (with_reservation, completed): (Vec<Row>, Vec<Row>) = completed
        .into_iter()
        .partition(|row| row.get::<_, Option<Uuid>>("holder").is_some());
    let request_ids: HashMap<i64, Option<String>> = completed
        .iter()
        .map(|row| (row.get("job_id"), row.get("request_id")))
        .collect();
    released.extend(with_reservation.iter().map(|row| {
        let job_id = row.get("job_id");
        Released {
            ended: true,
            state: Some("completed".to_owned()),
            used: used.get(&job_id).copied().flatten(),
            request_id: request_ids.get(&job_id).cloned().flatten(),
            ..released_row(row, row.get("holder"))
        }
    }));
    let not_locked: HashMap<i64, Uuid> = released
        .iter()
        .filter(|one| !locked.contains_key(&one.key))
        .map(|one| (one.job_id, one.key.0))
        .collect();
    if !not_locked.is_empty() {
        return Err(SettleFailure::Failed(not_locked_failure(
            group,
            locking,
            &not_locked,
        )));
    }
    let already_charged: Vec<i64> = charged.iter().map(|row| row.get("job_id")).collect();
    let changes = changes::plan(&locked, &released, &already_charged, rules);
    Ok(Planned {
        locked,
        released,
        completed: request_ids.into_keys().collect(),
        changes,
    })
}

/// Excluded holders are blocked by others. A holder that was not excluded got the job after the locks were taken.
fn not_locked_failure(group: &[&Ended], locking: &Locking, not_locked: &HashMap<i64, Uuid>) -> GroupFailure {
    let is_blocked = |holder: &Uuid| match locking {
        Locking::Wait(avoid) => avoid.contains(holder),
        Locking::Skip => true,
    };
    let blocked: Vec<(usize, Uuid)> = group
        .iter()
        .enumerate()
        .filter_map(|(index, one)| Some((index, *not_locked.get(&one.job_id)?)))
        .filter(|(_, holder)| is_blocked(holder))
        .collect();
    if blocked.is_empty() {
        Failure::Conflict(DatabaseError::Contended).into()
    } else {
        GroupFailure::NotLocked(blocked)
    }
}

/// A row of `lock.sql`.
pub(super) fn locked_holder(row: &Row) -> (Key, LockedHolder) {
    let locked = LockedHolder {
        slots_in_use: row.get("slots_in_use"),
        parked: row.get("parked"),
        is_user: row.get::<_, Option<Uuid>>("user_id").is_some(),
        plan: Plan::from_row(row),
    };
    ((row.get("holder"), row.get("event_type")), locked)
}

/// A row of `complete.sql` or `release.sql`.
fn released_row(row: &Row, holder: Uuid) -> Released {
    Released {
        key: (holder, row.get("event_type")),
        held_slot: row.get("held_slot"),
        was_parked: row.get("parked"),
        job_id: row.get("job_id"),
        user_id: row.get("user_id"),
        period_start: row.get("period_start"),
        windows: row.get("windows"),
        reserved_at: row.get("created_at"),
        reserved: row.get("reserved_amount"),
        from_grants: row.get("from_grants"),
        overage: row.get("overage"),
        request_id: row.get("request_id"),
        ended: false,
        state: None,
        used: None,
    }
}

/// A row of `release.sql`.
fn released_before(row: &Row) -> Released {
    Released {
        ended: row.get("ended"),
        state: row.get("state"),
        used: row.get("used"),
        ..released_row(row, row.get("holder"))
    }
}

/// The second round trip. Returns the number of parked jobs that became available.
pub(super) async fn write(
    connection: &Connection<SettlementStatements>,
    changes: &Changes,
    locked: &BTreeMap<Key, LockedHolder>,
    after_commit: &AfterCommit,
) -> Result<usize, tokio_postgres::Error> {
    let Connection { client, statements, .. } = connection;
    let Changes {
        charges,
        balances,
        draws,
        freed,
        promotions,
    } = changes;
    let charge: [&(dyn ToSql + Sync); 8] = [
        &charges.users,
        &charges.meters,
        &charges.amounts,
        &charges.jobs,
        &charges.periods,
        &charges.windows,
        &charges.reserved_at,
        &charges.overages,
    ];
    let balance: [&(dyn ToSql + Sync); 6] = [
        &balances.users,
        &balances.meters,
        &balances.spans,
        &balances.starts,
        &balances.reserved,
        &balances.charged,
    ];
    let settle_draws: [&(dyn ToSql + Sync); 6] = [
        &draws.jobs,
        &draws.charged,
        &draws.returned,
        &draws.users,
        &draws.meters,
        &draws.periods,
    ];
    let holders: [&(dyn ToSql + Sync); 4] = [&freed.holders, &freed.meters, &freed.slots, &freed.parked];
    let promote: [&(dyn ToSql + Sync); 7] = [
        &promotions.holders,
        &promotions.meters,
        &promotions.counts,
        &promotions.lanes,
        &promotions.limits,
        &promotions.freed,
        &promotions.unparked,
    ];
    // A statement without rows is not sent.
    let execute = async |statement, rows: usize, params: &[&(dyn ToSql + Sync)]| match rows {
        0 => Ok(0),
        _ => client.execute(statement, params).await,
    };
    let promote = async {
        match promotions.holders.len() {
            0 => Ok(Vec::new()),
            _ => client.query(&statements.promote, &promote).await,
        }
    };
    let (_, _, _, _, promoted_jobs, ()) = tokio::try_join!(
        biased;
        execute(&statements.charge, charges.jobs.len(), &charge),
        execute(&statements.update_balances, balances.users.len(), &balance),
        execute(&statements.settle_draws, draws.jobs.len(), &settle_draws),
        execute(&statements.update_holders, freed.holders.len(), &holders),
        promote,
        connection.commit(),
    )?;
    let holder = |row: &Row| {
        let id = row.get("holder");
        let is_user = locked
            .get(&(id, row.get("event_type")))
            .is_some_and(|holder| holder.is_user);
        Holder {
            id,
            user_id: is_user.then_some(id),
        }
    };
    let jobs = promoted_jobs
        .iter()
        .map(|row| (row.get("job_id"), row.get("attempt"), holder(row)));
    after_commit.promoted.remember(jobs, Instant::now());
    let queues = promoted_jobs.iter().map(|row| row.get("queue"));
    after_commit.notifier.notify(queues.collect());
    metrics::counter!("weir_promotions_total").increment(promoted_jobs.len() as u64);
    Ok(promoted_jobs.len())
}

fn record(released: &[Released], charges: &HashMap<i64, i64>) {
    for one in released.iter().filter(|one| one.ended) {
        let outcome = one.state.clone().unwrap_or_else(|| "deleted".to_owned());
        let meter = one.key.1.as_str();
        metrics::counter!("weir_settlements_total", "meter" => meter, "outcome" => outcome.clone())
            .increment(1);
        let is_notable = outcome != "completed";
        crate::access_log!(
            is_notable,
            job = one.job_id,
            user = one.user_id.map(tracing::field::display),
            request_id = one.request_id,
            meter,
            reserved = one.reserved,
            charged = charges.get(&one.job_id).copied().unwrap_or(0),
            outcome,
            "settled"
        );
    }
}

//! The settlement transaction: one call of `settle_many()`, in one round trip.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use postgres_types::ToSql;
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::ended::{Ended, Settled};
use super::statements::SettlementStatements;
use crate::committer::{GroupFailure, Locking, Transact};
use crate::database::session::Connection;
use crate::database::{DatabaseError, Failure, Notifier, Phase};
use crate::json::json_bytes;
use crate::meter::Meter;

/// The maximum number of jobs that one transaction promotes, as in `settle_many()`.
pub const MAX_PROMOTED: usize = 1000;

/// An attempt as a parameter of `settle_many()`.
#[derive(Debug, ToSql)]
#[postgres(name = "ended_attempt")]
struct AttemptRow<'a> {
    job_id: i64,
    /// `None` if it did not succeed.
    attempt: Option<i16>,
    created_at: Option<Timestamp>,
    used: Option<i64>,
    output: Option<&'a Value>,
}

impl<'a> AttemptRow<'a> {
    fn new(one: &'a Ended) -> Self {
        let success = one.success.as_ref();
        Self {
            job_id: one.job_id,
            attempt: success.map(|success| success.attempt),
            created_at: success.and_then(|success| success.job_created_at),
            used: success.and_then(|success| success.used),
            output: success.map(|success| &success.output),
        }
    }
}

/// Settles groups of ended attempts.
pub(super) struct Settle {
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
        let attempts: Vec<AttemptRow<'_>> = group.iter().map(|one| AttemptRow::new(one)).collect();
        let (skips_locked, avoid): (bool, Vec<Uuid>) = match locking {
            Locking::Wait(avoid) => (false, avoid.iter().copied().collect()),
            Locking::Skip => (true, Vec::new()),
        };
        let (no_holders, no_meters): ([Uuid; 0], [Meter; 0]) = ([], []);
        let params: [&(dyn ToSql + Sync); 5] = [
            &attempts,
            &skips_locked,
            &avoid,
            &&no_holders[..],
            &&no_meters[..],
        ];
        let ((), rows, ()) = tokio::try_join!(
            biased;
            connection.begin(),
            connection.client.query(&connection.statements.settle, &params),
            connection.commit(),
        )
        .map_err(|error| Failure::of(error, Phase::Committing))?;
        let settled = settled(group, locking, &rows)?;
        notify_promoted(&self.notifier, &rows);
        metrics::histogram!("weir_settlement_duration_seconds").record(started.elapsed().as_secs_f64());
        Ok(settled)
    }

    async fn blocked(
        &self,
        connection: &Connection<SettlementStatements>,
        group: &[&Ended],
    ) -> Result<Vec<(usize, Uuid)>, Failure> {
        let Connection {
            client, statements, ..
        } = connection;
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
        let Connection {
            client, statements, ..
        } = connection;
        let is_drifted = match error {
            DatabaseError::Postgres(postgres) => postgres.code() == Some(&SqlState::CHECK_VIOLATION),
            // The holder's row may be missing. Then there is nothing to lock.
            _ => false,
        };
        let rows = client
            .query(&statements.rebuild, &[&ended.job_id, &is_drifted])
            .await;
        let rows = rows.map_err(|error| Failure::of(error, Phase::Committing))?;
        let Some(holder) = rows.first().map(|row| row.get::<_, Uuid>("holder")) else {
            return Ok(false);
        };
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

/// The results in the group's order. Fails if holders were locked; nothing was written then.
fn settled(group: &[&Ended], locking: &Locking, rows: &[Row]) -> Result<Vec<Settled>, GroupFailure> {
    let (mut locked, mut results) = (HashMap::<i64, Uuid>::new(), HashMap::<i64, Settled>::new());
    for row in rows {
        // A row `lendable` has no job.
        let Some(job_id) = row.get("job_id") else {
            continue;
        };
        match row.get("outcome") {
            "locked" => {
                locked.insert(job_id, row.get("holder"));
            }
            "done" => {
                let charged = row.get("charged");
                results.insert(job_id, Settled::Done { charged });
                record(row, charged);
            }
            "fenced_out" => {
                results.insert(job_id, Settled::FencedOut);
            }
            _ => {}
        }
    }
    if !locked.is_empty() {
        return Err(not_locked(group, locking, &locked));
    }
    let result = |one: &&Ended| match results.get(&one.job_id) {
        Some(Settled::FencedOut) if one.success.is_none() => Settled::Done { charged: 0 },
        Some(settled) => *settled,
        None => Settled::FencedOut,
    };
    Ok(group.iter().map(result).collect())
}

/// Excluded holders are blocked by others. A holder that was not excluded got the job after the locks were taken, or has
/// no row.
fn not_locked(group: &[&Ended], locking: &Locking, locked: &HashMap<i64, Uuid>) -> GroupFailure {
    let is_blocked = |holder: &Uuid| match locking {
        Locking::Wait(avoid) => avoid.contains(holder),
        Locking::Skip => true,
    };
    let members = group.iter().enumerate();
    let blocked: Vec<(usize, Uuid)> = members
        .filter_map(|(index, one)| Some((index, *locked.get(&one.job_id)?)))
        .filter(|(_, holder)| is_blocked(holder))
        .collect();
    if blocked.is_empty() {
        Failure::Conflict(DatabaseError::Contended).into()
    } else {
        GroupFailure::NotLocked(blocked)
    }
}

/// Notifies the workers of the jobs that a committed transaction has promoted, and those that may be lent. Returns the
/// number of promoted jobs.
pub(super) fn notify_promoted(notifier: &Notifier, rows: &[Row]) -> usize {
    let of = |outcome: &'static str| {
        rows.iter()
            .filter(move |row| row.get::<_, &str>("outcome") == outcome)
    };
    let woken = of("promoted").chain(of("lendable"));
    notifier.notify(woken.map(|row| row.get("queue")).collect());
    let count = of("promoted").count();
    metrics::counter!("weir_promotions_total").increment(count as u64);
    count
}

/// Logs and counts an ended reservation.
fn record(row: &Row, charged: i64) {
    let Some(outcome) = row.get::<_, Option<&str>>("state") else {
        return;
    };
    let meter = Meter::of(row.get("meter"));
    metrics::counter!("weir_settlements_total", "meter" => meter.as_str(), "outcome" => outcome.to_owned())
        .increment(1);
    let is_notable = outcome != "completed";
    crate::access_log!(
        is_notable,
        job = row.get::<_, i64>("job_id"),
        user = row.get::<_, Option<Uuid>>("user_id").map(tracing::field::display),
        request_id = row.get::<_, Option<&str>>("request_id"),
        meter = meter.as_str(),
        reserved = row.get::<_, i64>("reserved"),
        charged,
        outcome,
        "settled"
    );
}

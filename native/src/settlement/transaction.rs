//! The settlement transaction, in two round trips: lock, complete and release; then, once [`books`] has worked out
//! what that changes, charge, promote and commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use postgres_types::ToSql;
use serde_json::{Map, Value};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::books::{self, Account, Books, Key, Released};
use super::group::Waiting;
use super::{Ended, Promoted, SettleError, Settled, USED};
use crate::database::{Database, DatabaseError, Kept, prepared};
use crate::holder::{self, Holder};
use crate::reservation::Rules;

pub(super) struct Desk {
    connection: Kept<Connection>,
    rules: Arc<Rules>,
    promoted: Promoted,
}

prepared! {
    struct Connection {
        lock: include_str!("../sql/settle_lock.sql"),
        complete: include_str!("../sql/settle_complete.sql"),
        release: include_str!("../sql/settle_release.sql"),
        charged: "SELECT job_id FROM usage_events WHERE job_id = ANY ($1::bigint[])",
        charge: include_str!("../sql/settle_charge.sql"),
        balances: include_str!("../sql/settle_balances.sql"),
        slots: include_str!("../sql/settle_slots.sql"),
        promote: include_str!("../sql/promote.sql"),
        candidates: include_str!("../sql/promote_candidates.sql"),
    }
}

/// What went wrong in a transaction.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Postgres(#[from] tokio_postgres::Error),
    /// A reservation came to be after the holders were locked, and its holder was not among them.
    #[error("a holder was not locked")]
    NotLocked,
}

const MOST_TRIES: usize = 4;

impl Desk {
    pub(super) fn new(database: Database, rules: Arc<Rules>, promoted: Promoted) -> Self {
        Self {
            connection: Kept::new(database),
            rules,
            promoted,
        }
    }

    /// Settles the group and answers everybody in it who waits.
    pub(super) async fn serve(&mut self, group: Vec<Waiting>) {
        let (ended, answers): (Vec<Ended>, Vec<_>) =
            group.into_iter().map(|one| (one.ended, one.answer)).unzip();
        let alone = ended.len() == 1;
        match self.settle(&ended).await {
            Ok(results) => {
                for (answer, result) in answers.into_iter().zip(results) {
                    if let Some(answer) = answer {
                        let _ = answer.send(Ok(result));
                    }
                }
            }
            // One output that cannot be stored must fail alone.
            Err(SettleError::Unstorable(_)) if !alone => {
                for (answer, one) in answers.into_iter().zip(&ended) {
                    let result = self
                        .settle(std::slice::from_ref(one))
                        .await
                        .map(|mut one| one.remove(0));
                    if let Some(answer) = answer {
                        let _ = answer.send(result);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(%error, jobs = ended.len(), "could not settle");
                for answer in answers.into_iter().flatten() {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }

    pub(super) async fn promote_waiting(&mut self) -> Result<usize, SettleError> {
        let connection = self.connection.get().await?;
        let promoted = promote_candidates(connection, &self.rules, &self.promoted).await;
        if promoted.is_err() {
            self.connection.roll_back().await;
        }
        Ok(promoted?)
    }

    async fn settle(&mut self, ended: &[Ended]) -> Result<Vec<Settled>, SettleError> {
        let mut charged_twice = false;
        for tries in 1.. {
            let connection = self.connection.get().await?;
            let started = Instant::now();
            let failure = match transact(connection, &self.rules, &self.promoted, ended, charged_twice).await
            {
                Ok(settled) => {
                    metrics::histogram!("weir_settlement_duration_seconds")
                        .record(started.elapsed().as_secs_f64());
                    return Ok(settled);
                }
                Err(failure) => failure,
            };
            self.connection.roll_back().await;
            let Failure::Postgres(error) = failure else {
                if tries < MOST_TRIES {
                    continue;
                }
                return Err(DatabaseError::Contended.into());
            };
            let code = error.code().cloned();
            match code {
                Some(SqlState::UNTRANSLATABLE_CHARACTER | SqlState::INVALID_TEXT_REPRESENTATION) => {
                    let reason = error
                        .as_db_error()
                        .map_or_else(String::new, |db| db.message().to_owned());
                    return Err(SettleError::Unstorable(reason));
                }
                // Somebody has written a usage event for one of the jobs.
                Some(SqlState::UNIQUE_VIOLATION) if !charged_twice => charged_twice = true,
                // Settling is idempotent, so a broken connection is no reason not to try again.
                None | Some(SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE)
                    if tries < MOST_TRIES => {}
                _ => return Err(error.into()),
            }
        }
        unreachable!("it is not tried for ever")
    }
}

async fn transact(
    connection: &Connection,
    rules: &Rules,
    promoted: &Promoted,
    ended: &[Ended],
    look_for_charges: bool,
) -> Result<Vec<Settled>, Failure> {
    let client = &connection.client;
    let ids: Vec<i64> = ended.iter().map(|one| one.job_id).collect();
    let mut others = Vec::new();
    let (mut done_ids, mut attempts, mut metadata) = (Vec::new(), Vec::new(), Vec::new());
    for one in ended {
        let Some(success) = &one.success else {
            others.push(one.job_id);
            continue;
        };
        done_ids.push(one.job_id);
        attempts.push(success.attempt);
        let mut members = Map::new();
        // No output is no member, as River has it; each one costs an entry in the index of the metadata.
        if !success.output.is_null() {
            members.insert("output".to_owned(), success.output.clone());
        }
        if let Some(used) = success.used {
            members.insert(USED.to_owned(), used.into());
        }
        metadata.push(Value::Object(members));
    }
    let ids: [&(dyn ToSql + Sync); 1] = [&ids];
    let complete: [&(dyn ToSql + Sync); 3] = [&done_ids, &attempts, &metadata];
    let release: [&(dyn ToSql + Sync); 1] = [&others];
    // What has nothing to do is not sent.
    let query = async |statement, needed: bool, params: &[&(dyn ToSql + Sync)]| match needed {
        true => client.query(statement, params).await,
        false => Ok(Vec::new()),
    };
    let ((), locked, completed, released, charged) = tokio::try_join!(
        biased;
        client.batch_execute("BEGIN"),
        client.query(&connection.lock, &ids),
        query(&connection.complete, !done_ids.is_empty(), &complete),
        query(&connection.release, !others.is_empty(), &release),
        query(&connection.charged, look_for_charges, &ids),
    )?;
    let accounts: BTreeMap<Key, Account> = locked.iter().map(account).collect();
    let mut completed_ids = HashSet::<i64>::new();
    let mut released: Vec<Released> = released.iter().map(of_others).collect();
    let used: HashMap<i64, Option<i64>> = ended
        .iter()
        .filter_map(|one| Some((one.job_id, one.success.as_ref()?.used)))
        .collect();
    for row in &completed {
        match row.get(0) {
            Some(holder) => released.push(Released {
                ended: true,
                state: Some("completed".to_owned()),
                used: used.get(&row.get(4)).copied().flatten(),
                ..a_release(row, holder)
            }),
            None => {
                completed_ids.insert(row.get(4));
            }
        }
    }
    if released.iter().any(|one| !accounts.contains_key(&one.key)) {
        return Err(Failure::NotLocked);
    }
    let charged_before: Vec<i64> = charged.iter().map(|row| row.get(0)).collect();
    let books = books::keep(&accounts, &released, &charged_before, rules);
    write(connection, &books, &accounts, promoted).await?;
    let charges = books.charges.jobs.iter().copied().zip(books.charges.amounts);
    let charges: HashMap<i64, i32> = charges.collect();
    record(&released, &charges);
    Ok(ended
        .iter()
        .map(|one| match one.success {
            Some(_) if !completed_ids.contains(&one.job_id) => Settled::FencedOut,
            _ => Settled::Done {
                charged: charges.get(&one.job_id).copied().unwrap_or(0).into(),
            },
        })
        .collect())
}

async fn promote_candidates(
    connection: &Connection,
    rules: &Rules,
    promoted: &Promoted,
) -> Result<usize, tokio_postgres::Error> {
    let ((), rows) = tokio::try_join!(
        biased;
        connection.client.batch_execute("BEGIN"),
        connection.client.query(&connection.candidates, &[])
    )?;
    let accounts = rows.iter().map(account).collect();
    let books = books::keep(&accounts, &[], &[], rules);
    write(connection, &books, &accounts, promoted).await
}

fn account(row: &Row) -> (Key, Account) {
    let tier: Option<&str> = row.get(5);
    let account = Account {
        slots_in_use: row.get(3),
        parked: row.get(4),
        is_user: row.get::<_, Option<uuid::Uuid>>(2).is_some(),
        tier: tier.and_then(holder::tier),
    };
    ((row.get(0), row.get(1)), account)
}

fn a_release(row: &Row, holder: uuid::Uuid) -> Released {
    Released {
        key: (holder, row.get(1)),
        held_slot: row.get(2),
        was_parked: row.get(3),
        job_id: row.get(4),
        user_id: row.get(5),
        period_start: row.get(6),
        reserved: row.get(7),
        request_id: row.get(8),
        ended: false,
        state: None,
        used: None,
    }
}

fn of_others(row: &Row) -> Released {
    Released {
        ended: row.get(9),
        state: row.get(10),
        used: row.get(11),
        ..a_release(row, row.get(0))
    }
}

/// The second round trip. Returns how many parked jobs became available.
async fn write(
    connection: &Connection,
    books: &Books,
    accounts: &BTreeMap<Key, Account>,
    promoted: &Promoted,
) -> Result<usize, tokio_postgres::Error> {
    let client = &connection.client;
    let Books {
        charges,
        balances,
        freed,
        promotions,
    } = books;
    let charge: [&(dyn ToSql + Sync); 5] = [
        &charges.users,
        &charges.event_types,
        &charges.amounts,
        &charges.jobs,
        &charges.periods,
    ];
    let balance: [&(dyn ToSql + Sync); 5] = [
        &balances.users,
        &balances.event_types,
        &balances.periods,
        &balances.reserved,
        &balances.charged,
    ];
    let slots: [&(dyn ToSql + Sync); 4] = [&freed.holders, &freed.event_types, &freed.slots, &freed.parked];
    let promote: [&(dyn ToSql + Sync); 7] = [
        &promotions.holders,
        &promotions.event_types,
        &promotions.counts,
        &promotions.lanes,
        &promotions.limits,
        &promotions.freed,
        &promotions.unparked,
    ];
    // What has nothing to write is not sent.
    let execute = async |statement, rows: usize, params: &[&(dyn ToSql + Sync)]| match rows {
        0 => Ok(0),
        _ => client.execute(statement, params).await,
    };
    let promote = async {
        match promotions.holders.len() {
            0 => Ok(Vec::new()),
            _ => client.query(&connection.promote, &promote).await,
        }
    };
    let (_, _, _, woken, ()) = tokio::try_join!(
        biased;
        execute(&connection.charge, charges.jobs.len(), &charge),
        execute(&connection.balances, balances.users.len(), &balance),
        execute(&connection.slots, freed.holders.len(), &slots),
        promote,
        client.batch_execute("COMMIT"),
    )?;
    let holder = |row: &Row| {
        let id = row.get(2);
        let is_user = accounts
            .get(&(id, row.get(3)))
            .is_some_and(|account| account.is_user);
        Holder {
            id,
            user_id: is_user.then_some(id),
        }
    };
    let jobs = woken.iter().map(|row| (row.get(0), row.get(1), holder(row)));
    promoted.remember(jobs, Instant::now());
    metrics::counter!("weir_promotions_total").increment(woken.len() as u64);
    Ok(woken.len())
}

fn record(released: &[Released], charges: &HashMap<i64, i32>) {
    for one in released.iter().filter(|one| one.ended) {
        let outcome = one.state.clone().unwrap_or_else(|| "deleted".to_owned());
        let event_type = one.key.1.as_str();
        metrics::counter!("weir_settlements_total", "event_type" => event_type, "outcome" => outcome.clone())
            .increment(1);
        tracing::info!(
            job = one.job_id,
            user = one.user_id.map(tracing::field::display),
            request_id = one.request_id,
            event_type,
            reserved = one.reserved,
            charged = charges.get(&one.job_id).copied().unwrap_or(0),
            outcome,
            "settled"
        );
    }
}

//! The settlement transaction, in two round trips: lock, complete and release; then promote and commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row, Statement};
use uuid::Uuid;
use weir_policy::lane::Lane;
use weir_policy::tier::Tier;

use super::group::Waiting;
use super::{Ended, SettleError, Settled, USED};
use crate::database::{Database, DatabaseError, prepare};
use crate::reservation::Rules;
use crate::service::EventType;

pub(super) struct Desk {
    database: Database,
    rules: Arc<Rules>,
    connection: Option<Connection>,
}

struct Connection {
    client: Client,
    lock: Statement,
    complete: Statement,
    release: Statement,
    promote: Statement,
    candidates: Statement,
}

impl Connection {
    async fn open(database: &Database) -> Result<Self, DatabaseError> {
        let client = database.connect_by_key().await?;
        let [lock, complete, release, promote, candidates] = prepare(
            &client,
            [
                include_str!("../sql/settle_lock.sql"),
                include_str!("../sql/settle_complete.sql"),
                include_str!("../sql/settle_release.sql"),
                include_str!("../sql/promote.sql"),
                include_str!("../sql/promote_candidates.sql"),
            ],
        )
        .await?;
        Ok(Self {
            client,
            lock,
            complete,
            release,
            promote,
            candidates,
        })
    }
}

const MOST_TRIES: usize = 4;

impl Desk {
    pub(super) fn new(database: Database, rules: Arc<Rules>) -> Self {
        Self {
            database,
            rules,
            connection: None,
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
                let mut error = Some(error);
                for answer in answers.into_iter().flatten() {
                    let _ = answer.send(Err(error
                        .take()
                        .unwrap_or(SettleError::Database(DatabaseError::Timeout))));
                }
            }
        }
    }

    pub(super) async fn promote_waiting(&mut self) -> Result<usize, SettleError> {
        let connection = match self.connection.take() {
            Some(connection) if !connection.client.is_closed() => connection,
            _ => Connection::open(&self.database).await?,
        };
        let client = &connection.client;
        let promoted = async {
            let ((), rows) = tokio::try_join!(
            biased;
                    client.batch_execute("BEGIN"),
                    client.query(&connection.candidates, &[])
                )?;
            let accounts = rows.iter().map(account).collect();
            promote(&connection, &self.rules, &accounts).await
        }
        .await;
        let usable = promoted.is_ok() || client.batch_execute("ROLLBACK").await.is_ok();
        if usable {
            self.connection = Some(connection);
        }
        let promoted = promoted?;
        metrics::counter!("weir_promotions_total").increment(promoted as u64);
        Ok(promoted)
    }

    async fn settle(&mut self, ended: &[Ended]) -> Result<Vec<Settled>, SettleError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let connection = match self.connection.take() {
                Some(connection) if !connection.client.is_closed() => connection,
                _ => Connection::open(&self.database).await?,
            };
            let started = Instant::now();
            match transact(&connection, &self.rules, ended).await {
                Ok(settled) => {
                    metrics::histogram!("weir_settlement_duration_seconds")
                        .record(started.elapsed().as_secs_f64());
                    self.connection = Some(connection);
                    return Ok(settled);
                }
                Err(error) => {
                    if connection.client.batch_execute("ROLLBACK").await.is_ok() {
                        self.connection = Some(connection);
                    }
                    let code = error.code().cloned();
                    match code {
                        Some(SqlState::UNTRANSLATABLE_CHARACTER | SqlState::INVALID_TEXT_REPRESENTATION) => {
                            let reason = error
                                .as_db_error()
                                .map_or_else(String::new, |db| db.message().to_owned());
                            return Err(SettleError::Unstorable(reason));
                        }
                        // Settling is idempotent, so a broken connection is no reason not to try again.
                        None
                        | Some(SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE)
                            if tries < MOST_TRIES => {}
                        _ => return Err(error.into()),
                    }
                }
            }
        }
    }
}

/// A holder after its reservations were released.
struct Account {
    slots_in_use: i32,
    parked: i32,
    is_user: bool,
    tier: Option<Tier>,
}

async fn transact(
    connection: &Connection,
    rules: &Rules,
    ended: &[Ended],
) -> Result<Vec<Settled>, tokio_postgres::Error> {
    let client = &connection.client;
    let ids: Vec<i64> = ended.iter().map(|one| one.job_id).collect();
    let (mut done_ids, mut attempts, mut metadata) = (Vec::new(), Vec::new(), Vec::new());
    for one in ended {
        if let Some(success) = &one.success {
            done_ids.push(one.job_id);
            attempts.push(success.attempt);
            let mut members = Map::from_iter([("output".to_owned(), success.output.clone())]);
            if let Some(used) = success.used {
                members.insert(USED.to_owned(), used.into());
            }
            metadata.push(Value::Object(members));
        }
    }
    let id_params: [&(dyn postgres_types::ToSql + Sync); 1] = [&ids];
    let complete_params: [&(dyn postgres_types::ToSql + Sync); 3] = [&done_ids, &attempts, &metadata];
    let ((), _, completed, released) = tokio::try_join!(
        biased;
        client.batch_execute("BEGIN"),
        client.execute(&connection.lock, &id_params),
        client.query(&connection.complete, &complete_params),
        client.query(&connection.release, &id_params),
    )?;
    let completed: HashSet<i64> = completed.iter().map(|row| row.get(0)).collect();
    let mut accounts = BTreeMap::new();
    let mut charges = HashMap::new();
    for row in &released {
        let (key, account) = account(row);
        accounts.insert(key, account);
        if let Some(job_id) = row.get::<_, Option<i64>>(6) {
            charges.insert(job_id, i64::from(row.get::<_, i32>(9)));
        }
    }
    let promoted = promote(connection, rules, &accounts).await?;
    record(&released, promoted);
    Ok(ended
        .iter()
        .map(|one| {
            let charged = charges.get(&one.job_id).copied().unwrap_or(0);
            match one.success {
                Some(_) if !completed.contains(&one.job_id) => Settled::FencedOut,
                _ => Settled::Done { charged },
            }
        })
        .collect())
}

fn account(row: &Row) -> ((Uuid, EventType), Account) {
    let tier: Option<&str> = row.get(5);
    let account = Account {
        slots_in_use: row.get(3),
        parked: row.get(4),
        is_user: row.get::<_, Option<Uuid>>(2).is_some(),
        tier: tier.and_then(Tier::parse),
    };
    ((row.get(0), row.get(1)), account)
}

/// The second round trip: gives the free slots away, if anybody waits for one, and commits.
async fn promote(
    connection: &Connection,
    rules: &Rules,
    accounts: &BTreeMap<(Uuid, EventType), Account>,
) -> Result<usize, tokio_postgres::Error> {
    let (mut holders, mut event_types, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    let (mut lanes, mut limits) = (Vec::new(), Vec::new());
    for (&(holder, event_type), account) in accounts {
        let limit = rules
            .slots(account.is_user, account.tier)
            .map(|limit| i32::try_from(limit).unwrap_or(i32::MAX));
        let count = limit.map_or(account.parked, |limit| {
            account.parked.min(limit - account.slots_in_use)
        });
        if count > 0 {
            holders.push(holder);
            event_types.push(event_type);
            counts.push(count);
            lanes.push(Lane::select(account.tier, false).as_str());
            limits.push(limit.unwrap_or(i32::MAX));
        }
    }
    let client = &connection.client;
    if holders.is_empty() {
        client.batch_execute("COMMIT").await?;
        return Ok(0);
    }
    let params: [&(dyn postgres_types::ToSql + Sync); 5] = [&holders, &event_types, &counts, &lanes, &limits];
    let (woken, ()) = tokio::try_join!(
        biased;
        client.query(&connection.promote, &params),
        client.batch_execute("COMMIT")
    )?;
    Ok(woken.len())
}

fn record(released: &[Row], promoted: usize) {
    metrics::counter!("weir_promotions_total").increment(promoted as u64);
    for row in released {
        let Some(job_id) = row.get::<_, Option<i64>>(6) else {
            continue;
        };
        let event_type: EventType = row.get(1);
        let user = row.get::<_, Option<Uuid>>(2).map(tracing::field::display);
        let state: Option<&str> = row.get(7);
        let (reserved, charged): (i32, i32) = (row.get(8), row.get(9));
        let outcome = state.unwrap_or("deleted").to_owned();
        metrics::counter!("weir_settlements_total", "event_type" => event_type.as_str(), "outcome" => outcome.clone())
            .increment(1);
        tracing::info!(
            job = job_id,
            user,
            request_id = row.get::<_, Option<&str>>(10),
            event_type = event_type.as_str(),
            reserved,
            charged,
            outcome,
            "settled"
        );
    }
}

//! The reservation transaction, in two round trips: lock and read; then, once [`Account::decide`] has decided,
//! write and commit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;
use weir_policy::admission::{Account, Decision};
use weir_policy::lane::Lane;
use weir_policy::tier::{SlotLimits, Tier};

use super::group::Waiting;
use super::{Answer, Idempotency, Quota, ReserveError, Submission};
use crate::database::{Database, DatabaseError};
use crate::service::EventType;

/// What the transaction decides by, besides the database.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// How many slots a holder has; `None` parks nobody.
    pub slot_limits: Option<SlotLimits>,
    /// How long a reservation lives unless it is renewed.
    pub ttl: Duration,
}

impl Rules {
    /// The slots of a holder: a user of that tier (unknown counts as Free), or an anonymous address.
    pub(crate) fn slots(&self, is_user: bool, tier: Option<Tier>) -> Option<u32> {
        let limits = self.slot_limits?;
        Some(if is_user {
            limits.of(tier.unwrap_or_default())
        } else {
            limits.anonymous
        })
    }
}

/// Owns the connection over which groups are admitted, and opens another when it broke.
pub(super) struct Desk {
    database: Database,
    rules: Arc<Rules>,
    connection: Option<Connection>,
}

struct Connection {
    client: Client,
    lock: Statement,
    read: Statement,
    ids: Statement,
    earlier: Statement,
    forget: Statement,
    jobs: Statement,
    tickets: Statement,
    submissions: Statement,
    slots: Statement,
    balances: Statement,
    notify: Statement,
    provision: Statement,
}

impl Connection {
    async fn open(database: &Database) -> Result<Self, DatabaseError> {
        let client = database.connect_by_key().await?;
        let statements = try_join_all(
            [
                include_str!("../sql/reserve_lock.sql"),
                include_str!("../sql/reserve_read.sql"),
                "SELECT nextval('river_job_id_seq') FROM generate_series(1, $1::int)",
                include_str!("../sql/reserve_earlier.sql"),
                include_str!("../sql/reserve_forget.sql"),
                include_str!("../sql/reserve_jobs.sql"),
                include_str!("../sql/reserve_tickets.sql"),
                include_str!("../sql/reserve_submissions.sql"),
                include_str!("../sql/reserve_slots.sql"),
                include_str!("../sql/reserve_balances.sql"),
                include_str!("../sql/notify_insert.sql"),
                include_str!("../sql/provision.sql"),
            ]
            .into_iter()
            .map(|sql| client.prepare(sql)),
        )
        .await?;
        let Ok(
            [
                lock,
                read,
                ids,
                earlier,
                forget,
                jobs,
                tickets,
                submissions,
                slots,
                balances,
                notify,
                provision,
            ],
        ) = <[Statement; 12]>::try_from(statements)
        else {
            unreachable!("as many statements come back as were prepared")
        };
        Ok(Self {
            client,
            lock,
            read,
            ids,
            earlier,
            forget,
            jobs,
            tickets,
            submissions,
            slots,
            balances,
            notify,
            provision,
        })
    }
}

/// An account under its lock, with what else the answers need.
struct Locked {
    account: Account,
    is_user: bool,
    tier: Option<Tier>,
    period: Option<(Timestamp, Timestamp)>,
    slots_before: u32,
    parked_before: u32,
    reserved_before: i64,
}

impl Locked {
    fn quota(&self) -> Option<Quota> {
        self.period.map(|(_, end)| Quota::of(&self.account, end))
    }
}

type AccountKey = (Uuid, EventType);

/// What was decided for one submission, and the quota right after it.
struct Decided {
    verdict: Verdict,
    quota: Option<Quota>,
}

enum Verdict {
    New { id: i64, decision: Decision },
    Same { id: i64 },
    KeyReused,
    OverQuota,
}

/// A failure, and whether the transaction may simply be run again.
enum Failure {
    /// Nothing was written, or PostgreSQL itself rolled back and says that another try may work.
    Again(ReserveError),
    Final(ReserveError),
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

    /// Admits the group and answers everybody in it.
    pub(super) async fn serve(&mut self, group: Vec<Waiting>) {
        let (submissions, answers): (Vec<Submission>, Vec<oneshot::Sender<_>>) =
            group.into_iter().map(|one| (one.submission, one.answer)).unzip();
        match self.admit(&submissions).await {
            Ok(results) => {
                for (answer, result) in answers.into_iter().zip(results) {
                    // Nobody waits any more: the job is there all the same.
                    let _ = answer.send(Ok(result));
                }
            }
            // One bad submission must fail alone.
            Err(error) if submissions.len() > 1 && !is_outage(&error) => {
                for (answer, submission) in answers.into_iter().zip(&submissions) {
                    let result = self.admit(std::slice::from_ref(submission)).await;
                    let _ = answer.send(result.map(|mut one| one.remove(0)));
                }
            }
            Err(error) => {
                tracing::warn!(%error, submissions = submissions.len(), "a group could not be admitted");
                let mut error = Some(error);
                for answer in answers {
                    let _ = answer.send(Err(error
                        .take()
                        .unwrap_or(ReserveError::Database(DatabaseError::Timeout))));
                }
            }
        }
    }

    async fn admit(&mut self, group: &[Submission]) -> Result<Vec<Answer>, ReserveError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let connection = match self.connection.take() {
                Some(connection) if !connection.client.is_closed() => connection,
                _ => Connection::open(&self.database).await?,
            };
            match transact(&connection, &self.rules, group).await {
                Ok(answers) => {
                    self.connection = Some(connection);
                    return Ok(answers);
                }
                Err(failure) => {
                    // A connection that cannot even roll back is of no use.
                    if connection.client.batch_execute("ROLLBACK").await.is_ok() {
                        self.connection = Some(connection);
                    }
                    match failure {
                        Failure::Again(_) if tries < MOST_TRIES => {}
                        Failure::Again(error) | Failure::Final(error) => return Err(error),
                    }
                }
            }
        }
    }
}

fn is_outage(error: &ReserveError) -> bool {
    match error {
        ReserveError::Database(DatabaseError::Postgres(error)) => error.as_db_error().is_none(),
        ReserveError::Database(_) | ReserveError::Overloaded => true,
        ReserveError::Unstorable(_) => false,
    }
}

fn classify(error: tokio_postgres::Error, nothing_written: bool) -> Failure {
    let code = error.code().cloned();
    match code {
        // Lost against another transaction, which PostgreSQL settles by ending one of the two.
        Some(
            SqlState::T_R_DEADLOCK_DETECTED
            | SqlState::T_R_SERIALIZATION_FAILURE
            | SqlState::UNIQUE_VIOLATION,
        ) => Failure::Again(error.into()),
        Some(SqlState::UNTRANSLATABLE_CHARACTER | SqlState::INVALID_TEXT_REPRESENTATION) => {
            let reason = error
                .as_db_error()
                .map_or_else(String::new, |db| db.message().to_owned());
            Failure::Final(ReserveError::Unstorable(reason))
        }
        // The connection broke before anything was written.
        None if nothing_written => Failure::Again(error.into()),
        _ => Failure::Final(error.into()),
    }
}

async fn transact(
    connection: &Connection,
    rules: &Rules,
    group: &[Submission],
) -> Result<Vec<Answer>, Failure> {
    let keys = account_keys(group);
    let Some((mut accounts, ids, earlier)) = lock_and_read(connection, rules, group, &keys)
        .await
        .map_err(|error| classify(error, true))?
    else {
        provision(connection, group)
            .await
            .map_err(|error| classify(error, true))?;
        return Err(Failure::Again(ReserveError::Database(DatabaseError::Timeout)));
    };
    let verdicts = decide(group, &keys, &mut accounts, &ids, &earlier);
    write(connection, rules, group, &keys, &accounts, &verdicts)
        .await
        .map_err(|error| classify(error, false))?;
    record(group, &verdicts);
    Ok(verdicts.into_iter().map(answer).collect())
}

/// The distinct accounts of a group, in the order in which they are locked, with their place in it.
fn account_keys(group: &[Submission]) -> BTreeMap<AccountKey, usize> {
    let mut keys: BTreeMap<AccountKey, usize> = group
        .iter()
        .map(|submission| ((submission.holder.id, submission.event_type), 0))
        .collect();
    for (place, index) in keys.values_mut().enumerate() {
        *index = place;
    }
    keys
}

type Earlier = HashMap<(Uuid, String), (Vec<u8>, i64)>;

/// The first round trip. `None` when a holder is not known yet.
async fn lock_and_read(
    connection: &Connection,
    rules: &Rules,
    group: &[Submission],
    keys: &BTreeMap<AccountKey, usize>,
) -> Result<Option<(Vec<Locked>, Vec<i64>, Earlier)>, tokio_postgres::Error> {
    let client = &connection.client;
    let (holders, event_types): (Vec<Uuid>, Vec<EventType>) = keys.keys().copied().unzip();
    let (key_holders, key_texts): (Vec<Uuid>, Vec<&str>) = group
        .iter()
        .filter_map(|one| {
            one.idempotency
                .as_ref()
                .map(|idempotency| (one.holder.id, idempotency.key.as_str()))
        })
        .unzip();
    let wanted = i32::try_from(group.len()).unwrap_or(i32::MAX);
    // Sent together, executed one after the other: each statement sees what was committed when its turn came,
    // so everything after the first is read under the locks. Biased, because the order of polling is the order of
    // sending, and the first error is the one that tells.
    let key_params: [&(dyn postgres_types::ToSql + Sync); 2] = [&key_holders, &key_texts];
    let account_params: [&(dyn postgres_types::ToSql + Sync); 2] = [&holders, &event_types];
    let id_params: [&(dyn postgres_types::ToSql + Sync); 1] = [&wanted];
    let ((), locked, read, ids, (earlier, _)) = tokio::try_join!(
        biased;
        client.batch_execute("BEGIN"),
        client.query(&connection.lock, &account_params),
        client.query(&connection.read, &account_params),
        client.query(&connection.ids, &id_params),
        async {
            if key_holders.is_empty() {
                return Ok((Vec::new(), 0));
            }
            tokio::try_join!(
        biased;
                client.query(&connection.earlier, &key_params),
                client.execute(&connection.forget, &key_params)
            )
        },
    )?;
    if locked.len() < keys.len() {
        return Ok(None);
    }
    let mut accounts: Vec<(i64, Locked)> = Vec::with_capacity(read.len());
    for row in &read {
        let place: i64 = row.get(0);
        let (slots, parked): (i32, i32) = (row.get(1), row.get(2));
        let (slots, parked) = (slots.unsigned_abs(), parked.unsigned_abs());
        let tier_name: Option<&str> = row.get(3);
        let limit: Option<i32> = row.get(4);
        let start: Option<Timestamp> = row.get(5);
        let end: Option<Timestamp> = row.get(6);
        let (used, reserved): (i64, i64) = (row.get(7), row.get(8));
        let is_user = tier_name.is_some();
        let tier = tier_name.and_then(Tier::parse);
        let account = Account {
            limit: limit.map(i64::from),
            used,
            reserved,
            slot_limit: rules.slots(is_user, tier),
            slots_in_use: slots,
            parked,
        };
        let period = start.zip(end);
        accounts.push((
            place,
            Locked {
                account,
                is_user,
                tier,
                period,
                slots_before: slots,
                parked_before: parked,
                reserved_before: reserved,
            },
        ));
    }
    accounts.sort_by_key(|(place, _)| *place);
    let accounts = accounts.into_iter().map(|(_, locked)| locked).collect();
    let mut ids: Vec<i64> = ids.iter().map(|row| row.get(0)).collect();
    ids.sort_unstable();
    let earlier = earlier
        .iter()
        .map(|row| {
            (
                (row.get(0), row.get(1)),
                (row.get::<_, Option<Vec<u8>>>(2).unwrap_or_default(), row.get(3)),
            )
        })
        .collect();
    Ok(Some((accounts, ids, earlier)))
}

/// Makes the rows that a first submission of a user or an address needs, in a transaction of its own.
async fn provision(connection: &Connection, group: &[Submission]) -> Result<(), tokio_postgres::Error> {
    let client = &connection.client;
    client.batch_execute("ROLLBACK").await?;
    let holders: Vec<Uuid> = group.iter().map(|one| one.holder.id).collect();
    let event_types: Vec<EventType> = group.iter().map(|one| one.event_type).collect();
    let users: Vec<Option<Uuid>> = group.iter().map(|one| one.holder.user_id).collect();
    client
        .execute(&connection.provision, &[&holders, &event_types, &users])
        .await?;
    Ok(())
}

fn decide(
    group: &[Submission],
    keys: &BTreeMap<AccountKey, usize>,
    accounts: &mut [Locked],
    ids: &[i64],
    earlier: &Earlier,
) -> Vec<Decided> {
    let mut ids = ids.iter().copied();
    let mut in_group: HashMap<(Uuid, &str), (&[u8], i64)> = HashMap::new();
    let mut verdict = |one: &'_ Submission, locked: &mut Locked| {
        // Without a user there is no plan to hold against; the slot is all that is held.
        let amount = one.holder.user_id.map_or(0, |_| i64::from(one.amount));
        match locked.account.decide(amount) {
            Decision::OverQuota => Verdict::OverQuota,
            decision => {
                let Some(id) = ids.next() else {
                    unreachable!("there are as many ids as submissions")
                };
                Verdict::New { id, decision }
            }
        }
    };
    group
        .iter()
        .map(|one| {
            let locked = &mut accounts[keys[&(one.holder.id, one.event_type)]];
            let verdict = match &one.idempotency {
                None => verdict(one, locked),
                Some(Idempotency { key, request_hash }) => {
                    let before = earlier
                        .get(&(one.holder.id, key.clone()))
                        .map(|(hash, id)| (hash.as_slice(), *id))
                        .or_else(|| in_group.get(&(one.holder.id, key.as_str())).copied());
                    match before {
                        Some((hash, id)) if hash == request_hash => Verdict::Same { id },
                        Some(_) => Verdict::KeyReused,
                        None => {
                            let verdict = verdict(one, locked);
                            if let Verdict::New { id, .. } = verdict {
                                in_group.insert((one.holder.id, key), (request_hash, id));
                            }
                            verdict
                        }
                    }
                }
            };
            Decided {
                verdict,
                quota: locked.quota(),
            }
        })
        .collect()
}

/// The columns of the rows to write, one entry a new job.
#[derive(Default)]
struct Rows<'a> {
    ids: Vec<i64>,
    args: Vec<&'a Value>,
    kinds: Vec<&'a str>,
    max_attempts: Vec<i16>,
    metadata: Vec<&'a Value>,
    queues: Vec<String>,
    states: Vec<&'static str>,
    holders: Vec<Uuid>,
    users: Vec<Option<Uuid>>,
    event_types: Vec<EventType>,
    amounts: Vec<i32>,
    periods: Vec<Option<Timestamp>>,
    admitted: Vec<bool>,
    keys: Vec<Option<&'a str>>,
    hashes: Vec<Option<&'a [u8]>>,
}

fn rows<'a>(
    group: &'a [Submission],
    keys: &BTreeMap<AccountKey, usize>,
    accounts: &[Locked],
    verdicts: &[Decided],
) -> Rows<'a> {
    let mut rows = Rows::default();
    for (one, decided) in group.iter().zip(verdicts) {
        let Verdict::New { id, decision } = &decided.verdict else {
            continue;
        };
        let locked = &accounts[keys[&(one.holder.id, one.event_type)]];
        let admitted = *decision == Decision::Admitted;
        rows.ids.push(*id);
        rows.args.push(&one.args);
        rows.kinds.push(&one.kind);
        rows.max_attempts.push(one.max_attempts);
        rows.metadata.push(&one.metadata);
        rows.queues
            .push(Lane::select(locked.tier, false).queue(&one.service));
        rows.states.push(if admitted { "available" } else { "pending" });
        rows.holders.push(one.holder.id);
        rows.users.push(one.holder.user_id);
        rows.event_types.push(one.event_type);
        rows.amounts.push(one.holder.user_id.map_or(0, |_| one.amount));
        rows.periods.push(locked.period.map(|(start, _)| start));
        rows.admitted.push(admitted);
        rows.keys.push(
            one.idempotency
                .as_ref()
                .map(|idempotency| idempotency.key.as_str()),
        );
        rows.hashes.push(
            one.idempotency
                .as_ref()
                .map(|idempotency| idempotency.request_hash.as_slice()),
        );
    }
    rows
}

/// The second round trip.
async fn write(
    connection: &Connection,
    rules: &Rules,
    group: &[Submission],
    keys: &BTreeMap<AccountKey, usize>,
    accounts: &[Locked],
    verdicts: &[Decided],
) -> Result<(), tokio_postgres::Error> {
    let client = &connection.client;
    let rows = rows(group, keys, accounts, verdicts);
    if rows.ids.is_empty() {
        return client.batch_execute("COMMIT").await;
    }
    let (mut holders, mut event_types) = (Vec::new(), Vec::new());
    let (mut slots, mut parked, mut slot_limits) = (Vec::new(), Vec::new(), Vec::new());
    let (mut users, mut user_events, mut periods) = (Vec::new(), Vec::new(), Vec::new());
    let (mut reserved, mut limits) = (Vec::new(), Vec::new());
    let signed = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    for (&(holder, event_type), &place) in keys {
        let locked = &accounts[place];
        let account = &locked.account;
        holders.push(holder);
        event_types.push(event_type);
        slots.push(signed(account.slots_in_use - locked.slots_before));
        parked.push(signed(account.parked - locked.parked_before));
        slot_limits.push(account.slot_limit.map_or(i32::MAX, signed));
        let added = account.reserved - locked.reserved_before;
        if let (true, Some((start, _)), 1..) = (locked.is_user, locked.period, added) {
            users.push(holder);
            user_events.push(event_type);
            periods.push(start);
            reserved.push(added);
            limits.push(account.limit.unwrap_or(i64::MAX));
        }
    }
    let mut queues: Vec<&str> = rows
        .queues
        .iter()
        .zip(&rows.admitted)
        .filter(|(_, admitted)| **admitted)
        .map(|(queue, _)| queue.as_str())
        .collect();
    queues.sort_unstable();
    queues.dedup();
    let payloads: Vec<String> = queues.iter().map(|queue| insert_payload(queue)).collect();
    let ttl = rules.ttl.as_secs_f64();
    let jobs: [&(dyn postgres_types::ToSql + Sync); 7] = [
        &rows.ids,
        &rows.args,
        &rows.kinds,
        &rows.max_attempts,
        &rows.metadata,
        &rows.queues,
        &rows.states,
    ];
    let tickets: [&(dyn postgres_types::ToSql + Sync); 8] = [
        &rows.ids,
        &rows.holders,
        &rows.users,
        &rows.event_types,
        &rows.amounts,
        &rows.periods,
        &rows.admitted,
        &ttl,
    ];
    let submissions: [&(dyn postgres_types::ToSql + Sync); 7] = [
        &rows.ids,
        &rows.holders,
        &rows.users,
        &rows.event_types,
        &rows.amounts,
        &rows.keys,
        &rows.hashes,
    ];
    let slots_params: [&(dyn postgres_types::ToSql + Sync); 5] =
        [&holders, &event_types, &slots, &parked, &slot_limits];
    let balances: [&(dyn postgres_types::ToSql + Sync); 5] =
        [&users, &user_events, &periods, &reserved, &limits];
    let notify: [&(dyn postgres_types::ToSql + Sync); 1] = [&payloads];
    tokio::try_join!(
        biased;
        client.execute(&connection.jobs, &jobs),
        client.execute(&connection.tickets, &tickets),
        client.execute(&connection.submissions, &submissions),
        client.execute(&connection.slots, &slots_params),
        client.execute(&connection.balances, &balances),
        client.execute(&connection.notify, &notify),
        client.batch_execute("COMMIT"),
    )?;
    Ok(())
}

/// What River's clients send on `river_insert`.
pub(crate) fn insert_payload(queue: &str) -> String {
    serde_json::json!({ "queue": queue }).to_string()
}

fn answer(decided: Decided) -> Answer {
    match (decided.verdict, decided.quota) {
        (Verdict::New { id, .. }, quota) => Answer::Accepted { job_id: id, quota },
        (Verdict::Same { id }, quota) => Answer::Repeated { job_id: id, quota },
        (Verdict::OverQuota, Some(quota)) => Answer::OverQuota { quota },
        (Verdict::OverQuota, None) => unreachable!("only an account with a plan can be over its quota"),
        (Verdict::KeyReused, _) => Answer::KeyReused,
    }
}

fn record(group: &[Submission], verdicts: &[Decided]) {
    for (one, decided) in group.iter().zip(verdicts) {
        let (event_type, amount) = (one.event_type.as_str(), one.amount);
        let user = one.holder.user_id.map(tracing::field::display);
        match &decided.verdict {
            Verdict::New { id, decision } => {
                let parked = *decision == Decision::Parked;
                metrics::counter!("weir_reservations_total", "event_type" => event_type,
                    "decision" => if parked { "parked" } else { "admitted" })
                .increment(1);
                tracing::info!(job = id, user, event_type, amount, parked, "reserved");
            }
            Verdict::OverQuota => {
                metrics::counter!("weir_rejections_total", "event_type" => event_type, "reason" => "over_quota")
                    .increment(1);
                tracing::info!(user, event_type, amount, "rejected: over quota");
            }
            Verdict::KeyReused => {
                metrics::counter!("weir_rejections_total", "event_type" => event_type, "reason" => "key_reused")
                    .increment(1);
            }
            Verdict::Same { .. } => {}
        }
    }
}

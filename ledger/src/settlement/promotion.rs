//! Promotion without an ended job: after an upgrade, after limits were raised, or after a missed event.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use postgres_types::ToSql;
use uuid::Uuid;

use super::statements::SettlementStatements;
use super::transaction::{MAX_PROMOTED, notify_promoted};
use crate::database::session::{Connection, Session, with_deadline};
use crate::database::{Database, DatabaseError, Failure, Notifier, Phase};
use crate::hold_off::HoldOff;
use crate::meter::Meter;
use crate::pass::{Pass, Slice};

/// A holder and one of its meters.
type Key = (Uuid, Meter);

/// The number of waiting holders in a slice.
const SLICE: i32 = 150;

/// The pause after a slice without promotions. Holders that get room are checked when their limits change or their jobs
/// end. Slices find missed ones.
const REST: Duration = Duration::from_secs(2);

/// A subscription that changed within this time is checked first.
const CHANGED_WITHIN: Duration = Duration::from_secs(5);

/// The lock timeout. Promotion skips locked holders, so this applies to the jobs' rows.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// The maximum time to find the holders for which a transaction fails. Each one waits for a lock.
const NARROWING: Duration = Duration::from_secs(5);

/// The time to avoid a holder after its jobs could not be started. When more jobs are due than one round handles, this
/// also applies to a holder with a lock held by another transaction.
const HOLD_OFF_TIME: Duration = Duration::from_secs(1);

/// The maximum number of due jobs in one transaction.
const MAX_DUE: usize = 500;

/// Gives free slots to parked jobs, one slice of holders at a time.
pub struct Promoter {
    session: Session<SettlementStatements>,
    notifier: Notifier,
    pass: Pass<Key>,
    /// Holders to avoid for now.
    hold_off: HoldOff<Key>,
}

impl Promoter {
    pub(super) fn new(database: &Database) -> Self {
        Self {
            session: Session::new(database.clone(), LOCK_TIMEOUT),
            notifier: database.notifier(),
            pass: Pass::new(REST),
            hold_off: HoldOff::new(HOLD_OFF_TIME),
        }
    }

    /// Checks the holders with a changed subscription and the next slice of all waiting holders, and promotes their
    /// jobs. Returns the number of jobs that became available.
    ///
    /// # Errors
    ///
    /// When the database cannot be used.
    pub async fn promote(&mut self) -> Result<usize, DatabaseError> {
        self.promote_slice(false).await
    }

    async fn promote_slice(&mut self, hurried: bool) -> Result<usize, DatabaseError> {
        let is_due = self.pass.is_due(true, hurried);
        let after = self.pass.after().unwrap_or(FIRST);
        let size = if is_due { SLICE } else { 0 };
        let found = match self.session.connection().await {
            Ok(connection) => with_deadline(waiting(connection, after, size)).await,
            Err(failure) => Err(failure),
        };
        let (mut with_room, mut next) = match found {
            Ok(found) => found,
            Err(failure) => return Err(self.recover(failure).await),
        };
        if !hurried {
            with_room.retain(|key| !self.hold_off.applies_to(key));
        }
        let promoted = self.promote_each(with_room, &[]).await.map(|round| round.jobs);
        if matches!(promoted, Ok(count) if count >= MAX_PROMOTED) {
            // Continue with the holders that did not fit into one transaction.
            next = Some(after);
        }
        if is_due {
            match promoted {
                Ok(promoted) => self.pass.advance(Slice {
                    next,
                    done: i64::try_from(promoted).unwrap_or(i64::MAX),
                }),
                // If a slice fails, continue with the next one.
                Err(_) => self.pass.skip_to(next),
            }
        }
        promoted
    }

    /// Admits or parks due jobs: submissions with a later start, and retries shortly before their time. Returns the
    /// number of jobs that became available.
    ///
    /// # Errors
    ///
    /// When the database cannot be used.
    pub async fn start_due(&mut self) -> Result<usize, DatabaseError> {
        let left_out: Vec<Key> = self.hold_off.holders().collect();
        let found = match self.session.connection().await {
            Ok(connection) => with_deadline(due(connection, &left_out)).await,
            Err(failure) => Err(failure),
        };
        let jobs = match found {
            Ok(jobs) => jobs,
            Err(failure) => return Err(self.recover(failure).await),
        };
        let is_full = jobs.len() >= MAX_DUE;
        let holders: BTreeSet<Key> = jobs.iter().map(|(key, _)| *key).collect();
        let round = self
            .promote_each(holders.iter().copied().collect(), &jobs)
            .await?;
        if is_full {
            for key in holders.difference(&round.handled) {
                self.hold_off.start(*key);
            }
        }
        Ok(round.jobs)
    }

    /// Parks the due jobs of these holders, then promotes as many as have room. If that fails, narrows the failure down
    /// to the holders that cause it.
    async fn promote_each(&mut self, holders: Vec<Key>, due: &[(Key, i64)]) -> Result<Round, DatabaseError> {
        let started = Instant::now();
        let (mut parts, mut round) = (vec![holders], Round::default());
        while let Some(mut part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let done = match self.session.connection().await {
                Ok(connection) => with_deadline(run_round(connection, &part, due, &self.notifier)).await,
                Err(failure) => Err(failure),
            };
            let failure = match done {
                Ok(one) => {
                    round.jobs += one.jobs;
                    round.handled.extend(one.handled);
                    continue;
                }
                Err(failure) => failure,
            };
            let keeps_connection = failure.keeps_connection();
            let is_blocked = matches!(failure, Failure::Blocked);
            let error = self.recover(failure).await;
            // A server-wide error is not caused by a holder, and the next round tries again.
            let is_own = keeps_connection && (is_blocked || !error.is_transient());
            if !is_own || started.elapsed() > NARROWING {
                return Err(error);
            }
            if let [key] = part[..] {
                tracing::warn!(holder = %key.0, meter = key.1.as_str(), %error, "could not start waiting jobs");
                self.hold_off.start(key);
                continue;
            }
            let second = part.split_off(part.len() / 2);
            parts.extend([second, part]);
        }
        Ok(round)
    }

    async fn recover(&mut self, failure: Failure) -> DatabaseError {
        self.session.recover(&failure).await;
        failure.into_error()
    }

    /// Promotes all waiting jobs.
    ///
    /// # Errors
    ///
    /// When the database cannot be used.
    pub async fn promote_all(&mut self) -> Result<usize, DatabaseError> {
        let mut all = 0;
        self.pass.skip_to(None);
        loop {
            let promoted = self.promote_slice(true).await?;
            all += promoted;
            if !self.pass.is_under_way() && promoted == 0 {
                return Ok(all);
            }
        }
    }
}

/// The result of one round.
#[derive(Default)]
struct Round {
    /// The number of jobs that became available.
    jobs: usize,
    /// Holders without another transaction's lock on their row or on a due job.
    handled: BTreeSet<Key>,
}

/// Before every holder.
const FIRST: Key = (Uuid::nil(), Meter::named(""));

/// As parameters of statements, pairwise.
fn columns<'a>(keys: impl IntoIterator<Item = &'a Key>) -> (Vec<Uuid>, Vec<Meter>) {
    keys.into_iter().copied().unzip()
}

/// Runs the transaction for these holders, without those that are locked right now.
async fn run_round(
    connection: &Connection<SettlementStatements>,
    holders: &[Key],
    due: &[(Key, i64)],
    notifier: &Notifier,
) -> Result<Round, Failure> {
    let Connection {
        client, statements, ..
    } = connection;
    let (ids, meters) = columns(holders);
    let params: [&(dyn ToSql + Sync); 2] = [&ids, &meters];
    let ((), rows) = tokio::try_join!(
        biased;
        connection.begin(),
        client.query(&statements.lock, &params)
    )
    .map_err(|error| Failure::of(error, Phase::Open))?;
    let locked: BTreeSet<Key> = rows
        .iter()
        .map(|row| (row.get("holder"), row.get("event_type")))
        .collect();
    let mut handled = locked.clone();
    if !due.is_empty() {
        for key in park_due(connection, due, &locked).await? {
            handled.remove(&key);
        }
    }
    let (ids, meters) = columns(&locked);
    let params: [&(dyn ToSql + Sync); 2] = [&ids, &meters];
    let (rows, ()) = tokio::try_join!(
        biased;
        client.query(&statements.promote, &params),
        connection.commit(),
    )
    .map_err(|error| Failure::of(error, Phase::Committing))?;
    let jobs = notify_promoted(notifier, &rows);
    Ok(Round { jobs, handled })
}

/// The due jobs, the longest due first, without those of excluded holders.
async fn due(
    connection: &Connection<SettlementStatements>,
    left_out: &[Key],
) -> Result<Vec<(Key, i64)>, Failure> {
    let Connection {
        client, statements, ..
    } = connection;
    let most = i64::try_from(MAX_DUE).unwrap_or(i64::MAX);
    let (holders, meters) = columns(left_out);
    let params: [&(dyn ToSql + Sync); 3] = [&most, &holders, &meters];
    let rows = client.query(&statements.due, &params).await;
    let rows = rows.map_err(|error| Failure::of(error, Phase::Open))?;
    Ok(rows
        .iter()
        .map(|row| ((row.get("holder"), row.get("event_type")), row.get("job_id")))
        .collect())
}

/// Parks these holders' due jobs. Returns the holders with a job that stays due because it is locked.
async fn park_due(
    connection: &Connection<SettlementStatements>,
    jobs: &[(Key, i64)],
    locked: &BTreeSet<Key>,
) -> Result<Vec<Key>, Failure> {
    let Connection {
        client, statements, ..
    } = connection;
    let jobs = jobs.iter().filter(|(key, _)| locked.contains(key));
    let (keys, ids): (Vec<Key>, Vec<i64>) = jobs.copied().unzip();
    let (holders, meters) = columns(&keys);
    let params: [&(dyn ToSql + Sync); 3] = [&ids, &holders, &meters];
    let rows = client.query(&statements.park_due, &params).await;
    let mut still_due = Vec::new();
    for row in &rows.map_err(|error| Failure::of(error, Phase::Open))? {
        let key = (row.get("holder"), row.get("event_type"));
        if row.get("stays_due") {
            still_due.push(key);
        }
    }
    Ok(still_due)
}

/// The holders with room in one slice of this size, and the start of the next slice. Holders with a changed
/// subscription or limit are included regardless of the size.
async fn waiting(
    connection: &Connection<SettlementStatements>,
    after: Key,
    size: i32,
) -> Result<(Vec<Key>, Option<Key>), Failure> {
    let Connection {
        client, statements, ..
    } = connection;
    let changed = CHANGED_WITHIN.as_secs_f64();
    let params: [&(dyn ToSql + Sync); 4] = [&after.0, &after.1, &size, &changed];
    let rows = client.query(&statements.waiting, &params).await;
    let rows = rows.map_err(|error| Failure::of(error, Phase::Open))?;
    let last = rows.iter().max_by_key(|row| row.get::<_, Option<i32>>("n"));
    let next = match last.map(|row| (row.get::<_, Option<i32>>("n"), row)) {
        Some((Some(n), row)) if n == SLICE => Some((row.get("holder"), row.get("event_type"))),
        _ => None,
    };
    let with_room: BTreeSet<Key> = rows
        .iter()
        .filter(|row| row.get("has_room"))
        .map(|row| (row.get("holder"), row.get("event_type")))
        .collect();
    Ok((with_room.into_iter().collect(), next))
}

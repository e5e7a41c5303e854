//! Promotion without an ended job: after an upgrade, when limits were raised, or when an event was missed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postgres_types::ToSql;
use uuid::Uuid;

use super::plan::{self, Key, LockedHolder};
use super::promoted::Promoted;
use super::statements::SettlementStatements;
use super::transaction::{self, locked_holder};
use crate::database::session::{Connection, Session, with_deadline};
use crate::database::{Database, DatabaseError, Failure, Phase};
use crate::meter::Meter;
use crate::pass::{Pass, Slice};
use crate::rules::Rules;

/// How many waiting holders one look goes through.
const SLICE: i32 = 150;

/// After a slice in which nobody can be given anything. Those who get room are looked at when their limits change or their
/// jobs end; slices find what was missed.
const REST: Duration = Duration::from_secs(2);

/// How long ago a subscription may have changed to be looked at first.
const CHANGED_WITHIN: Duration = Duration::from_secs(5);

/// How long a lock is waited for. Promotion skips locked holders; this is for the jobs' rows.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Gives free slots to waiting jobs, a slice of the holders at a time.
pub struct Promoter {
    session: Session<SettlementStatements>,
    rules: Arc<Rules>,
    promoted: Promoted,
    pass: Pass<Key>,
}

impl Promoter {
    pub(super) fn new(database: &Database, rules: Arc<Rules>, promoted: Promoted) -> Self {
        Self {
            session: Session::new(database.clone(), LOCK_TIMEOUT),
            rules,
            promoted,
            pass: Pass::new(REST),
        }
    }

    /// Looks at those whose subscription changed and at the next slice of all that wait, and gives away what is free.
    /// Returns how many jobs became available.
    ///
    /// # Errors
    ///
    /// When the database cannot be used.
    pub async fn promote(&mut self) -> Result<usize, DatabaseError> {
        self.promote_slice(false).await
    }

    async fn promote_slice(&mut self, hurries: bool) -> Result<usize, DatabaseError> {
        let has_turn = self.pass.has_turn(true, hurries);
        let after = self.pass.after().unwrap_or(FIRST);
        let size = if has_turn { SLICE } else { 0 };
        let mut next = None;
        let promoted = match self.session.connection().await {
            Ok(connection) => {
                let slice = slice(connection, &self.rules, &self.promoted, after, size, &mut next);
                with_deadline(slice).await
            }
            Err(failure) => Err(failure),
        };
        if has_turn {
            match promoted {
                Ok(promoted) => self.pass.go_on(Slice {
                    next,
                    done: i64::try_from(promoted).unwrap_or(i64::MAX),
                }),
                // Whatever it is that fails in a slice, the next one is tried next.
                Err(_) => self.pass.skip_to(next),
            }
        }
        match promoted {
            Ok(promoted) => Ok(promoted),
            Err(failure) => {
                self.session.recover(&failure).await;
                Err(failure.into_error())
            }
        }
    }

    /// Gives a slot, or a place in line, to jobs whose time has come: those that were submitted for later, and retries
    /// that are about to be due. Returns how many became available.
    ///
    /// # Errors
    ///
    /// When the database cannot be used.
    pub async fn start_due(&mut self) -> Result<usize, DatabaseError> {
        let started = match self.session.connection().await {
            Ok(connection) => with_deadline(due(connection, &self.rules, &self.promoted)).await,
            Err(failure) => Err(failure),
        };
        match started {
            Ok(started) => Ok(started),
            Err(failure) => {
                self.session.recover(&failure).await;
                Err(failure.into_error())
            }
        }
    }

    /// The same over everything that waits.
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

/// Before every holder.
const FIRST: Key = (Uuid::nil(), Meter::named(""));

/// How many jobs whose time has come are looked at by one transaction.
const MOST_DUE: i64 = 500;

/// The jobs whose time has come. A holder that is locked right now is looked at again.
async fn due(
    connection: &Connection<SettlementStatements>,
    rules: &Rules,
    promoted: &Promoted,
) -> Result<usize, Failure> {
    let Connection { client, statements } = connection;
    let open = |error| Failure::of(error, Phase::Open);
    let most: [&(dyn ToSql + Sync); 1] = [&MOST_DUE];
    let rows = client.query(&statements.due, &most).await.map_err(open)?;
    if rows.is_empty() {
        return Ok(0);
    }
    let holders: Vec<Uuid> = rows.iter().map(|row| row.get("holder")).collect();
    let event_types: Vec<Meter> = rows.iter().map(|row| row.get("event_type")).collect();
    let params: [&(dyn ToSql + Sync); 2] = [&holders, &event_types];
    let ((), locked) = tokio::try_join!(
        biased;
        client.batch_execute("BEGIN"),
        client.query(&statements.lock_waiting, &params)
    )
    .map_err(open)?;
    let mut locked: BTreeMap<Key, LockedHolder> = locked.iter().map(locked_holder).collect();
    let (mut ids, mut holders, mut event_types) = (Vec::new(), Vec::new(), Vec::new());
    for row in &rows {
        let key: Key = (row.get("holder"), row.get("event_type"));
        if locked.contains_key(&key) {
            ids.push(row.get::<_, i64>("job_id"));
            holders.push(key.0);
            event_types.push(key.1);
        }
    }
    let params: [&(dyn ToSql + Sync); 3] = [&ids, &holders, &event_types];
    let parked = client.query(&statements.park_due, &params).await.map_err(open)?;
    for row in &parked {
        if let Some(holder) = locked.get_mut(&(row.get("holder"), row.get("event_type"))) {
            holder.parked += row.get::<_, i32>("n");
        }
    }
    let changes = plan::plan(&locked, &[], &[], rules);
    transaction::write(connection, &changes, &locked, rules, promoted)
        .await
        .map_err(|error| Failure::of(error, Phase::Committing))
}

/// One slice of this size; returns how many were promoted, and leaves in `next` where the next slice starts. Those whose
/// subscription or limits changed are looked at whatever the size.
async fn slice(
    connection: &Connection<SettlementStatements>,
    rules: &Rules,
    promoted: &Promoted,
    after: Key,
    size: i32,
    next: &mut Option<Key>,
) -> Result<usize, Failure> {
    let Connection { client, statements } = connection;
    let open = |error| Failure::of(error, Phase::Open);
    let limits = rules.slot_limits.clone().unwrap_or_default();
    let (plans, slots, anonymous) = limits.columns();
    let is_limited = rules.slot_limits.is_some();
    let changed = CHANGED_WITHIN.as_secs_f64();
    let params: [&(dyn ToSql + Sync); 8] = [
        &after.0,
        &after.1,
        &size,
        &is_limited,
        &plans,
        &slots,
        &anonymous,
        &changed,
    ];
    let rows = client.query(&statements.waiting, &params).await.map_err(open)?;
    let last = rows.iter().max_by_key(|row| row.get::<_, Option<i32>>("n"));
    *next = match last.map(|row| (row.get::<_, Option<i32>>("n"), row)) {
        Some((Some(n), row)) if n == SLICE => Some((row.get("holder"), row.get("event_type"))),
        _ => None,
    };
    let with_room = rows.iter().filter(|row| row.get("has_room"));
    let (holders, event_types): (Vec<Uuid>, Vec<Meter>) = with_room
        .map(|row| (row.get::<_, Uuid>("holder"), row.get::<_, Meter>("event_type")))
        .unzip();
    if holders.is_empty() {
        return Ok(0);
    }
    let params: [&(dyn ToSql + Sync); 2] = [&holders, &event_types];
    let ((), rows) = tokio::try_join!(
        biased;
        client.batch_execute("BEGIN"),
        client.query(&statements.lock_waiting, &params)
    )
    .map_err(open)?;
    let locked = rows.iter().map(locked_holder).collect();
    let changes = plan::plan(&locked, &[], &[], rules);
    let count = transaction::write(connection, &changes, &locked, rules, promoted)
        .await
        .map_err(|error| Failure::of(error, Phase::Committing))?;
    if count >= plan::MOST_PROMOTED {
        // What did not fit into one transaction is next.
        *next = Some(after);
    }
    Ok(count)
}

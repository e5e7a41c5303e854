//! Changes of one holder in separate transactions: batches, and changes by operators.
//!
//! A change waits for the holder's row. A holder with many changes, or with a locked row, must not use up the
//! connections of reads and of other holders' changes. So a holder's changes wait for each other in memory. After one
//! of them has timed out on a lock, the next ones also wait for that lock in memory.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use deadpool_postgres::ClientWrapper;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;
use weir_ledger::database::{ConnectionPool, Database, DatabaseError, FromDatabase};
use weir_ledger::hold_off::HoldOff;
use weir_ledger::read::holders;

/// The maximum number of changes at once.
const CONNECTIONS: usize = 4;

/// The lock timeout of a change, which uses a connection that other changes may need.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// For how long to check a holder's lock before each of its changes, after a change timed out on it.
const LOCKED_HOLD_OFF: Duration = Duration::from_secs(30);

/// The pause between two checks of that lock.
const PAUSE: Duration = Duration::from_millis(200);

/// The maximum time that a change waits for earlier ones, and then for its holder.
const PATIENCE: Duration = Duration::from_secs(5);

type Turn = tokio::sync::Mutex<()>;

/// Applies changes of holders.
pub(super) struct Changes {
    pool: ConnectionPool,
    turns: Mutex<HashMap<Uuid, Weak<Turn>>>,
    /// Holders with a lock that is checked first.
    locked: Mutex<HoldOff>,
}

impl Changes {
    pub(super) fn new(database: &Database) -> Self {
        Self {
            pool: database.pool_with_lock_timeout(CONNECTIONS, LOCK_TIMEOUT),
            turns: Mutex::default(),
            locked: Mutex::new(HoldOff::new(LOCKED_HOLD_OFF)),
        }
    }

    /// Applies a change to the holder with this id, or to another object with an id, after its earlier changes.
    ///
    /// # Errors
    ///
    /// The errors of `change` and of [`ConnectionPool::with`]. [`DatabaseError`] if the change cannot start within 5 s,
    /// or if the holder stays locked for longer.
    pub(super) async fn of<T, E: FromDatabase, C: AsyncFnOnce(&mut ClientWrapper) -> Result<T, E>>(
        &self,
        holder: Uuid,
        change: impl Fn() -> C,
    ) -> Result<T, E> {
        let turn = tokio::time::timeout(PATIENCE, self.turn(holder)).await;
        let _turn = turn.map_err(|_| DatabaseError::Timeout(PATIENCE))?;
        self.until_unlocked(holder).await?;
        let changed = self.pool.with(change()).await;
        let is_locked = |error: &E| error.database().is_some_and(DatabaseError::is_locked);
        if !changed.as_ref().is_err_and(is_locked) {
            return changed;
        }
        self.locked.lock().start(holder);
        self.until_unlocked(holder).await?;
        self.pool.with(change()).await
    }

    /// If the holder was locked recently, waits without a connection until it is unlocked.
    async fn until_unlocked(&self, holder: Uuid) -> Result<(), DatabaseError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if !self.locked.lock().applies_to(&holder) {
                return Ok(());
            }
            if !holders::is_locked(&self.pool, holder).await? {
                self.locked.lock().end(&holder);
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(DatabaseError::Locked);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn turn(&self, holder: Uuid) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock();
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn: Arc<Turn> = turns.get(&holder).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(holder, Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }
}

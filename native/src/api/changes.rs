//! Changes of what one holder has, which are transactions of their own: batches, and what operators decide.
//!
//! They wait for the holder's row. Whoever asks for many, or whose row somebody keeps locked, must take no connection
//! from those who read, and keep none from those who change something: a holder's changes wait for each other here, in
//! memory, and so they do for a lock, once one of them has waited for it in vain.

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

/// How many changes are made at once.
const CONNECTIONS: usize = 4;

/// How long a change waits for a lock, with a connection that others may be waiting for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// For how long a holder that was locked for longer is looked at before each of its changes.
const LOCKED_FOR: Duration = Duration::from_secs(30);

/// Between two looks at whether it still is.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a change waits for those before it, and then for its holder.
const PATIENCE: Duration = Duration::from_secs(5);

type Turn = tokio::sync::Mutex<()>;

/// Makes changes of holders.
pub(super) struct Changes {
    pool: ConnectionPool,
    turns: Mutex<HashMap<Uuid, Weak<Turn>>>,
    /// Holders that are looked at first.
    locked: Mutex<HoldOff>,
}

impl Changes {
    pub(super) fn new(database: &Database) -> Self {
        Self {
            pool: database.pool_with_lock_timeout(CONNECTIONS, LOCK_TIMEOUT),
            turns: Mutex::default(),
            locked: Mutex::new(HoldOff::new(LOCKED_FOR)),
        }
    }

    /// Makes one change of this holder, or of whatever else has this id, when those before it are made.
    ///
    /// # Errors
    ///
    /// What `change` returns; and [`DatabaseError`] when its turn does not come within 5 s, when the holder stays locked for
    /// longer, or as [`ConnectionPool::with`].
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

    /// Waits until nobody has a lock of this holder, without a connection, if somebody had it lately.
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

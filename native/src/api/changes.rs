//! Changes of what one holder has, which are transactions of their own: batches, and what operators decide.
//!
//! They wait for the holder's row. Whoever asks for many, or whose row somebody keeps locked, must take no connection
//! from those who read, and at most one from those who change something: a holder's changes wait for each other here,
//! in memory, before they wait in the database.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use uuid::Uuid;
use weir_ledger::database::{Database, DatabaseError, ReadPool};

/// How many holders may be blocked before others have to wait.
const CONNECTIONS: usize = 4;

/// How long a change waits for those before it. As long as one waits for its row.
const PATIENCE: Duration = Duration::from_secs(5);

type Turn = tokio::sync::Mutex<()>;

/// Makes changes of holders.
pub(super) struct Changes {
    pool: ReadPool,
    turns: Mutex<HashMap<Uuid, Weak<Turn>>>,
}

impl Changes {
    pub(super) fn new(database: &Database) -> Self {
        Self {
            pool: database.read_pool(CONNECTIONS),
            turns: Mutex::default(),
        }
    }

    /// Makes one change of this holder, or of whatever else has this id, when those before it are made.
    ///
    /// # Errors
    ///
    /// What `change` returns; and [`DatabaseError`] when its turn does not come within 5 s, or as [`ReadPool::read`].
    pub(super) async fn of<T, E: From<DatabaseError>>(
        &self,
        holder: Uuid,
        change: impl AsyncFnOnce(&mut ClientWrapper) -> Result<T, E>,
    ) -> Result<T, E> {
        let turn = tokio::time::timeout(PATIENCE, self.turn(holder)).await;
        let _turn = turn.map_err(|_| DatabaseError::Timeout(PATIENCE))?;
        self.pool.read(change).await
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

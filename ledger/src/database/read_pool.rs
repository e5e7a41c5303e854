//! Connections for reading, with a deadline on every read.

use std::time::Duration;

use deadpool_postgres::{ClientWrapper, Manager, ManagerConfig, Object, Pool, RecyclingMethod};
use tokio::time::Instant;

use super::error::DatabaseError;

/// How long a connection may take to open.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The server breaks off a statement that takes longer, and a transaction that waits longer for its next one, so that a
/// process that vanishes leaves no lock behind.
pub(super) const SERVER_TIMEOUT: &str = "-c statement_timeout=10s -c idle_in_transaction_session_timeout=10s";

/// No read takes longer. A server that can answer says within 10 s that it gave up; who says nothing stands still.
const READ_TIMEOUT: Duration = Duration::from_secs(11);

/// A pool of connections for reading. Cheap to clone.
#[derive(Clone)]
pub struct ReadPool {
    pool: Pool,
}

impl ReadPool {
    pub(super) fn new(manager: Manager, size: usize) -> Self {
        let mut config = deadpool_postgres::PoolConfig::new(size);
        config.timeouts.wait = Some(CONNECT_TIMEOUT);
        config.timeouts.create = Some(CONNECT_TIMEOUT);
        config.timeouts.recycle = Some(CONNECT_TIMEOUT);
        let built = Pool::builder(manager)
            .config(config)
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .build();
        match built {
            Ok(pool) => Self { pool },
            // Only a pool with timeouts and without a runtime fails to build; this one has both.
            Err(error) => unreachable!("{error}"),
        }
    }

    pub(super) fn recycling() -> ManagerConfig {
        ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        }
    }

    /// Reads over a connection of its own, for at most 11 s.
    ///
    /// # Errors
    ///
    /// What `ask` returns; and [`DatabaseError`] when there is no connection within 5 s or no answer in time.
    pub async fn read<T, E: From<DatabaseError>>(
        &self,
        ask: impl AsyncFnOnce(&mut ClientWrapper) -> Result<T, E>,
    ) -> Result<T, E> {
        self.read_within(READ_TIMEOUT, ask).await
    }

    /// Reads over a connection of its own, for at most `timeout` with the wait for the connection. A connection whose
    /// read failed or was late is closed: the next reader would wait for it as well.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub async fn read_within<T, E: From<DatabaseError>>(
        &self,
        timeout: Duration,
        ask: impl AsyncFnOnce(&mut ClientWrapper) -> Result<T, E>,
    ) -> Result<T, E> {
        let late = || DatabaseError::Timeout(timeout);
        let deadline = Instant::now() + timeout;
        let mut client = tokio::time::timeout_at(deadline, self.pool.get())
            .await
            .map_err(|_| late())?
            .map_err(DatabaseError::from)?;
        let asked = tokio::time::timeout_at(deadline, ask(&mut client))
            .await
            .unwrap_or_else(|_| Err(late().into()));
        if asked.is_err() {
            drop(Object::take(client));
        }
        asked
    }

    /// How many connections there can be.
    #[must_use]
    pub fn max_size(&self) -> usize {
        self.pool.status().max_size
    }

    /// How many of them are not used by a read, whether they are open yet or not.
    #[must_use]
    pub fn free(&self) -> usize {
        let status = self.pool.status();
        status.max_size - (status.size - status.available)
    }
}

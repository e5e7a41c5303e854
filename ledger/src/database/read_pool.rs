//! Connections for reading, with a deadline on every read.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod,
};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::DatabaseError;

/// The server breaks off a statement that takes longer, and a transaction that waits longer for its next one, so that a
/// process that vanishes leaves no lock behind. Set afterwards and not with the connection's start, where poolers refuse
/// it.
const SERVER_TIMEOUT: &str = "SET statement_timeout = '10s'; SET idle_in_transaction_session_timeout = '10s'";

/// No read takes longer. A server that can answer says within 10 s that it gave up; who says nothing stands still.
const READ_TIMEOUT: Duration = Duration::from_secs(11);

/// How long asking the server to cancel may take.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// A pool of connections for reading. Cheap to clone.
#[derive(Clone)]
pub struct ReadPool {
    pool: Pool,
    tls: MakeRustlsConnect,
}

/// A connection that is in use. Unless the read went well, it is closed and its statement is cancelled: also when the
/// caller went away in the middle of it, since the next reader would wait for what nobody waits for any more.
struct Reading {
    client: Option<Object>,
    tls: MakeRustlsConnect,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        let (cancel, tls) = (client.cancel_token(), self.tls.clone());
        drop(Object::take(client));
        // A runtime that ends takes its connections with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // The server's own timeout ends what cannot be cancelled.
                let _ = tokio::time::timeout(CANCEL_TIMEOUT, cancel.cancel_query(tls)).await;
            });
        }
    }
}

impl ReadPool {
    /// `enter` leads a new connection to the schemas of the tables. One is waited for, opened and reset for at most `patience`.
    pub(super) fn new(
        config: tokio_postgres::Config,
        tls: MakeRustlsConnect,
        enter: Option<String>,
        size: usize,
        patience: Duration,
    ) -> Self {
        let recycling = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = Manager::from_config(config, tls.clone(), recycling);
        let mut bounds = deadpool_postgres::PoolConfig::new(size);
        bounds.timeouts.wait = Some(patience);
        bounds.timeouts.create = Some(patience);
        bounds.timeouts.recycle = Some(patience);
        let setup: Arc<str> = [Some(SERVER_TIMEOUT.to_owned()), enter]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join("; ")
            .into();
        let built = Pool::builder(manager)
            .config(bounds)
            .post_create(Hook::async_fn(move |client, _| {
                let setup = Arc::clone(&setup);
                Box::pin(async move { client.batch_execute(&setup).await.map_err(HookError::Backend) })
            }))
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .build();
        match built {
            Ok(pool) => Self { pool, tls },
            // Only a pool with timeouts and without a runtime fails to build; this one has both.
            Err(error) => unreachable!("{error}"),
        }
    }

    /// Reads by one statement, which its connection keeps prepared.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub async fn query(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, DatabaseError> {
        self.read(async |client| {
            let statement = client.prepare_cached(sql).await?;
            Ok(client.query(&statement, params).await?)
        })
        .await
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

    /// Reads over a connection of its own, for at most `timeout` with the wait for the connection.
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
        let client = tokio::time::timeout_at(deadline, self.pool.get())
            .await
            .map_err(|_| late())?
            .map_err(DatabaseError::from)?;
        let mut reading = Reading {
            client: Some(client),
            tls: self.tls.clone(),
        };
        let Some(client) = &mut reading.client else {
            unreachable!("it was put there")
        };
        let asked = tokio::time::timeout_at(deadline, ask(client))
            .await
            .unwrap_or_else(|_| Err(late().into()));
        if asked.is_ok() {
            // Back to the pool.
            drop(reading.client.take());
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

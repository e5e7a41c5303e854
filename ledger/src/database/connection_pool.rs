//! Connections for many callers, with a deadline on every use.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, Pool, RecyclingMethod,
};
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::error::DatabaseError;
use super::tls::MakeTls;

/// The maximum time of one use. A server that works reports a timeout within 10 s, so a silent one is stuck.
const TIMEOUT: Duration = Duration::from_secs(11);

/// The maximum time to cancel a statement or to roll back.
const RESET_TIMEOUT: Duration = Duration::from_secs(2);

/// A pool of connections. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionPool {
    pool: Pool,
    tls: MakeTls,
}

/// An error of a caller that uses a pooled connection.
pub trait FromDatabase: From<DatabaseError> {
    /// The database error in it, if any. Without one, the connection is reusable.
    fn database(&self) -> Option<&DatabaseError>;
}

impl FromDatabase for DatabaseError {
    fn database(&self) -> Option<&DatabaseError> {
        Some(self)
    }
}

/// A connection in use. If its use does not complete, the connection is closed and its statement is cancelled. The same
/// applies if the caller is dropped. Otherwise the next caller would wait for its statement.
struct InUse {
    client: Option<Object>,
    tls: MakeTls,
}

impl InUse {
    /// Returns the connection to the pool after an error that does not affect it, once no transaction is open.
    fn reset(mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        spawn(async move {
            let rolled_back = client.batch_execute("ROLLBACK");
            if !matches!(tokio::time::timeout(RESET_TIMEOUT, rolled_back).await, Ok(Ok(()))) {
                drop(Object::take(client));
            }
        });
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        let (cancel, tls) = (client.cancel_token(), self.tls.clone());
        drop(Object::take(client));
        spawn(async move {
            // If the statement cannot be cancelled, the server's timeout ends it.
            let _ = tokio::time::timeout(RESET_TIMEOUT, cancel.cancel_query(tls)).await;
        });
    }
}

/// If the runtime ends, its connections end too.
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(task);
    }
}

impl ConnectionPool {
    /// `setup` prepares a new connection. Waiting for a connection, opening it and resetting it each take at most
    /// `patience`.
    pub(super) fn new(
        config: tokio_postgres::Config,
        tls: MakeTls,
        setup: &str,
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
        let builder = Pool::builder(manager)
            .config(bounds)
            .runtime(deadpool_postgres::Runtime::Tokio1);
        // After the connection's start, because poolers refuse the settings there.
        let setup = Arc::<str>::from(setup);
        let builder = builder.post_create(Hook::async_fn(move |client, _| {
            let setup = Arc::clone(&setup);
            Box::pin(async move { client.batch_execute(&setup).await.map_err(HookError::Backend) })
        }));
        let built = builder.build();
        match built {
            Ok(pool) => Self { pool, tls },
            // Only a pool with timeouts and without a runtime fails to build. This one has both.
            Err(error) => unreachable!("{error}"),
        }
    }

    /// Reads by one statement, which its connection keeps prepared.
    ///
    /// # Errors
    ///
    /// As [`Self::with`].
    pub async fn query(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, DatabaseError> {
        self.with(async |client| {
            let statement = client.prepare_cached(sql).await?;
            Ok(client.query(&statement, params).await?)
        })
        .await
    }

    /// Uses a separate connection, for at most 11 s. Rolls back a transaction that is left open.
    ///
    /// # Errors
    ///
    /// The error of `ask`; and [`DatabaseError`] when there is no connection within 5 s or no answer in time.
    pub async fn with<T, E: FromDatabase>(
        &self,
        ask: impl AsyncFnOnce(&mut ClientWrapper) -> Result<T, E>,
    ) -> Result<T, E> {
        self.within(TIMEOUT, ask).await
    }

    /// Uses a separate connection, for at most `timeout` including the wait for it.
    ///
    /// # Errors
    ///
    /// As [`Self::with`].
    pub async fn within<T, E: FromDatabase>(
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
        let mut in_use = InUse {
            client: Some(client),
            tls: self.tls.clone(),
        };
        let Some(client) = &mut in_use.client else {
            unreachable!("it was put there")
        };
        let asked = tokio::time::timeout_at(deadline, ask(client))
            .await
            .unwrap_or_else(|_| Err(late().into()));
        match &asked {
            // Return it to the pool.
            Ok(_) => drop(in_use.client.take()),
            Err(error) if error.database().is_none_or(DatabaseError::keeps_connection) => in_use.reset(),
            Err(_) => {}
        }
        asked
    }

    /// The maximum number of connections.
    #[must_use]
    pub fn max_size(&self) -> usize {
        self.pool.status().max_size
    }

    /// The number of unused connections, including those that are not open yet.
    #[must_use]
    pub fn free(&self) -> usize {
        let status = self.pool.status();
        status.max_size - (status.size - status.available)
    }
}

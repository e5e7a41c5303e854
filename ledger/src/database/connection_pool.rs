//! Connections that many use in turn, with a deadline on every use.

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

/// The server breaks off a statement that takes longer, and a transaction that waits longer for its next one, so that a
/// process that vanishes leaves no lock behind. Set afterwards and not with the connection's start, where poolers refuse
/// it.
const SERVER_TIMEOUT: &str = "SET statement_timeout = '10s'; SET idle_in_transaction_session_timeout = '10s'";

/// No use takes longer. A server that can answer says within 10 s that it gave up; who says nothing stands still.
const TIMEOUT: Duration = Duration::from_secs(11);

/// How long asking the server to cancel, or to roll back, may take.
const RESET_TIMEOUT: Duration = Duration::from_secs(2);

/// A pool of connections. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionPool {
    pool: Pool,
    tls: MakeTls,
}

/// What goes wrong over a connection of a pool.
pub trait FromDatabase: From<DatabaseError> {
    /// The database's part in it. Without one, the connection is as good as before.
    fn database(&self) -> Option<&DatabaseError>;
}

impl FromDatabase for DatabaseError {
    fn database(&self) -> Option<&DatabaseError> {
        Some(self)
    }
}

/// A connection that is in use. Unless what it was used for has come to an end, it is closed and its statement is
/// cancelled: also when the caller went away in the middle of it, since the next one would wait for what nobody waits for
/// any more.
struct InUse {
    client: Option<Object>,
    tls: MakeTls,
}

impl InUse {
    /// Gives the connection back after an error that says nothing against it, once no transaction is open.
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
            // The server's own timeout ends what cannot be cancelled.
            let _ = tokio::time::timeout(RESET_TIMEOUT, cancel.cancel_query(tls)).await;
        });
    }
}

/// A runtime that ends takes its connections with it.
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(task);
    }
}

impl ConnectionPool {
    /// `setup` makes a new connection ready. One is waited for, opened and reset for at most `patience`.
    pub(super) fn new(
        config: tokio_postgres::Config,
        tls: MakeTls,
        setup: impl Iterator<Item = String>,
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
        let setup: Arc<str> = setup
            .chain(std::iter::once(SERVER_TIMEOUT.to_owned()))
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
    /// As [`Self::with`].
    pub async fn query(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, DatabaseError> {
        self.with(async |client| {
            let statement = client.prepare_cached(sql).await?;
            Ok(client.query(&statement, params).await?)
        })
        .await
    }

    /// Uses a connection of its own, for at most 11 s. A transaction that is left open is rolled back.
    ///
    /// # Errors
    ///
    /// What `ask` returns; and [`DatabaseError`] when there is no connection within 5 s or no answer in time.
    pub async fn with<T, E: FromDatabase>(
        &self,
        ask: impl AsyncFnOnce(&mut ClientWrapper) -> Result<T, E>,
    ) -> Result<T, E> {
        self.within(TIMEOUT, ask).await
    }

    /// Uses a connection of its own, for at most `timeout` with the wait for the connection.
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
            // Back to the pool.
            Ok(_) => drop(in_use.client.take()),
            Err(error) if error.database().is_none_or(DatabaseError::keeps_connection) => in_use.reset(),
            Err(_) => {}
        }
        asked
    }

    /// How many connections there can be.
    #[must_use]
    pub fn max_size(&self) -> usize {
        self.pool.status().max_size
    }

    /// How many of them are not in use, whether they are open yet or not.
    #[must_use]
    pub fn free(&self) -> usize {
        let status = self.pool.status();
        status.max_size - (status.size - status.available)
    }
}

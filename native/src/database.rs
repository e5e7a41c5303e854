//! Connections to PostgreSQL: `tokio-postgres` for Weir's own statements, SQLx for River's.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use futures_util::future::try_join_all;
use secrecy::ExposeSecret;
use tokio_postgres::{Client, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::Settings;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A database that cannot be used right now, or a statement that it refused. Cheap to clone, since whoever waited for
/// the same transaction is told the same.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DatabaseError {
    /// PostgreSQL refused a statement or the connection broke.
    #[error("the database failed: {}", describe(.0))]
    Postgres(Arc<tokio_postgres::Error>),
    /// No connection could be had from the pool.
    #[error("no database connection could be had: {0}")]
    Pool(Arc<deadpool_postgres::PoolError>),
    /// River's side failed.
    #[error("River failed: {0}")]
    River(Arc<riverqueue::Error>),
    /// SQLx could not connect.
    #[error("the database failed: {0}")]
    Sqlx(Arc<sqlx::Error>),
    /// It did not answer for this long.
    #[error("the database did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// A transaction was tried several times, and each time others had changed what it was about.
    #[error("others were changing the same rows")]
    Contended,
    /// The task that uses the database is gone.
    #[error("the process is stopping")]
    Stopped,
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(Arc::new(error))
    }
}

impl From<deadpool_postgres::PoolError> for DatabaseError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        Self::Pool(Arc::new(error))
    }
}

impl From<riverqueue::Error> for DatabaseError {
    fn from(error: riverqueue::Error) -> Self {
        Self::River(Arc::new(error))
    }
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sqlx(Arc::new(error))
    }
}

/// `tokio_postgres` says only "db error"; the reason is in its source.
fn describe(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(
        || error.to_string(),
        |db| format!("{} ({})", db.message(), db.code().code()),
    )
}

/// How to reach the database. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    config: tokio_postgres::Config,
    tls: MakeRustlsConnect,
    url: secrecy::SecretString,
}

impl Database {
    /// Prepares to connect; connects nothing yet.
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn new(settings: &Settings) -> Result<Self, DatabaseError> {
        Self::named(settings.database_url.expose_secret(), settings.application_name)
    }

    /// Prepares to connect to this URL.
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn at(url: &str) -> Result<Self, DatabaseError> {
        Self::named(url, "weir")
    }

    fn named(url: &str, name: &str) -> Result<Self, DatabaseError> {
        let mut config = tokio_postgres::Config::from_str(url)?;
        config.connect_timeout(CONNECT_TIMEOUT);
        // The URL has the last word.
        if config.get_application_name().is_none() {
            config.application_name(name);
        }
        Ok(Self {
            config,
            tls: tls(),
            url: secrecy::SecretString::from(url),
        })
    }

    /// Opens one connection of its own, for a task that keeps it.
    ///
    /// Its transactions book the counters themselves (`weir.books`), so the triggers that do it for others
    /// stay out of the way.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time.
    pub async fn connect_bookkeeper(&self) -> Result<Client, DatabaseError> {
        let client = self.connect().await?;
        client
            .batch_execute("SET weir.books = 'kept'; SET statement_timeout = '30s'; SET lock_timeout = '10s'")
            .await?;
        Ok(client)
    }

    /// A bookkeeper whose statements are all look-ups by key, and are planned as such whatever the planner believes
    /// about the size of the tables: on a table that it takes for empty it would scan the whole of it, for as long as
    /// nobody analyses it. Plans are made once.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time.
    pub async fn connect_by_key(&self) -> Result<Client, DatabaseError> {
        let client = self.connect_bookkeeper().await?;
        client
            .batch_execute(
                "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off; \
                 SET plan_cache_mode = force_generic_plan",
            )
            .await?;
        Ok(client)
    }

    /// Opens one plain connection.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time.
    pub async fn connect(&self) -> Result<Client, DatabaseError> {
        let (client, connection) =
            tokio::time::timeout(CONNECT_TIMEOUT, self.config.connect(self.tls.clone()))
                .await
                .map_err(|_| DatabaseError::Timeout(CONNECT_TIMEOUT))??;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a database connection ended");
            }
        });
        Ok(client)
    }

    /// A pool for reading.
    #[must_use]
    pub fn pool(&self, size: usize) -> Pool {
        let manager = Manager::from_config(
            self.config.clone(),
            self.tls.clone(),
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let mut config = deadpool_postgres::PoolConfig::new(size);
        config.timeouts.wait = Some(CONNECT_TIMEOUT);
        config.timeouts.create = Some(CONNECT_TIMEOUT);
        config.timeouts.recycle = Some(CONNECT_TIMEOUT);
        let built = Pool::builder(manager)
            .config(config)
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .build();
        match built {
            Ok(pool) => pool,
            // Only a pool with timeouts and without a runtime fails to build; this one has both.
            Err(error) => unreachable!("{error}"),
        }
    }

    /// River's pool.
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn river_pool(&self, size: u32) -> Result<sqlx::PgPool, DatabaseError> {
        let name = self.config.get_application_name().unwrap_or_default();
        let options = sqlx::postgres::PgConnectOptions::from_str(self.url.expose_secret())?
            .application_name(&format!("{name}, River"));
        Ok(sqlx::postgres::PgPoolOptions::new()
            .max_connections(size)
            .acquire_timeout(CONNECT_TIMEOUT)
            .connect_lazy_with(options))
    }
}

/// A connection together with the statements that were prepared on it.
pub(crate) trait Prepared: Sized + Send {
    /// Connects and prepares.
    fn open(database: &Database) -> impl Future<Output = Result<Self, DatabaseError>> + Send;

    /// The connection.
    fn client(&self) -> &Client;
}

/// Defines a connection by its statements, each by a name: the struct, and how it is opened.
macro_rules! prepared {
    ($vis:vis struct $Name:ident { $($statement:ident: $sql:expr,)+ }) => {
        $vis struct $Name {
            $vis client: tokio_postgres::Client,
            $($vis $statement: tokio_postgres::Statement,)+
        }

        impl $crate::database::Prepared for $Name {
            async fn open(
                database: &$crate::database::Database,
            ) -> Result<Self, $crate::database::DatabaseError> {
                let client = database.connect_by_key().await?;
                let [$($statement),+] = $crate::database::prepare(&client, [$($sql),+]).await?;
                Ok(Self { client, $($statement),+ })
            }

            fn client(&self) -> &tokio_postgres::Client {
                &self.client
            }
        }
    };
}

pub(crate) use prepared;

/// The connection of a task that makes one transaction after the other; another is opened when it broke.
pub(crate) struct Kept<C> {
    database: Database,
    connection: Option<C>,
}

impl<C: Prepared> Kept<C> {
    pub(crate) fn new(database: Database) -> Self {
        Self {
            database,
            connection: None,
        }
    }

    /// The connection, in no transaction.
    ///
    /// # Errors
    ///
    /// When there is none and the database cannot be reached.
    pub(crate) async fn get(&mut self) -> Result<&C, DatabaseError> {
        let open = |connection: &C| !connection.client().is_closed();
        let connection = match self.connection.take().filter(open) {
            Some(connection) => connection,
            None => C::open(&self.database).await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Ends a transaction that failed. A connection that cannot even do that is of no use any more.
    pub(crate) async fn roll_back(&mut self) {
        if let Some(connection) = self.connection.take()
            && connection.client().batch_execute("ROLLBACK").await.is_ok()
        {
            self.connection = Some(connection);
        }
    }
}

/// Prepares these statements, all in one round trip.
///
/// # Errors
///
/// When the database refuses one of them or the connection breaks.
pub(crate) async fn prepare<const N: usize>(
    client: &Client,
    statements: [&str; N],
) -> Result<[Statement; N], tokio_postgres::Error> {
    let prepared = try_join_all(statements.map(|sql| client.prepare(sql))).await?;
    match prepared.try_into() {
        Ok(prepared) => Ok(prepared),
        Err(_) => unreachable!("as many statements come back as were sent"),
    }
}

/// Whether TLS is used at all is the URL's `sslmode`.
fn tls() -> MakeRustlsConnect {
    MakeRustlsConnect::new(tls_config())
}

/// Trusts what the machine trusts.
pub(crate) fn tls_config() -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_root_certificates(roots).with_no_client_auth());
    match config {
        Ok(config) => config,
        // ring's provider supports every default version.
        Err(error) => unreachable!("{error}"),
    }
}

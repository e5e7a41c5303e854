//! How to reach the database.

use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, SimpleQueryMessage};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connection_pool::ConnectionPool;
use super::error::DatabaseError;
use super::schemas::Schemas;
use super::settings;
use super::tls::{self, SslMode, TlsOptions};

/// How long a connection may take to open.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A peer that has not acknowledged what was sent for this long is gone: its machine, or the network to it.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(10);

/// A silent connection is probed after this long.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// `lock_timeout` in its unit. Zero would be no bound at all.
fn lock_millis(lock_timeout: Duration) -> u128 {
    lock_timeout.as_millis().max(1)
}

/// How to reach the database. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    config: tokio_postgres::Config,
    tls: MakeRustlsConnect,
    options: TlsOptions,
    url: secrecy::SecretString,
    schemas: Schemas,
}

impl Database {
    /// Prepares to connect to this URL, under the name `weir`.
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn at(url: &str) -> Result<Self, DatabaseError> {
        Self::named(url, "weir")
    }

    /// Prepares to connect to this URL; connects nothing yet. `name` is what the connections are called in
    /// `pg_stat_activity`, unless the URL has an `application_name`.
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn named(url: &str, name: &str) -> Result<Self, DatabaseError> {
        let (url, options) = tls::split(url)?;
        let mut config = tokio_postgres::Config::from_str(&url)?;
        config
            .ssl_mode(options.for_tokio_postgres())
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(TCP_USER_TIMEOUT)
            .keepalives_idle(KEEPALIVE_IDLE);
        if config.get_application_name().is_none() {
            config.application_name(name);
        }
        Ok(Self {
            tls: MakeRustlsConnect::new(options.config()?),
            config,
            options,
            url: secrecy::SecretString::from(url),
            schemas: Schemas::default(),
        })
    }

    /// The same, with the tables in these schemas.
    #[must_use]
    pub fn in_schemas(mut self, schemas: Schemas) -> Self {
        self.schemas = schemas;
        self
    }

    /// Where its tables are.
    #[must_use]
    pub fn schemas(&self) -> &Schemas {
        &self.schemas
    }

    /// What an operator should know about how this URL is protected; `None` when there is nothing to say.
    #[must_use]
    pub fn warning(&self) -> Option<&'static str> {
        let is_remote = self.config.get_hosts().iter().any(|host| match host {
            Host::Tcp(name) => {
                name != "localhost" && !name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
            Host::Unix(_) => false,
        });
        match self.options.mode {
            SslMode::Prefer if is_remote => Some(
                "DATABASE_URL has no sslmode or sslmode=prefer, which falls back to an unencrypted connection; \
                 set sslmode=verify-full",
            ),
            SslMode::Disable if is_remote => {
                Some("DATABASE_URL has sslmode=disable, so passwords and data travel unencrypted")
            }
            _ => None,
        }
    }

    /// Opens one plain connection, led to the schemas of the tables.
    ///
    /// # Errors
    ///
    /// When the database does not answer within 5 s.
    pub async fn connect(&self) -> Result<Client, DatabaseError> {
        let client = self.connect_as_it_is().await?;
        // Not with the connection's start, where poolers refuse it.
        if let Some(enter) = self.schemas.enter() {
            tokio::time::timeout(CONNECT_TIMEOUT, client.batch_execute(&enter))
                .await
                .map_err(|_| DatabaseError::Timeout(CONNECT_TIMEOUT))??;
        }
        Ok(client)
    }

    /// Opens one whose `search_path` is what the server and the URL make it.
    pub(crate) async fn connect_as_it_is(&self) -> Result<Client, DatabaseError> {
        let client = self.connect_bare().await?;
        tokio::time::timeout(CONNECT_TIMEOUT, client.batch_execute(&settings::pin()))
            .await
            .map_err(|_| DatabaseError::Timeout(CONNECT_TIMEOUT))??;
        Ok(client)
    }

    /// Whether a pooler stands in between that gives each transaction another session (transaction mode). There, what one
    /// session sets reaches other programs, locks of sessions are lost, and nothing is heard of notifications.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached.
    pub async fn shares_sessions(&self) -> Result<bool, DatabaseError> {
        let (one, other) = tokio::try_join!(self.connect_bare(), self.connect_bare())?;
        // Two connections that meet the same session, or one that meets two. Others use the pooler meanwhile, so one look
        // may miss it.
        for _ in 0..5 {
            let before = session_id(&one).await?;
            other.simple_query("BEGIN").await?;
            let between = session_id(&other).await;
            let after = session_id(&one).await;
            other.simple_query("ROLLBACK").await?;
            if between? == before || after? != before {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Opens one with every default of the server, the database and the role.
    async fn connect_bare(&self) -> Result<Client, DatabaseError> {
        let (client, connection) =
            tokio::time::timeout(CONNECT_TIMEOUT, self.config.connect(self.tls.clone()))
                .await
                .map_err(|_| DatabaseError::Silent {
                    to: self.place(),
                    within: CONNECT_TIMEOUT,
                })?
                .map_err(|error| DatabaseError::Connect {
                    to: self.place(),
                    error: Arc::new(error),
                })?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a database connection ended");
            }
        });
        Ok(client)
    }

    /// What is connected to, for people; without the password.
    fn place(&self) -> Arc<str> {
        let ports = self.config.get_ports();
        let port_of = |index: usize| ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        let hosts = self.config.get_hosts().iter().enumerate();
        let hosts: Vec<String> = hosts
            .map(|(index, host)| match host {
                Host::Tcp(name) => format!("{name}:{}", port_of(index)),
                Host::Unix(folder) => format!("{}:{}", folder.display(), port_of(index)),
            })
            .collect();
        let user = self.config.get_user().unwrap_or_default();
        let name = self.config.get_dbname().unwrap_or(user);
        format!("{name:?} at {} (user {user:?})", hosts.join(", ")).into()
    }

    /// Opens a connection whose transactions book the counters themselves (`weir.counters`), so that the triggers that
    /// do it for others stay out of the way. A lock is waited for at most `lock_timeout`.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time, and [`DatabaseError::ReadOnly`] when it cannot be written: a session
    /// that begins so may stay so when the server no longer is.
    pub async fn connect_bookkeeper(&self, lock_timeout: Duration) -> Result<Client, DatabaseError> {
        let client = self.connect().await?;
        let setup = format!(
            "SET weir.counters = 'kept'; SET statement_timeout = '6s'; SET idle_in_transaction_session_timeout = '10s'; \
             SET lock_timeout = {}; SHOW transaction_read_only",
            lock_millis(lock_timeout)
        );
        let said = tokio::time::timeout(CONNECT_TIMEOUT, client.simple_query(&setup))
            .await
            .map_err(|_| DatabaseError::Timeout(CONNECT_TIMEOUT))??;
        let is_writable = said.iter().any(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("off"),
            _ => false,
        });
        if is_writable {
            Ok(client)
        } else {
            Err(DatabaseError::ReadOnly)
        }
    }

    /// A bookkeeper whose statements are all look-ups by key, and are planned as such whatever the planner believes
    /// about the size of the tables: a table that it takes for empty it scans as a whole, until somebody analyses it.
    /// Plans are made once.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time.
    pub async fn connect_by_key(&self, lock_timeout: Duration) -> Result<Client, DatabaseError> {
        let client = self.connect_bookkeeper(lock_timeout).await?;
        client
            .batch_execute(
                "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
                 SET enable_memoize = off; SET jit = off; SET plan_cache_mode = force_generic_plan",
            )
            .await?;
        Ok(client)
    }

    /// A pool of connections that many use in turn. Each statement may take at most 10 s.
    #[must_use]
    pub fn pool(&self, size: usize) -> ConnectionPool {
        self.pool_after(size, None)
    }

    /// The same. A lock is waited for at most `lock_timeout`.
    #[must_use]
    pub fn pool_with_lock_timeout(&self, size: usize, lock_timeout: Duration) -> ConnectionPool {
        let setup = format!("SET lock_timeout = {}", lock_millis(lock_timeout));
        self.pool_after(size, Some(setup))
    }

    fn pool_after(&self, size: usize, setup: Option<String>) -> ConnectionPool {
        let (config, tls) = (self.config.clone(), self.tls.clone());
        let pin = std::iter::once(settings::pin());
        let setup = pin.chain(setup).chain(self.schemas.enter());
        ConnectionPool::new(config, tls, setup, size, CONNECT_TIMEOUT)
    }

    /// River's pool.
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn river_pool(&self, size: u32) -> Result<sqlx::PgPool, DatabaseError> {
        self.river_pool_entered(size, self.schemas.enter_rivers(), None)
    }

    /// River's pool for a process that works jobs. River writes how attempts ended by the ids of their jobs, and tries again
    /// for as long as it takes. After a failover, an id may belong to another job. So `leave` is called before a connection
    /// to another timeline of the server than the first one is used; it should end the process.
    ///
    /// # Errors
    ///
    /// As [`Self::river_pool`].
    pub fn river_pool_of_worker(&self, size: u32, leave: fn()) -> Result<sqlx::PgPool, DatabaseError> {
        self.river_pool_entered(size, self.schemas.enter_rivers(), Some(leave))
    }

    /// River's pool for requests, which wait for a locked row at most this long: whoever asks for one that somebody has
    /// locked takes no connection from the others.
    ///
    /// # Errors
    ///
    /// As [`Self::river_pool`].
    pub fn river_pool_of_requests(
        &self,
        size: u32,
        lock_timeout: Duration,
    ) -> Result<sqlx::PgPool, DatabaseError> {
        let millis = lock_millis(lock_timeout);
        let enter = self.schemas.enter_rivers();
        self.river_pool_entered(
            size,
            format!("{enter} AND set_config('lock_timeout', '{millis}', false) IS NOT NULL"),
            None,
        )
    }

    fn river_pool_entered(
        &self,
        size: u32,
        enter: String,
        leave: Option<fn()>,
    ) -> Result<sqlx::PgPool, DatabaseError> {
        let name = self.config.get_application_name().unwrap_or_default();
        let mut options = sqlx::postgres::PgConnectOptions::from_str(self.url.expose_secret())?
            .ssl_mode(self.options.for_sqlx())
            // PgBouncer refuses connections that ask for it, and nobody here reads floats as text.
            .extra_float_digits(None)
            .application_name(&format!("{name}, River"));
        if let Some(path) = &self.options.root_cert {
            options = options.ssl_root_cert(path);
        }
        let (pin, enter): (Arc<str>, Arc<str>) = (settings::pin().into(), enter.into());
        let enter_weirs: Option<Arc<str>> = self.schemas.enter().map(Into::into);
        let timeline = Arc::new(OnceLock::new());
        Ok(sqlx::postgres::PgPoolOptions::new()
            .max_connections(size)
            .acquire_timeout(CONNECT_TIMEOUT)
            .after_connect(move |connection, _| {
                let (pin, enter, enter_weirs) = (Arc::clone(&pin), Arc::clone(&enter), enter_weirs.clone());
                let timeline = Arc::clone(&timeline);
                Box::pin(async move {
                    // First, since what follows sets some of it otherwise.
                    sqlx::query(sqlx::AssertSqlSafe(pin.as_ref()))
                        .execute(&mut *connection)
                        .await?;
                    if let Some(leave) = leave {
                        if let Some(enter) = enter_weirs {
                            let entering = sqlx::query(sqlx::AssertSqlSafe(enter.as_ref()));
                            entering.execute(&mut *connection).await?;
                        }
                        let now: Option<i32> = sqlx::query_scalar("SELECT current_timeline()")
                            .fetch_one(&mut *connection)
                            .await?;
                        if now.is_some_and(|now| *timeline.get_or_init(|| now) != now) {
                            leave();
                        }
                    }
                    let ready = sqlx::query_scalar(sqlx::AssertSqlSafe(enter.as_ref()));
                    match ready.fetch_one(connection).await? {
                        true => Ok(()),
                        false => Err(sqlx::Error::Protocol(DatabaseError::ReadOnly.to_string())),
                    }
                })
            })
            .connect_lazy_with(options))
    }
}

/// Which session of the server a connection is in. By a statement that needs nothing to be prepared.
async fn session_id(client: &Client) -> Result<Option<String>, DatabaseError> {
    let answer = client.simple_query("SELECT pg_backend_pid()").await?;
    Ok(answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    }))
}

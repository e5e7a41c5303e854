//! Connecting to the database.

use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Connection, SimpleQueryMessage, Socket};

use super::connection_pool::ConnectionPool;
use super::error::DatabaseError;
use super::notifier::Notifier;
use super::parameters::{Host, KEEPALIVE_IDLE, Server, Session, TCP_USER_TIMEOUT, Target};
use super::prepared::PreparedClient;
use super::recent_commits::RecentCommits;
use super::relay::Relay;
use super::schemas::Schemas;
use super::settings::{self, Settings};
use super::tls::{MakeTls, SslMode};

type TlsStream = <MakeTls as MakeTlsConnect<Socket>>::Stream;

/// The maximum time for a first statement and for a pool.
pub(super) const CONNECT_TIMEOUT: Duration = super::parameters::CONNECT_TIMEOUT;

/// PgBouncer's error when a statement has waited for a session for as long as the setting of this name allows.
const WAITED_TOO_LONG: &str = "query_wait_timeout";

/// The server ends statements that take longer, and transactions that are idle for longer, so that a vanished process
/// leaves no lock behind.
const SERVER_TIMEOUTS: [(&str, &str); 2] = [
    ("statement_timeout", "10s"),
    ("idle_in_transaction_session_timeout", "10s"),
];

/// The plans of [`Database::connect_by_key`].
const BY_KEY: [(&str, &str); 7] = [
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_sort", "off"),
    ("enable_memoize", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

/// `lock_timeout` in its unit. At least 1, because zero means no timeout.
fn lock_millis(lock_timeout: Duration) -> String {
    lock_timeout.as_millis().max(1).to_string()
}

/// The parameters of database connections. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    config: tokio_postgres::Config,
    tls: MakeTls,
    target: Arc<Target>,
    for_river: Box<sqlx::postgres::PgConnectOptions>,
    schemas: Schemas,
    notifier: Arc<OnceLock<Notifier>>,
    pub(super) commits: RecentCommits,
}

impl Database {
    /// Prepares connections to this URL, under the name `weir`.
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn at(url: &str) -> Result<Self, DatabaseError> {
        Self::named(url, "weir")
    }

    /// Prepares connections to this URL, but opens none yet. `name` is the connections' name in `pg_stat_activity`,
    /// unless the URL has an `application_name`.
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn named(url: &str, name: &str) -> Result<Self, DatabaseError> {
        let mut target = Target::of(url)?;
        if let Some(path) = target.passfile.clone().filter(|_| target.password.is_none())
            && let Some(file) = password_file(&path)
        {
            target.password_from(&file);
        }
        let mut for_river = for_river(&target)?;
        // Both drivers get the same user.
        let user = for_river.get_username().to_owned();
        for_river = for_river.database(target.database.as_ref().unwrap_or(&user));
        target.user.get_or_insert(user);
        target.application_name.get_or_insert_with(|| name.to_owned());
        Ok(Self {
            tls: target.tls.make()?,
            config: for_tokio_postgres(&target, &target.servers),
            target: Arc::new(target),
            for_river: Box::new(for_river),
            schemas: Schemas::default(),
            notifier: Arc::default(),
            commits: RecentCommits::default(),
        })
    }

    /// The same database, with the tables in these schemas.
    #[must_use]
    pub fn in_schemas(mut self, schemas: Schemas) -> Self {
        self.schemas = schemas;
        self.notifier = Arc::default();
        self
    }

    /// The schemas of its tables.
    #[must_use]
    pub fn schemas(&self) -> &Schemas {
        &self.schemas
    }

    /// A warning about how this URL is protected; `None` without one.
    #[must_use]
    pub fn warning(&self) -> Option<&'static str> {
        let is_remote = self.target.servers.iter().any(|server| match &server.host {
            Host::Tcp(name, _) => {
                name != "localhost" && !name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
            Host::Unix(_) => false,
        });
        match self.target.tls.mode {
            _ if !is_remote => None,
            SslMode::Disable => {
                Some("DATABASE_URL has sslmode=disable, so passwords and data travel unencrypted")
            }
            SslMode::Prefer => Some(
                "DATABASE_URL has no sslmode or sslmode=prefer, which falls back to an unencrypted connection and does not \
                 verify the server; set sslmode=verify-full",
            ),
            SslMode::Require => Some(
                "DATABASE_URL has sslmode=require, which does not verify the server; set sslmode=verify-full, and \
                 sslrootcert to the authority of a provider that has its own",
            ),
            SslMode::VerifyCa | SslMode::VerifyFull => None,
        }
    }

    fn relay(&self) -> Result<Relay, DatabaseError> {
        let singles = self.target.servers.iter().map(|server| {
            let config = for_tokio_postgres(&self.target, std::slice::from_ref(server));
            (server.clone(), config)
        });
        Relay::start(singles.collect(), self.tls.clone(), Arc::clone(&self.target))
    }

    /// Opens one plain connection, with the schemas of the tables.
    ///
    /// # Errors
    ///
    /// When the database does not answer within 5 s.
    pub async fn connect(&self) -> Result<Client, DatabaseError> {
        self.connect_set(&[]).await
    }

    /// As [`Self::connect`], with these settings.
    async fn connect_set(&self, settings: Settings<'_>) -> Result<Client, DatabaseError> {
        let client = self.connect_without_schemas().await?;
        // After the connection's start, because poolers refuse the settings there.
        let setup = self.setup(settings);
        if !setup.is_empty() {
            tokio::time::timeout(CONNECT_TIMEOUT, client.batch_execute(&setup))
                .await
                .map_err(|_| DatabaseError::Timeout(CONNECT_TIMEOUT))??;
        }
        Ok(client)
    }

    /// Prepares a session: the pinned settings, the schemas of the tables, and these settings.
    pub(super) fn session_setup(&self, settings: Settings<'_>) -> String {
        format!("{}; {}", settings::pin(), self.setup(settings))
    }

    /// Prepares a session: the schemas of the tables, and these settings.
    fn setup(&self, settings: Settings<'_>) -> String {
        let set = Some(settings::set(settings)).filter(|set| !set.is_empty());
        self.schemas
            .setup()
            .into_iter()
            .chain(set)
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// Opens a connection with the `search_path` of the server and the URL.
    pub(crate) async fn connect_without_schemas(&self) -> Result<Client, DatabaseError> {
        let client = self.connect_with_defaults().await?;
        tokio::time::timeout(CONNECT_TIMEOUT, client.batch_execute(&settings::pin()))
            .await
            .map_err(|_| DatabaseError::Timeout(CONNECT_TIMEOUT))??;
        Ok(client)
    }

    /// Whether a pooler gives each transaction another session (transaction mode). Such a pooler leaks one session's
    /// settings into other programs, loses the locks of sessions, and delivers no notifications.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached, or [`DatabaseError::NoSession`].
    pub async fn shares_sessions(&self) -> Result<bool, DatabaseError> {
        let (one, other) = tokio::try_join!(self.connect_with_defaults(), self.connect_with_defaults())?;
        // A pooler may use its sessions in turns.
        if self.session_id(&one, "").await? != self.session_id(&one, "").await? {
            return Ok(true);
        }
        // Looks for two connections in the same session, or for one in two sessions. The pooler serves other clients at
        // the same time, so a single check may miss it.
        for _ in 0..12 {
            let before = self.session_id(&one, "").await?;
            // In this order, because the second question waits if the pool has a single session.
            let is_shared = self.session_id(&other, "BEGIN; ").await? == before
                || self.session_id(&one, "").await? != before;
            other.simple_query("ROLLBACK").await?;
            if is_shared {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Which session of the server a connection is in. Uses a statement that needs no preparation. A pooler answers it
    /// only when it has a free session.
    async fn session_id(&self, client: &Client, first: &str) -> Result<Option<String>, DatabaseError> {
        let sql = format!("{first}SELECT pg_backend_pid()");
        let no_session = || DatabaseError::NoSession { to: self.address() };
        let answer = tokio::time::timeout(CONNECT_TIMEOUT, client.simple_query(&sql))
            .await
            .map_err(|_| no_session())?
            .map_err(|error| match error.as_db_error() {
                Some(db) if db.message() == WAITED_TOO_LONG => no_session(),
                _ => error.into(),
            })?;
        Ok(answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }

    /// Opens a connection that the caller has to poll.
    pub(super) async fn open(&self) -> Result<(Client, Connection<Socket, TlsStream>), DatabaseError> {
        tokio::time::timeout(self.connect_timeout(), self.config.connect(self.tls.clone()))
            .await
            .map_err(|_| DatabaseError::ConnectTimeout {
                to: self.address(),
                within: self.connect_timeout(),
            })?
            .map_err(|error| DatabaseError::Connect {
                to: self.address(),
                error: Arc::new(error),
            })
    }

    /// Opens a connection with the defaults of the server, the database and the role.
    async fn connect_with_defaults(&self) -> Result<Client, DatabaseError> {
        let (client, connection) = self.open().await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a database connection ended");
            }
        });
        Ok(client)
    }

    /// The maximum time to open a connection, to any of the servers.
    fn connect_timeout(&self) -> Duration {
        let servers = u32::try_from(self.target.servers.len()).unwrap_or(u32::MAX);
        self.target.connect_timeout.saturating_mul(servers)
    }

    /// The connection's target as text, without the password.
    fn address(&self) -> Arc<str> {
        let hosts = self
            .target
            .servers
            .iter()
            .map(|Server { host, port }| match host {
                Host::Tcp(name, _) => format!("{name}:{port}"),
                Host::Unix(folder) => format!("{}:{port}", folder.display()),
            });
        let hosts: Vec<String> = hosts.collect();
        let user = self.target.user.as_deref().unwrap_or_default();
        let name = self.target.database.as_deref().unwrap_or(user);
        format!("{name:?} at {} (user {user:?})", hosts.join(", ")).into()
    }

    /// Opens a connection for short transactions. Waits for a lock for at most `lock_timeout`.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time. [`DatabaseError::ReadOnly`] when it cannot be written, because a
    /// session that starts read-only may stay so after the server has become writable.
    pub async fn connect_writer(&self, lock_timeout: Duration) -> Result<Client, DatabaseError> {
        self.connect_writable(lock_timeout, &[]).await
    }

    async fn connect_writable(
        &self,
        lock_timeout: Duration,
        more: Settings<'_>,
    ) -> Result<Client, DatabaseError> {
        let lock_timeout = lock_millis(lock_timeout);
        let settings = [
            ("statement_timeout", "6s"),
            ("idle_in_transaction_session_timeout", "10s"),
            ("lock_timeout", &lock_timeout),
        ];
        let client = self.connect_set(&[&settings, more].concat()).await?;
        let messages =
            tokio::time::timeout(CONNECT_TIMEOUT, client.simple_query("SHOW transaction_read_only"))
                .await
                .map_err(|_| DatabaseError::Timeout(CONNECT_TIMEOUT))??;
        let is_writable = messages.iter().any(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("off"),
            _ => false,
        });
        if is_writable {
            Ok(client)
        } else {
            Err(DatabaseError::ReadOnly)
        }
    }

    /// Like [`Self::connect_writer`], but looks up rows by key only, with plans that do not depend on statistics.
    /// The planner would scan a table that it considers empty, until the next ANALYZE. Plans are made once. Without
    /// sorts, the planner finds the newest version of a row through the index `holders_newest`, and does not read all
    /// its versions.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time.
    pub async fn connect_by_key(&self, lock_timeout: Duration) -> Result<Client, DatabaseError> {
        self.connect_writable(lock_timeout, &BY_KEY).await
    }

    /// Like [`Self::connect_by_key`], for a session that repeats its statements.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time.
    pub async fn connect_prepared(&self, lock_timeout: Duration) -> Result<PreparedClient, DatabaseError> {
        Ok(PreparedClient::new(self.connect_by_key(lock_timeout).await?))
    }

    /// Like [`Self::connect_prepared`], for the process that runs maintenance. Its lease ends with the session, and the
    /// session ends when its process dies or hangs.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time.
    pub async fn connect_with_lease(&self, lock_timeout: Duration) -> Result<PreparedClient, DatabaseError> {
        let client = self.connect_prepared(lock_timeout).await?;
        client
            .batch_execute(
                "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; \
                 SET idle_session_timeout = '10s'",
            )
            .await?;
        Ok(client)
    }

    /// Like [`Self::connect`], for an operator's command. A change waits 5 s for a lock. A transaction that stays idle,
    /// because its terminal is gone, is rolled back after a minute, so that it does not block others.
    ///
    /// # Errors
    ///
    /// When the database cannot be reached in time.
    pub async fn connect_for_command(&self) -> Result<Client, DatabaseError> {
        self.connect_set(&[
            ("lock_timeout", "5s"),
            ("idle_in_transaction_session_timeout", "1min"),
        ])
        .await
    }

    /// Whether this process's last submission or settlement failed within the last seconds, because the server lacked
    /// disk or memory.
    #[must_use]
    pub fn lacks_resources(&self) -> bool {
        self.commits.have_failed()
    }

    /// A pool of connections for many callers. Each statement may take at most 10 s.
    #[must_use]
    pub fn pool(&self, size: usize) -> ConnectionPool {
        self.pool_with(size, &[])
    }

    /// Like [`Self::pool`]. Waits for a lock for at most `lock_timeout`.
    #[must_use]
    pub fn pool_with_lock_timeout(&self, size: usize, lock_timeout: Duration) -> ConnectionPool {
        self.pool_with(size, &[("lock_timeout", &lock_millis(lock_timeout))])
    }

    fn pool_with(&self, size: usize, settings: Settings<'_>) -> ConnectionPool {
        let settings = [settings, &SERVER_TIMEOUTS].concat();
        let setup = self.session_setup(&settings);
        let patience = CONNECT_TIMEOUT.max(self.connect_timeout());
        ConnectionPool::new(self.config.clone(), self.tls.clone(), &setup, size, patience)
    }

    /// Notifies workers after a commit. All clones of this value share one connection for it.
    pub(crate) fn notifier(&self) -> Notifier {
        let start = || {
            // The task must not keep itself alive.
            let notifier = Arc::default();
            let database = Self {
                notifier,
                ..self.clone()
            };
            Notifier::start(move |timeout| {
                let database = database.clone();
                async move { database.connect_prepared(timeout).await }
            })
        };
        self.notifier.get_or_init(start).clone()
    }

    /// Notifies the workers of these queues of claimable jobs, after the transaction that made them claimable.
    pub fn notify(&self, queues: impl IntoIterator<Item = String>) {
        self.notifier().notify(queues.into_iter().collect());
    }

    /// River's pool.
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn river_pool(&self, size: u32) -> Result<sqlx::PgPool, DatabaseError> {
        self.river_pool_set(size, &[])
    }

    /// River's pool for requests. Its statements wait for a locked row at most this long, so that requests for a locked
    /// row do not use up the connections.
    ///
    /// # Errors
    ///
    /// As [`Self::river_pool`].
    pub fn river_pool_of_requests(
        &self,
        size: u32,
        lock_timeout: Duration,
    ) -> Result<sqlx::PgPool, DatabaseError> {
        self.river_pool_set(size, &[("lock_timeout", &lock_millis(lock_timeout))])
    }

    fn river_pool_set(&self, size: u32, settings: Settings<'_>) -> Result<sqlx::PgPool, DatabaseError> {
        let river_setup = settings
            .iter()
            .fold(self.schemas.river_setup(), |setup, (name, value)| {
                format!("{setup} AND set_config('{name}', '{value}', false) IS NOT NULL")
            });
        let mut options = (*self.for_river).clone().application_name(&self.rivers_name());
        let relay = if self.needs_relay() {
            let relay = self.relay()?;
            options = options
                .socket(relay.folder())
                .ssl_mode(sqlx::postgres::PgSslMode::Disable);
            Some(relay)
        } else {
            None
        };
        let (pin, river_setup): (Arc<str>, Arc<str>) = (settings::pin().into(), river_setup.into());
        let pool = sqlx::postgres::PgPoolOptions::new()
            .max_connections(size)
            .acquire_timeout(CONNECT_TIMEOUT.max(self.connect_timeout()))
            .after_connect(move |connection, _| {
                let (pin, river_setup) = (Arc::clone(&pin), Arc::clone(&river_setup));
                Box::pin(async move {
                    // First, because later statements override some of these settings.
                    sqlx::query(sqlx::AssertSqlSafe(pin.as_ref()))
                        .execute(&mut *connection)
                        .await?;
                    let ready = sqlx::query_scalar(sqlx::AssertSqlSafe(river_setup.as_ref()));
                    match ready.fetch_one(connection).await? {
                        true => Ok(()),
                        false => Err(sqlx::Error::Protocol(DatabaseError::ReadOnly.to_string())),
                    }
                })
            })
            .connect_lazy_with(options);
        if let Some(relay) = relay {
            relay.until(pool.close_event());
        }
        Ok(pool)
    }

    /// The name of River's connections.
    fn rivers_name(&self) -> String {
        let name = self.target.application_name.as_deref().unwrap_or_default();
        format!("{name}, River")
    }

    /// Whether the parameters need features that River's driver lacks.
    fn needs_relay(&self) -> bool {
        let [Server { host, .. }] = self.target.servers.as_slice() else {
            return true;
        };
        let needs_tls = match host {
            Host::Tcp(_, Some(_)) => true,
            Host::Tcp(_, None) => !self.target.tls.matches_sqlx(),
            Host::Unix(_) => false,
        };
        needs_tls || self.target.session == Session::Writable
    }
}

/// The file's text, unless others than its owner can read it. Like libpq, Weir ignores such a file.
fn password_file(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "ignoring a password file that others can read; run chmod 600");
        return None;
    }
    std::fs::read_to_string(path).ok()
}

fn for_tokio_postgres(target: &Target, servers: &[Server]) -> tokio_postgres::Config {
    let mut config = tokio_postgres::Config::new();
    let mut has_tcp = false;
    for Server { host, port } in servers {
        config.port(*port);
        match host {
            Host::Tcp(name, address) => {
                has_tcp = true;
                config.host(name);
                if let Some(address) = address {
                    config.hostaddr(*address);
                }
            }
            Host::Unix(folder) => {
                config.host_path(folder);
            }
        }
    }
    // Sockets have no TLS, regardless of the parameters.
    let mode = match has_tcp {
        true => target.tls.for_tokio_postgres(),
        false => tokio_postgres::config::SslMode::Disable,
    };
    config
        .ssl_mode(mode)
        .connect_timeout(target.connect_timeout)
        .tcp_user_timeout(TCP_USER_TIMEOUT)
        .keepalives_idle(KEEPALIVE_IDLE)
        .target_session_attrs(match target.session {
            Session::Any => TargetSessionAttrs::Any,
            Session::Writable => TargetSessionAttrs::ReadWrite,
        });
    if let Some(user) = &target.user {
        config.user(user);
    }
    if let Some(password) = &target.password {
        config.password(password.expose_secret());
    }
    if let Some(database) = &target.database {
        config.dbname(database);
    }
    if let Some(options) = &target.options {
        config.options(options);
    }
    if let Some(name) = &target.application_name {
        config.application_name(name);
    }
    config
}

/// River's driver reads its options from a URL alone, and everything else from the environment.
fn for_river(target: &Target) -> Result<sqlx::postgres::PgConnectOptions, DatabaseError> {
    let mut url =
        url::Url::parse("postgres://localhost/").map_err(|error| DatabaseError::Url(error.to_string()))?;
    if let Some(options) = &target.options {
        url.query_pairs_mut().append_pair("options", options);
    }
    let mut options = sqlx::postgres::PgConnectOptions::from_str(url.as_str())?
        .ssl_mode(target.tls.for_sqlx())
        .password(
            target
                .password
                .as_ref()
                .map_or("", |password| password.expose_secret()),
        )
        // PgBouncer refuses connections with this setting, and Weir does not read floats as text.
        .extra_float_digits(None);
    if let Some(user) = &target.user {
        options = options.username(user);
    }
    if let Some(Server { host, port }) = target.servers.first() {
        options = options.port(*port);
        options = match host {
            Host::Tcp(name, _) => options.host(name),
            Host::Unix(folder) => options
                .socket(folder)
                .ssl_mode(sqlx::postgres::PgSslMode::Disable),
        };
    }
    Ok(options)
}

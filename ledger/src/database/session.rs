//! A database session: one connection with prepared statements, reopened when it breaks, with a deadline on every
//! transaction.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio_postgres::{Client, GenericClient, Statement};

use super::connect::{CONNECT_TIMEOUT, Database};
use super::error::{DatabaseError, Failure, Phase};
use super::recent_commits::RecentCommits;

/// The maximum time of a transaction. After that, the transaction is stuck and its connection is dropped.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(8);

/// The statements of a transaction, prepared on one connection.
pub(crate) trait Statements: Sized + Send + Sync + 'static {
    /// Prepares them in one round trip.
    fn prepare<C: GenericClient + Sync>(
        client: &C,
    ) -> impl Future<Output = Result<Self, tokio_postgres::Error>> + Send;
}

/// Defines the named statements of a transaction.
macro_rules! statements {
    ($vis:vis struct $Name:ident { $($statement:ident: $sql:expr,)+ }) => {
        $vis struct $Name {
            $($vis $statement: tokio_postgres::Statement,)+
        }

        impl $crate::database::session::Statements for $Name {
            async fn prepare<C: tokio_postgres::GenericClient + Sync>(
                client: &C,
            ) -> Result<Self, tokio_postgres::Error> {
                let [$($statement),+] = $crate::database::session::prepare(client, [$($sql.into()),+]).await?;
                Ok(Self { $($statement),+ })
            }
        }
    };
}

pub(crate) use statements;

/// Prepares these statements in one round trip.
pub(crate) async fn prepare<C: GenericClient + Sync, const N: usize>(
    client: &C,
    statements: [Cow<'static, str>; N],
) -> Result<[Statement; N], tokio_postgres::Error> {
    let prepared = try_join_all(statements.iter().map(|sql| client.prepare(sql))).await?;
    match prepared.try_into() {
        Ok(prepared) => Ok(prepared),
        Err(_) => unreachable!("as many statements come back as were sent"),
    }
}

/// The number of commits that a transaction waits for a lock, in addition to the lock timeout.
const COMMITS: u32 = 3;

/// A connection with its prepared statements.
pub(crate) struct Connection<S> {
    pub(crate) client: Client,
    pub(crate) statements: S,
    lock_timeout: Duration,
    commits: RecentCommits,
}

impl<S> Connection<S> {
    /// Starts a transaction. It waits for a lock for the session's timeout, and as long as a few commits take: another
    /// transaction that is only waiting for its commit does not block.
    pub(crate) async fn begin(&self) -> Result<(), tokio_postgres::Error> {
        let commits = self.commits.longest() * COMMITS;
        let longer = async {
            match commits > self.lock_timeout {
                true => {
                    let timeout = (self.lock_timeout + commits).as_millis();
                    let set = format!("SET LOCAL lock_timeout = {timeout}");
                    self.client.batch_execute(&set).await
                }
                false => Ok(()),
            }
        };
        let begin = self.client.batch_execute("BEGIN");
        tokio::try_join!(biased; begin, longer)?;
        Ok(())
    }

    /// Commits, without a lock timeout: PostgreSQL takes locks during COMMIT if another program's trigger notifies.
    pub(crate) async fn commit(&self) -> Result<(), tokio_postgres::Error> {
        // Answered when all statements before it are done.
        let unbounded = async {
            self.client.batch_execute("SET LOCAL lock_timeout = 0").await?;
            Ok(Instant::now())
        };
        let (started, ()) = tokio::try_join!(biased; unbounded, self.client.batch_execute("COMMIT"))?;
        self.commits.record(started.elapsed());
        Ok(())
    }
}

/// The session of a task that runs one transaction after the other.
pub(crate) struct Session<S> {
    database: Database,
    lock_timeout: Duration,
    connection: Option<Connection<S>>,
}

impl<S: Statements> Session<S> {
    /// Opens no connection yet. Transactions wait for a lock for at most `lock_timeout`.
    pub(crate) fn new(database: Database, lock_timeout: Duration) -> Self {
        Self {
            database,
            lock_timeout,
            connection: None,
        }
    }

    /// The connection, outside of any transaction.
    pub(crate) async fn connection(&mut self) -> Result<&Connection<S>, Failure> {
        let open = |connection: &Connection<S>| !connection.client.is_closed();
        let connection = match self.connection.take().filter(open) {
            Some(connection) => connection,
            None => self.connect().await.map_err(Failure::Unavailable)?,
        };
        Ok(self.connection.insert(connection))
    }

    async fn connect(&self) -> Result<Connection<S>, DatabaseError> {
        let connected = async {
            let client = self.database.connect_by_key(self.lock_timeout).await?;
            let statements = S::prepare(&client).await?;
            Ok(Connection {
                client,
                statements,
                lock_timeout: self.lock_timeout,
                commits: self.database.commits.clone(),
            })
        };
        tokio::time::timeout(TRANSACTION_TIMEOUT, connected)
            .await
            .unwrap_or(Err(DatabaseError::Timeout(TRANSACTION_TIMEOUT)))
    }

    /// Closes the connection, because its state is unknown.
    pub(crate) fn close(&mut self) {
        self.connection = None;
    }

    /// Ends a failed transaction. Closes a connection after anything unexpected.
    pub(crate) async fn recover(&mut self, failure: &Failure) {
        if matches!(failure, Failure::Refused(error) if error.is_lack_of_resources()) {
            self.database.commits.record_failure();
        }
        if let Some(connection) = self.connection.take()
            && failure.keeps_connection()
            && tokio::time::timeout(CONNECT_TIMEOUT, connection.client.batch_execute("ROLLBACK"))
                .await
                .is_ok_and(|rolled_back| rolled_back.is_ok())
        {
            self.connection = Some(connection);
        }
    }
}

/// In a session without a lock timeout, a transaction waits for locks for at most five seconds.
pub(crate) const BOUND_LOCKS: &str =
    "SELECT set_config('lock_timeout', '5s', true) WHERE current_setting('lock_timeout') = '0'";

/// Sets a transaction's deadline. A transaction that exceeds it may have committed, because its outcome cannot be
/// queried.
pub(crate) async fn with_deadline<T, E: From<Failure>>(
    transaction: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    tokio::time::timeout(TRANSACTION_TIMEOUT, transaction)
        .await
        .unwrap_or_else(|_| {
            let error = DatabaseError::Timeout(TRANSACTION_TIMEOUT);
            Err(Failure::lost(error, Phase::Committing).into())
        })
}

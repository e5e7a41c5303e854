//! A database session: one connection with its statements prepared, opened again when it breaks, with a deadline on
//! every transaction.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::try_join_all;
use tokio_postgres::{Client, GenericClient, Statement};

use super::connect::{CONNECT_TIMEOUT, Database};
use super::error::{DatabaseError, Failure, Phase};

/// No transaction takes longer. One that does is given up with its connection: it stands still.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(8);

/// The statements of a transaction, prepared on one connection.
pub(crate) trait Statements: Sized + Send + Sync + 'static {
    /// Prepares them, in one round trip.
    fn prepare<C: GenericClient + Sync>(
        client: &C,
    ) -> impl Future<Output = Result<Self, tokio_postgres::Error>> + Send;
}

/// Defines the statements of a transaction, each by a name.
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

/// Prepares these statements, all in one round trip.
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

/// A statement that locks, without the rows that another transaction has locked.
pub(crate) fn skipping(sql: &str) -> String {
    sql.replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")
}

/// A connection and what was prepared on it.
pub(crate) struct Connection<S> {
    pub(crate) client: Client,
    pub(crate) statements: S,
}

/// The session of a task that makes one transaction after the other.
pub(crate) struct Session<S> {
    database: Database,
    lock_timeout: Duration,
    connection: Option<Connection<S>>,
}

impl<S: Statements> Session<S> {
    /// Connects nothing yet. A lock is waited for at most `lock_timeout`.
    pub(crate) fn new(database: Database, lock_timeout: Duration) -> Self {
        Self {
            database,
            lock_timeout,
            connection: None,
        }
    }

    /// The connection, in no transaction.
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
            Ok(Connection { client, statements })
        };
        tokio::time::timeout(TRANSACTION_TIMEOUT, connected)
            .await
            .unwrap_or(Err(DatabaseError::Timeout(TRANSACTION_TIMEOUT)))
    }

    /// Closes the connection: nobody knows what state it is in.
    pub(crate) fn close(&mut self) {
        self.connection = None;
    }

    /// Ends a transaction that failed. A connection that said or did anything unexpected is closed.
    pub(crate) async fn recover(&mut self, failure: &Failure) {
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

/// A transaction over a session that waits for locks without end waits for five seconds instead.
pub(crate) const BOUND_LOCKS: &str =
    "SELECT set_config('lock_timeout', '5s', true) WHERE current_setting('lock_timeout') = '0'";

/// Runs what comes before COMMIT is sent. A panic in it is a refusal, since nothing is written.
pub(crate) async fn before_commit<T, E: From<Failure>>(
    part: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    AssertUnwindSafe(part)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err(Failure::Refused(DatabaseError::Panicked).into()))
}

/// Gives a transaction its deadline. One that runs into it may have committed: nobody can be asked how far it got.
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

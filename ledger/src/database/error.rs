//! Database errors, and how transactions handle them.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::error::{DbError, Severity, SqlState};

/// The database cannot be used right now, or refused a statement. Cheap to clone, because all callers of one
/// transaction get the same error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DatabaseError {
    /// PostgreSQL refused a statement or the connection broke.
    #[error("the database failed: {}", message_of(.0))]
    Postgres(Arc<tokio_postgres::Error>),
    /// The connection failed. Names the target and the reason.
    #[error("the database {to} cannot be used: {}", reason(.error))]
    Connect {
        /// Database, host, port and user.
        to: Arc<str>,
        /// The error of the server or the system.
        error: Arc<tokio_postgres::Error>,
    },
    /// The server did not answer in time.
    #[error(
        "the database {to} does not answer within {} s; check that it runs and is reachable, or correct DATABASE_URL",
        .within.as_secs()
    )]
    ConnectTimeout {
        /// Database, host, port and user.
        to: Arc<str>,
        /// The time waited.
        within: Duration,
    },
    /// A pooler has no free session for this process.
    #[error(
        "the database {to} accepts connections but no statements, like a pooler without a free server connection. Raise its \
         pool size (PgBouncer: default_pool_size), end clients that leave transactions open, or connect to the server itself"
    )]
    NoSession {
        /// Database, host, port and user.
        to: Arc<str>,
    },
    /// The pool has no free connection.
    #[error("the pool has no free database connection: {}", match &**.0 {
        deadpool_postgres::PoolError::Backend(error) => reason(error),
        other => other.to_string(),
    })]
    Pool(Arc<deadpool_postgres::PoolError>),
    /// River's client failed.
    #[error("River failed: {0}")]
    River(Arc<riverqueue::Error>),
    /// SQLx could not connect.
    #[error("the database failed: {0}")]
    Sqlx(Arc<sqlx::Error>),
    /// There was no answer for this long.
    #[error("the database did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// A transaction lost to others on every try.
    #[error("other transactions were changing the same rows")]
    Contended,
    /// The server takes no writes: it is a replica, or a failover is in progress.
    #[error("the server is read-only")]
    ReadOnly,
    /// Another transaction holds a lock on the same rows.
    #[error("another transaction holds a lock on the same rows")]
    Locked,
    /// The database refused another request of this holder, which is in quarantine and has too many waiting.
    #[error("too many requests of this holder are waiting, after the database rejected one of them")]
    TooManyInQuarantine,
    /// The connection was lost when COMMIT may have taken effect.
    #[error("the connection was lost during COMMIT, so the outcome is unknown: {0}")]
    OutcomeUnknown(Arc<str>),
    /// The URL has an invalid part.
    #[error("DATABASE_URL: {0}")]
    Url(String),
    /// The task that uses the database has ended.
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

/// PostgreSQL's message, and how to fix it if that is known. `tokio_postgres` only reports "db error" or "error
/// communicating with the server"; the reason is in its source.
pub(crate) fn message_of(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        let mend = match *db.code() {
            SqlState::LOCK_NOT_AVAILABLE => {
                "; another transaction holds the lock: end it, or try again later"
            }
            _ => "",
        };
        return format!("{} ({}){mend}", db.message(), db.code().code());
    }
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Why there is no connection, and how to fix it.
fn reason(error: &tokio_postgres::Error) -> String {
    if let Some(db) = error.as_db_error() {
        let mend = match *db.code() {
            SqlState::INVALID_PASSWORD => "; correct the password in DATABASE_URL",
            SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                "; correct the user in DATABASE_URL, or the server's access rules (pg_hba.conf)"
            }
            SqlState::INVALID_CATALOG_NAME => "; create it, or correct DATABASE_URL",
            SqlState::TOO_MANY_CONNECTIONS => "; raise max_connections, or run fewer processes",
            _ => "",
        };
        return format!("{}{mend}", message_of(error));
    }
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause.and_then(std::error::Error::source) {
        cause = Some(inner);
    }
    let Some(cause) = cause else {
        return error.to_string();
    };
    if cause.downcast_ref::<std::io::Error>().is_some() {
        format!("{cause}; start it, or correct DATABASE_URL")
    } else {
        format!("{error}: {cause}")
    }
}

impl DatabaseError {
    /// Whether the connection may be used again: the error is about a statement and not about the connection.
    #[must_use]
    pub fn keeps_connection(&self) -> bool {
        match self {
            Self::Postgres(error) => error.as_db_error().is_some_and(|db| {
                matches!(db.parsed_severity(), Some(Severity::Error)) && !spoils_connection(db)
            }),
            Self::ReadOnly | Self::Timeout(_) | Self::OutcomeUnknown(_) => false,
            _ => true,
        }
    }

    /// Whether another transaction holds a lock on the same rows.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        match self {
            Self::Postgres(error) => error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE),
            Self::Locked => true,
            _ => false,
        }
    }

    /// Whether PostgreSQL would refuse the same statement again, even when the database is healthy. Other errors are
    /// transient, or an operator must fix them.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Postgres(error) => {
                let is_statements = error.as_db_error().is_some() && self.keeps_connection();
                let is_lost = error.code().is_some_and(is_conflict);
                is_statements && !is_lost && !self.is_transient() && !self.is_locked()
            }
            Self::Url(_) => true,
            _ => false,
        }
    }

    /// Why PostgreSQL cannot store a caller's value. `None` for other errors.
    pub(crate) fn unstorable(&self) -> Option<String> {
        match self {
            Self::Postgres(error) => unstorable(error),
            _ => None,
        }
    }

    /// Whether the server lacked disk or memory, or could not read or write its files.
    pub(crate) fn is_lack_of_resources(&self) -> bool {
        match self {
            Self::Postgres(error) | Self::Connect { error, .. } => error
                .code()
                .is_some_and(|code| matches!(&code.code()[..2], "53" | "58")),
            _ => false,
        }
    }

    /// Whether a retry may succeed later: the statement took too long, or the server lacked memory or disk.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Postgres(error) | Self::Connect { error, .. } => {
                self.is_lack_of_resources() || error.code() == Some(&SqlState::QUERY_CANCELED)
            }
            Self::Contended
            | Self::Locked
            | Self::TooManyInQuarantine
            | Self::Timeout(_)
            | Self::ConnectTimeout { .. } => true,
            _ => false,
        }
    }
}

/// Errors that make a connection unusable: connection exceptions (a pooler's too), operator intervention, and read-only
/// after a failover, in both spellings. Also the error that a statement keeps returning if it was prepared before a
/// table changed.
fn spoils_connection(db: &DbError) -> bool {
    let code = db.code();
    let is_outdated =
        *code == SqlState::FEATURE_NOT_SUPPORTED && db.routine() == Some("RevalidateCachedQuery");
    is_outdated || matches!(&code.code()[..2], "08" | "25" | "26" | "57") && *code != SqlState::QUERY_CANCELED
}

/// As [`DatabaseError::unstorable`]: class 22 is about data, 54 about its size.
pub(crate) fn unstorable(error: &tokio_postgres::Error) -> Option<String> {
    let db = error.as_db_error()?;
    let code = db.code();
    if *code == SqlState::CHARACTER_NOT_IN_REPERTOIRE || *code == SqlState::UNTRANSLATABLE_CHARACTER {
        return Some("text must not contain a NUL character".to_owned());
    }
    matches!(&code.code()[..2], "22" | "54").then(|| db.message().to_owned())
}

/// Whether a transaction lost to another one: for example a deadlock, or a row that the other one inserted or deleted.
fn is_conflict(code: &SqlState) -> bool {
    *code == SqlState::T_R_DEADLOCK_DETECTED
        || *code == SqlState::T_R_SERIALIZATION_FAILURE
        || *code == SqlState::UNIQUE_VIOLATION
        || *code == SqlState::FOREIGN_KEY_VIOLATION
}

/// The progress of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// COMMIT was not sent.
    Open,
    /// COMMIT was sent, together with the last writes.
    Committing,
}

/// How a transaction failed, which determines the next step.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing is committed. The transaction lost to another one; a retry may succeed.
    Conflict(DatabaseError),
    /// Nothing is committed. PostgreSQL refuses an item of the group.
    Refused(DatabaseError),
    /// Nothing is committed. A row stayed locked for longer than `lock_timeout`.
    Blocked,
    /// Nothing is committed. The database cannot be used, or the connection is no longer reliable.
    Unavailable(DatabaseError),
    /// COMMIT may have taken effect.
    Unknown(DatabaseError),
}

impl Failure {
    /// Classifies the response to a statement or to COMMIT.
    ///
    /// An error response counts as an answer only if it has severity ERROR and comes from the server itself. A FATAL
    /// error ends the connection, and class 08 comes from a pooler or proxy. Neither shows the outcome of a COMMIT.
    pub(crate) fn of(error: tokio_postgres::Error, phase: Phase) -> Self {
        let Some(db) = error.as_db_error() else {
            return Self::lost(error.into(), phase);
        };
        if !matches!(db.parsed_severity(), Some(Severity::Error)) {
            return Self::lost(error.into(), phase);
        }
        let code = db.code().clone();
        if is_conflict(&code) {
            return Self::Conflict(error.into());
        }
        if code == SqlState::LOCK_NOT_AVAILABLE {
            return Self::Blocked;
        }
        match (spoils_connection(db), &code.code()[..2]) {
            (false, _) => Self::Refused(error.into()),
            // This is an answer: nothing was committed.
            (true, "0A" | "25" | "26") => Self::Unavailable(error.into()),
            (true, _) => Self::lost(error.into(), phase),
        }
    }

    /// The connection is unusable.
    pub(crate) fn lost(error: DatabaseError, phase: Phase) -> Self {
        match phase {
            Phase::Open => Self::Unavailable(error),
            Phase::Committing => Self::Unknown(DatabaseError::OutcomeUnknown(error.to_string().into())),
        }
    }

    /// Whether the connection is in a known state, and may be used again after a ROLLBACK.
    pub(crate) fn keeps_connection(&self) -> bool {
        matches!(self, Self::Conflict(_) | Self::Refused(_) | Self::Blocked)
    }

    pub(crate) fn into_error(self) -> DatabaseError {
        match self {
            Self::Conflict(_) => DatabaseError::Contended,
            Self::Blocked => DatabaseError::Locked,
            Self::Refused(error) | Self::Unavailable(error) | Self::Unknown(error) => error,
        }
    }
}

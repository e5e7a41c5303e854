//! Why a migration failed.

use tokio_postgres::error::SqlState;

use crate::database::{DatabaseError, message_of};

/// A failed migration.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The database could not be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The database does not meet Weir's requirements. Nothing was changed.
    #[error("nothing was changed, because the database does not meet Weir's requirements:{}", listed(.0))]
    Refused(Vec<String>),
    /// One of River's migrations failed.
    #[error("River's migration failed: {0}")]
    River(#[from] riverqueue::migrate::Error),
    /// Another transaction uses a table that must change.
    #[error("{} blocks the migration; end that session, or rerun `weir migrate` when it has finished", by.as_deref().unwrap_or("another transaction"))]
    Blocked {
        /// That transaction's session.
        by: Option<String>,
    },
    /// `weir uninstall` found no Weir.
    #[error("schema {0:?} has no Weir to uninstall; set WEIR_SCHEMA if its tables are in another schema")]
    NotInstalled(String),
    /// A newer release migrated the database, and may have created objects that this one does not know.
    #[error("Weir {0} migrated this database; uninstall it with that release")]
    Newer(String),
    /// Processes use Weir, and `weir uninstall` or an upgrade needs them to stop.
    #[error("nothing was changed, because Weir is in use; stop these processes first:{}", listed(.0))]
    Running(Vec<String>),
    /// Another program's object uses one of Weir's.
    #[error("nothing was changed, because PostgreSQL refused to drop Weir's objects: {}{}; drop the objects that use them first", message_of(.0), detail(.0))]
    InUse(Box<tokio_postgres::Error>),
    /// PostgreSQL refused a file of the schema. Nothing of the schema was changed.
    #[error("ledger/schema could not be applied, at {path}: {}{}", message_of(.error), detail(.error))]
    File {
        /// The file.
        path: String,
        /// PostgreSQL's error.
        error: tokio_postgres::Error,
    },
}

impl From<tokio_postgres::Error> for MigrateError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

impl MigrateError {
    /// Whether it failed because it got no lock in time, or because of a deadlock.
    pub(super) fn is_lock_failure(&self) -> bool {
        let code = match self {
            Self::File { error, .. } => error.code(),
            Self::Database(DatabaseError::Postgres(error)) => error.code(),
            _ => None,
        };
        code.is_some_and(|code| {
            *code == SqlState::LOCK_NOT_AVAILABLE || *code == SqlState::T_R_DEADLOCK_DETECTED
        })
    }
}

fn listed(faults: &[String]) -> String {
    faults.iter().map(|fault| format!("\n  - {fault}")).collect()
}

/// Details, such as the view that depends on a column.
fn detail(error: &tokio_postgres::Error) -> String {
    let detail = error.as_db_error().and_then(|db| db.detail());
    detail.map_or_else(String::new, |detail| format!("; {}", detail.replace('\n', "; ")))
}

//! Why a database was not brought up to date.

use std::error::Error as _;

use tokio_postgres::error::SqlState;

use crate::database::{DatabaseError, said};

/// A migration that did not go through.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The database could not be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// What is there is somebody else's, or too old. Nothing was changed.
    #[error("nothing was changed, since the database is not as Weir needs it:{}", listed(.0))]
    Refused(Vec<String>),
    /// One of River's migrations failed.
    #[error("a migration of River's failed: {0}")]
    River(#[from] riverqueue::migrate::Error),
    /// Somebody else's transaction uses a table that a migration changes.
    #[error("Weir's migrations wait for {}; end it, or run this again when it is over", by.as_deref().unwrap_or("another transaction"))]
    HeldUp {
        /// Whose.
        by: Option<String>,
    },
    /// One of Weir's migrations failed.
    #[error("{}", told(.0))]
    Weir(#[from] refinery::Error),
}

impl From<tokio_postgres::Error> for MigrateError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

fn listed(faults: &[String]) -> String {
    faults.iter().map(|fault| format!("\n  - {fault}")).collect()
}

/// Whether a migration failed since it did not get a lock in time, or got into a deadlock.
pub(super) fn is_held_up(error: &refinery::Error) -> bool {
    let code = postgres(error).and_then(tokio_postgres::Error::code);
    code.is_some_and(|code| *code == SqlState::LOCK_NOT_AVAILABLE || *code == SqlState::T_R_DEADLOCK_DETECTED)
}

/// What PostgreSQL said, if it was PostgreSQL.
fn postgres(error: &refinery::Error) -> Option<&tokio_postgres::Error> {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(postgres) = inner.downcast_ref() {
            return Some(postgres);
        }
        cause = inner.source();
    }
    None
}

/// Which migration failed, and what PostgreSQL says: by itself the error says "db error".
fn told(error: &refinery::Error) -> String {
    let refinery::error::Kind::Connection(doing, _) = error.kind() else {
        return format!("a migration of Weir's failed: {error}");
    };
    let Some(postgres) = postgres(error) else {
        return format!("Weir's migrations failed, {error}");
    };
    // Such as whose view it is that depends on a column of ours.
    let detail = postgres.as_db_error().and_then(|db| db.detail());
    let detail = detail.map_or_else(String::new, |detail| format!("; {}", detail.replace('\n', "; ")));
    format!("Weir's migrations failed, {doing}: {}{detail}", said(postgres))
}

//! Why a database was not brought up to date.

use std::error::Error as _;

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

/// Which migration failed, and what PostgreSQL says: by itself the error says "db error".
fn told(error: &refinery::Error) -> String {
    let refinery::error::Kind::Connection(doing, _) = error.kind() else {
        return format!("a migration of Weir's failed: {error}");
    };
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(postgres) = inner.downcast_ref::<tokio_postgres::Error>() {
            // Such as whose view it is that depends on a column of ours.
            let detail = postgres.as_db_error().and_then(|db| db.detail());
            let detail =
                detail.map_or_else(String::new, |detail| format!("; {}", detail.replace('\n', "; ")));
            return format!("Weir's migrations failed, {doing}: {}{detail}", said(postgres));
        }
        cause = inner.source();
    }
    format!("Weir's migrations failed, {error}")
}

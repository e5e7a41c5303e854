//! `weir migrate`: River's migrations by River's own migrator, then Weir's, each with a ledger of its own.

use refinery::Target;

use crate::database::{Database, DatabaseError};

mod embedded {
    refinery::embed_migrations!("migrations");
}

/// The table in which Weir's migrations are recorded; River's are in `river_migration`.
const LEDGER: &str = "weir_migrations";

/// Any number; the same in every process, so that only one migrates at a time.
const LOCK: i64 = 0x77_65_69_72;

/// A migration that did not go through.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The database could not be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// One of River's migrations failed.
    #[error("a migration of River's failed: {0}")]
    River(#[from] riverqueue::migrate::Error),
    /// One of Weir's migrations failed.
    #[error("a migration of Weir's failed: {0}")]
    Weir(#[from] refinery::Error),
}

/// What was done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Versions of River's line `main`.
    pub river: Vec<i64>,
    /// Weir's migrations by name.
    pub weir: Vec<String>,
}

/// Brings the database up to date. Safe to repeat, and to run from many places at once: the others wait.
///
/// # Errors
///
/// When the database cannot be reached, or refuses a migration. What was applied before stays.
pub async fn migrate(database: &Database) -> Result<Applied, MigrateError> {
    to(database, Target::Latest).await
}

/// Brings the database to an earlier version of Weir's schema, for tests of upgrades; River's is the latest one.
///
/// # Errors
///
/// As [`migrate`].
pub async fn migrate_to(database: &Database, version: i32) -> Result<Applied, MigrateError> {
    to(database, Target::Version(version)).await
}

async fn to(database: &Database, target: Target) -> Result<Applied, MigrateError> {
    let mut client = database.connect().await?;
    client
        .execute("SELECT pg_advisory_lock($1)", &[&LOCK])
        .await
        .map_err(DatabaseError::from)?;
    let pool = database.river_pool(1)?;
    let river = riverqueue::migrate::PostgresMigrator::new(pool.clone())
        .migrate_up()
        .await?;
    pool.close().await;
    let mut runner = embedded::migrations::runner().set_target(target);
    runner.set_migration_table_name(LEDGER);
    let report = runner.run_async(&mut client).await?;
    let weir = report
        .applied_migrations()
        .iter()
        .map(ToString::to_string)
        .collect();
    client
        .execute("SELECT pg_advisory_unlock($1)", &[&LOCK])
        .await
        .map_err(DatabaseError::from)?;
    Ok(Applied { river, weir })
}

/// Whether every migration that this binary knows has been applied, without applying any.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn is_current(client: &tokio_postgres::Client) -> Result<bool, DatabaseError> {
    let present: bool = client
        .query_one("SELECT to_regclass('river_migration') IS NOT NULL AND to_regclass('weir_migrations') IS NOT NULL", &[])
        .await?
        .get(0);
    if !present {
        return Ok(false);
    }
    let row = client
        .query_one(
            "SELECT (SELECT max(version) FROM river_migration WHERE line = 'main'), \
                    (SELECT max(version)::bigint FROM weir_migrations)",
            &[],
        )
        .await?;
    let (river, weir): (Option<i64>, Option<i64>) = (row.get(0), row.get(1));
    let wanted = embedded::migrations::runner()
        .get_migrations()
        .iter()
        .map(|migration| i64::from(migration.version()))
        .max();
    Ok(river >= Some(riverqueue::migrate::MIGRATION_VERSION_LATEST) && weir >= wanted)
}

//! `weir migrate`: River's migrations by River's own migrator, then Weir's, each with a ledger of its own. It looks
//! before it changes anything: what is somebody else's stays as it is.

mod error;
mod known;
mod look;
mod script;

use std::time::Duration;

use refinery::Target;
use riverqueue::migrate::PostgresMigrator;
use tokio_postgres::Client;

use crate::database::{Database, DatabaseError};
use error::is_held_up;
use known::{GRANT_FUNCTIONS, LEDGER, embedded, lead_functions, own_functions, quoted};
use look::{Found, look};

pub use error::MigrateError;
pub use known::{OLDEST_RIVER, River};

/// Any number; the same in every process, so that only one migrates at a time, whatever its schemas.
const LOCK: i64 = 0x77_65_69_72;

/// How long a migration waits for a table, while everybody else who wants it waits behind.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long it makes way for them, and how often it tries: for three minutes in all.
const BETWEEN_TRIES: Duration = Duration::from_secs(4);
const MOST_TRIES: u32 = 30;

/// What was done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Versions of River's line `main`.
    pub river: Vec<i64>,
    /// Weir's migrations by name.
    pub weir: Vec<String>,
    /// The version of River's tables that stays, though a newer one is known.
    pub kept_river: Option<i64>,
}

/// Brings the database up to date. Safe to repeat, and to run from many places at once: the others wait.
///
/// # Errors
///
/// When the database cannot be reached, or is not as Weir needs it (then nothing is changed), or refuses a migration.
/// What was applied before stays.
pub async fn migrate(database: &Database) -> Result<Applied, MigrateError> {
    to(database, River::default(), Target::Latest).await
}

/// The same, with River's tables treated like this.
///
/// # Errors
///
/// As [`migrate`].
pub async fn migrate_with(database: &Database, river: River) -> Result<Applied, MigrateError> {
    to(database, river, Target::Latest).await
}

/// Brings the database to an earlier version of Weir's schema, for tests of upgrades; River's is the latest one.
///
/// # Errors
///
/// As [`migrate`].
pub async fn migrate_to(database: &Database, version: i32) -> Result<Applied, MigrateError> {
    to(database, River::default(), Target::Version(version)).await
}

/// What [`migrate_with`] would run, as a script; empty when there is nothing to do. Changes nothing.
///
/// # Errors
///
/// As [`migrate`].
pub async fn script(database: &Database, river: River) -> Result<String, MigrateError> {
    let client = database.connect_as_it_is().await?;
    let found = look(&client, database.schemas()).await?;
    let applies_river = found.plan(river).map_err(MigrateError::Refused)?;
    let are_led = functions_are_led(&client, Some(&found.weir)).await?;
    script::of(
        &database.clone().in_schemas(found.schemas()),
        &found,
        applies_river,
        are_led,
    )
    .await
}

async fn to(database: &Database, river: River, target: Target) -> Result<Applied, MigrateError> {
    let mut client = database.connect_as_it_is().await?;
    client.execute("SELECT pg_advisory_lock($1)", &[&LOCK]).await?;
    let found = look(&client, database.schemas()).await?;
    let applies_river = found.plan(river).map_err(MigrateError::Refused)?;
    make_schemas(&client, &found).await?;
    let database = database.clone().in_schemas(found.schemas());
    let mut applied = Applied::default();
    if applies_river {
        let pool = database.river_pool(1)?;
        applied.river = PostgresMigrator::new(pool.clone()).migrate_up().await?;
        pool.close().await;
    } else {
        let latest = riverqueue::migrate::MIGRATION_VERSION_LATEST;
        applied.kept_river = found.river_version.filter(|version| *version < latest);
    }
    let path = format!(
        "SET search_path = {}, {}",
        quoted(&found.weir),
        quoted(&found.river)
    );
    client.batch_execute(&path).await?;
    applied.weir = apply(&mut client, target).await?;
    client.batch_execute(GRANT_FUNCTIONS).await?;
    client.execute("SELECT pg_advisory_unlock($1)", &[&LOCK]).await?;
    Ok(applied)
}

/// Applies Weir's migrations, each in a transaction of its own. Returns their names.
///
/// Whoever comes after one that waits for a table waits behind it, submissions and settlements too. So it waits for a
/// moment, makes way for them, and tries again.
async fn apply(client: &mut Client, target: Target) -> Result<Vec<String>, MigrateError> {
    let mut runner = embedded::migrations::runner().set_target(target);
    runner.set_migration_table_name(LEDGER);
    let bound = format!("SET lock_timeout = {}", LOCK_TIMEOUT.as_millis());
    client.batch_execute(&bound).await?;
    let mut applied = Vec::new();
    for tries in 1.. {
        let ran = runner.run_async(client).await;
        // What was applied is in use, whatever comes after it.
        let led = client.batch_execute(&lead_functions()).await;
        let report = match &ran {
            Ok(report) => Some(report),
            Err(error) => error.report(),
        };
        let names = report.map(|report| report.applied_migrations().iter().map(ToString::to_string));
        applied.extend(names.into_iter().flatten());
        match ran {
            Ok(_) => {
                led?;
                break;
            }
            Err(error) if is_held_up(&error) => {
                let row = client.query_opt(include_str!("sql/holds_up.sql"), &[]).await;
                let by = row.ok().flatten().map(|row| row.get("session"));
                if tries == MOST_TRIES {
                    return Err(MigrateError::HeldUp { by });
                }
                if tries == 1 {
                    tracing::warn!(
                        by,
                        "waiting for a transaction that uses a table which a migration changes"
                    );
                }
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    client.batch_execute("RESET lock_timeout").await?;
    Ok(applied)
}

/// Makes the schemas that are missing. Not with `IF NOT EXISTS`: that needs the right to make one even where it is there.
async fn make_schemas(client: &Client, found: &Found) -> Result<(), DatabaseError> {
    if !found.has_river {
        let make = format!("CREATE SCHEMA {}", quoted(&found.river));
        client.batch_execute(&make).await?;
    }
    if !found.has_weir && found.weir != found.river {
        let make = format!("CREATE SCHEMA {}", quoted(&found.weir));
        client.batch_execute(&make).await?;
    }
    Ok(())
}

/// Whether every migration that this binary knows has been applied, without applying any; and River's tables are of a
/// version that it works on.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn is_current(client: &Client) -> Result<bool, DatabaseError> {
    let row = client.query_one(include_str!("sql/is_there.sql"), &[]).await?;
    if !(row.get::<_, bool>("has_jobs") && row.get::<_, bool>("has_ledger")) {
        return Ok(false);
    }
    let weir: Option<i64> = client
        .query_one("SELECT max(version)::bigint FROM weir_migrations", &[])
        .await?
        .get(0);
    // A River whose ledger another tool keeps was looked at when Weir's tables were made.
    let river: Option<i64> = if row.get("has_river_ledger") {
        let newest = "SELECT max(version) FROM river_migration m WHERE coalesce(to_jsonb(m) ->> 'line', 'main') = 'main'";
        client.query_one(newest, &[]).await?.get(0)
    } else {
        Some(OLDEST_RIVER)
    };
    let wanted = embedded::migrations::runner()
        .get_migrations()
        .iter()
        .map(|migration| i64::from(migration.version()))
        .max();
    Ok(river >= Some(OLDEST_RIVER) && weir >= wanted)
}

/// Whether [`is_current`] holds, and none was cut short: a migration that replaces a function forgets where it looks for
/// tables, and the process may have died before it said so again.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn is_complete(client: &Client) -> Result<bool, DatabaseError> {
    Ok(is_current(client).await? && functions_are_led(client, None).await?)
}

/// In this schema, or else where the session makes tables.
async fn functions_are_led(client: &Client, weir: Option<&str>) -> Result<bool, DatabaseError> {
    let own: Vec<_> = own_functions().into_iter().collect();
    let row = client
        .query_one(include_str!("sql/are_led.sql"), &[&weir, &own])
        .await?;
    Ok(row.get("are_led"))
}

//! `weir migrate`: River's migrations by River's own migrator, then Weir's schema. It inspects the database before it
//! changes anything, and does not change objects of other programs.

mod error;
mod inspection;
mod known;
mod schema;
mod script;
mod server;
mod uninstall;

use std::collections::BTreeSet;
use std::time::Duration;

use riverqueue::migrate::PostgresMigrator;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, GenericClient};

use crate::database::{Database, DatabaseError};
use inspection::{Inspection, inspect};
use schema::{Applied, RECORD};
use script::Step;

pub use error::MigrateError;
pub use known::{OLDEST_RIVER, River};
pub use schema::{Schema, SchemaFile};
pub use uninstall::{ReturnedJobs, Uninstalled, uninstall, uninstall_preview};

/// The pause between tries, and the number of tries: three minutes in all.
const RETRY_DELAY: Duration = Duration::from_secs(4);
const MAX_ATTEMPTS: u32 = 30;

/// The changes of a migration.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Versions of River's line `main`.
    pub river: Vec<i64>,
    /// Weir's files that were applied, upgrades first.
    pub weir: Vec<String>,
    /// Rights on Weir's objects that were revoked from others.
    pub revoked: Vec<String>,
    /// Advice about rights that were not changed.
    pub advice: Vec<String>,
    /// The version of River's tables, if it stays although a newer one is known.
    pub kept_river: Option<i64>,
    /// The newer release of Weir that migrated this database. Its objects and their rights stay unchanged.
    pub newer_release: Option<String>,
}

impl Migrated {
    /// Whether Weir's tables were created.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.weir.iter().any(|path| path == "rows.sql")
    }
}

/// Brings the database up to date. Safe to repeat and to run concurrently: the others wait.
///
/// # Errors
///
/// When the database cannot be reached, does not meet Weir's requirements (nothing is changed then), or refuses a
/// statement. Weir's schema is changed as a whole or not at all. River's migrations that were applied before the error
/// stay.
pub async fn migrate(database: &Database) -> Result<Migrated, MigrateError> {
    migrate_to(database, River::default(), &Schema::present()).await
}

/// Like [`migrate`], with this handling of River's tables.
///
/// # Errors
///
/// As [`migrate`].
pub async fn migrate_with(database: &Database, river: River) -> Result<Migrated, MigrateError> {
    migrate_to(database, river, &Schema::present()).await
}

/// The statements that [`migrate_with`] would run, as a script; empty when there is nothing to do. Changes nothing.
///
/// # Errors
///
/// As [`migrate`].
pub async fn script(database: &Database, river: River) -> Result<String, MigrateError> {
    let client = database.connect_without_schemas().await?;
    let schema = Schema::present();
    let found = inspect(&client, database.schemas(), &schema).await?;
    let applies_river = found.plan(river).map_err(MigrateError::Refused)?;
    let database = database.clone().in_schemas(found.schemas());
    // An upgrade changes tables. Without one, they are as they stay.
    let has_upgrades = found
        .applied
        .as_ref()
        .is_none_or(|applied| applied.upgrade < schema.latest_upgrade());
    if !has_upgrades {
        let faults = table_faults(&database.connect().await?).await?;
        if !faults.is_empty() {
            return Err(MigrateError::Refused(faults));
        }
    }
    script::of(&database, &client, &found, applies_river, &schema).await
}

/// The newest upgrade before which all processes have to stop: processes of older builds write the tables that it merges.
const NEEDS_STOP: i32 = 18;

/// Brings the database to a schema. Tests of upgrades pass one of another release.
///
/// # Errors
///
/// As [`migrate`].
pub async fn migrate_to(
    database: &Database,
    river: River,
    schema: &Schema,
) -> Result<Migrated, MigrateError> {
    // Inspects the database over a separate session, where locks end with each statement, because River's migrations
    // change the tables that it reads.
    let inspector = database.connect_without_schemas().await?;
    let mut client = database.connect_without_schemas().await?;
    let mut found = inspect(&inspector, database.schemas(), schema).await?;
    if let Err(faults) = found.plan(river)
        && !found.has_record
    {
        // Another process may have started since. It creates the record first, and changes River's tables under the
        // lock.
        found = inspect(&inspector, database.schemas(), schema).await?;
        if !found.has_record {
            return Err(MigrateError::Refused(faults));
        }
    }
    let applied = found.applied.as_ref().map(|applied| applied.upgrade);
    if applied.is_some_and(|upgrade| upgrade < NEEDS_STOP) && schema.latest_upgrade() >= NEEDS_STOP {
        let database = database.clone().in_schemas(found.schemas());
        uninstall::refuse_running(&database.connect().await?).await?;
    }
    prepare(&client, &found, schema).await?;
    let mut migrated = Migrated::default();
    let mut tries = 0;
    loop {
        tries += 1;
        match apply(
            (&mut client, &inspector),
            database,
            &found,
            schema,
            river,
            &mut migrated,
        )
        .await
        {
            Ok(()) => return Ok(migrated),
            Err(error) if error.is_lock_failure() => {
                let row = client
                    .query_opt(include_str!("sql/blocking_session.sql"), &[])
                    .await;
                let by = row.ok().flatten().map(|row| row.get("session"));
                if tries == MAX_ATTEMPTS {
                    return Err(MigrateError::Blocked { by });
                }
                if tries == 1 {
                    tracing::warn!(by, "waiting for a transaction that uses a table that must change");
                }
                // Later transactions wait behind a statement that waits for a table, including submissions and
                // settlements. So it waits for a moment, lets them pass, and tries again.
                tokio::time::sleep(RETRY_DELAY).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Creates the missing schemas and the record. Another process may do so at the same time.
async fn prepare(client: &Client, found: &Inspection, schema: &Schema) -> Result<(), MigrateError> {
    let mut missing = Vec::new();
    // Without `IF NOT EXISTS`, which needs the right to create a schema even if it exists.
    if !found.has_river {
        missing.push(format!("CREATE SCHEMA {}", known::quoted(&found.river)));
    }
    if !found.has_weir && found.weir != found.river {
        missing.push(format!("CREATE SCHEMA {}", known::quoted(&found.weir)));
    }
    if !found.has_record {
        let path = script::path(found);
        let record = schema.files.iter().find(|file| file.path == RECORD);
        let record = record.map(|file| file.sql.as_str()).unwrap_or_default();
        missing.push(format!("BEGIN; {path};\n{record}\nCOMMIT"));
    }
    for statement in missing {
        if let Err(error) = client.batch_execute(&statement).await {
            let was_created = error.code().is_some_and(|code| {
                [
                    SqlState::DUPLICATE_SCHEMA,
                    SqlState::DUPLICATE_TABLE,
                    SqlState::DUPLICATE_OBJECT,
                    SqlState::UNIQUE_VIOLATION,
                ]
                .contains(code)
            });
            if !was_created {
                return Err(error.into());
            }
            client.batch_execute("ROLLBACK").await?;
        }
    }
    Ok(())
}

/// Applies missing files in one transaction.
async fn apply(
    (client, inspector): (&mut Client, &Client),
    database: &Database,
    found: &Inspection,
    schema: &Schema,
    river: River,
    migrated: &mut Migrated,
) -> Result<(), MigrateError> {
    let transaction = client.transaction().await?;
    transaction
        .batch_execute(&format!(
            "{}; {}; {}; {}",
            script::path(found),
            script::LOCK,
            script::settings(),
            include_str!("sql/roles.sql"),
        ))
        .await?;
    // Inspect again, now that no other process can change the database.
    let found = &inspect(inspector, &found.schemas(), schema).await?;
    if found.plan(river).map_err(MigrateError::Refused)? {
        let pool = database.clone().in_schemas(found.schemas()).river_pool(1)?;
        let applied = PostgresMigrator::new(pool.clone()).migrate_up().await;
        pool.close().await;
        migrated.river.extend(applied?);
    } else if migrated.river.is_empty() {
        let latest = riverqueue::migrate::MIGRATION_VERSION_LATEST;
        migrated.kept_river = found.river_version.filter(|version| *version < latest);
    }
    migrated.newer_release = found.newer_release(schema).map(str::to_owned);
    if migrated.newer_release.is_some() {
        return Ok(());
    }
    let mut weir = Vec::new();
    for Step { path, sql } in script::steps(found, schema) {
        let ran = transaction.batch_execute(&sql).await;
        ran.map_err(|error| MigrateError::File {
            path: path.clone(),
            error,
        })?;
        if path != script::CLOSING {
            weir.push(path);
        }
    }
    transaction
        .batch_execute(include_str!("sql/adopt_usage_events.sql"))
        .await?;
    let missing = missing_objects(&transaction, &found.weir, schema).await?;
    if !missing.is_empty() {
        return Err(MigrateError::Refused(missing));
    }
    let (revoked, left) = settle_rights(&transaction, found, schema).await?;
    if !left.is_empty() {
        return Err(MigrateError::Refused(left));
    }
    migrated.weir = weir;
    let advice = transaction
        .query(include_str!("sql/advice.sql"), &[&found.weir, &migrated.is_new()])
        .await?;
    transaction.commit().await?;
    migrated.revoked = revoked;
    migrated.advice = advice.iter().map(|row| row.get("advice")).collect();
    Ok(())
}

/// The parts of tables that differ from this schema's, as faults. Additional ones are allowed, because operators may add
/// an index.
async fn missing_objects(
    client: &impl GenericClient,
    weir: &str,
    schema: &Schema,
) -> Result<Vec<String>, DatabaseError> {
    let rows = client.query(include_str!("sql/objects.sql"), &[&weir]).await?;
    let found: BTreeSet<&str> = rows.iter().map(|row| row.get("object")).collect();
    let missing = schema
        .objects
        .iter()
        .filter(|object| !found.contains(object.as_str()));
    Ok(missing
        .map(|object| {
            format!(
                "schema {weir:?} lacks this part of a table, or has a different one: {object}; another build of Weir or \
                 a change by hand left it, so restore it as in ledger/schema/tables, or move the data to a new database"
            )
        })
        .collect())
}

/// The parts of Weir's tables that differ from this release's, as faults. Empty if a newer release migrated the database.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn table_faults(client: &Client) -> Result<Vec<String>, DatabaseError> {
    let schema = Schema::present();
    let applied = inspection::applied(client, "weir_schema").await?;
    if applied.is_none_or(|applied| schema.is_older_than(&applied)) {
        return Ok(Vec::new());
    }
    let row = client
        .query_one(
            "SELECT n.nspname::text AS weir FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.oid = 'weir_schema'::regclass",
            &[],
        )
        .await?;
    missing_objects(client, row.get("weir"), &schema).await
}

/// Limits the rights on Weir's objects to their owner and the roles for other languages. Returns the revoked rights,
/// and those that could not be revoked.
async fn settle_rights(
    transaction: &tokio_postgres::Transaction<'_>,
    found: &Inspection,
    schema: &Schema,
) -> Result<(Vec<String>, Vec<String>), MigrateError> {
    let query = script::rights(found, schema);
    let mut revoked = Vec::new();
    for row in transaction.query(&query, &[]).await? {
        revoked.extend(row.get::<_, Option<String>>("taken"));
        let command: &str = row.get("command");
        let ran = transaction.batch_execute(command).await;
        ran.map_err(|error| MigrateError::File {
            path: command.to_owned(),
            error,
        })?;
    }
    // The owner cannot revoke rights that another role granted.
    let left = transaction.query(&query, &[]).await?;
    let left = left.iter().map(|row| {
        let command: &str = row.get("command");
        format!("other roles still have privileges on Weir's objects; as a superuser, run: {command} CASCADE")
    });
    Ok((revoked, left.collect()))
}

/// The grants that this session's role lacks on River's tables, as commands for their owner.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn missing_rights(client: &Client) -> Result<Vec<String>, DatabaseError> {
    let schema = "SELECT n.nspname::text AS river FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                  WHERE c.oid = to_regclass('river_job')";
    let Some(row) = client.query_opt(schema, &[]).await? else {
        return Ok(Vec::new());
    };
    inspection::missing_rights(client, row.get("river")).await
}

/// Whether this binary can use the database as it is: its files are applied, and River's tables have a supported
/// version. A newer release's schema also counts.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn is_current(client: &Client) -> Result<bool, DatabaseError> {
    let row = client.query_one(include_str!("sql/is_there.sql"), &[]).await?;
    if !(row.get::<_, bool>("has_jobs") && row.get::<_, bool>("has_record")) {
        return Ok(false);
    }
    let applied: Option<Applied> = inspection::applied(client, "weir_schema").await?;
    // River's version was checked when Weir's tables were created, if another tool keeps the ledger.
    let river: Option<i64> = if row.get("has_river_ledger") {
        let newest = "SELECT max(version) FROM river_migration m WHERE coalesce(to_jsonb(m) ->> 'line', 'main') = 'main'";
        client.query_one(newest, &[]).await?.get(0)
    } else {
        Some(OLDEST_RIVER)
    };
    let schema = Schema::present();
    Ok(river >= Some(OLDEST_RIVER) && applied.is_some_and(|applied| schema.is_served_by(&applied)))
}

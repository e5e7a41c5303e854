//! The connection of a subcommand.

use std::error::Error;

use tokio_postgres::Client;
use weir_ledger::database::Database;
use weir_ledger::{catalogue, migrate};

use crate::config::Settings;

/// A connection to a database that is up to date.
pub(super) async fn connected(settings: &Settings) -> Result<Client, Box<dyn Error>> {
    let database = settings.database()?;
    needs_sessions(&database).await?;
    current(&database).await
}

async fn current(database: &Database) -> Result<Client, Box<dyn Error>> {
    let client = database.connect_for_command().await?;
    let missing = migrate::missing_rights(&client).await?;
    if !missing.is_empty() {
        let commands = missing.join("; ");
        return Err(format!(
            "this role lacks privileges on River's tables; ask their owner to run: {commands}"
        )
        .into());
    }
    if !migrate::is_current(&client).await? {
        return Err(
            "the database does not have the schema of this release; run `weir migrate` first, or set WEIR_SCHEMA if \
             Weir's tables are in another schema"
                .into(),
        );
    }
    let faults = migrate::table_faults(&client).await?;
    if !faults.is_empty() {
        return Err(format!(
            "the database's tables differ from this release's:\n  - {}",
            faults.join("\n  - ")
        )
        .into());
    }
    Ok(client)
}

/// Refuses a pooler in transaction mode, before a setting can leak into a session that other programs get.
pub(super) async fn needs_sessions(database: &Database) -> Result<(), Box<dyn Error>> {
    if database.shares_sessions().await? {
        return Err("DATABASE_URL points to a pooler in transaction mode, where each transaction may get another session; set DATABASE_DIRECT_URL to the server or to a pooler in session mode"
            .into());
    }
    Ok(())
}

/// The database of a process: it needs sessions, for LISTEN, leases and its settings.
pub(super) async fn of_sessions(settings: &Settings) -> Result<Database, Box<dyn Error>> {
    let database = settings.database()?;
    needs_sessions(&database).await?;
    Ok(database)
}

/// Whether a process can start: the database is up to date, and has the meters of the services. The catalogue may
/// differ from the file's, because the database's applies.
pub(super) async fn ready(settings: &Settings, database: &Database) -> Result<(), Box<dyn Error>> {
    let client = current(database).await?;
    let now = catalogue::load(&client).await?;
    let missing = settings
        .services
        .iter()
        .find(|service| !now.meters.contains_key(service.meter.as_str()));
    if let Some(service) = missing {
        return Err(format!(
            "the database has no meter {}, which the service {} uses; run `weir migrate` first",
            service.meter, service.name
        )
        .into());
    }
    for change in now.changes_to(&settings.catalogue) {
        tracing::warn!(
            change,
            "weir.toml differs from the database's catalogue; `weir migrate` applies it"
        );
    }
    for change in catalogue::services::changes_to(&client, &settings.rules()).await? {
        tracing::warn!(
            change,
            "the environment differs from the database's settings, which apply; `weir migrate` replaces them"
        );
    }
    Ok(())
}

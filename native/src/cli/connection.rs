//! The connection of a subcommand.

use std::error::Error;

use tokio_postgres::Client;
use weir::config::Settings;
use weir_ledger::migrate;

/// A connection to a database that is up to date.
pub(super) async fn connected(settings: &Settings) -> Result<Client, Box<dyn Error>> {
    let client = settings.database()?.connect().await?;
    if migrate::is_current(&client).await? {
        Ok(client)
    } else {
        Err("the database lacks migrations; run `weir migrate` first".into())
    }
}

//! The duties of all: reconciliation, expiry, cleaning. One process does them, and says so.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::{Client, Error};

/// A process that has done no round for this long does them no more.
pub const STALE_AFTER: Duration = Duration::from_secs(15);

/// Says that this process does the duties.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn done(client: &Client, process: &str) -> Result<(), Error> {
    client.execute(include_str!("done.sql"), &[&process]).await?;
    Ok(())
}

/// When somebody last did them, if anybody has.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn last_done(client: &Client) -> Result<Option<Timestamp>, Error> {
    let row = client
        .query_one("SELECT max(done_at) AS done_at FROM duties", &[])
        .await?;
    Ok(row.get("done_at"))
}

/// Says that it does them no more. Nothing is left of when it did them last: who does them next looks as far back as where
/// nobody has done them yet.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn leave(client: &Client, process: &str) -> Result<(), Error> {
    client
        .execute("DELETE FROM duties WHERE process = $1", &[&process])
        .await?;
    Ok(())
}

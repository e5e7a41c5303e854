//! The log of changes.

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::{Client, GenericClient};
use uuid::Uuid;

use crate::meter::Meter;

/// A change to log.
#[derive(Default)]
pub(super) struct Change<'a> {
    pub(super) actor: &'a str,
    pub(super) action: &'static str,
    pub(super) holder: Option<Uuid>,
    pub(super) meter: Option<Meter>,
    pub(super) reason: Option<&'a str>,
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

impl Change<'_> {
    /// Writes the log entry. Call it last in a transaction, because other writers wait for the commit.
    pub(super) async fn write<C: GenericClient + Sync>(
        &self,
        client: &C,
    ) -> Result<(), tokio_postgres::Error> {
        client
            .execute(
                "INSERT INTO admin_log (actor, action, holder, event_type, reason, before, after) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7)",
                &[
                    &self.actor,
                    &self.action,
                    &self.holder,
                    &self.meter,
                    &self.reason,
                    &self.before,
                    &self.after,
                ],
            )
            .await?;
        Ok(())
    }
}

/// A logged change.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// The entry's id, which grows with every change.
    pub id: i64,
    /// The time of the change.
    pub at: Timestamp,
    /// The caller who made the change.
    pub actor: String,
    /// The change.
    pub action: String,
    /// The affected holder.
    pub holder: Option<Uuid>,
    /// The text that names the holder, if that is not its id.
    pub subject: Option<String>,
    /// The affected meter.
    pub meter: Option<Meter>,
    /// The reason.
    pub reason: Option<String>,
    /// The state before the change.
    pub before: Option<Value>,
    /// The state after the change.
    pub after: Option<Value>,
}

/// The changes after an entry, oldest first.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn log_after(
    client: &Client,
    after: i64,
    limit: i64,
) -> Result<Vec<LogEntry>, tokio_postgres::Error> {
    let rows = client
        .query(
            "SELECT l.*, u.subject FROM admin_log l LEFT JOIN users u ON u.id = l.holder \
             WHERE l.id > $1 ORDER BY l.id LIMIT $2",
            &[&after, &limit],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| LogEntry {
            id: row.get("id"),
            at: row.get("at"),
            actor: row.get("actor"),
            action: row.get("action"),
            holder: row.get("holder"),
            subject: row.get("subject"),
            meter: row.get("event_type"),
            reason: row.get("reason"),
            before: row.get("before"),
            after: row.get("after"),
        })
        .collect())
}

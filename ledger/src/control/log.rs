//! The log of changes.

use std::fmt;
use std::str::FromStr;

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

/// Writes a log entry of a change that Weir made by another program's statements, such as River's.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn record(
    client: &Client,
    actor: &str,
    action: &'static str,
    holder: Option<Uuid>,
    after: Value,
) -> Result<(), tokio_postgres::Error> {
    let change = Change {
        actor,
        action,
        holder,
        after: Some(after),
        ..Change::default()
    };
    change.write(client).await
}

/// A position between two changes. No change appears before it later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCursor {
    /// The last change.
    id: i64,
    /// The server's timeline at that time. After a failover, ids are reused.
    timeline: Option<i32>,
}

impl fmt::Display for LogCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)?;
        match self.timeline {
            Some(timeline) => write!(f, ".{timeline}"),
            None => Ok(()),
        }
    }
}

impl FromStr for LogCursor {
    type Err = std::num::ParseIntError;

    /// Also parses the id of a change.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (id, timeline) = match text.split_once('.') {
            Some((id, timeline)) => (id, Some(timeline.parse()?)),
            None => (text, None),
        };
        Ok(Self {
            id: id.parse()?,
            timeline,
        })
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

/// The changes after a cursor, oldest first, and the cursor after them. After a failover, a reader that has read lost
/// changes gets all changes of the new timeline.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn log_after(
    client: &Client,
    after: LogCursor,
    limit: i64,
) -> Result<(Vec<LogEntry>, LogCursor), tokio_postgres::Error> {
    let rows = client
        .query(
            include_str!("sql/log_after.sql"),
            &[&after.id, &after.timeline, &limit],
        )
        .await?;
    let next = rows.last().map_or(after, |row| LogCursor {
        id: row.get("id"),
        timeline: row.get("timeline"),
    });
    let entries = rows.iter().map(|row| LogEntry {
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
    });
    Ok((entries.collect(), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_survive_formatting_and_parsing() {
        for timeline in [None, Some(2)] {
            let cursor = LogCursor { id: 7, timeline };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for wrong in ["", "x", "7.", "7.x", ".2"] {
            assert!(wrong.parse::<LogCursor>().is_err(), "{wrong}");
        }
    }
}

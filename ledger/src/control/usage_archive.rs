//! Moves old usage events out of the database, and leaves their sums.
//!
//! Balances, grants and the audit's sums cover all periods, so events must not simply be deleted. One event with the
//! same sum replaces a user's events of a period.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;

use super::error::ControlError;
use super::log::Change;
use super::usage_feed::{ARCHIVED, UsageEvent};
use crate::meter::Meter;

/// The minimum number of days since the end of a period, so that billing has read it from the feed.
const READ_AFTER_DAYS: u64 = 31;

/// The events of one transaction. It bounds the transaction's locks and memory.
const BATCH: usize = 10_000;

/// Why an archive run ended early.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The database failed or refused.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The events could not be stored.
    #[error("the events cannot be written: {0}")]
    Store(#[from] std::io::Error),
}

impl From<tokio_postgres::Error> for ArchiveError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Control(error.into())
    }
}

/// Moves the usage events of all billing periods that ended before a time out of the database. Calls `store` with
/// batches of one user and meter each, and deletes a batch after `store` has stored it. If the process dies in between,
/// the next run passes the batch again, with the same ids. Returns the number of events.
///
/// # Errors
///
/// When the time is less than 31 days ago, the events cannot be stored, or the database cannot be used. Earlier batches
/// stay archived.
pub async fn archive_usage(
    client: &mut Client,
    actor: &str,
    before: Timestamp,
    mut store: impl FnMut(&[UsageEvent]) -> std::io::Result<()>,
) -> Result<u64, ArchiveError> {
    let latest = Timestamp::now() - Duration::from_hours(24 * READ_AFTER_DAYS);
    if before > latest {
        return Err(ControlError::Invalid(format!(
            "only periods that ended more than {READ_AFTER_DAYS} days ago can be archived; use {latest:.0} or earlier"
        ))
        .into());
    }
    let mut archived = 0;
    let mut page = counters(client, before, None).await?;
    while let Some(last) = page.last().copied() {
        for (user, meter) in page {
            loop {
                let events = batch(client, actor, before, user, meter, &mut store).await?;
                archived += events as u64;
                if events < BATCH {
                    break;
                }
            }
        }
        page = counters(client, before, Some(last)).await?;
    }
    Ok(archived)
}

/// Some users and meters with a period that ended by then, in order.
async fn counters(
    client: &Client,
    before: Timestamp,
    after: Option<(Uuid, Meter)>,
) -> Result<Vec<(Uuid, Meter)>, tokio_postgres::Error> {
    let (user, meter) = after.map_or((Uuid::nil(), ""), |(user, meter)| (user, meter.as_str()));
    let rows = client
        .query(include_str!("sql/archivable.sql"), &[&before, &user, &meter])
        .await?;
    Ok(rows
        .iter()
        .map(|row| (row.get("user_id"), row.get("event_type")))
        .collect())
}

/// Runs one transaction and returns how many events it moved.
async fn batch(
    client: &mut Client,
    actor: &str,
    before: Timestamp,
    user: Uuid,
    meter: Meter,
    store: &mut impl FnMut(&[UsageEvent]) -> std::io::Result<()>,
) -> Result<usize, ArchiveError> {
    let transaction = client.transaction().await?;
    // Two concurrent archive runs would each write a sum. Balances do not change, so the table's triggers have nothing
    // to book. A stalled process holds back the feed and vacuum, so the transaction has a time limit.
    transaction
        .batch_execute(
            "SET LOCAL lock_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '60s'; \
             SELECT FROM weir_locks WHERE name = 'usage_archive' FOR NO KEY UPDATE; SET LOCAL weir.counters = 'kept'",
        )
        .await?;
    // A concurrent deletion of the user would not see the sum.
    transaction
        .execute("SELECT 1 FROM users WHERE id = $1 FOR NO KEY UPDATE", &[&user])
        .await?;
    let most = i64::try_from(BATCH).unwrap_or(i64::MAX);
    let rows = transaction
        .query(
            include_str!("sql/archive_usage.sql"),
            &[&user, &meter, &before, &most, &ARCHIVED],
        )
        .await?;
    if rows.is_empty() {
        return Ok(0);
    }
    let events: Vec<_> = rows.iter().map(UsageEvent::from).collect();
    let change = Change {
        actor,
        action: "usage.archive",
        holder: Some(user),
        meter: Some(meter),
        after: Some(json!({ "events": events.len(), "before": before })),
        ..Change::default()
    };
    // The log is written last, because all other changes wait for its writer.
    store(&events)?;
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(events.len())
}

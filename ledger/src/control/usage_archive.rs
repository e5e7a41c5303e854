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
const MAX_EVENTS: i64 = BATCH as i64;

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
/// batches of events, and deletes a batch after `store` has stored it. If the process dies in between, the next run passes
/// the batch again, with the same ids. Returns the number of events.
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
    let mut page = accounts(client, before, None).await?;
    while let Some(last) = page.last() {
        let after = (last.user, last.meter);
        for group in groups(&page) {
            loop {
                let events = batch(client, actor, before, group, &mut store).await?;
                archived += events as u64;
                if events < BATCH {
                    break;
                }
            }
        }
        page = accounts(client, before, Some(after)).await?;
    }
    Ok(archived)
}

/// A user and a meter with a billing period that ended by the time.
struct Account {
    user: Uuid,
    meter: Meter,
    /// The events that may be archived, at most [`BATCH`].
    events: usize,
}

/// Some accounts, in order.
async fn accounts(
    client: &Client,
    before: Timestamp,
    after: Option<(Uuid, Meter)>,
) -> Result<Vec<Account>, tokio_postgres::Error> {
    let (user, meter) = after.map_or((Uuid::nil(), ""), |(user, meter)| (user, meter.as_str()));
    let rows = client
        .query(
            include_str!("sql/archivable.sql"),
            &[&before, &user, &meter, &MAX_EVENTS, &ARCHIVED],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| Account {
            user: row.get("user_id"),
            meter: row.get("event_type"),
            events: usize::try_from(row.get::<_, i64>("events")).unwrap_or_default(),
        })
        .collect())
}

/// Splits accounts into groups with about [`BATCH`] events. One transaction for each account would take longer than the
/// events of most accounts.
fn groups(accounts: &[Account]) -> impl Iterator<Item = &[Account]> {
    let mut events = 0;
    accounts
        .chunk_by(move |account, next| {
            events += account.events;
            let fits = events + next.events <= BATCH;
            if !fits {
                events = 0;
            }
            fits
        })
        .filter(|group| group.iter().any(|account| account.events > 0))
}

/// Runs one transaction and returns how many events it moved.
async fn batch(
    client: &mut Client,
    actor: &str,
    before: Timestamp,
    accounts: &[Account],
    store: &mut impl FnMut(&[UsageEvent]) -> std::io::Result<()>,
) -> Result<usize, ArchiveError> {
    let (users, meters): (Vec<_>, Vec<_>) = accounts
        .iter()
        .filter(|account| account.events > 0)
        .map(|account| (account.user, account.meter))
        .unzip();
    let transaction = client.transaction().await?;
    // Two concurrent archive runs would each write a sum. A stalled process holds back the feed and
    // vacuum, so the transaction has a time limit.
    transaction
        .batch_execute(
            "SET LOCAL lock_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '60s'; \
             SELECT FROM weir_locks WHERE name = 'usage_archive' FOR NO KEY UPDATE",
        )
        .await?;
    // A concurrent deletion of a user would not see the sum. Changes lock one user each, so they cannot deadlock.
    transaction
        .execute(
            "SELECT 1 FROM users WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE",
            &[&users],
        )
        .await?;
    let rows = transaction
        .query(
            include_str!("sql/archive_usage.sql"),
            &[&users, &meters, &before, &MAX_EVENTS, &ARCHIVED],
        )
        .await?;
    if rows.is_empty() {
        return Ok(0);
    }
    let events: Vec<_> = rows.iter().map(UsageEvent::from).collect();
    let change = Change {
        actor,
        action: "usage.archive",
        after: Some(json!({ "accounts": users.len(), "events": events.len(), "before": before })),
        ..Change::default()
    };
    // The log is written last, because all other changes wait for its writer.
    store(&events)?;
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(events.len())
}

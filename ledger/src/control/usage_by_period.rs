//! What a user has used, by period.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Client;
use weir_policy::span::Span;

use super::error::ControlError;
use super::person::Person;
use crate::meter::Meter;

/// What a user has used of a meter in a period.
#[derive(Clone, Debug, Serialize)]
pub struct PeriodUsage {
    /// Of what.
    pub meter: String,
    /// When the period begins.
    pub start: Timestamp,
    /// When it is over.
    pub end: Timestamp,
    /// What was charged.
    pub used: i64,
    /// What unfinished jobs hold.
    pub reserved: i64,
    /// How much of both grants pay for.
    pub from_grants: i64,
}

/// The newest periods of a kind in which a user has used something, those that are over too. Months are kept for ever, shorter
/// windows for some days.
///
/// # Errors
///
/// When the user was never seen, or the database cannot be asked.
pub async fn usage_by_period(
    client: &Client,
    person: &Person,
    span: Span,
    meter: Option<&str>,
    limit: i64,
) -> Result<Vec<PeriodUsage>, ControlError> {
    if !person.is_known(client).await? {
        return Err(ControlError::NeverSeen(person.subject.to_string()));
    }
    let rows = client
        .query(
            include_str!("sql/usage_by_period.sql"),
            &[&person.id, &span.as_str(), &meter, &limit],
        )
        .await?;
    let usage = rows.iter().map(|row| PeriodUsage {
        meter: row.get::<_, Meter>("event_type").to_string(),
        start: row.get("period_start"),
        end: row.get("period_end"),
        used: row.get("used"),
        reserved: row.get("reserved"),
        from_grants: row.get("from_grants"),
    });
    Ok(usage.collect())
}

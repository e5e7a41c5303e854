//! A user's usage by period.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Client;
use weir_policy::span::Span;

use super::error::ControlError;
use super::user::User;
use crate::meter::Meter;

/// A user's usage of a meter in a period.
#[derive(Clone, Debug, Serialize)]
pub struct PeriodUsage {
    /// The meter.
    pub meter: String,
    /// The start of the period.
    pub start: Timestamp,
    /// The end of the period.
    pub end: Timestamp,
    /// The charged amount.
    pub used: i64,
    /// The amount reserved by unfinished jobs.
    pub reserved: i64,
    /// The part of `used` and `reserved` that grants pay for.
    pub from_grants: i64,
}

/// The newest periods of a kind with usage, including ended ones. Months are kept without end, shorter windows for some
/// days.
///
/// # Errors
///
/// When the user is unknown, or the database cannot be queried.
pub async fn usage_by_period(
    client: &Client,
    user: &User,
    span: Span,
    meter: Option<&str>,
    limit: i64,
) -> Result<Vec<PeriodUsage>, ControlError> {
    if !user.is_known(client).await? {
        return Err(ControlError::UserNotFound(user.subject.to_string()));
    }
    let rows = client
        .query(
            include_str!("sql/usage_by_period.sql"),
            &[&user.id, &span.as_str(), &meter, &limit],
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

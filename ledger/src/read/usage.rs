//! A user's plan and quotas.

use jiff::Timestamp;
use uuid::Uuid;

use super::Source;
use crate::database::DatabaseError;
use crate::meter::Meter;
use crate::reservation::Quotas;

/// A user's plan and quotas.
#[derive(Clone, Debug)]
pub struct Usage {
    /// The current plan. An unknown user has the default plan.
    pub plan: String,
    /// The start of the billing period.
    pub period_start: Timestamp,
    /// The end of the billing period, exclusive.
    pub period_end: Timestamp,
    /// All meters.
    pub meters: Vec<MeterUsage>,
}

/// A user's quota of a meter.
#[derive(Clone, Debug)]
pub struct MeterUsage {
    /// The meter.
    pub meter: Meter,
    /// The meter's unit, in the plural.
    pub unit: String,
    /// Its windows.
    pub quotas: Quotas,
    /// The slots in force; `None` when they are not counted.
    pub slot_limit: Option<i64>,
    /// The number of jobs at once on idle workers, if it is more than the slots.
    pub burst: Option<i64>,
}

/// Reads a user's usage.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn usage(source: impl Into<Source<'_>>, user: Uuid) -> Result<Usage, DatabaseError> {
    let sql = include_str!("sql/usage.sql");
    let rows = source.into().rows(sql, &[&user]).await?;
    let meters = rows.iter().filter_map(|row| {
        Some(MeterUsage {
            meter: row.get("meter"),
            unit: row.get("unit"),
            quotas: Quotas::from_row(row, 0, 0)?,
            slot_limit: row.get("slot_limit"),
            burst: row.get("burst"),
        })
    });
    let first = rows.first();
    Ok(Usage {
        plan: first.map_or_else(String::new, |row| row.get("tier")),
        period_start: first.map_or(Timestamp::UNIX_EPOCH, |row| row.get("period_start")),
        period_end: first.map_or(Timestamp::UNIX_EPOCH, |row| row.get("period_end")),
        meters: meters.collect(),
    })
}

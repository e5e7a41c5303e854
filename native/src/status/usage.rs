//! What a user's plan allows in the current billing period, and what of it is taken.

use jiff::Timestamp;
use tokio_postgres::GenericClient;
use uuid::Uuid;
use weir_ledger::event_type::EventType;
use weir_ledger::reservation::Quota;
use weir_policy::admission::Account;

/// A user's plan and quotas.
#[derive(Clone, Debug)]
pub struct Usage {
    /// The plan's tier now; a user who was never seen is on Free.
    pub tier: String,
    /// The start of the billing period.
    pub period_start: Timestamp,
    /// The end of the billing period, which does not belong to it.
    pub period_end: Timestamp,
    quotas: Vec<(EventType, Quota)>,
}

impl Usage {
    /// The quota of an event type.
    #[must_use]
    pub fn quota(&self, event_type: EventType) -> Option<&Quota> {
        let mut quotas = self.quotas.iter();
        quotas.find_map(|(of, quota)| (*of == event_type).then_some(quota))
    }
}

/// Reads a user's usage.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn usage<C: GenericClient + Sync>(client: &C, user: Uuid) -> Result<Usage, tokio_postgres::Error> {
    let rows = client.query(include_str!("sql/usage.sql"), &[&user]).await?;
    let quotas = rows.iter().map(|row| {
        let limit: Option<i32> = row.get("monthly_limit");
        let account = Account {
            limit: limit.map(i64::from),
            used: row.get("used"),
            reserved: row.get("reserved"),
            slot_limit: None,
            slots_in_use: 0,
            parked: 0,
        };
        (row.get("event_type"), Quota::of(&account, row.get("period_end")))
    });
    let first = rows.first();
    Ok(Usage {
        tier: first.map_or_else(|| "free".to_owned(), |row| row.get("tier")),
        period_start: first.map_or(Timestamp::UNIX_EPOCH, |row| row.get("period_start")),
        period_end: first.map_or(Timestamp::UNIX_EPOCH, |row| row.get("period_end")),
        quotas: quotas.collect(),
    })
}

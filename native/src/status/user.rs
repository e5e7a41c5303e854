//! Why a user's jobs wait: the slots and the quota, by event type.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Client;
use uuid::Uuid;
use weir_policy::tier::{SlotLimits, Tier};

use weir_ledger::database::DatabaseError;
use weir_ledger::event_type::EventType;

use super::usage::usage;

/// One user.
#[derive(Clone, Debug, Serialize)]
pub struct UserStatus {
    /// Whose.
    pub user: Uuid,
    /// Whether there is such a user: one with a subscription, or in whose name something was submitted.
    pub known: bool,
    /// The plan's tier now; a user who was never seen is on Free.
    pub tier: String,
    /// The start of the billing period.
    pub period_start: Timestamp,
    /// The end of the billing period.
    pub period_end: Timestamp,
    /// By event type.
    pub event_types: Vec<UserShare>,
}

/// What a user has of one event type.
#[derive(Clone, Debug, Serialize)]
pub struct UserShare {
    /// `analysis` or `specview`.
    pub event_type: &'static str,
    /// Jobs that are worked on.
    pub running: i64,
    /// Jobs that hold a slot, those that wait for a worker included.
    pub slots_in_use: i64,
    /// The tier's slots; null when the database counts none (`FAIRNESS_ENABLED=false`, `FAIRNESS_SCOPE=process`).
    pub slot_limit: Option<u32>,
    /// Jobs that wait for a slot.
    pub parked: i64,
    /// Of the quota, held by unfinished jobs.
    pub reserved: i64,
    /// Of the quota, charged in this period.
    pub used: i64,
    /// The quota; null is unlimited.
    pub limit: Option<i64>,
}

/// Looks a user up.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn user(
    client: &Client,
    user: Uuid,
    limits: Option<SlotLimits>,
) -> Result<UserStatus, DatabaseError> {
    let params: [&(dyn postgres_types::ToSql + Sync); 1] = [&user];
    let (known, usage, slots) = tokio::try_join!(
        client.query_one(
            "SELECT EXISTS (SELECT 1 FROM users WHERE id = $1) AS known",
            &params
        ),
        usage(client, user),
        client.query(include_str!("sql/user_slots.sql"), &params),
    )?;
    let slot_limit = limits.map(|limits| limits.of(Tier::parse(&usage.tier).unwrap_or_default()));
    let event_types = EventType::ALL
        .into_iter()
        .filter_map(|event_type| {
            let quota = usage.quota(event_type)?;
            let row = slots
                .iter()
                .find(|row| row.get::<_, EventType>("event_type") == event_type);
            let count = |column: &str| row.map_or(0, |row| row.get(column));
            Some(UserShare {
                event_type: event_type.as_str(),
                running: count("running"),
                slots_in_use: count("slots_in_use"),
                slot_limit,
                parked: count("parked"),
                reserved: quota.reserved,
                used: quota.used,
                limit: quota.limit,
            })
        })
        .collect();
    Ok(UserStatus {
        user,
        known: known.get("known"),
        tier: usage.tier,
        period_start: usage.period_start,
        period_end: usage.period_end,
        event_types,
    })
}

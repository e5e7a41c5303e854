//! Why a user's jobs wait: the slots and the quota, by meter.

use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Client;
use uuid::Uuid;
use weir_ledger::database::DatabaseError;
use weir_ledger::holder::Holders;
use weir_ledger::read::holders;
use weir_ledger::read::usage::usage;
use weir_ledger::reservation::Quota;
use weir_policy::span::Span;
use weir_policy::subject::Subject;

/// One user.
#[derive(Clone, Debug, Serialize)]
pub struct UserStatus {
    /// The user's id.
    pub user: Uuid,
    /// The user's subject; null if it equals the id.
    pub subject: Option<String>,
    /// Whether the user exists: has a subscription, or has submitted something.
    pub known: bool,
    /// The current plan. An unknown user is on the default plan.
    pub plan: String,
    /// The start of the billing period.
    pub period_start: Timestamp,
    /// The end of the billing period.
    pub period_end: Timestamp,
    /// The user's shares by meter.
    pub meters: Vec<UserShare>,
}

/// A user's share of one meter.
#[derive(Clone, Debug, Serialize)]
pub struct UserShare {
    /// The meter's name.
    pub meter: &'static str,
    /// Jobs that are running.
    pub running: i64,
    /// Jobs that hold a slot, including those that wait for a worker.
    pub slots_in_use: i64,
    /// The plan's slots; null when the database counts none (`FAIRNESS_ENABLED=false`).
    pub slot_limit: Option<i64>,
    /// Jobs that wait for a slot.
    pub parked: i64,
    /// The part of the quota that unfinished jobs reserve.
    pub reserved: i64,
    /// The part of the quota charged in this period.
    pub used: i64,
    /// The quota; null means unlimited.
    pub limit: Option<i64>,
    /// The shorter windows with a limit in the plan.
    pub windows: Vec<WindowShare>,
}

/// A user's share of a meter in a window shorter than the billing period.
#[derive(Clone, Debug, Serialize)]
pub struct WindowShare {
    /// `day`, `hour` or `minute`.
    pub window: Span,
    /// The part of the quota that unfinished jobs reserve.
    pub reserved: i64,
    /// The part of the quota charged in this window.
    pub used: i64,
    /// The quota.
    pub limit: Option<i64>,
}

impl WindowShare {
    fn of(quota: &Quota) -> Self {
        Self {
            window: quota.window.span,
            reserved: quota.reserved,
            used: quota.used,
            limit: quota.limit,
        }
    }
}

/// Reads a user's status from the database.
///
/// # Errors
///
/// When the database is unavailable.
pub async fn user(client: &Client, subject: &Subject) -> Result<UserStatus, DatabaseError> {
    let user = Holders::load(client).await?.subject(subject).id;
    let (known, usage, slots) = tokio::try_join!(
        holders::known(client, user),
        usage(client, user),
        holders::slots(client, user),
    )?;
    let meters = usage
        .meters
        .iter()
        .map(|of| {
            let quota = of.quotas.month;
            let held = slots.iter().find(|held| held.meter == of.meter);
            UserShare {
                meter: of.meter.as_str(),
                running: held.map_or(0, |held| held.running),
                slots_in_use: held.map_or(0, |held| held.slots_in_use),
                slot_limit: of.slot_limit,
                parked: held.map_or(0, |held| held.parked),
                reserved: quota.reserved,
                used: quota.used,
                limit: quota.limit,
                windows: of.quotas.shorter.iter().map(WindowShare::of).collect(),
            }
        })
        .collect();
    Ok(UserStatus {
        user,
        subject: match known.is_user {
            true => known.subject,
            false => subject.uuid().is_none().then(|| subject.to_string()),
        },
        known: known.is_user,
        plan: usage.plan,
        period_start: usage.period_start,
        period_end: usage.period_end,
        meters,
    })
}

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
use weir_ledger::rules::SlotLimits;
use weir_policy::span::Span;
use weir_policy::subject::Subject;

/// One user.
#[derive(Clone, Debug, Serialize)]
pub struct UserStatus {
    /// The user's id.
    pub user: Uuid,
    /// The text that names the user in tokens; null when that is the id.
    pub subject: Option<String>,
    /// Whether there is such a user: one with a subscription, or in whose name something was submitted.
    pub known: bool,
    /// The plan now; a user who was never seen is on the default one.
    pub tier: String,
    /// The start of the billing period.
    pub period_start: Timestamp,
    /// The end of the billing period.
    pub period_end: Timestamp,
    /// By meter.
    pub meters: Vec<UserShare>,
}

/// What a user has of one meter.
#[derive(Clone, Debug, Serialize)]
pub struct UserShare {
    /// The meter's name.
    pub meter: &'static str,
    /// Jobs that are worked on.
    pub running: i64,
    /// Jobs that hold a slot, those that wait for a worker included.
    pub slots_in_use: i64,
    /// The plan's slots; null when the database counts none (`FAIRNESS_ENABLED=false`, `FAIRNESS_SCOPE=process`).
    pub slot_limit: Option<u32>,
    /// Jobs that wait for a slot.
    pub parked: i64,
    /// Of the quota, held by unfinished jobs.
    pub reserved: i64,
    /// Of the quota, charged in this period.
    pub used: i64,
    /// The quota; null is unlimited.
    pub limit: Option<i64>,
    /// The shorter windows in which the plan has a limit.
    pub windows: Vec<WindowShare>,
}

/// What a user has of a meter in a window shorter than the billing period.
#[derive(Clone, Debug, Serialize)]
pub struct WindowShare {
    /// `day`, `hour` or `minute`.
    pub window: Span,
    /// Of the quota, held by unfinished jobs.
    pub reserved: i64,
    /// Of the quota, charged in this window.
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

/// Looks a user up.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn user(
    client: &Client,
    subject: &Subject,
    limits: Option<&SlotLimits>,
) -> Result<UserStatus, DatabaseError> {
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
                slot_limit: limits.map(|limits| limits.of(Some(of.plan))),
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
        tier: usage.tier,
        period_start: usage.period_start,
        period_end: usage.period_end,
        meters,
    })
}

//! Changes of plan.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::{Client, GenericClient, Row, Transaction};
use uuid::Uuid;

use super::error::ControlError;
use super::log::Change;
use super::user::User;
use crate::database::PreparedClient;

/// The maximum time by which a payment provider's event may be ahead of this process's clock. A later time is a
/// mistake, such as milliseconds read as seconds, after which every other event would count as an older one.
const MAX_AHEAD: SignedDuration = SignedDuration::from_hours(366 * 24);

/// When a plan takes effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effective {
    /// Immediately.
    #[default]
    Now,
    /// At the end of the billing period.
    PeriodEnd,
}

impl Effective {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::PeriodEnd => "period_end",
        }
    }
}

/// A change of plan, as the payment provider reports it.
#[derive(Clone, Debug)]
pub struct PlanChange<'a> {
    /// The plan's name.
    pub plan: &'a str,
    /// The provider's id of the event. A repeated event changes nothing.
    pub event_id: &'a str,
    /// When it happened at the provider. An event older than the last one changes nothing.
    pub occurred_at: Timestamp,
    /// When it takes effect.
    pub effective: Effective,
    /// The provider's id of the subscription.
    pub subscription: Option<&'a str>,
    /// The paid period. `None`: the billing periods stay.
    pub period: Option<PaidPeriod>,
}

/// A period that was paid for. Billing periods then start on its day of the month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaidPeriod {
    /// Its start.
    pub start: Timestamp,
    /// Its end, a whole number of months later, at most 36. With it, a period from 28 February can have its anchor on the
    /// 31st.
    pub end: Option<Timestamp>,
}

/// Why an event is not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotApplied {
    /// It is older than another event that counts.
    Older,
    /// It ends a subscription, and the plan comes from another one.
    Superseded,
}

impl NotApplied {
    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Older => "older",
            Self::Superseded => "superseded",
        }
    }

    fn parse(name: Option<&str>) -> Option<Self> {
        match name? {
            "superseded" => Some(Self::Superseded),
            _ => Some(Self::Older),
        }
    }
}

/// The result of a change of plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOutcome {
    /// Why it was not applied.
    pub not_applied: Option<NotApplied>,
    /// Whether this event is a repetition.
    pub repeated: bool,
}

/// A user's current plan and scheduled plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanStatus {
    /// The current plan.
    pub plan: String,
    /// The plan from `next_at` on, if a change is scheduled.
    pub next: Option<String>,
    /// When the scheduled plan takes effect.
    pub next_at: Option<Timestamp>,
}

/// A user's current plan and scheduled plan. An unknown user has the default plan.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn plan_status<C: GenericClient + Sync>(
    client: &C,
    user: Uuid,
) -> Result<PlanStatus, tokio_postgres::Error> {
    let row = client
        .query_one(include_str!("sql/plan_status.sql"), &[&user])
        .await?;
    Ok(PlanStatus {
        plan: row.get("plan"),
        next: row.get("next"),
        next_at: row.get("next_at"),
    })
}

/// Changes the plan of a user, and the billing periods when the change names a paid period. Creates an unknown user. The
/// process that runs maintenance checks the user's parked jobs within a second. `sql/import_subscriptions.sql` has these
/// rules for many users.
///
/// # Errors
///
/// When the plan is unknown, the event belongs to another user or another plan, or the database cannot be used.
pub async fn set_plan(
    client: &mut Client,
    actor: &str,
    user: &User,
    change: &PlanChange<'_>,
) -> Result<PlanOutcome, ControlError> {
    check(change)?;
    let transaction = user.begin_change(client).await?;
    if let Some(outcome) = earlier_outcome(&transaction, user.id, change).await? {
        return Ok(outcome);
    }
    require_plan(&transaction, change.plan).await?;
    let anchor = match change.period {
        Some(period) => Some(paid_anchor(&transaction, user.id, period).await?),
        None => None,
    };
    let effect = transaction
        .query_one(
            include_str!("sql/plan_change_effect.sql"),
            &[
                &user.id,
                &change.plan,
                &change.occurred_at,
                &change.subscription,
                &anchor,
                &(change.effective == Effective::PeriodEnd),
            ],
        )
        .await?;
    let not_applied = NotApplied::parse(effect.get("refusal"));
    let (effective, before) = (
        change.effective.as_str(),
        plan_status(&transaction, user.id).await?,
    );
    transaction
        .execute(
            "INSERT INTO plan_changes (event_id, user_id, plan, occurred_at, effective, applied, reason, subscription, \
             anchor, due_at) VALUES ($1, $2, $3, $4, $5, $6::text IS NULL, $6, $7, $8, $9)",
            &[
                &change.event_id,
                &user.id,
                &change.plan,
                &change.occurred_at,
                &effective,
                &not_applied.map(NotApplied::as_str),
                &change.subscription,
                &anchor,
                &effect.get::<_, Option<Timestamp>>("due_at"),
            ],
        )
        .await?;
    if not_applied.is_none() {
        let anchor: Option<Timestamp> = effect.get("new_anchor");
        apply(&transaction, user.id, &effect).await?;
        let log = Change {
            actor,
            action: "plan.set",
            holder: Some(user.id),
            before: Some(json!(before)),
            after: Some(json!({
                "status": plan_status(&transaction, user.id).await?,
                "event_id": change.event_id,
                "occurred_at": change.occurred_at,
                "subscription": change.subscription,
                "anchor": anchor,
            })),
            ..Change::default()
        };
        log.write(&transaction).await?;
    }
    transaction.commit().await?;
    Ok(PlanOutcome {
        not_applied,
        repeated: false,
    })
}

fn check(change: &PlanChange<'_>) -> Result<(), ControlError> {
    if change.event_id.is_empty() || change.event_id.len() > 255 {
        return Err(ControlError::Invalid(
            "event_id must have 1 to 255 bytes".to_owned(),
        ));
    }
    if change
        .subscription
        .is_some_and(|id| id.is_empty() || id.len() > 255)
    {
        return Err(ControlError::Invalid(
            "subscription must have 1 to 255 bytes".to_owned(),
        ));
    }
    if change.occurred_at.duration_since(Timestamp::now()) > MAX_AHEAD {
        return Err(ControlError::Invalid(
            "occurred_at must be at most a year in the future".to_owned(),
        ));
    }
    if change.period.is_some_and(|period| {
        period.start < Timestamp::UNIX_EPOCH || period.start.duration_since(Timestamp::now()) > MAX_AHEAD
    }) {
        return Err(ControlError::Invalid(
            "period_start must be after 1970, and at most a year in the future".to_owned(),
        ));
    }
    Ok(())
}

/// Writes the plan, the next one, and the anchor of the billing periods if it changes.
async fn apply(transaction: &Transaction<'_>, user: Uuid, effect: &Row) -> Result<(), tokio_postgres::Error> {
    let anchor: Option<Timestamp> = effect.get("new_anchor");
    if anchor.is_some() {
        // Submissions read the anchor under this lock.
        transaction
            .execute("SELECT lock_holders(ARRAY[$1::uuid])", &[&user])
            .await?;
    }
    transaction
        .execute(
            include_str!("sql/set_plan.sql"),
            &[
                &user,
                &effect.get::<_, Uuid>("plan_id"),
                &anchor,
                &effect.get::<_, Option<Uuid>>("next_plan_id"),
                &effect.get::<_, Option<Timestamp>>("next_at"),
            ],
        )
        .await?;
    if anchor.is_some() {
        transaction
            .execute(
                "SELECT move_usage($1, period_start_of($1, clock_timestamp()))",
                &[&user],
            )
            .await?;
    }
    Ok(())
}

/// The anchor of the billing periods that a paid period implies. It is the user's present anchor if that fits.
async fn paid_anchor(
    transaction: &Transaction<'_>,
    user: Uuid,
    period: PaidPeriod,
) -> Result<Timestamp, ControlError> {
    let row = transaction
        .query_one(
            "SELECT paid_anchor($2, $3, s.anchor) AS anchor FROM subscription_of($1, clock_timestamp()) s",
            &[&user, &period.start, &period.end],
        )
        .await?;
    row.get::<_, Option<Timestamp>>("anchor").ok_or_else(|| {
        ControlError::Invalid(
            "period_end must be a whole number of months after period_start, at most 36".to_owned(),
        )
    })
}

async fn earlier_outcome(
    transaction: &Transaction<'_>,
    user: Uuid,
    change: &PlanChange<'_>,
) -> Result<Option<PlanOutcome>, ControlError> {
    let row = transaction
        .query_opt(
            "SELECT * FROM plan_changes WHERE event_id = $1",
            &[&change.event_id],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let is_same = row.get::<_, Uuid>("user_id") == user
        && row.get::<_, &str>("plan") == change.plan
        && row.get::<_, &str>("effective") == change.effective.as_str();
    if !is_same {
        return Err(ControlError::Conflict(format!(
            "the event {} was already used for another plan change; give each event a unique id",
            change.event_id
        )));
    }
    Ok(Some(PlanOutcome {
        not_applied: NotApplied::parse(row.get("reason")),
        repeated: true,
    }))
}

async fn require_plan(transaction: &Transaction<'_>, name: &str) -> Result<(), ControlError> {
    let rows = transaction
        .query(
            "SELECT tier::text AS tier FROM subscription_plans ORDER BY tier",
            &[],
        )
        .await?;
    let names: Vec<&str> = rows.iter().map(|row| row.get("tier")).collect();
    if names.contains(&name) {
        return Ok(());
    }
    Err(ControlError::UnknownPlan(name.to_owned(), names.join(", ")))
}

/// Writes due changes to the subscriptions, at most a hundred. They apply from their time on in any case. Writing them
/// triggers a check of parked jobs, moves the billing periods to those of the plan's subscription, and logs the change.
/// A user with a change in another transaction waits for the next call. Returns the number of changes.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn apply_scheduled(client: &PreparedClient) -> Result<u64, tokio_postgres::Error> {
    let due = "SELECT user_id FROM user_subscriptions WHERE next_plan_at <= now() AND status = 'active' \
               ORDER BY next_plan_at LIMIT 100";
    let mut applied = 0;
    for row in client.query(due, &[]).await? {
        let user: Uuid = row.get("user_id");
        let row = client
            .query_one("SELECT apply_due_plan($1) AS applied", &[&user])
            .await?;
        applied += u64::from(row.get::<_, bool>("applied"));
    }
    Ok(applied)
}

//! Plans and subscriptions.

use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;
use weir_policy::lane::Lane;
use weir_policy::subject::Subject;

use crate::holder::{Holders, kept_text};
use crate::meter::interned;

/// A plan's settings for a holder's jobs of one meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name: the `tier` column.
    pub name: &'static str,
    /// The lane of its holders' jobs.
    pub lane: Lane,
    /// The maximum number of running jobs per holder.
    pub slots: u32,
    /// The slots of this holder alone. They override plan and configuration.
    pub own_slots: Option<u32>,
}

impl Plan {
    /// The columns `tier`, `lane`, `slots` and `own_slots` of a row; `None` for a client address, which has no plan.
    pub(crate) fn from_row(row: &Row) -> Option<Self> {
        let name: Option<&str> = row.get("tier");
        let lane: Option<&str> = row.get("lane");
        let slots: Option<i32> = row.get("slots");
        Some(Self {
            name: interned(name?),
            lane: Lane::select(lane.and_then(Lane::parse), false),
            slots: slots?.unsigned_abs(),
            own_slots: row.get::<_, Option<i32>>("own_slots").map(i32::unsigned_abs),
        })
    }
}

/// Creates the user if it is unknown, with an active subscription to this plan. A user on another plan changes to this
/// one, and keeps its billing periods. Returns false, and changes nothing, when the plan is unknown.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn ensure_user<C: GenericClient + Sync>(
    client: &C,
    user: Uuid,
    plan: &str,
) -> Result<bool, tokio_postgres::Error> {
    ensure(client, user, None, plan).await
}

/// Like [`ensure_user`], for the user of a subject.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn ensure_subject<C: GenericClient + Sync>(
    client: &C,
    holders: Holders,
    subject: &Subject,
    plan: &str,
) -> Result<bool, tokio_postgres::Error> {
    ensure(client, holders.subject(subject).id, kept_text(subject), plan).await
}

/// Creates the user if it is unknown, and gives it this plan now.
async fn ensure<C: GenericClient + Sync>(
    client: &C,
    user: Uuid,
    subject: Option<&str>,
    plan: &str,
) -> Result<bool, tokio_postgres::Error> {
    let sql = "SELECT id, create_users(ARRAY[$2::uuid], ARRAY[$3::text], $1) \
               FROM subscription_plans WHERE tier = $1::text";
    let Some(row) = client.query_opt(sql, &[&plan, &user, &subject]).await? else {
        return Ok(false);
    };
    let plan_id: Uuid = row.get("id");
    client
        .execute(include_str!("sql/give_plan.sql"), &[&user, &plan_id])
        .await?;
    Ok(true)
}

/// A user's plan for this meter: that of the active subscription, or else the default one.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn plan_of<C: GenericClient + Sync>(
    client: &C,
    user: Uuid,
    meter: crate::meter::Meter,
) -> Result<Option<Plan>, tokio_postgres::Error> {
    let row = client
        .query_opt(
            "SELECT tier, lane, slots, own_slots FROM plan_of($1, $2, now())",
            &[&user, &meter],
        )
        .await?;
    Ok(row.as_ref().and_then(Plan::from_row))
}

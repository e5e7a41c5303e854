//! Plans and subscriptions.

use tokio_postgres::GenericClient;
use uuid::Uuid;
use weir_policy::subject::Subject;

use crate::holder::{Holders, kept_text};

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

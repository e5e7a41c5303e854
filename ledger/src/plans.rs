//! Plans and subscriptions.

use tokio_postgres::GenericClient;
use uuid::Uuid;
use weir_policy::tier::Tier;

/// Makes the user known, with an active subscription of this tier. A user of another tier changes to this one; the
/// billing periods stay.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn ensure_user<C: GenericClient + Sync>(
    client: &C,
    user: Uuid,
    tier: Tier,
) -> Result<(), tokio_postgres::Error> {
    client
        .execute(
            "INSERT INTO users (id) VALUES ($1) ON CONFLICT (id) DO NOTHING",
            &[&user],
        )
        .await?;
    client
        .execute(
            "INSERT INTO user_subscriptions AS s (user_id, plan_id) \
             SELECT $1, id FROM subscription_plans WHERE tier = $2::text::plan_tier \
             ON CONFLICT (user_id) WHERE status = 'active' \
             DO UPDATE SET plan_id = excluded.plan_id, updated_at = now() WHERE s.plan_id <> excluded.plan_id",
            &[&user, &tier.as_str()],
        )
        .await?;
    Ok(())
}

/// The active tier of a user; `None` without a subscription or with a tier that this version does not know.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn tier_of<C: GenericClient + Sync>(
    client: &C,
    user: Uuid,
) -> Result<Option<Tier>, tokio_postgres::Error> {
    let row = client
        .query_opt(
            "SELECT p.tier::text AS tier FROM user_subscriptions s JOIN subscription_plans p ON p.id = s.plan_id \
             WHERE s.user_id = $1 AND s.status = 'active'",
            &[&user],
        )
        .await?;
    Ok(row.and_then(|row| crate::holder::tier(row.get("tier"))))
}

//! `weir token`: a bearer token for a user of a tier, for development and tests.

use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;
use weir_policy::tier::Tier;

use crate::database::DatabaseError;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The user could not be made.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The token could not be signed.
    #[error(transparent)]
    Issue(#[from] weir_policy::token::IssueError),
}

impl From<tokio_postgres::Error> for TokenError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

/// Makes the user known, with an active subscription of this tier. Whoever has another tier changes to this one;
/// the billing periods stay.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn ensure_user(
    client: &tokio_postgres::Client,
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

/// A token for this user, good for `ttl` from now. Makes the user and the subscription when they are missing.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn issue(
    client: &tokio_postgres::Client,
    secret: &SecretString,
    user: Uuid,
    tier: Tier,
    ttl: Duration,
) -> Result<String, TokenError> {
    ensure_user(client, user, tier).await?;
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    Ok(weir_policy::token::issue(
        secret.expose_secret().as_bytes(),
        user,
        now,
        now + ttl.as_secs(),
        std::env::var("JWT_ISSUER").ok().as_deref(),
        std::env::var("JWT_AUDIENCE").ok().as_deref(),
    )?)
}

//! `weir token`: a bearer token for a user of a tier, for development and tests.

use std::time::Duration;

use secrecy::ExposeSecret;
use uuid::Uuid;
use weir_policy::tier::Tier;

use weir_ledger::database::DatabaseError;
use weir_ledger::plans;

use crate::config::Settings;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// There is nothing to sign with.
    #[error("JWT_SECRET is not set; the edge verifies tokens with it")]
    NoSecret,
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

/// A token for this user, good for `ttl` from now. Makes the user and the subscription when they are missing.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn issue(
    client: &tokio_postgres::Client,
    settings: &Settings,
    user: Uuid,
    tier: Tier,
    ttl: Duration,
) -> Result<String, TokenError> {
    let secret = settings.jwt_secret.as_ref().ok_or(TokenError::NoSecret)?;
    plans::ensure_user(client, user, tier).await?;
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    Ok(weir_policy::token::issue(
        secret.expose_secret().as_bytes(),
        user,
        now,
        now + ttl.as_secs(),
        settings.jwt_issuer.as_deref(),
        settings.jwt_audience.as_deref(),
    )?)
}

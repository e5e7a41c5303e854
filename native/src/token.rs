//! `weir token`: a bearer token for a user of a plan, for development and tests.

use std::time::Duration;

use secrecy::ExposeSecret;

use weir_ledger::catalogue;
use weir_ledger::database::DatabaseError;
use weir_ledger::holder::Holders;
use weir_ledger::plans;
use weir_policy::subject::Subject;

use crate::config::Settings;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// No secret to sign with.
    #[error("JWT_SECRET is not set; the edge verifies tokens with it")]
    NoSecret,
    /// The user could not be created.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The plan does not exist.
    #[error("unknown plan {0:?}; expected one of {plans}", plans = .1.join(", "))]
    NoPlan(String, Vec<String>),
    /// The token could not be signed.
    #[error(transparent)]
    Issue(#[from] weir_policy::token::IssueError),
}

impl From<tokio_postgres::Error> for TokenError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

/// A token for this user of this plan, valid for `ttl` from now. Creates the user and the subscription when they are
/// missing.
///
/// # Errors
///
/// When the database is unavailable.
pub async fn issue(
    client: &tokio_postgres::Client,
    settings: &Settings,
    user: &Subject,
    plan: &str,
    ttl: Duration,
) -> Result<String, TokenError> {
    let secret = settings.jwt_secret.as_ref().ok_or(TokenError::NoSecret)?;
    // An id derived from a subject maps back to that subject, so that these jobs name their owner as all others do.
    let text = match user.uuid() {
        Some(id) => Holders::subject_of(client, id).await?,
        None => None,
    };
    let named = text.and_then(|text| text.parse().ok());
    let user = named.as_ref().unwrap_or(user);
    let holders = Holders::load(client).await?;
    if !plans::ensure_subject(client, holders, user, plan).await? {
        let plans = catalogue::load(client).await?.plans.into_keys();
        return Err(TokenError::NoPlan(plan.to_owned(), plans.collect()));
    }
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

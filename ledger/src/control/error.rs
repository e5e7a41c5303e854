//! Why a change was not made.

use jiff::Timestamp;
use uuid::Uuid;

use crate::database::{DatabaseError, unstorable};

/// Why a change was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The database cannot be used right now.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Unknown plan.
    #[error("unknown plan {0:?}; expected one of {1}")]
    UnknownPlan(String, String),
    /// Unknown meter.
    #[error("unknown meter {0:?}; expected one of {1}")]
    UnknownMeter(String, String),
    /// The user has no subscription and no job.
    #[error("user {0:?} not found")]
    UserNotFound(String),
    /// The user was deleted, and has submitted nothing since.
    #[error("{0} was deleted; nothing was changed")]
    UserDeleted(String),
    /// The user has no such grant.
    #[error("unknown grant {0}; `weir user show` lists a user's grants")]
    GrantNotFound(Uuid),
    /// Unknown webhook.
    #[error("unknown webhook {0}; `weir webhook list` lists all webhooks")]
    WebhookNotFound(Uuid),
    /// Unknown service key.
    #[error("unknown key {0}; `weir key list` lists all keys")]
    KeyNotFound(String),
    /// The change itself cannot be made.
    #[error("{0}")]
    Invalid(String),
    /// Another condition prevents the change.
    #[error("{0}")]
    Conflict(String),
}

impl ControlError {
    /// Whether the thing that the caller named does not exist.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::UserNotFound(_) | Self::GrantNotFound(_) | Self::WebhookNotFound(_) | Self::KeyNotFound(_)
        )
    }
}

impl From<tokio_postgres::Error> for ControlError {
    fn from(error: tokio_postgres::Error) -> Self {
        match unstorable(&error) {
            Some(reason) => Self::Invalid(reason),
            None => Self::Database(error.into()),
        }
    }
}

/// Refuses an expiry in the past; `None` never expires.
pub(super) fn require_future(expires_at: Option<Timestamp>) -> Result<(), ControlError> {
    if expires_at.is_some_and(|at| at <= Timestamp::now()) {
        return Err(ControlError::Invalid(
            "expires_at must be in the future".to_owned(),
        ));
    }
    Ok(())
}

//! Why an attempt failed: what the job's owner reads, what metrics count, and when the next attempt may start.

use std::time::Duration;

use super::internal::Internal;
use crate::handler::HandlerError;

/// Why an attempt failed, as River records it.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    #[error("{message}")]
    Failed {
        message: String,
        /// The next attempt does not start earlier than this.
        after: Option<Duration>,
    },
    #[error("it exceeded its time limit of {}", humantime::format_duration(*.0))]
    TimedOut(Duration),
    #[error("{0}")]
    Permanent(String),
    #[error("the handler panicked")]
    Panicked,
    #[error(transparent)]
    Internal(#[from] Internal),
    #[error("stopped")]
    Cancelled,
    #[error("the attempt was told to stop and did not")]
    NotStopped,
}

impl AttemptError {
    /// `timed_out` is the time limit, if the handler had to stop because of it.
    pub(super) fn from_handler(error: HandlerError, timed_out: Option<Duration>) -> Self {
        match error {
            HandlerError::Failed(message) => Self::Failed {
                message: storable(message),
                after: None,
            },
            HandlerError::RetryAfter { message, after } => Self::Failed {
                message: storable(message),
                after: Some(after),
            },
            HandlerError::Permanent(message) => Self::Permanent(storable(message)),
            HandlerError::Cancelled => timed_out.map_or(Self::Cancelled, Self::TimedOut),
        }
    }

    /// The pause that a failed attempt requests.
    pub(super) fn asked_for(&self) -> Option<Duration> {
        match self {
            Self::Failed { after, .. } => *after,
            _ => None,
        }
    }

    /// The `outcome` label of `weir_attempts_total`.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::Failed { .. } | Self::Panicked | Self::Internal(_) => "failed",
            Self::TimedOut(_) => "timed_out",
            Self::Permanent(_) => "discarded",
            Self::Cancelled | Self::NotStopped => "cancelled",
        }
    }
}

/// Removes NUL characters, which PostgreSQL cannot store.
pub(super) fn storable(text: String) -> String {
    if text.contains('\0') {
        text.replace('\0', "")
    } else {
        text
    }
}

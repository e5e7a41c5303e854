//! Why an attempt failed: what River records, what metrics count, and when the next attempt may start.

use std::time::Duration;

use riverqueue::{WorkCancelled, WorkError};

use super::internal::Internal;
use crate::handler::HandlerError;

/// Why an attempt failed, as River records it.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttemptError {
    #[error("no handler is configured for kind {0:?} in this process")]
    NoHandler(String),
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
    /// The handler answers later. River finds the job pending and writes nothing. If the report arrives after the next
    /// attempt has started, River retries that attempt; a success would end the job.
    #[error("an earlier attempt of this job was reported too late")]
    Outstanding,
    #[error(transparent)]
    Internal(#[from] Internal),
    /// Not transparent: River searches the sources for `WorkCancelled`, and would refund the attempt if it found one.
    #[error("stopped")]
    Cancelled(#[from] WorkCancelled),
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
            HandlerError::Cancelled => timed_out.map_or(Self::Cancelled(WorkCancelled), Self::TimedOut),
        }
    }

    /// The `outcome` label of `weir_attempts_total`.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::NoHandler(_) | Self::Failed { .. } | Self::Panicked | Self::Internal(_) => "failed",
            Self::Outstanding => "outstanding",
            Self::TimedOut(_) => "timed_out",
            Self::Permanent(_) => "discarded",
            Self::Cancelled(_) => "cancelled",
        }
    }
}

/// The pause that a failed attempt requests.
pub(super) fn asked_for(error: &WorkError) -> Option<Duration> {
    match error.downcast_ref() {
        Some(AttemptError::Failed { after, .. }) => *after,
        _ => None,
    }
}

/// Removes NUL characters, which PostgreSQL cannot store. River's completer writes many attempts in one statement and
/// repeats it until it succeeds, so one unstorable text would block all of them.
pub(super) fn storable(text: String) -> String {
    if text.contains('\0') {
        text.replace('\0', "")
    } else {
        text
    }
}

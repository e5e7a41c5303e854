//! Failures of Weir's own, which are not the job's: what they cost an attempt, and what its owner reads of them.

use std::time::Duration;

use riverqueue::WorkOutcome;
use weir_ledger::database::DatabaseError;

/// What is sent back comes back after this long, or up to twice as long.
const SENT_BACK_FOR: Duration = Duration::from_secs(1);

/// A failure of Weir's own. River records it with the job, whose owner reads it; so the reason goes to the log alone.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Internal(&'static str);

impl Internal {
    pub(super) fn new(job_id: i64, what: &'static str, reason: &impl std::error::Error) -> Self {
        tracing::error!(job = job_id, %reason, "{what}");
        Self(what)
    }

    /// What the database was to say or to write of a job, it did not.
    pub(super) fn no_database(job_id: i64) -> impl FnOnce(DatabaseError) -> Self {
        move |reason| Self::new(job_id, "the database could not be used", &reason)
    }
}

/// Back to its queue for a moment. The attempt is none: it has not begun.
pub(super) fn sent_back() -> WorkOutcome {
    WorkOutcome::Snooze(SENT_BACK_FOR.mul_f64(1.0 + rand::random::<f64>()))
}

/// What becomes of an attempt that the database keeps from beginning. It is sent back, since an outage is not the job's;
/// but what the database refuses of this job it refuses again, so then the attempt has failed.
pub(super) fn not_begun(job_id: i64, error: DatabaseError) -> Result<WorkOutcome, Internal> {
    if error.is_refusal() {
        Err(Internal::no_database(job_id)(error))
    } else {
        tracing::warn!(job = job_id, %error, "sent back: the database could not be used");
        Ok(sent_back())
    }
}

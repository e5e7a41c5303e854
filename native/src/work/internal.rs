//! Internal failures of Weir, which are not the job's fault: their effect on an attempt, and the text that the job's
//! owner reads.

use std::time::Duration;

use weir_ledger::attempts::End;
use weir_ledger::database::DatabaseError;

/// The minimum pause before a returned job runs again. The maximum is twice as long.
const SNOOZE_TIME: Duration = Duration::from_secs(1);

/// An internal failure. It is recorded with the job and the owner reads it, so only the log contains the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Internal(&'static str);

impl Internal {
    pub(super) fn new(job_id: i64, what: &'static str, reason: &impl std::error::Error) -> Self {
        tracing::error!(job = job_id, %reason, "{what}");
        Self(what)
    }

    /// The database failed to read or write something about a job.
    pub(super) fn no_database(job_id: i64) -> impl FnOnce(DatabaseError) -> Self {
        move |reason| Self::new(job_id, "the database was unavailable", &reason)
    }
}

/// Returns the job to its queue for a moment. This does not count as an attempt, because it has not started.
pub(super) fn snoozed() -> End {
    End::Snoozed(SNOOZE_TIME.mul_f64(1.0 + rand::random::<f64>()))
}

/// The outcome of an attempt that the database keeps from starting. The job returns to its queue, because an outage is
/// not its fault. If PostgreSQL rejects something about this job, it would reject it again, so the attempt fails.
pub(super) fn not_started(job_id: i64, error: DatabaseError) -> Result<End, Internal> {
    if error.is_refusal() {
        Err(Internal::no_database(job_id)(error))
    } else {
        tracing::warn!(job = job_id, %error, "snoozed: the database was unavailable");
        Ok(snoozed())
    }
}

//! Whether an attempt may still end its job, and which holder it counts against.

use jiff::Timestamp;
use uuid::Uuid;

use super::statements;

statements! {
    /// Whether the job runs and this is its current attempt.
    pub fn is_current(job_id: i64, attempt: i16, created_at: Timestamp) -> bool =
        "SELECT EXISTS (SELECT 1 FROM river_job \
                        WHERE id = $1 AND attempt = $2 AND created_at = $3 AND state = 'running')";

    /// Whether an attempt at the job runs or could start within 5 s. A job with an outstanding answer has none.
    pub fn may_run(job_id: i64) -> bool = include_str!("sql/may_run.sql");

    /// Whether the job does not run, or a River client has requested its cancellation.
    pub fn is_cancelled(job_id: i64) -> bool =
        "SELECT NOT EXISTS (SELECT 1 FROM river_job \
                            WHERE id = $1 AND state = 'running' AND NOT metadata ? 'cancel_attempted_at')";

    /// The holder of the job's reservation.
    pub fn holder(job_id: i64) -> Option<Uuid> = "SELECT holder FROM quota_reservations WHERE job_id = $1";
}

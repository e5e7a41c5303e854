//! The current attempts at jobs, and the holder that one counts against.

use uuid::Uuid;

use super::{rows, statements};

rows! {
    /// The current attempt at a running job.
    pub struct AttemptState {
        /// River's job id.
        pub job_id: i64,
        /// The attempt, formatted by `claim_of()`.
        pub claim: String,
        /// Whether the job's cancellation was requested.
        pub is_cancelled: bool,
    }
}

statements! {
    /// The current attempts at those of these jobs that run.
    pub fn states(jobs: &[i64]) -> Vec<AttemptState> =
        include_str!("sql/attempt_states.sql");

    /// The holder of the job's reservation.
    pub fn holder(job_id: i64) -> Option<Uuid> = "SELECT holder FROM quota_reservations WHERE job_id = $1";
}

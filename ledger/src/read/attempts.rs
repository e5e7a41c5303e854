//! The holder that an attempt counts against.

use uuid::Uuid;

use super::statements;

statements! {
    /// The holder of the job's reservation.
    pub fn holder(job_id: i64) -> Option<Uuid> = "SELECT holder FROM quota_reservations WHERE job_id = $1";
}

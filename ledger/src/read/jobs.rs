//! Jobs as their owners see them.

use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use super::{rows, statements};
use crate::raw_json::RawJson;

rows! {
    /// A job as its owner sees it.
    pub struct JobView {
        /// River's id.
        pub id: i64,
        /// River's kind.
        pub kind: String,
        /// River's state; `running` also for a job with an outstanding answer.
        pub state: String,
        /// River's queue.
        pub queue: String,
        /// The number of attempts that have started.
        pub attempt: i16,
        /// The maximum number of attempts.
        pub max_attempts: i16,
        /// When it was accepted.
        pub created_at: Timestamp,
        /// When the last attempt started.
        pub attempted_at: Option<Timestamp>,
        /// When it ended.
        pub finalized_at: Option<Timestamp>,
        /// Whether it waits for its time.
        pub later: bool,
        /// The last error.
        pub error: Option<String>,
        /// The output; `None` in lists.
        pub output: Option<RawJson>,
        /// Whether it waits for a slot.
        pub parked: bool,
        /// Whether it runs on a lent worker.
        pub lent: bool,
        /// When it is cancelled if it still waits.
        pub expires_at: Option<Timestamp>,
        /// The last report of the current attempt.
        pub progress: Option<Value>,
        /// The amount that it reserves.
        pub reserved: i64,
        /// Whether its reservation is settled.
        pub settled: bool,
        /// The amount that it was charged.
        pub charged: i64,
        /// The owner's current plan, or `anonymous`.
        pub plan: String,
    }

    /// The state and output of a job.
    pub struct JobOutput {
        /// River's state; `None` if the job was deleted.
        pub state: Option<String>,
        /// The output.
        pub output: Option<RawJson>,
    }
}

/// The `output` column of `job_view.sql`. Lists omit it, because a hundred outputs may have hundreds of megabytes.
const WITH_OUTPUT: &str = "output_of(s.job_id)";
const WITHOUT_OUTPUT: &str = "NULL::jsonb";

/// The state of a submission's job, even if River has deleted it.
const STATE: &str = "coalesce((SELECT j.state::text FROM river_job j WHERE j.id = s.job_id), \
                              (SELECT f.state FROM finished_jobs f WHERE f.job_id = s.job_id))";

fn view(output: &str, rest: &str) -> String {
    let view = include_str!("sql/job_view.sql").replace("$output", output);
    format!("{view} {rest}")
}

statements! {
    /// The holder's job of this id.
    pub fn by_id(holder: Uuid, id: i64) -> Option<JobView> =
        &view(WITH_OUTPUT, "WHERE s.holder = $1 AND s.job_id = $2");

    /// The anonymous job of this id, if it was created at this moment.
    pub fn anonymous(id: i64, created_at: Timestamp) -> Option<JobView> =
        &view(WITH_OUTPUT, "WHERE s.job_id = $1 AND s.user_id IS NULL AND j.created_at = $2");

    /// The holder's newest jobs with ids below `before`, at most `limit`, without outputs.
    pub fn newest(holder: Uuid, before: i64, limit: i64) -> Vec<JobView> =
        &view(WITHOUT_OUTPUT, "WHERE s.holder = $1 AND s.job_id < $2 ORDER BY s.job_id DESC LIMIT $3");

    /// The holder's jobs among these, without outputs.
    pub fn by_ids(holder: Uuid, ids: &[i64]) -> Vec<JobView> =
        &view(WITHOUT_OUTPUT, "WHERE s.holder = $1 AND s.job_id = ANY ($2)");

    /// The remaining data of the holder's deleted jobs among these, as jobs of this kind.
    pub fn deleted(holder: Uuid, ids: &[i64], kind: &str, max_attempts: i16) -> Vec<JobView> =
        include_str!("sql/deleted_jobs.sql");

    /// The output of the holder's job of this id.
    pub fn output(holder: Uuid, id: i64) -> Option<JobOutput> = &format!(
        "SELECT {STATE} AS state, output_of(s.job_id) AS output \
         FROM weir_jobs s WHERE s.holder = $1 AND s.job_id = $2 AND s.submitted_at IS NOT NULL"
    );

    /// The holder that the job was submitted for.
    pub fn holder(id: i64) -> Option<Uuid> = "SELECT holder FROM weir_jobs WHERE job_id = $1 AND submitted_at IS NOT NULL";

    /// Whether River has a job of this id.
    pub fn exists(id: i64) -> bool = "SELECT EXISTS (SELECT 1 FROM river_job WHERE id = $1)";
}

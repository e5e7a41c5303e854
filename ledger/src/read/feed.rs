//! Changes of jobs.

use uuid::Uuid;

use super::{rows, statements};

rows! {
    /// One of a holder's newest jobs.
    pub struct NewestJob {
        /// The holder.
        pub holder: Uuid,
        /// The job.
        pub job_id: i64,
    }

    /// The current version of a job.
    pub struct JobVersion {
        /// The job.
        pub id: i64,
        /// A text that changes when the owner's view of the job changes.
        pub version: String,
        /// Whether the job is final.
        pub over: bool,
    }
}

statements! {
    /// The newest jobs of each of these holders, at most `limit` each.
    pub fn newest(holders: &[Uuid], limit: i64) -> Vec<NewestJob> = include_str!("sql/feed_newest.sql");

    /// The versions of these jobs. A deleted job has none.
    pub fn versions(jobs: &[i64]) -> Vec<JobVersion> = include_str!("sql/feed_versions.sql");
}

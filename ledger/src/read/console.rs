//! Reads for operators.

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use super::{rows, statements};
use crate::database::DatabaseError;
use crate::job_metadata::REQUEST_ID;
use crate::raw_json::RawJson;

rows! {
    /// Why jobs of a kind failed permanently within the last day.
    pub struct FailureReason {
        /// River's kind.
        pub kind: String,
        /// The first line of the last error.
        pub reason: String,
        /// The number of jobs that failed with it.
        pub jobs: i64,
        /// The newest of these jobs.
        pub newest: i64,
        /// When the last of them failed.
        pub last_at: Timestamp,
        /// The number of failed jobs that were read for all reasons together.
        pub seen: i64,
    }

    /// A job in a list.
    pub struct ListedJob {
        /// River's id.
        pub id: i64,
        /// River's kind.
        pub kind: String,
        /// River's state; `running` also for a job with an outstanding answer.
        pub state: String,
        /// The number of attempts that have started.
        pub attempt: i16,
        /// The maximum number of attempts.
        pub max_attempts: i16,
        /// When it was inserted.
        pub created_at: Timestamp,
        /// The holder; `None` for a job that was not submitted through Weir.
        pub holder: Option<Uuid>,
        /// The user's subject, unless that is the id.
        pub subject: Option<String>,
        /// The first line of the last error.
        pub error: Option<String>,
    }

    /// A job with everything but its output, and with the last twenty of its errors.
    pub struct JobDetails {
        /// River's kind.
        pub kind: String,
        /// River's state; `running` also for a job with an outstanding answer.
        pub state: String,
        /// River's queue.
        pub queue: String,
        /// River's priority.
        pub priority: i16,
        /// The number of attempts that have started.
        pub attempt: i16,
        /// The maximum number of attempts.
        pub max_attempts: i16,
        /// When it was inserted.
        pub created_at: Timestamp,
        /// When it may start.
        pub scheduled_at: Timestamp,
        /// When it ended.
        pub finalized_at: Option<Timestamp>,
        /// When the last attempt started.
        pub attempted_at: Option<Timestamp>,
        /// The River client of the last attempt.
        pub attempted_by: Option<String>,
        /// River's errors.
        pub errors: Option<RawJson>,
        /// The arguments.
        pub args: RawJson,
        /// River's metadata, without the output.
        pub metadata: RawJson,
        /// The holder; `None` for a job that was not submitted through Weir.
        pub holder: Option<Uuid>,
        /// The user, unless the holder is an address.
        pub user_id: Option<Uuid>,
        /// The user's subject, unless that is the id.
        pub subject: Option<String>,
        /// The amount that it reserves; `None` without a reservation.
        pub reserved_amount: Option<i64>,
        /// When it got its slot.
        pub admitted_at: Option<Timestamp>,
        /// When it was parked.
        pub parked_at: Option<Timestamp>,
        /// When its reservation expires.
        pub expires_at: Option<Timestamp>,
        /// The amount that it was charged.
        pub charged: Option<i64>,
    }
}

statements! {
    /// The most frequent reasons of the last `jobs` failures, at most `reasons`.
    pub fn failures(jobs: i64, reasons: i64) -> Vec<FailureReason> = include_str!("sql/failures.sql");

    /// The newest jobs before this one, in these states, of these kinds, whose error contains this text, of this holder,
    /// ended or submitted at least `age` seconds ago, at most 50.
    pub fn listed_jobs(before: i64, states: &[&str], kinds: Option<&[String]>, error: Option<&str>, holder: Option<Uuid>, age: i32) -> Vec<ListedJob> = include_str!("sql/console_jobs.sql");

    /// The job of this id, from any River client.
    pub fn job(id: i64) -> Option<JobDetails> = include_str!("sql/job_details.sql");

    /// The ids of jobs with this object in their metadata, at most `limit`.
    pub fn with_metadata(object: Value, limit: i64) -> Vec<i64> = include_str!("sql/jobs_of_request.sql");
}

/// The ids of a request's jobs, at most `limit`.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn jobs_of_request(
    client: &mut Client,
    request: &str,
    limit: i64,
) -> Result<Vec<i64>, DatabaseError> {
    let transaction = client.transaction().await?;
    transaction
        .batch_execute("SET LOCAL enable_seqscan = off")
        .await?;
    let jobs = with_metadata(&transaction, json!({ REQUEST_ID: request }), limit).await?;
    transaction.commit().await?;
    Ok(jobs)
}

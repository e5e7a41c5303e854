//! How attempts start, by a claim, and how they end without a settlement.

use std::time::Duration;

use jiff::Timestamp;
use postgres_types::ToSql;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::outstanding::Claim;
use crate::database::{ConnectionPool, DatabaseError};
use crate::holder::Holder;
use crate::meter::Meter;

/// A job whose attempt has started.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
    /// River's job id.
    pub id: i64,
    /// The attempt's number, from 1.
    pub attempt: i16,
    /// The number of its last attempt.
    pub max_attempts: i16,
    /// Identifies this attempt, formatted by `claim_of()`.
    pub claim: String,
    /// How often the job was claimed.
    pub claims: i32,
    /// How often the job failed before.
    pub errors: i32,
    /// When it failed last, as its client wrote it.
    pub last_error_at: Option<String>,
    /// River's kind.
    pub kind: String,
    /// River's queue.
    pub queue: String,
    /// River's priority, from 1.
    pub priority: i16,
    /// The arguments, as JSON.
    pub args: String,
    /// The request id of the submission.
    pub request_id: Option<String>,
    /// The submission's place in its trace.
    pub traceparent: Option<String>,
    /// When the job was created.
    pub created_at: Timestamp,
    /// When the job became available.
    pub scheduled_at: Timestamp,
    /// When the attempt started.
    pub attempted_at: Timestamp,
    /// The job's key outside of the database.
    pub key: Uuid,
    /// The account, the slot and the quota; `None` for a job that was not submitted through Weir.
    pub found: Option<Found>,
    /// Whether it runs on a lent worker.
    pub is_lent: bool,
}

impl ClaimedJob {
    /// The attempt, and no other one.
    #[must_use]
    pub fn claim(&self) -> Claim<'_> {
        Claim {
            job_id: self.id,
            claim: &self.claim,
            created_at: self.created_at,
        }
    }

    /// The arguments' members.
    ///
    /// # Errors
    ///
    /// When they are not an object.
    pub fn arguments(&self) -> Result<Map<String, Value>, serde_json::Error> {
        serde_json::from_str(&self.args)
    }
}

/// The account of a claimed job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The account that the job counts against.
    pub holder: Holder,
    /// Its slot and quota.
    pub holds: Holds,
}

/// The slot and quota of a submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// A slot.
    Slot,
    /// Its quota of this meter, which may differ from its service's current meter, and no slot.
    Quota(Meter),
    /// Neither: it was settled, and then made available again. It counted for this meter.
    Nothing(Meter),
}

/// The jobs of a queue to claim.
#[derive(Clone, Debug)]
pub struct QueueClaim {
    /// The queue.
    pub queue: String,
    /// The maximum number of jobs.
    pub most: i32,
    /// Of the first priority, only jobs that start at this time or later; `None` for all jobs.
    pub since: Option<Timestamp>,
    /// If fewer jobs have a slot, parked ones start too, up to this number of jobs in all.
    pub lend: i32,
}

/// The result of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The jobs, in the order of their queues.
    pub jobs: Vec<ClaimedJob>,
    /// The queues with more parked jobs that a lent worker could start.
    pub unlent: Vec<String>,
}

/// Claims jobs of these kinds for the process `worker`.
///
/// # Errors
///
/// When the database cannot be used. Jobs may have been claimed then: see [`check`].
pub async fn claim(
    pool: &ConnectionPool,
    worker: &str,
    kinds: &[String],
    queues: &[QueueClaim],
) -> Result<Claimed, DatabaseError> {
    let names: Vec<&str> = queues.iter().map(|queue| queue.queue.as_str()).collect();
    let most: Vec<i32> = queues.iter().map(|queue| queue.most).collect();
    let since: Vec<Option<Timestamp>> = queues.iter().map(|queue| queue.since).collect();
    let lend: Vec<i32> = queues.iter().map(|queue| queue.lend).collect();
    let sql = "SELECT * FROM claim_jobs($1, $2, false, $3, $4, $5, $6)";
    let params: [&(dyn ToSql + Sync); 6] = [&worker, &kinds, &names, &most, &since, &lend];
    let rows = pool.query(sql, &params).await?;
    let (jobs, unlent): (Vec<_>, Vec<_>) = rows
        .iter()
        .partition(|row| row.get::<_, Option<i64>>("job_id").is_some());
    let job = |row: &tokio_postgres::Row| {
        let found = row.get::<_, Option<Uuid>>("holder").map(|id| Found {
            holder: Holder {
                id,
                user_id: row.get("user_id"),
            },
            holds: match (row.get("has_reservation"), row.get("has_slot")) {
                (true, true) => Holds::Slot,
                (true, false) => Holds::Quota(row.get("meter")),
                (false, _) => Holds::Nothing(row.get("meter")),
            },
        });
        ClaimedJob {
            id: row.get("job_id"),
            attempt: row.get("attempt"),
            max_attempts: row.get("max_attempts"),
            claim: row.get("claim"),
            claims: row.get("claims"),
            errors: row.get("errors"),
            last_error_at: row.get("last_error_at"),
            kind: row.get("kind"),
            queue: row.get("queue"),
            priority: row.get("priority"),
            args: row.get("args"),
            request_id: row.get("request_id"),
            traceparent: row.get("traceparent"),
            created_at: row.get("created_at"),
            scheduled_at: row.get("scheduled_at"),
            attempted_at: row.get("attempted_at"),
            key: row.get("key"),
            found,
            is_lent: row.get("is_lent"),
        }
    };
    Ok(Claimed {
        jobs: jobs.into_iter().map(job).collect(),
        unlent: unlent.into_iter().map(|row| row.get("queue")).collect(),
    })
}

/// An attempt that has to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedAttempt {
    /// River's job id.
    pub job_id: i64,
    /// The attempt's number.
    pub attempt: i16,
    /// Whether another attempt has the job. Otherwise, its cancellation was requested.
    pub is_taken_over: bool,
}

/// Those of these attempts of `worker` that have to stop. Keeps the others from being rescued by River's leader. With
/// `finds_lost`, also returns the jobs of attempts that the worker does not know to their queues, and lists them.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn check(
    pool: &ConnectionPool,
    worker: &str,
    attempts: &[(i64, i16)],
    finds_lost: bool,
) -> Result<Vec<EndedAttempt>, DatabaseError> {
    let (jobs, numbers): (Vec<i64>, Vec<i32>) = attempts
        .iter()
        .map(|(id, attempt)| (*id, i32::from(*attempt)))
        .unzip();
    let rows = pool
        .query(
            include_str!("sql/check.sql"),
            &[&worker, &jobs, &numbers, &finds_lost],
        )
        .await?;
    let ended = |row: &tokio_postgres::Row| EndedAttempt {
        job_id: row.get("job_id"),
        attempt: row.get("attempt"),
        is_taken_over: row.get("is_taken_over"),
    };
    Ok(rows.iter().map(ended).collect())
}

/// Creates these queues' rows in River's table or shows that they are in use, as River's clients do. Otherwise, River's
/// leader deletes them, and a queue without a row cannot be paused.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn touch_queues(pool: &ConnectionPool, queues: &[String]) -> Result<(), DatabaseError> {
    if queues.is_empty() {
        return Ok(());
    }
    pool.query(include_str!("sql/touch_queues.sql"), &[&queues])
        .await
        .map(drop)
}

/// An end that completes no reservation. It changes River's fields as River's client does.
#[derive(Clone, Debug)]
pub enum End {
    /// The attempt failed. The next one starts after the pause, if attempts are left.
    Failed(String, Duration),
    /// The job is not tried again. With the error, and members to add to its metadata.
    Discarded(String, Value),
    /// The job is cancelled, with this error.
    Cancelled(String),
    /// The attempt does not count, and the next one starts after the pause.
    Snoozed(Duration),
    /// The process stopped. The attempt does not count, and the next one may start at once.
    Interrupted,
    /// A job without a reservation is completed. With its output.
    Completed(Value),
}

/// Ends an attempt. Returns whether it was still the job's current one.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn end(pool: &ConnectionPool, claim: Claim<'_>, end: &End) -> Result<bool, DatabaseError> {
    let none = Value::Object(Map::new());
    let (state, error, pause, metadata) = match end {
        End::Failed(error, pause) => ("retryable", Some(error), *pause, none),
        End::Discarded(error, metadata) => ("discarded", Some(error), Duration::ZERO, metadata.clone()),
        End::Cancelled(error) => ("cancelled", Some(error), Duration::ZERO, none),
        End::Snoozed(pause) => ("snoozed", None, *pause, none),
        End::Interrupted => ("interrupted", None, Duration::ZERO, none),
        End::Completed(output) => (
            "completed",
            None,
            Duration::ZERO,
            serde_json::json!({ "output": output }),
        ),
    };
    let rows = pool
        .query(
            include_str!("sql/end.sql"),
            &[
                &claim.job_id,
                &claim.claim,
                &claim.created_at,
                &state,
                &error,
                &pause.as_secs_f64(),
                &metadata,
            ],
        )
        .await?;
    Ok(!rows.is_empty())
}

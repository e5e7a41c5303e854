//! Changes of jobs by an operator: one job, or all that match a filter.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use super::error::ControlError;
use super::log::Change;
use crate::database::session::BOUND_LOCKS;
use crate::reservation::{Retried, retry};

/// The maximum number of jobs that [`matching_jobs`] finds.
pub const SLICE: i64 = 1_000;

/// Selects jobs. Without any condition, all.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Jobs of these River kinds.
    pub kinds: Option<Vec<String>>,
    /// Jobs of this holder.
    pub holder: Option<Uuid>,
    /// Jobs whose error contains this text, in any case.
    pub error: Option<String>,
    /// Jobs that failed for exactly this reason, as [`crate::read::console::failures`] returns it.
    pub reason: Option<String>,
    /// Jobs that ended, or were submitted, at least this long ago.
    pub older_than: Option<Duration>,
}

impl JobFilter {
    /// Whether it selects all jobs.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.kinds.is_none()
            && self.holder.is_none()
            && self.error.is_none()
            && self.reason.is_none()
            && self.older_than.is_none()
    }

    fn log(&self) -> Value {
        json!({
            "kinds": self.kinds,
            "holder": self.holder,
            "error": self.error,
            "reason": self.reason,
            "older_than_s": self.older_than.map(|age| age.as_secs()),
        })
    }
}

/// The states of jobs that can be retried.
pub const FAILED: [&str; 1] = ["discarded"];

/// The states of jobs that can be cancelled.
pub const UNFINISHED: [&str; 5] = ["available", "pending", "retryable", "running", "scheduled"];

/// The next jobs in these states that match, after this one; empty after the last.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn matching_jobs(
    client: &Client,
    filter: &JobFilter,
    states: &[&str],
    after: i64,
) -> Result<Vec<i64>, ControlError> {
    let rows = client
        .query(
            include_str!("sql/matching_jobs.sql"),
            &[
                &after,
                &states,
                &filter.kinds,
                &filter.holder,
                &filter.error,
                &filter.older_than.map(|age| age.as_secs_f64()),
                &SLICE,
                &filter.reason,
            ],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get("id")).collect())
}

/// All jobs in these states that match.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn all_matching_jobs(
    client: &Client,
    filter: &JobFilter,
    states: &[&str],
) -> Result<Vec<i64>, ControlError> {
    let mut jobs = Vec::new();
    loop {
        let after = jobs.last().copied().unwrap_or_default();
        let more = matching_jobs(client, filter, states, after).await?;
        if more.is_empty() {
            return Ok(jobs);
        }
        jobs.extend(more);
    }
}

/// Retries jobs, each in its own transaction, and logs the number of each outcome. Calls `show` with it after each job.
///
/// # Errors
///
/// When the database cannot be used. Jobs that were retried before the error stay retried.
pub async fn retry_jobs(
    client: &mut Client,
    actor: &str,
    jobs: &[i64],
    filter: Option<&JobFilter>,
    mut show: impl FnMut(&'static str),
) -> Result<BTreeMap<&'static str, usize>, ControlError> {
    let (mut outcomes, mut failure) = (BTreeMap::<_, usize>::new(), None);
    for job_id in jobs {
        match retry_job(client, *job_id).await {
            Ok(outcome) => {
                *outcomes.entry(outcome).or_default() += 1;
                show(outcome);
            }
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    if outcomes.contains_key(Retried::Accepted(None).outcome()) {
        record_jobs(client, actor, "jobs.retry", jobs, filter, &outcomes).await?;
    }
    failure.map_or(Ok(outcomes), Err)
}

async fn retry_job(client: &mut Client, id: i64) -> Result<&'static str, ControlError> {
    let transaction = client.transaction().await?;
    transaction.batch_execute(BOUND_LOCKS).await?;
    let retried = retry(&transaction, id).await?;
    transaction.commit().await?;
    Ok(retried.outcome())
}

/// Logs a change of jobs with the number of each outcome.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn record_jobs(
    client: &Client,
    actor: &str,
    action: &'static str,
    jobs: &[i64],
    filter: Option<&JobFilter>,
    outcomes: &BTreeMap<&'static str, usize>,
) -> Result<(), ControlError> {
    let change = Change {
        actor,
        action,
        after: Some(json!({
            "outcomes": outcomes,
            "filter": filter.map(JobFilter::log),
            "job": if let ([job], None) = (jobs, filter) { Some(job) } else { None },
            "jobs": if jobs.len() > 1 && filter.is_none() { Some(jobs) } else { None },
        })),
        ..Change::default()
    };
    Ok(change.write(client).await?)
}

//! Attempts: how they start, how they are protected while they run, and how they end.
//!
//! Running attempts are protected from a River leader that does not know them. River's rescuer considers a job stuck by
//! its `attempted_at` alone. The leader of another program does not know
//! Weir's kinds or their timeouts. It would discard their jobs, or run them twice at the same time.

mod claims;
mod outstanding;

use std::time::Duration;

use tokio_postgres::{Client, Error};

pub use claims::{ClaimedJob, End, Found, Holds, QueueClaim, claim, end, touch_queues};
pub use outstanding::{
    AttemptEnd, AttemptError, AwaitOutcome, Claim, Extended, ExtraQuota, Failure, Progress, SilentAttempt,
    await_answer, complete, extend, fail, fail_silent_attempts, record_progress,
};

/// The maximum number of attempts that one call of [`refresh`] updates.
pub const MAX_REFRESHED: usize = 500;

/// Moves the `attempted_at` of this River client's running attempts to now, and returns how many it moved. Skips locked
/// jobs, ended attempts and attempts that another process has taken over.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn refresh(client: &Client, client_id: &str, jobs: &[i64], attempts: &[i16]) -> Result<u64, Error> {
    client
        .execute(include_str!("sql/refresh.sql"), &[&client_id, &jobs, &attempts])
        .await
}

/// The attempts at jobs of these kinds that this River client has been running for at least `for_long`. Returns jobs
/// and claims.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn claimed(
    client: &Client,
    client_id: &str,
    kinds: &[&str],
    for_long: Duration,
) -> Result<Vec<(i64, String)>, Error> {
    let rows = client
        .query(
            include_str!("sql/claimed.sql"),
            &[&client_id, &kinds, &for_long.as_secs_f64()],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| (row.get("job_id"), row.get("claim")))
        .collect())
}

/// Returns jobs to their queues that were claimed for this River client but never reached it. Returns these jobs and
/// their states. Skips jobs that another process has taken over.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn requeue_lost(
    client: &Client,
    client_id: &str,
    claims: &[(i64, String)],
) -> Result<Vec<(i64, String)>, Error> {
    let (jobs, claims): (Vec<i64>, Vec<&str>) = claims
        .iter()
        .map(|(job_id, claim)| (*job_id, claim.as_str()))
        .unzip();
    let rows = client
        .query(
            include_str!("sql/requeue_lost.sql"),
            &[&client_id, &jobs, &claims],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| (row.get("job_id"), row.get("state")))
        .collect())
}

//! Attempts under way: those of processes, kept out of reach of a leader that does not know them.
//!
//! River's rescuer takes a job for stuck by its `attempted_at` alone. A leader of another program's knows neither
//! Weir's kinds nor how long they take: it would discard them, or run them a second time beside the first.

mod outstanding;

use std::time::Duration;

use tokio_postgres::{Client, Error};

pub use outstanding::{
    AttemptError, Claim, Extended, Failure, HandedOver, Needs, Over, Progress, Silent, claim_of, complete,
    extend, fail, hand_over, record_progress, send_back, take_back_silent,
};

/// How many attempts one statement keeps.
pub const MAX_KEPT: usize = 500;

/// Says that these attempts of this River client are alive, by moving their `attempted_at` to now. Returns how many were.
/// Those that somebody has locked are left out, and so are those that are over or somebody else's by now.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn keep(client: &Client, client_id: &str, jobs: &[i64], attempts: &[i16]) -> Result<u64, Error> {
    client
        .execute(include_str!("sql/keep.sql"), &[&client_id, &jobs, &attempts])
        .await
}

/// Attempts at jobs of these kinds that this River client has had for so long: the jobs, and the claims as [`claim_of`]
/// has them.
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

/// Gives jobs back to their queues that were claimed for this River client and never came to it. Returns which were, and
/// the state of each; those that are somebody else's by now are left out.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn take_back_lost(
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
            include_str!("sql/take_back_lost.sql"),
            &[&client_id, &jobs, &claims],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| (row.get("job_id"), row.get("state")))
        .collect())
}

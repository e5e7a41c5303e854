//! Attempts under way: those of processes, kept out of reach of a leader that does not know them.
//!
//! River's rescuer takes a job for stuck by its `attempted_at` alone. A leader of another program's knows neither
//! Weir's kinds nor how long they take: it would discard them, or run them a second time beside the first.

mod outstanding;

use tokio_postgres::{Client, Error};

pub use outstanding::{
    AttemptError, Claim, Extended, Failure, HandedOver, Over, Progress, Silent, claim_of, complete, extend,
    fail, hand_over, hear, take_back_silent,
};

/// How many attempts one statement keeps.
pub const MOST_KEPT: usize = 500;

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

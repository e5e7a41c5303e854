//! Periodic jobs: each tick becomes exactly one job, regardless of how many processes try and which client leads River.

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::{Client, Error};

/// A tick of a periodic job.
#[derive(Debug)]
pub struct Tick<'a> {
    /// The periodic job.
    pub id: &'a str,
    /// When it is due.
    pub at: Timestamp,
    /// The kind of the job that it becomes.
    pub kind: &'a str,
    /// Its queue.
    pub queue: &'a str,
    /// Its `max_attempts`.
    pub max_attempts: i16,
    /// Its arguments.
    pub args: &'a Value,
}

/// The time by the database's clock, and the time until which this periodic job is enqueued. That is now if the job is
/// unknown or if its row comes from a clock that was ahead.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn enqueued_until(client: &Client, id: &str) -> Result<(Timestamp, Timestamp), Error> {
    let row = client
        .query_one(include_str!("enqueued_until.sql"), &[&id])
        .await?;
    Ok((row.get("now"), row.get("enqueued_until")))
}

/// Skips the ticks of a periodic job between `from`, until which it is enqueued, and `until`. Returns whether this call
/// did.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn skip(client: &Client, id: &str, from: Timestamp, until: Timestamp) -> Result<bool, Error> {
    let skip = "UPDATE periodic_jobs SET enqueued_until = $3 WHERE id = $1 AND enqueued_until = $2";
    Ok(client.execute(skip, &[&id, &from, &until]).await? > 0)
}

/// Enqueues a tick, unless another process has. Returns whether this call did.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn enqueue(client: &Client, tick: &Tick<'_>) -> Result<bool, Error> {
    let row = client
        .query_opt(
            include_str!("enqueue.sql"),
            &[
                &tick.id,
                &tick.at,
                &tick.args,
                &tick.kind,
                &tick.max_attempts,
                &tick.queue,
            ],
        )
        .await?;
    Ok(row.is_some())
}

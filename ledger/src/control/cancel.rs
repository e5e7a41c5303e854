//! Cancelling all waiting jobs of a user.

use serde_json::json;
use tokio_postgres::Client;

use super::error::ControlError;
use super::log::Change;
use super::user::User;
use crate::database::session::BOUND_LOCKS;

/// The number of jobs that one transaction cancels.
const SLICE: i64 = 1_000;

/// Cancels every job of a user that is not running, and releases its quota and slot. Returns the number. Running jobs
/// continue.
///
/// # Errors
///
/// When the user is unknown, or the database cannot be used. Jobs that were cancelled before the error stay cancelled,
/// and are in the log.
pub async fn cancel_waiting(
    client: &mut Client,
    actor: &str,
    user: &User,
    reason: Option<&str>,
) -> Result<u64, ControlError> {
    if !user.is_known(client).await? {
        return Err(ControlError::UserNotFound(user.subject.to_string()));
    }
    let mut cancelled = 0;
    let mut last: Option<i64> = Some(0);
    while let Some(after) = last {
        let transaction = client.transaction().await?;
        transaction.batch_execute(BOUND_LOCKS).await?;
        // Locks the holder first and then the jobs, as a settlement does.
        transaction
            .execute("SELECT lock_holders(ARRAY[$1::uuid])", &[&user.id])
            .await?;
        let row = transaction
            .query_one(
                include_str!("sql/cancel_waiting.sql"),
                &[&user.id, &after, &SLICE],
            )
            .await?;
        let jobs: Vec<i64> = row.get("cancelled");
        let some = jobs.len() as u64;
        if some > 0 {
            transaction.execute("SELECT release_jobs($1)", &[&jobs]).await?;
            let change = Change {
                actor,
                action: "jobs.cancel",
                holder: Some(user.id),
                reason,
                after: Some(json!({ "cancelled": some })),
                ..Change::default()
            };
            change.write(&transaction).await?;
        }
        transaction.commit().await?;
        cancelled += some;
        last = row.get("last");
    }
    Ok(cancelled)
}

//! Cancelling all that waits.

use serde_json::json;
use tokio_postgres::Client;

use super::error::ControlError;
use super::log::Change;
use super::person::Person;
use crate::database::session::BOUND_LOCKS;

/// How many jobs one transaction cancels.
const SLICE: i64 = 1_000;

/// Cancels every job of a user that is not being worked on, and gives back what it held. Returns how many. What is worked
/// on goes on.
///
/// # Errors
///
/// When nobody has seen this user, or the database cannot be used. What was cancelled before stays so, and is in the log.
pub async fn cancel_waiting(
    client: &mut Client,
    actor: &str,
    person: &Person,
    reason: Option<&str>,
) -> Result<u64, ControlError> {
    if !person.is_known(client).await? {
        return Err(ControlError::NeverSeen(person.subject.to_string()));
    }
    let mut cancelled = 0;
    let mut last: Option<i64> = Some(0);
    while let Some(after) = last {
        let transaction = client.transaction().await?;
        transaction.batch_execute(BOUND_LOCKS).await?;
        // As a settlement has it: first the holder, then the jobs. The tables' triggers book what is given back.
        transaction
            .execute("SELECT lock_holders(ARRAY[$1::uuid])", &[&person.id])
            .await?;
        let row = transaction
            .query_one(
                include_str!("sql/cancel_waiting.sql"),
                &[&person.id, &after, &SLICE],
            )
            .await?;
        let some = row.get::<_, i64>("cancelled").unsigned_abs();
        if some > 0 {
            let change = Change {
                actor,
                action: "jobs.cancel",
                holder: Some(person.id),
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

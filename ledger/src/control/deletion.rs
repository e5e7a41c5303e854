//! Deleting a person: what identifies goes, what was billed stays under another name.

use serde::Serialize;
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;

use super::cancel::cancel_waiting;
use super::error::ControlError;
use super::log::Change;
use super::person::Person;

/// What became of a person's rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deleted {
    /// Jobs that waited and were cancelled.
    pub cancelled: u64,
    /// Jobs that were deleted, with their arguments and outputs.
    pub jobs: i64,
    /// Usage events that stay, of somebody without a name.
    pub usage_events: i64,
}

/// Deletes a user: subject, subscription, limits, jobs with their arguments and outputs. Usage events, balances and grants
/// stay as those of a random id that leads back to nobody. The log keeps the old id, as records of who changed what must.
///
/// # Errors
///
/// When nobody has seen this user; when a job is being worked on; or when the database cannot be used. What waited is
/// cancelled by then.
pub async fn delete(client: &mut Client, actor: &str, person: &Person) -> Result<Deleted, ControlError> {
    let cancelled = cancel_waiting(client, actor, person, Some("the account is deleted")).await?;
    let transaction = person.deletion(client).await?;
    transaction
        .execute("SELECT lock_holders(ARRAY[$1::uuid])", &[&person.id])
        .await?;
    let unfinished: i64 = transaction
        .query_one(
            "SELECT count(*) FROM quota_reservations WHERE user_id = $1",
            &[&person.id],
        )
        .await?
        .get(0);
    if unfinished > 0 {
        return Err(ControlError::Conflict(format!(
            "{unfinished} job(s) of {} are being worked on; those that waited are cancelled. Delete again when these have ended",
            person.subject
        )));
    }
    let nobody: Uuid = transaction
        .query_one("SELECT gen_random_uuid()", &[])
        .await?
        .get(0);
    // Balances move with their rows; nothing is to be counted anew.
    transaction
        .batch_execute("SET LOCAL weir.counters = 'kept'")
        .await?;
    let row = transaction
        .query_one(include_str!("sql/forget.sql"), &[&person.id, &nobody])
        .await?;
    transaction
        .execute("DELETE FROM users WHERE id = $1", &[&person.id])
        .await?;
    let deleted = Deleted {
        cancelled,
        jobs: row.get("jobs"),
        usage_events: row.get("usage_events"),
    };
    let change = Change {
        actor,
        action: "user.delete",
        holder: Some(person.id),
        after: Some(json!(deleted)),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(deleted)
}

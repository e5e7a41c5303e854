//! Deleting a user: removes everything that identifies the user, and keeps the charges under another id.

use serde::Serialize;
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;

use super::cancel::cancel_waiting;
use super::error::ControlError;
use super::log::Change;
use super::user::User;

/// The number of rows that a deletion affected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deleted {
    /// Waiting jobs that were cancelled.
    pub cancelled: u64,
    /// Jobs that were deleted, with their arguments and outputs.
    pub jobs: i64,
    /// Usage events that were kept under an anonymous id.
    pub usage_events: i64,
}

/// What a deletion would affect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToDelete {
    /// Jobs that would be deleted, with their arguments and outputs.
    pub jobs: i64,
    /// Of these, jobs that have not ended.
    pub unfinished: i64,
    /// Usage events that would be kept under an anonymous id.
    pub usage_events: i64,
}

/// Counts what [`delete`] would affect. Jobs that other clients inserted and that have ended do not count.
///
/// # Errors
///
/// When the user is unknown, or when the database cannot be used.
pub async fn to_delete(client: &Client, user: &User) -> Result<ToDelete, ControlError> {
    if !user.is_known(client).await? {
        return Err(ControlError::UserNotFound(user.subject.to_string()));
    }
    let row = client
        .query_one(include_str!("sql/to_delete.sql"), &[&user.id])
        .await?;
    Ok(ToDelete {
        jobs: row.get("jobs"),
        unfinished: row.get("unfinished"),
        usage_events: row.get("usage_events"),
    })
}

/// Deletes a user: subject, subscription, limits, and jobs with their arguments and outputs. Usage events, balances and
/// grants move to a random id that cannot be traced back. The log keeps the old id, because it must record who changed
/// what.
///
/// # Errors
///
/// When the user is unknown, when a job is running, or when the database cannot be used. Waiting jobs are cancelled by
/// then.
pub async fn delete(client: &mut Client, actor: &str, user: &User) -> Result<Deleted, ControlError> {
    let cancelled = cancel_waiting(client, actor, user, Some("the account was deleted")).await?;
    let transaction = user.begin_deletion(client).await?;
    transaction
        .execute(
            "SELECT lock_holders(ARRAY[$1::uuid]), close_months(ARRAY[$1::uuid])",
            &[&user.id],
        )
        .await?;
    let unfinished: i64 = transaction
        .query_one(
            "SELECT count(*) FROM quota_reservations WHERE user_id = $1",
            &[&user.id],
        )
        .await?
        .get(0);
    if unfinished > 0 {
        return Err(ControlError::Conflict(format!(
            "{unfinished} job(s) of {} are still running; its waiting jobs were cancelled. Delete it again when they \
             have ended",
            user.subject
        )));
    }
    let anonymous: Uuid = transaction
        .query_one("SELECT gen_random_uuid()", &[])
        .await?
        .get(0);
    let row = transaction
        .query_one(include_str!("sql/forget.sql"), &[&user.id, &anonymous])
        .await?;
    transaction
        .execute("DELETE FROM users WHERE id = $1", &[&user.id])
        .await?;
    let deleted = Deleted {
        cancelled,
        jobs: row.get("jobs"),
        usage_events: row.get("usage_events"),
    };
    let change = Change {
        actor,
        action: "user.delete",
        holder: Some(user.id),
        after: Some(json!(deleted)),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(deleted)
}

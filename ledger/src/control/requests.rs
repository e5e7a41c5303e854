//! Idempotent changes: a repeated key returns the first answer and changes nothing.

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::error::ControlError;

/// An answer, and whether it repeats that of an earlier request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotent<T> {
    /// The created object.
    pub created: T,
    /// Whether an earlier request with the same key created it.
    pub repeated: bool,
}

/// The earlier answer to this key. The caller has locked the user against other changes.
pub(super) async fn earlier<T: DeserializeOwned>(
    transaction: &Transaction<'_>,
    user: Uuid,
    key: Option<&str>,
    request: &Value,
) -> Result<Option<T>, ControlError> {
    let Some(key) = key else { return Ok(None) };
    let row = transaction
        .query_opt(
            "SELECT request, answer FROM admin_requests WHERE holder = $1 AND idempotency_key = $2",
            &[&user, &key],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    if row.get::<_, Value>("request") != *request {
        return Err(ControlError::Conflict(
            "this Idempotency-Key was used with another request; use a new key for a new request".to_owned(),
        ));
    }
    let answer = serde_json::from_value(row.get("answer"));
    answer.map(Some).map_err(|error| {
        ControlError::Conflict(format!(
            "the stored response for this Idempotency-Key cannot be read: {error}"
        ))
    })
}

/// Stores the answer.
pub(super) async fn store(
    transaction: &Transaction<'_>,
    user: Uuid,
    key: Option<&str>,
    request: &Value,
    answer: &Value,
) -> Result<(), tokio_postgres::Error> {
    if let Some(key) = key {
        transaction
            .execute(
                "INSERT INTO admin_requests (holder, idempotency_key, request, answer) VALUES ($1, $2, $3, $4)",
                &[&user, &key, request, answer],
            )
            .await?;
    }
    Ok(())
}

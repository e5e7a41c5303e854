//! Adjustments of usage, such as a refund or a correction.

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;

use super::error::ControlError;
use super::log::Change;
use super::overrides::MAX_LIMIT;
use super::requests::{self, Idempotent};
use super::user::{self, User};

/// A recorded adjustment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjustment {
    /// The id of its usage event.
    pub id: Uuid,
    /// The usage in this billing period after it.
    pub used: i64,
}

/// Adds a usage event to the current billing period of a user. A negative amount reduces the usage. The event counts in
/// the month alone.
///
/// # Errors
///
/// When the meter is unknown, the reduction exceeds the usage, no reason is given, or the database cannot be used.
pub async fn adjust(
    client: &mut Client,
    actor: &str,
    user: &User,
    meter: &str,
    amount: i64,
    reason: &str,
    key: Option<&str>,
) -> Result<Idempotent<Adjustment>, ControlError> {
    if reason.trim().is_empty() {
        return Err(ControlError::Invalid("an adjustment needs a reason".to_owned()));
    }
    if amount == 0 || amount.unsigned_abs() > MAX_LIMIT.unsigned_abs() {
        return Err(ControlError::Invalid(format!(
            "amount must be from 1 to {most}, or from -1 to -{most} to refund usage",
            most = MAX_LIMIT
        )));
    }
    let transaction = user.begin_change(client).await?;
    let request = json!({ "adjust": meter, "amount": amount, "reason": reason });
    if let Some(created) = requests::earlier(&transaction, user.id, key, &request).await? {
        return Ok(Idempotent {
            created,
            repeated: true,
        });
    }
    let meter = user::find_meter(&transaction, meter).await?;
    transaction
        .execute("SELECT lock_holders(ARRAY[$1::uuid])", &[&user.id])
        .await?;
    let row = transaction
        .query_one(include_str!("sql/used.sql"), &[&user.id, &meter])
        .await?;
    let (before, reserved): (i64, i64) = (row.get("used"), row.get("reserved"));
    let used = before
        .checked_add(amount)
        .filter(|used| used.checked_add(reserved).is_some());
    let Some(used) = used else {
        return Err(ControlError::Invalid(format!(
            "the sum of used and reserved may be at most {} in this period",
            i64::MAX
        )));
    };
    if used < 0 {
        return Err(ControlError::Invalid(format!(
            "only {before} of {meter} were used in this period; a refund cannot exceed that"
        )));
    };
    // This statement updates the balance itself, because the table's trigger only adds.
    transaction
        .batch_execute("SET LOCAL weir.counters = 'kept'")
        .await?;
    let id: Uuid = transaction
        .query_one(
            include_str!("sql/adjust.sql"),
            &[&user.id, &meter, &amount, &reason],
        )
        .await?
        .get("id");
    let created = Adjustment { id, used };
    requests::store(&transaction, user.id, key, &request, &json!(created)).await?;
    let change = Change {
        actor,
        action: "usage.adjust",
        holder: Some(user.id),
        meter: Some(meter),
        reason: Some(reason),
        before: Some(json!({ "used": before })),
        after: Some(json!({ "used": used, "amount": amount, "event": id })),
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(Idempotent {
        created,
        repeated: false,
    })
}

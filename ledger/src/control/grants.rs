//! Grants: purchased or free amounts beyond the plan.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::{Client, GenericClient, Row};
use uuid::Uuid;

use super::error::{ControlError, require_future};
use super::log::Change;
use super::overrides::MAX_LIMIT;
use super::requests::{self, Idempotent};
use super::user::{self, User};
use crate::meter::Meter;

/// An amount beyond the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Its id.
    pub id: Uuid,
    /// The meter.
    pub meter: String,
    /// The granted amount.
    pub amount: i64,
    /// The amount that is neither used nor reserved by unfinished jobs.
    pub left: i64,
    /// When it expires; `None` is never.
    pub expires_at: Option<Timestamp>,
    /// Why it was created.
    pub reason: String,
}

/// A grant to create.
#[derive(Clone, Debug)]
pub struct NewGrant<'a> {
    /// The meter.
    pub meter: &'a str,
    /// The amount.
    pub amount: i64,
    /// When it expires; `None` is never.
    pub expires_at: Option<Timestamp>,
    /// The reason.
    pub reason: &'a str,
}

fn from_row(row: &Row) -> Granted {
    let (amount, reserved, used): (i64, i64, i64) = (row.get("amount"), row.get("reserved"), row.get("used"));
    Granted {
        id: row.get("id"),
        meter: row.get::<_, Meter>("event_type").to_string(),
        amount,
        left: amount - reserved - used,
        expires_at: row.get("expires_at"),
        reason: row.get("reason"),
    }
}

/// A user's grants that are not used up or that have reservations, in the order in which they are drawn on.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn grants_of<C: GenericClient + Sync>(
    client: &C,
    user: &User,
) -> Result<Vec<Granted>, tokio_postgres::Error> {
    let rows = client
        .query(include_str!("sql/grants_of.sql"), &[&user.id])
        .await?;
    Ok(rows.iter().map(from_row).collect())
}

/// Creates a grant for a user. Creates an unknown user.
///
/// # Errors
///
/// When the meter is unknown, the amount or the time is invalid, no reason is given, or the database cannot be used.
pub async fn grant(
    client: &mut Client,
    actor: &str,
    user: &User,
    wanted: &NewGrant<'_>,
    key: Option<&str>,
) -> Result<Idempotent<Granted>, ControlError> {
    if !(1..=MAX_LIMIT).contains(&wanted.amount) {
        return Err(ControlError::Invalid(format!(
            "amount must be from 1 to {MAX_LIMIT}"
        )));
    }
    if wanted.reason.trim().is_empty() {
        return Err(ControlError::Invalid("a grant needs a reason".to_owned()));
    }
    let transaction = user.begin_change(client).await?;
    let request = json!({
        "grant": wanted.meter,
        "amount": wanted.amount,
        "expires_at": wanted.expires_at,
        "reason": wanted.reason,
    });
    if let Some(created) = requests::earlier(&transaction, user.id, key, &request).await? {
        return Ok(Idempotent {
            created,
            repeated: true,
        });
    }
    // After the look-up of an earlier answer, because the same request may be repeated after the grant's expiry.
    require_future(wanted.expires_at)?;
    let meter = user::find_meter(&transaction, wanted.meter).await?;
    let row = transaction
        .query_opt(
            include_str!("sql/grant.sql"),
            &[
                &user.id,
                &meter,
                &wanted.amount,
                &wanted.expires_at,
                &wanted.reason,
            ],
        )
        .await?;
    let Some(row) = row else {
        return Err(ControlError::Invalid(format!(
            "the sum of a user's grants of a meter may be at most {}",
            i64::MAX
        )));
    };
    let created = from_row(&row);
    requests::store(&transaction, user.id, key, &request, &json!(created)).await?;
    let change = Change {
        actor,
        action: "grant.give",
        holder: Some(user.id),
        meter: Some(meter),
        reason: Some(wanted.reason),
        before: None,
        after: Some(json!(created)),
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(Idempotent {
        created,
        repeated: false,
    })
}

/// Lowers a grant of a user to this amount, but not below what is used or reserved. 0 ends it: then amounts that jobs have
/// reserved do not return to it. A grant that is not larger stays unchanged.
///
/// # Errors
///
/// When the user has no such grant, the amount is negative, no reason is given, or the database cannot be used.
pub async fn lower_grant(
    client: &mut Client,
    actor: &str,
    user: &User,
    grant: Uuid,
    amount: i64,
    reason: &str,
) -> Result<Granted, ControlError> {
    if amount < 0 {
        return Err(ControlError::Invalid("amount must be 0 or more".to_owned()));
    }
    if reason.trim().is_empty() {
        return Err(ControlError::Invalid(
            "a change of a grant needs a reason".to_owned(),
        ));
    }
    let transaction = user.begin_change(client).await?;
    transaction
        .execute("SELECT lock_holders(ARRAY[$1::uuid])", &[&user.id])
        .await?;
    let row = transaction
        .query_opt(
            "SELECT * FROM grants WHERE user_id = $1 AND id = $2",
            &[&user.id, &grant],
        )
        .await?;
    let Some(row) = row else {
        return Err(ControlError::GrantNotFound(grant));
    };
    let before = from_row(&row);
    let row = transaction
        .query_opt(include_str!("sql/lower_grant.sql"), &[&grant, &amount])
        .await?;
    let Some(row) = row else { return Ok(before) };
    let lowered = from_row(&row);
    let change = Change {
        actor,
        action: "grant.lower",
        holder: Some(user.id),
        meter: Some(row.get("event_type")),
        reason: Some(reason),
        before: Some(json!(before)),
        after: Some(json!(lowered)),
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(lowered)
}

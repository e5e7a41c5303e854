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

/// What a refund returns first. Overage is always returned before both, because it is charged last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Credit {
    /// The amounts that grants paid for, then the plan's part.
    #[default]
    Grants,
    /// The plan's part, then the amounts that grants paid for.
    Plan,
}

/// An adjustment to make.
#[derive(Clone, Debug)]
pub struct NewAdjustment<'a> {
    /// The meter.
    pub meter: &'a str,
    /// The amount to add. A negative amount reduces the usage.
    pub amount: i64,
    /// The reason.
    pub reason: &'a str,
    /// What a negative amount returns first.
    pub credit: Credit,
}

/// A recorded adjustment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjustment {
    /// The id of its usage event.
    pub id: Uuid,
    /// The usage in this billing period after it.
    pub used: i64,
    /// The part of the amount that returned to grants. Not positive.
    #[serde(default)]
    pub from_grants: i64,
    /// The part of the amount that was overage. Not positive.
    #[serde(default)]
    pub overage: i64,
}

/// The usage of a billing period, by who paid for it.
#[derive(Clone, Copy)]
struct Used {
    total: i64,
    from_grants: i64,
    overage: i64,
}

impl Used {
    /// The parts of a refund that return to grants and that were overage.
    fn parts(self, refund: i64, credit: Credit) -> (i64, i64) {
        let overage = refund.min(self.overage);
        let rest = refund - overage;
        let of_plan = (self.total - self.from_grants - self.overage).max(0);
        let to_grants = match credit {
            Credit::Grants => rest,
            Credit::Plan => (rest - of_plan).max(0),
        };
        (to_grants.min(self.from_grants), overage)
    }
}

/// Adds a usage event to the current billing period of a user. A negative amount reduces the usage, and returns to grants
/// what they paid for. The event counts in the month alone.
///
/// # Errors
///
/// When the meter is unknown, the reduction exceeds the usage, no reason is given, or the database cannot be used.
pub async fn adjust(
    client: &mut Client,
    actor: &str,
    user: &User,
    wanted: &NewAdjustment<'_>,
    key: Option<&str>,
) -> Result<Idempotent<Adjustment>, ControlError> {
    let NewAdjustment { amount, reason, .. } = *wanted;
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
    let mut request = json!({ "adjust": wanted.meter, "amount": amount, "reason": reason });
    if wanted.credit != Credit::default() {
        request["credit"] = json!(wanted.credit);
    }
    if let Some(created) = requests::earlier(&transaction, user.id, key, &request).await? {
        return Ok(Idempotent {
            created,
            repeated: true,
        });
    }
    let meter = user::find_meter(&transaction, wanted.meter).await?;
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
    let parts = Used {
        total: before,
        from_grants: row.get("from_grants"),
        overage: row.get("overage"),
    };
    let (to_grants, overage) = parts.parts(amount.min(0).saturating_neg(), wanted.credit);
    if to_grants > 0 {
        transaction
            .execute(
                include_str!("sql/return_to_grants.sql"),
                &[&user.id, &meter, &to_grants],
            )
            .await?;
    }
    let (from_grants, overage) = (-to_grants, -overage);
    let id: Uuid = transaction
        .query_one(
            include_str!("sql/adjust.sql"),
            &[&user.id, &meter, &amount, &reason, &from_grants, &overage],
        )
        .await?
        .get("id");
    let created = Adjustment {
        id,
        used,
        from_grants,
        overage,
    };
    requests::store(&transaction, user.id, key, &request, &json!(created)).await?;
    let change = Change {
        actor,
        action: "usage.adjust",
        holder: Some(user.id),
        meter: Some(meter),
        reason: Some(reason),
        before: Some(json!({ "used": before })),
        after: Some(
            json!({ "used": used, "amount": amount, "from_grants": from_grants, "overage": overage, "event": id }),
        ),
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(Idempotent {
        created,
        repeated: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refund_returns_overage_first_and_then_what_it_names() {
        let used = Used {
            total: 20,
            from_grants: 7,
            overage: 3,
        };
        let cases = [
            (0, 0, 0, 0),
            (2, 0, 0, 2),
            (5, 2, 0, 3),
            (10, 7, 0, 3),
            (14, 7, 1, 3),
            (20, 7, 7, 3),
        ];
        for (refund, grants_first, plan_first, overage) in cases {
            assert_eq!(used.parts(refund, Credit::Grants), (grants_first, overage));
            assert_eq!(used.parts(refund, Credit::Plan), (plan_first, overage));
        }
    }
}

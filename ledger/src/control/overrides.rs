//! Overrides: limits and slots of a single user.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::{Client, GenericClient, Row};
use weir_policy::span::Span;

use super::error::{ControlError, require_future};
use super::log::Change;
use super::user::{self, User};
use crate::meter::Meter;

/// The largest limit: the largest number that a `RateLimit` field can have (RFC 9651).
pub const MAX_LIMIT: i64 = 999_999_999_999_999;

/// The values that replace the plan's for one user and meter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Override {
    /// The limit by window; `None` is unlimited. A window that is absent has the plan's limit.
    pub limits: BTreeMap<Span, Option<i64>>,
    /// The number of jobs at once, however busy the workers are; `None` uses the plan's.
    pub slots: Option<u32>,
    /// The number of jobs at once on workers that would be idle; `None` uses the plan's.
    pub burst: Option<u32>,
    /// When it expires.
    pub expires_at: Option<Timestamp>,
}

/// The value of an unlimited column.
const UNLIMITED: i64 = -1;

impl Override {
    fn from_row(row: &Row) -> Self {
        let limit = |span: Span| {
            let limit = row.get::<_, Option<i64>>(span.as_str())?;
            Some((span, (limit != UNLIMITED).then_some(limit)))
        };
        Self {
            limits: Span::ALL.into_iter().filter_map(limit).collect(),
            slots: row.get::<_, Option<i32>>("slots").map(i32::unsigned_abs),
            burst: row.get::<_, Option<i32>>("burst").map(i32::unsigned_abs),
            expires_at: row.get("expires_at"),
        }
    }
}

/// A user's override; `None` when the plan applies.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn override_of<C: GenericClient + Sync>(
    client: &C,
    user: &User,
    meter: Meter,
) -> Result<Option<Override>, tokio_postgres::Error> {
    let row = client
        .query_opt(
            "SELECT * FROM limit_overrides WHERE user_id = $1 AND event_type = $2 \
             AND (expires_at IS NULL OR expires_at > clock_timestamp())",
            &[&user.id, &meter],
        )
        .await?;
    Ok(row.as_ref().map(Override::from_row))
}

/// Sets a user's override for a meter, and replaces an earlier one. Creates an unknown user.
///
/// # Errors
///
/// When the meter is unknown, the override is empty or too large, the meter has no such window, or the database cannot
/// be used.
pub async fn set_override(
    client: &mut Client,
    actor: &str,
    user: &User,
    meter: &str,
    wanted: &Override,
) -> Result<(), ControlError> {
    if wanted.limits.is_empty() && wanted.slots.is_none() && wanted.burst.is_none() {
        return Err(ControlError::Invalid(
            "an override needs limits, slots or a burst; to remove an override, delete it".to_owned(),
        ));
    }
    require_future(wanted.expires_at)?;
    if wanted
        .limits
        .values()
        .flatten()
        .any(|limit| !(0..=MAX_LIMIT).contains(limit))
    {
        return Err(ControlError::Invalid(format!(
            "limits must be from 0 to {MAX_LIMIT}; null is unlimited"
        )));
    }
    for (name, jobs) in [("slots", wanted.slots), ("burst", wanted.burst)] {
        if jobs.is_some_and(|jobs| !(1..=1_000_000).contains(&jobs)) {
            return Err(ControlError::Invalid(format!("{name} must be from 1 to 1000000")));
        }
    }
    if let (Some(slots), Some(burst)) = (wanted.slots, wanted.burst)
        && burst < slots
    {
        return Err(ControlError::Invalid(format!(
            "burst is {burst}, but must be at least slots ({slots})"
        )));
    }
    write(client, actor, user, meter, Some(wanted)).await
}

/// Ends a user's override, so that the plan applies again. Succeeds without one.
///
/// # Errors
///
/// When the meter is unknown, or the database cannot be used.
pub async fn remove_override(
    client: &mut Client,
    actor: &str,
    user: &User,
    meter: &str,
) -> Result<(), ControlError> {
    write(client, actor, user, meter, None).await
}

async fn write(
    client: &mut Client,
    actor: &str,
    user: &User,
    meter: &str,
    wanted: Option<&Override>,
) -> Result<(), ControlError> {
    let transaction = user.begin_change(client).await?;
    let meter = user::find_meter(&transaction, meter).await?;
    let before = override_of(&transaction, user, meter).await?;
    if before.as_ref() == wanted {
        return Ok(());
    }
    let counted: i16 = transaction
        .query_one(
            "SELECT coalesce(max(counted), 0::smallint) FROM plan_limits WHERE event_type = $1",
            &[&meter],
        )
        .await?
        .get(0);
    let limits = wanted.map(|wanted| &wanted.limits);
    let is_counted = |span: &Span| *span == Span::Month || counted & span.bit() != 0;
    if let Some(span) = limits.and_then(|limits| limits.keys().find(|span| !is_counted(span))) {
        return Err(ControlError::Invalid(format!(
            "no plan limits {meter} per {span}, so this usage is not counted; add a limit per {span} to a plan in \
             weir.toml, and run `weir migrate`",
            span = span.as_str()
        )));
    }
    let column = |span: Span| Some(limits?.get(&span)?.unwrap_or(UNLIMITED));
    let slots = wanted.and_then(|wanted| Some(wanted.slots?.cast_signed()));
    let burst = wanted.and_then(|wanted| Some(wanted.burst?.cast_signed()));
    // An ended override stays for a moment, so that maintenance checks the user's waiting jobs.
    let expires_at = match wanted {
        Some(wanted) => wanted.expires_at,
        None => Some(Timestamp::UNIX_EPOCH),
    };
    // Under the lock that reservations take, so that each of them sees either the old limits or the new ones.
    transaction
        .execute("SELECT lock_holders(ARRAY[$1::uuid])", &[&user.id])
        .await?;
    transaction
        .execute(
            include_str!("sql/set_override.sql"),
            &[
                &user.id,
                &meter,
                &column(Span::Month),
                &column(Span::Day),
                &column(Span::Hour),
                &column(Span::Minute),
                &slots,
                &expires_at,
                &burst,
            ],
        )
        .await?;
    let change = Change {
        actor,
        action: if wanted.is_some() {
            "override.set"
        } else {
            "override.remove"
        },
        holder: Some(user.id),
        meter: Some(meter),
        before: before.map(|before| json!(before)),
        after: wanted
            .map(|wanted| json!(wanted))
            .filter(|after| *after != Value::Null),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(())
}

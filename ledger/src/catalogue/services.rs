//! The services in the database, for the SQL functions, and the settings by which the processes count.

use std::time::Duration;

use postgres_types::ToSql;
use tokio_postgres::Client;

use super::apply::CatalogueError;
use crate::database::DatabaseError;
use crate::meter::Meter;
use crate::rules::Rules;

/// The parts of a service that a submission needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceEntry {
    /// The stem of its queues.
    pub name: String,
    /// The meter that counts its work.
    pub meter: Meter,
    /// River's job kind.
    pub kind: String,
    /// The maximum number of attempts at a job.
    pub max_attempts: i16,
    /// Members of the arguments that must be equal for a job to fold into an unfinished one.
    pub unique_by: Vec<String>,
    /// The amount that one job reserves.
    pub amount: ServiceAmount,
    /// The retry policy; `None` uses River's policy.
    pub retry: Option<RetryPolicy>,
    /// The time that an attempt may take.
    pub timeout: Duration,
    /// The time after which a job that still waits is cancelled; `None`: never.
    pub expires_in: Option<Duration>,
}

/// The pauses between a job's attempts: base * factor^(attempt - 1) * attempt^power, at most `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// The first pause, in seconds.
    pub base: f64,
    /// The factor by which each further pause grows.
    pub factor: f64,
    /// The power of the attempt by which the pause is multiplied.
    pub power: f64,
    /// The longest pause, in seconds.
    pub max: f64,
}

/// The amount that one job of a service reserves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceAmount {
    /// A fixed amount.
    Fixed(i64),
    /// The value of this member of the arguments.
    Member(String),
    /// The caller's amount.
    Caller,
}

/// Whether slots are counted, the slots of plans, and those of a client address, as columns of `weir_settings`.
fn slot_settings(rules: &Rules) -> (bool, serde_json::Value, i32) {
    let limits = rules.slot_limits.as_ref();
    let of_plans = limits.map_or_else(
        || serde_json::json!({}),
        |limits| serde_json::json!(limits.of_plans),
    );
    let anonymous = limits.map_or(1, |limits| i32::try_from(limits.anonymous).unwrap_or(i32::MAX));
    (limits.is_some(), of_plans, anonymous)
}

/// The settings of `rules` that differ from the database's, which apply until [`apply`] replaces them.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn changes_to(client: &Client, rules: &Rules) -> Result<Vec<String>, DatabaseError> {
    let read = "SELECT extract(epoch FROM reservation_ttl)::float8 AS ttl, counts_slots, slots_of_plans, anonymous_slots \
                FROM weir_settings";
    let row = client.query_one(read, &[]).await?;
    let (counts_slots, of_plans, anonymous) = slot_settings(rules);
    let wanted = [
        ("RESERVATION_TTL, in seconds", rules.ttl.as_secs_f64().into()),
        ("FAIRNESS_ENABLED", counts_slots.into()),
        ("FAIRNESS_..._LIMIT by plan", of_plans),
        ("FAIRNESS_ANONYMOUS_LIMIT", anonymous.into()),
    ];
    let applied: [serde_json::Value; 4] = [
        row.get::<_, f64>("ttl").into(),
        row.get::<_, bool>("counts_slots").into(),
        row.get("slots_of_plans"),
        row.get::<_, i32>("anonymous_slots").into(),
    ];
    let changes = std::iter::zip(wanted, applied).filter(|((_, wanted), applied)| wanted != applied);
    Ok(changes
        .map(|((name, wanted), applied)| {
            format!("{name}: {wanted} in the environment, {applied} in the database")
        })
        .collect())
}

/// Replaces the database's services with these, and its settings with those of `rules`. Returns the changes, one per
/// line.
///
/// # Errors
///
/// When the database cannot be used, or lacks a service's meter.
pub async fn apply(
    client: &mut Client,
    services: &[ServiceEntry],
    rules: &Rules,
) -> Result<Vec<String>, CatalogueError> {
    let names: Vec<&str> = services.iter().map(|one| one.name.as_str()).collect();
    let meters: Vec<Meter> = services.iter().map(|one| one.meter).collect();
    let kinds: Vec<&str> = services.iter().map(|one| one.kind.as_str()).collect();
    let attempts: Vec<i16> = services.iter().map(|one| one.max_attempts).collect();
    let unique_by: Vec<serde_json::Value> = services
        .iter()
        .map(|one| one.unique_by.as_slice().into())
        .collect();
    let (mut amounts, mut members) = (Vec::new(), Vec::new());
    for one in services {
        let (amount, member) = match &one.amount {
            ServiceAmount::Fixed(amount) => (Some(*amount), None),
            ServiceAmount::Member(member) => (None, Some(member.as_str())),
            ServiceAmount::Caller => (None, None),
        };
        amounts.push(amount);
        members.push(member);
    }
    let retry = |pick: fn(RetryPolicy) -> f64| -> Vec<Option<f64>> {
        services.iter().map(|one| one.retry.map(pick)).collect()
    };
    let (bases, factors) = (retry(|retry| retry.base), retry(|retry| retry.factor));
    let (powers, longest) = (retry(|retry| retry.power), retry(|retry| retry.max));
    let transaction = client.transaction().await?;
    let timeouts: Vec<f64> = services.iter().map(|one| one.timeout.as_secs_f64()).collect();
    let expiry: Vec<Option<f64>> = services
        .iter()
        .map(|one| one.expires_in.map(|expires_in| expires_in.as_secs_f64()))
        .collect();
    let params: [&(dyn ToSql + Sync); 13] = [
        &names, &meters, &kinds, &attempts, &unique_by, &amounts, &members, &bases, &factors, &powers,
        &longest, &timeouts, &expiry,
    ];
    let changed = transaction
        .query(include_str!("sql/write_services.sql"), &params)
        .await?;
    let gone = transaction
        .query(
            "DELETE FROM weir_services WHERE name <> ALL ($1::text[]) RETURNING name",
            &[&names],
        )
        .await?;
    let (counts_slots, of_plans, anonymous) = slot_settings(rules);
    let settings = transaction
        .execute(
            include_str!("sql/write_settings.sql"),
            &[&rules.ttl.as_secs_f64(), &counts_slots, &of_plans, &anonymous],
        )
        .await?;
    transaction.commit().await?;
    let mut changes: Vec<String> = changed
        .iter()
        .map(|row| {
            let how = if row.get("is_new") { "new" } else { "changed" };
            format!("service {}: {how}", row.get::<_, &str>("name"))
        })
        .collect();
    changes.extend(
        gone.iter()
            .map(|row| format!("service {}: removed", row.get::<_, &str>("name"))),
    );
    if settings > 0 {
        changes
            .push("slots or RESERVATION_TTL from the environment: updated for the SQL functions".to_owned());
    }
    Ok(changes)
}

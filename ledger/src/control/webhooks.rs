//! Webhooks: who is told what.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::{Client, Row, Transaction};
use uuid::Uuid;

use super::error::ControlError;
use super::log::Change;
use crate::database::PreparedClient;

/// What there is to be told.
pub const WEBHOOK_EVENTS: [&str; 6] = [
    "job.completed",
    "job.failed",
    "job.cancelled",
    "quota.threshold",
    "quota.renewed",
    "plan.changed",
];

/// The percents that `quota.threshold` is told at, unless a webhook has its own.
pub const WEBHOOK_THRESHOLDS: [i16; 2] = [80, 100];

/// The highest percent: a soft limit may be exceeded.
const MAX_THRESHOLD: i16 = 1000;

/// The most thresholds of one webhook.
const MAX_THRESHOLDS: usize = 20;

/// The most webhooks: each has a queue, which every process that works looks after.
const MAX_WEBHOOKS: i64 = 100;

/// How many deliveries of a webhook are cancelled or made again in one transaction.
pub(super) const MAX_AT_ONCE: i64 = 5000;

/// A webhook that somebody wants. The URL was looked at.
#[derive(Clone, Copy, Debug)]
pub struct WantedWebhook<'a> {
    /// Where to.
    pub url: &'a str,
    /// What of; without any, all of it.
    pub events: &'a [String],
    /// At which percents of a limit.
    pub thresholds: &'a [i16],
    /// What its deliveries are signed by.
    pub secret: &'a str,
}

/// A webhook, without its secrets.
#[derive(Clone, Debug, Serialize)]
pub struct Webhook {
    /// Its id.
    pub id: Uuid,
    /// Where to.
    pub url: String,
    /// What of.
    pub events: Vec<String>,
    /// The percents of a limit that `quota.threshold` is told at.
    pub thresholds: Vec<i16>,
    /// When it was made.
    pub created_at: Timestamp,
    /// Until when the secret before the last rotation signs besides.
    pub previous_until: Option<Timestamp>,
    /// Since when it is told nothing.
    pub disabled_at: Option<Timestamp>,
    /// Why.
    pub disabled_because: Option<String>,
    /// What became of its deliveries, where that was looked up.
    #[serde(flatten)]
    pub deliveries: Option<Deliveries>,
}

/// What became of a webhook's deliveries.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Deliveries {
    /// How many wait, most of them for their next attempt. At most 100 000 are counted.
    pub waiting: i64,
    /// How many were given up in the last days. At most 100 000 are counted.
    pub failed: i64,
    /// Why a late attempt failed of those that wait or were given up.
    pub last_error: Option<String>,
}

impl Webhook {
    fn for_log(&self) -> Value {
        json!({ "id": self.id, "url": self.url, "events": self.events, "thresholds": self.thresholds })
    }
}

fn from_row(row: &Row) -> Webhook {
    Webhook {
        id: row.get("id"),
        url: row.get("url"),
        events: row.get("events"),
        thresholds: row.get("thresholds"),
        created_at: row.get("created_at"),
        previous_until: row.get("previous_until"),
        disabled_at: row.get("disabled_at"),
        disabled_because: row.get("disabled_because"),
        deliveries: None,
    }
}

/// All webhooks, the oldest first.
///
/// # Errors
///
/// When the database cannot be asked.
pub async fn webhooks(client: &Client) -> Result<Vec<Webhook>, tokio_postgres::Error> {
    let rows = client.query(include_str!("sql/webhooks.sql"), &[]).await?;
    Ok(rows
        .iter()
        .map(|row| Webhook {
            deliveries: Some(Deliveries {
                waiting: row.get("waiting"),
                failed: row.get("failed"),
                last_error: row.get("last_error"),
            }),
            ..from_row(row)
        })
        .collect())
}

/// Locks a webhook that was not removed. Its deliveries are not looked at: there may be millions, and what is wrong with its
/// receiver must not keep it from being changed.
pub(super) async fn locked(transaction: &Transaction<'_>, id: Uuid) -> Result<Webhook, ControlError> {
    let found = transaction
        .query_opt(
            "SELECT id, url, events, thresholds, created_at, disabled_at, disabled_because, \
                    CASE WHEN previous_until > now() THEN previous_until END AS previous_until \
             FROM webhooks WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE",
            &[&id],
        )
        .await?;
    found.as_ref().map(from_row).ok_or(ControlError::NoWebhook(id))
}

/// Makes a webhook, which is told what is committed from now on.
///
/// # Errors
///
/// When an event or a threshold is none, there is a webhook for the same URL, or the database cannot be used.
pub async fn add_webhook(
    client: &mut Client,
    actor: &str,
    wanted: &WantedWebhook<'_>,
) -> Result<Webhook, ControlError> {
    let events = events(wanted.events)?;
    let thresholds = thresholds(wanted.thresholds)?;
    let transaction = client.transaction().await?;
    // One at a time, so that none is too many.
    transaction
        .batch_execute("LOCK TABLE webhooks IN SHARE UPDATE EXCLUSIVE MODE")
        .await?;
    let row = transaction
        .query_one(
            "SELECT count(*), count(*) FILTER (WHERE url = $1) FROM webhooks WHERE removed_at IS NULL",
            &[&wanted.url],
        )
        .await?;
    if row.get::<_, i64>(0) >= MAX_WEBHOOKS {
        return Err(ControlError::Conflict(format!(
            "there are {MAX_WEBHOOKS} webhooks already; remove one"
        )));
    }
    if row.get::<_, i64>(1) > 0 {
        return Err(ControlError::Conflict(
            "there is a webhook for this URL already; remove it first to change its events".to_owned(),
        ));
    }
    let id: Uuid = transaction
        .query_one(
            "INSERT INTO webhooks (url, events, thresholds, secret) VALUES ($1, $2, $3, $4) RETURNING id",
            &[&wanted.url, &events, &thresholds, &wanted.secret],
        )
        .await?
        .get("id");
    let made = Webhook {
        deliveries: Some(Deliveries::default()),
        ..locked(&transaction, id).await?
    };
    let change = Change {
        actor,
        action: "webhook.add",
        after: Some(made.for_log()),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(made)
}

fn events(wanted: &[String]) -> Result<Vec<String>, ControlError> {
    if let Some(unknown) = wanted
        .iter()
        .find(|event| !WEBHOOK_EVENTS.contains(&event.as_str()))
    {
        return Err(ControlError::Invalid(format!(
            "there is no event {unknown:?}; there are {}",
            WEBHOOK_EVENTS.join(", ")
        )));
    }
    let is_wanted = |event: &&str| wanted.is_empty() || wanted.iter().any(|one| one == event);
    Ok(WEBHOOK_EVENTS
        .into_iter()
        .filter(is_wanted)
        .map(str::to_owned)
        .collect())
}

fn thresholds(wanted: &[i16]) -> Result<Vec<i16>, ControlError> {
    if wanted.is_empty() {
        return Ok(WEBHOOK_THRESHOLDS.to_vec());
    }
    let mut thresholds = wanted.to_vec();
    thresholds.sort_unstable();
    thresholds.dedup();
    if thresholds.len() > MAX_THRESHOLDS
        || thresholds
            .iter()
            .any(|percent| !(1..=MAX_THRESHOLD).contains(percent))
    {
        return Err(ControlError::Invalid(format!(
            "thresholds are at most {MAX_THRESHOLDS} percents from 1 to {MAX_THRESHOLD}"
        )));
    }
    Ok(thresholds)
}

/// Gives a webhook another secret. The one before signs besides for so long, so that the receiver can change over without
/// a gap; and so does the one before that where it still did, since nobody knows which of them the receiver has.
///
/// # Errors
///
/// When there is no such webhook, or the database cannot be used.
pub async fn rotate_webhook(
    client: &mut Client,
    actor: &str,
    id: Uuid,
    secret: &str,
    both_for: SignedDuration,
) -> Result<Webhook, ControlError> {
    let transaction = client.transaction().await?;
    let before = locked(&transaction, id).await?;
    transaction
        .execute(
            "UPDATE webhooks SET older_secret = CASE WHEN previous_until > clock_timestamp() THEN previous_secret END, \
                    previous_secret = secret, previous_until = clock_timestamp() + make_interval(secs => $3), secret = $2 \
             WHERE id = $1",
            &[&id, &secret, &both_for.as_secs_f64()],
        )
        .await?;
    let after = locked(&transaction, id).await?;
    let change = Change {
        actor,
        action: "webhook.rotate",
        before: Some(before.for_log()),
        after: Some(json!({ "id": id, "previous_until": after.previous_until })),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(after)
}

/// Has a disabled webhook told again what is committed from now on. Returns false when it was not disabled.
///
/// # Errors
///
/// When there is no such webhook, or the database cannot be used.
pub async fn enable_webhook(client: &mut Client, actor: &str, id: Uuid) -> Result<bool, ControlError> {
    let transaction = client.transaction().await?;
    let before = locked(&transaction, id).await?;
    let Some(because) = &before.disabled_because else {
        return Ok(false);
    };
    transaction
        .execute(
            "UPDATE webhooks SET disabled_at = NULL, disabled_because = NULL WHERE id = $1",
            &[&id],
        )
        .await?;
    let change = Change {
        actor,
        action: "webhook.enable",
        before: Some(json!({ "id": id, "disabled_at": before.disabled_at, "because": because })),
        after: Some(before.for_log()),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Tells a webhook nothing more, since its receiver wants it so.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn disable_webhook(client: &mut Client, id: Uuid, because: &str) -> Result<(), ControlError> {
    let transaction = client.transaction().await?;
    let before = match locked(&transaction, id).await {
        Ok(before) if before.disabled_at.is_none() => before,
        // Another delivery was answered the same meanwhile.
        Ok(_) | Err(ControlError::NoWebhook(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    transaction
        .execute(
            "UPDATE webhooks SET disabled_at = clock_timestamp(), disabled_because = $2 WHERE id = $1",
            &[&id, &because],
        )
        .await?;
    let change = Change {
        actor: "weir",
        action: "webhook.disable",
        reason: Some(because),
        before: Some(before.for_log()),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(())
}

/// Removes a webhook with what it was to be told yet, of which it returns how much there was. Its secrets are gone.
///
/// # Errors
///
/// When there is no such webhook, or the database cannot be used.
pub async fn remove_webhook(client: &mut Client, actor: &str, id: Uuid) -> Result<u64, ControlError> {
    let transaction = client.transaction().await?;
    let before = locked(&transaction, id).await?;
    transaction
        .execute(
            "UPDATE webhooks SET removed_at = clock_timestamp(), secret = NULL, previous_secret = NULL, \
                    older_secret = NULL, previous_until = NULL \
             WHERE id = $1",
            &[&id],
        )
        .await?;
    let change = Change {
        actor,
        action: "webhook.remove",
        before: Some(before.for_log()),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    // Apart from that, since there may be millions. Whatever is left goes nowhere, also when this is broken off.
    let mut cancelled = 0;
    loop {
        let some = client
            .execute(include_str!("sql/cancel_deliveries.sql"), &[&id, &MAX_AT_ONCE])
            .await?;
        cancelled += some;
        if some == 0 {
            return Ok(cancelled);
        }
    }
}

/// Tells of windows that are over and of which a threshold was told that they are renewed. Returns how many thresholds that
/// were.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn emit_renewals(client: &PreparedClient) -> Result<i64, tokio_postgres::Error> {
    let row = client.query_one("SELECT emit_renewals() AS gone", &[]).await?;
    Ok(row.get("gone"))
}

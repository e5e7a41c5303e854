//! Webhooks: receivers of events, and the events that each subscribes to.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_postgres::{Client, Row, Transaction};
use uuid::Uuid;

use super::error::ControlError;
use super::log::Change;
use crate::database::PreparedClient;
use crate::processes::delivery_workers;

/// The types of events.
pub const WEBHOOK_EVENTS: [&str; 8] = [
    "job.completed",
    "job.failed",
    "job.cancelled",
    "job.expired",
    "quota.threshold",
    "quota.renewed",
    "plan.changed",
    "webhook.disabled",
];

/// The default thresholds of `quota.threshold`, in percent.
pub const WEBHOOK_THRESHOLDS: [i16; 2] = [80, 100];

/// The highest threshold in percent. Usage may exceed a soft limit.
const MAX_THRESHOLD: i16 = 1000;

/// The maximum number of thresholds of one webhook.
const MAX_THRESHOLDS: usize = 20;

/// The maximum number of webhooks. Each has a queue, which every worker process polls.
const MAX_WEBHOOKS: i64 = 100;

/// The number of a webhook's deliveries that one transaction cancels or replays.
pub(super) const MAX_AT_ONCE: i64 = 5000;

/// A webhook to create. The URL must be validated first.
#[derive(Clone, Copy, Debug)]
pub struct NewWebhook<'a> {
    /// The URL.
    pub url: &'a str,
    /// The types of events. Empty for all types.
    pub events: &'a [String],
    /// Thresholds in percent of a limit.
    pub thresholds: &'a [i16],
    /// The secret that signs its deliveries.
    pub secret: &'a str,
}

/// A webhook, without its secrets.
#[derive(Clone, Debug, Serialize)]
pub struct Webhook {
    /// Its id.
    pub id: Uuid,
    /// The URL.
    pub url: String,
    /// The types of events.
    pub events: Vec<String>,
    /// The thresholds of `quota.threshold`, in percent of a limit.
    pub thresholds: Vec<i16>,
    /// When it was created.
    pub created_at: Timestamp,
    /// Until when the secret before the last rotation also signs.
    pub previous_until: Option<Timestamp>,
    /// Since when its events wait until it is enabled again.
    pub disabled_at: Option<Timestamp>,
    /// Why it was disabled.
    pub disabled_because: Option<String>,
    /// The status of its deliveries, if it was looked up.
    #[serde(flatten)]
    pub deliveries: Option<Deliveries>,
}

/// The status of a webhook's deliveries.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Deliveries {
    /// The number of waiting deliveries, most of them before a retry. Counts at most 100 000.
    pub waiting: i64,
    /// The number of deliveries that failed permanently in the last days. Counts at most 100 000.
    pub failed: i64,
    /// The error of a recent attempt at a waiting or failed delivery.
    pub last_error: Option<String>,
    /// The workers of all live processes that deliver to it. Without one, its events wait.
    pub workers: i64,
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

/// All webhooks, oldest first.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn webhooks(client: &Client) -> Result<Vec<Webhook>, tokio_postgres::Error> {
    let workers = delivery_workers(client).await?;
    let rows = client.query(include_str!("sql/webhooks.sql"), &[]).await?;
    Ok(rows
        .iter()
        .map(|row| Webhook {
            deliveries: Some(Deliveries {
                waiting: row.get("waiting"),
                failed: row.get("failed"),
                last_error: row.get("last_error"),
                workers,
            }),
            ..from_row(row)
        })
        .collect())
}

/// Locks a webhook that was not removed. Does not read its deliveries: there may be millions, and a broken receiver
/// must not prevent a change of its webhook.
pub(super) async fn locked(transaction: &Transaction<'_>, id: Uuid) -> Result<Webhook, ControlError> {
    let found = transaction
        .query_opt(include_str!("sql/lock_webhook.sql"), &[&id])
        .await?;
    found
        .as_ref()
        .map(from_row)
        .ok_or(ControlError::WebhookNotFound(id))
}

/// Creates a webhook. It receives events that are committed from now on.
///
/// # Errors
///
/// When an event or a threshold is invalid, a webhook for the same URL exists, or the database cannot be used.
pub async fn add_webhook(
    client: &mut Client,
    actor: &str,
    wanted: &NewWebhook<'_>,
) -> Result<Webhook, ControlError> {
    let events = events(wanted.events)?;
    let thresholds = thresholds(wanted.thresholds)?;
    let transaction = client.transaction().await?;
    // One at a time, so that the maximum holds.
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
            "there are already {MAX_WEBHOOKS} webhooks, the maximum; remove one first"
        )));
    }
    if row.get::<_, i64>(1) > 0 {
        return Err(ControlError::Conflict(
            "a webhook for this URL already exists; to change its events, remove it first".to_owned(),
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
        deliveries: Some(Deliveries {
            workers: delivery_workers(&transaction).await?,
            ..Deliveries::default()
        }),
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
            "unknown event {unknown:?}; expected one of {}",
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
            "thresholds must be at most {MAX_THRESHOLDS} percentages from 1 to {MAX_THRESHOLD}"
        )));
    }
    Ok(thresholds)
}

/// Creates a new secret for a webhook. For a while, the previous secret also signs, so that the receiver can change
/// over without a gap. If an even older one still signs, it also continues, because the receiver may use either.
///
/// # Errors
///
/// When the webhook is unknown, or the database cannot be used.
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
            include_str!("sql/rotate_webhook.sql"),
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

/// Enables a disabled webhook. Waiting events are delivered within hours, or by a replay immediately. Returns false when
/// it was not disabled.
///
/// # Errors
///
/// When the webhook is unknown, or the database cannot be used.
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

/// Notes that an event was delivered to a webhook.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn note_delivery(client: &Client, id: Uuid) -> Result<(), tokio_postgres::Error> {
    let note = "UPDATE webhooks SET delivered_at = clock_timestamp() WHERE id = $1";
    client.execute(note, &[&id]).await.map(drop)
}

/// Disables a webhook after the last attempt of a delivery, if another event has failed as well and none was delivered
/// since the event of this delivery. Returns whether it did.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn disable_failing_webhook(
    client: &mut Client,
    id: Uuid,
    job_id: i64,
    because: &str,
) -> Result<bool, ControlError> {
    let is_failing = include_str!("sql/is_failing.sql");
    if client.query_opt(is_failing, &[&id, &job_id]).await?.is_none() {
        return Ok(false);
    }
    disable_webhook(client, id, because).await?;
    Ok(true)
}

/// Disables a webhook, and emits an event to the others.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn disable_webhook(client: &mut Client, id: Uuid, because: &str) -> Result<(), ControlError> {
    let transaction = client.transaction().await?;
    let before = match locked(&transaction, id).await {
        Ok(before) if before.disabled_at.is_none() => before,
        // Another delivery has got the same response.
        Ok(_) | Err(ControlError::WebhookNotFound(_)) => return Ok(()),
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
    // Without the URL, which is a secret of some receivers.
    let data = json!({ "webhook": id, "reason": because });
    let (event, body) = new_event(&transaction, "webhook.disabled", &data).await?;
    transaction
        .execute(include_str!("sql/emit_disabled.sql"), &[&id, &event, &body])
        .await?;
    transaction.commit().await?;
    Ok(())
}

/// The id and the body of an event about a webhook.
pub(super) async fn new_event(
    transaction: &Transaction<'_>,
    kind: &str,
    data: &Value,
) -> Result<(String, String), tokio_postgres::Error> {
    let row = transaction.query_one("SELECT gen_random_uuid()", &[]).await?;
    let event = format!("evt_{}", row.get::<_, Uuid>(0).simple());
    let body = json!({ "id": event, "type": kind, "timestamp": Timestamp::now(), "data": data });
    Ok((event, body.to_string()))
}

/// Removes a webhook with its undelivered events, and returns their number. Deletes its secrets.
///
/// # Errors
///
/// When the webhook is unknown, or the database cannot be used.
pub async fn remove_webhook(client: &mut Client, actor: &str, id: Uuid) -> Result<u64, ControlError> {
    let transaction = client.transaction().await?;
    let before = locked(&transaction, id).await?;
    transaction
        .execute(include_str!("sql/remove_webhook.sql"), &[&id])
        .await?;
    let change = Change {
        actor,
        action: "webhook.remove",
        before: Some(before.for_log()),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    // In separate transactions, because there may be millions. If this is interrupted, the remaining deliveries have no
    // receiver and are not sent.
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

/// Emits quota.renewed for ended windows with an emitted threshold. Returns the number of these thresholds.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn emit_renewals(client: &PreparedClient) -> Result<i64, tokio_postgres::Error> {
    let row = client.query_one("SELECT emit_renewals() AS gone", &[]).await?;
    Ok(row.get("gone"))
}

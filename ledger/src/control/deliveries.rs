//! Webhook deliveries: the data that a worker needs for one, and the operations on them.

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_postgres::{Client, Transaction};
use uuid::Uuid;

use super::error::ControlError;
use super::log::Change;
use super::webhooks::{MAX_AT_ONCE, locked, new_event};

/// The kind of the jobs that deliver.
pub const DELIVERY_KIND: &str = "weir:webhook";

/// The destination of a delivery.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// The URL.
    pub url: String,
    /// The secrets that sign it, the current one first.
    pub secrets: Vec<String>,
    /// Whether its events wait until it is enabled again.
    pub is_disabled: bool,
}

/// The current destination of a webhook's deliveries; `None` when it was removed.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn receiver(client: &Client, webhook: Uuid) -> Result<Option<Receiver>, tokio_postgres::Error> {
    let row = client
        .query_opt(include_str!("sql/receiver.sql"), &[&webhook])
        .await?;
    Ok(row.map(|row| {
        let secrets: [Option<String>; 3] = [row.get("secret"), row.get("previous"), row.get("older")];
        Receiver {
            url: row.get("url"),
            secrets: secrets.into_iter().flatten().collect(),
            is_disabled: row.get("is_disabled"),
        }
    }))
}

/// The queues that need workers: those of all webhooks, and for a while those of removed webhooks. A transaction that
/// started before the removal may still emit events to them.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn delivery_queues(client: &Client) -> Result<Vec<String>, tokio_postgres::Error> {
    let rows = client
        .query(
            "SELECT webhook_queue(id) AS queue FROM webhooks \
             WHERE removed_at IS NULL OR removed_at > now() - interval '1 hour'",
            &[],
        )
        .await?;
    Ok(rows.iter().map(|row| row.get("queue")).collect())
}

/// A requested delivery.
#[derive(Clone, Debug)]
pub struct TestDelivery {
    /// The id of the event.
    pub event: String,
    /// The job that delivers it.
    pub job_id: i64,
}

/// Emits an event of type `webhook.test` to a webhook.
///
/// # Errors
///
/// When the webhook is unknown, it is disabled, or the database cannot be used.
pub async fn test_webhook(client: &mut Client, actor: &str, id: Uuid) -> Result<TestDelivery, ControlError> {
    let transaction = client.transaction().await?;
    require_enabled(&locked(&transaction, id).await?.disabled_because)?;
    let data = json!({ "webhook": id, "message": "This is a test delivery." });
    let (event, body) = new_event(&transaction, "webhook.test", &data).await?;
    transaction
        .execute(
            "SELECT deliver(ARRAY[$1::uuid], ARRAY[NULL::uuid], ARRAY[$2::text], ARRAY[$3::text])",
            &[&id, &event, &body],
        )
        .await?;
    let job_id = transaction
        .query_one(
            "SELECT id FROM river_job WHERE args @> jsonb_build_object('event', $1::text)",
            &[&event],
        )
        .await?
        .get("id");
    let change = Change {
        actor,
        action: "webhook.test",
        after: Some(json!({ "id": id, "event": event })),
        ..Change::default()
    };
    change.write(&transaction).await?;
    transaction.commit().await?;
    Ok(TestDelivery { event, job_id })
}

fn require_enabled(disabled_because: &Option<String>) -> Result<(), ControlError> {
    match disabled_because {
        None => Ok(()),
        Some(because) => Err(ControlError::Conflict(format!(
            "the webhook is disabled: {because}; enable it first"
        ))),
    }
}

/// The status of a delivery.
#[derive(Clone, Debug)]
pub struct DeliveryState {
    /// Whether the receiver has acknowledged it.
    pub delivered: bool,
    /// Whether there are no more attempts.
    pub ended: bool,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// Why its webhook is disabled. The delivery then waits.
    pub disabled_because: Option<String>,
    /// The output of a successful delivery: the status code, and how long it took.
    pub output: Option<Value>,
}

/// The status of a delivery; `None` when its job was deleted.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn delivery(client: &Client, job_id: i64) -> Result<Option<DeliveryState>, tokio_postgres::Error> {
    let row = client
        .query_opt(include_str!("sql/delivery.sql"), &[&job_id])
        .await?;
    Ok(row.map(|row| DeliveryState {
        delivered: row.get("delivered"),
        ended: row.get("ended"),
        last_error: row.get("last_error"),
        disabled_because: row.get("disabled_because"),
        output: row.get("output"),
    }))
}

/// The deliveries to replay.
#[derive(Clone, Debug)]
pub enum Replay {
    /// The delivery of one event, even if it succeeded.
    Event(String),
    /// All undelivered events since this time.
    UndeliveredSince(Timestamp),
}

/// Replays deliveries immediately, under the same ids. River keeps successful deliveries for a day, and failed ones for
/// a week. Returns the number of replayed deliveries.
///
/// # Errors
///
/// When the webhook is unknown, it is disabled, the event no longer exists, or the database cannot be used.
pub async fn replay_webhook(
    client: &mut Client,
    actor: &str,
    id: Uuid,
    what: &Replay,
) -> Result<u64, ControlError> {
    let transaction = client.transaction().await?;
    require_enabled(&locked(&transaction, id).await?.disabled_because)?;
    match what {
        Replay::Event(event) => {
            let replayed: i64 = transaction
                .query_one(include_str!("sql/replay.sql"), &[&id, &event])
                .await?
                .get("replayed");
            if replayed == 0 {
                return Err(ControlError::Invalid(format!(
                    "no finished delivery of {event} to this webhook was found; it may have been deleted"
                )));
            }
            log_replay(&transaction, actor, id, what, replayed).await?;
            transaction.commit().await?;
            Ok(replayed.unsigned_abs())
        }
        Replay::UndeliveredSince(since) => {
            transaction.commit().await?;
            let row = client.query_one("SELECT clock_timestamp() AS now", &[]).await?;
            let began: Timestamp = row.get("now");
            let mut replayed = 0;
            // A few thousand per transaction: there may be millions, and River waits for locked rows. Skips locked
            // deliveries.
            loop {
                let transaction = client.transaction().await?;
                let again = include_str!("sql/replay_undelivered.sql");
                let row = transaction
                    .query_one(again, &[&id, since, &MAX_AT_ONCE, &began])
                    .await?;
                let some: i64 = row.get("replayed");
                if some > 0 || replayed == 0 {
                    log_replay(&transaction, actor, id, what, some).await?;
                }
                transaction.commit().await?;
                replayed += some;
                if some == 0 {
                    return Ok(replayed.unsigned_abs());
                }
            }
        }
    }
}

async fn log_replay(
    transaction: &Transaction<'_>,
    actor: &str,
    id: Uuid,
    what: &Replay,
    replayed: i64,
) -> Result<(), tokio_postgres::Error> {
    let (event, since) = match what {
        Replay::Event(event) => (Some(event), None),
        Replay::UndeliveredSince(since) => (None, Some(since)),
    };
    let change = Change {
        actor,
        action: "webhook.replay",
        after: Some(json!({ "id": id, "event": event, "since": since, "replayed": replayed })),
        ..Change::default()
    };
    change.write(transaction).await
}

//! Webhook deliveries: River jobs without a holder or a slot. Each webhook has its own queue and workers in every
//! process, so that a slow or unavailable receiver delays only its own deliveries.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;
use weir_ledger::attempts::{self, ClaimedJob, End};
use weir_ledger::control::{self, Receiver};
use weir_ledger::database::{ConnectionPool, DatabaseError};

use super::attempt_error::storable;
use super::internal::{Internal, not_started};
use super::lanes::Lanes;
use super::under_way::Stop;
use crate::config::retry::MAX_AFTER;
use crate::context::Context;
use crate::outbound::{self, Reach, Secret};

/// The maximum time for a receiver to respond.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The pauses after each attempt, in seconds, as Standard Webhooks recommends: three days in total.
const PAUSES: [u64; 9] = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];

/// How long the events of a disabled webhook wait until it is enabled again.
const KEPT: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Between two looks whether it is enabled. Enabling it replays its deliveries, except one that is looked at just then.
const KEPT_INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// Maximum length of the stored part of an error response.
const MAX_MESSAGE: usize = 500;

/// Maximum number of bytes read from a response, so that its connection can be reused.
const SHORT_ANSWER: u64 = 16 * 1024;

/// The time to cache a webhook's row, so that not every delivery queries it.
const CACHE_TIME: Duration = Duration::from_secs(1);

/// Between two notes that an event was delivered to a webhook.
const NOTE_INTERVAL: Duration = Duration::from_secs(60);

/// Between two reads of the list of webhooks.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Deserialize)]
struct Delivery {
    webhook: Uuid,
    /// The event's id.
    event: String,
    /// The body as sent and signed.
    body: String,
}

/// Why a delivery failed, as it is recorded and `weir webhook list` shows it.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error("the receiver answered {status}{}{body}", if body.is_empty() { "" } else { ": " })]
    Refused {
        status: StatusCode,
        body: String,
        after: Option<Duration>,
    },
    #[error("the receiver did not answer within {} s", TIMEOUT.as_secs())]
    TimedOut,
    #[error("{0}")]
    Unreachable(String),
    #[error("the delivery cannot be sent: {0}")]
    Unusable(String),
    #[error(transparent)]
    Internal(#[from] Internal),
    #[error("stopped")]
    Stopped,
}

pub(super) struct Deliverer {
    context: Context,
    client: Client,
    reach: Reach,
    known: Mutex<HashMap<Uuid, (Instant, Arc<Receiver>)>>,
    /// When a delivery was last noted.
    noted: Mutex<HashMap<Uuid, Instant>>,
}

impl Deliverer {
    pub(super) fn new(context: &Context) -> Self {
        let reach = Reach::of(context.settings.webhook_private_networks);
        Self {
            context: context.clone(),
            client: outbound::client(reach),
            reach,
            known: Mutex::default(),
            noted: Mutex::default(),
        }
    }

    /// Delivers an event. Returns how the attempt ends.
    pub(super) async fn work(&self, job: &ClaimedJob, stop: &Stop) -> End {
        let error = match self.deliver(job, stop).await {
            Ok(end) => return end,
            Err(error) => error,
        };
        stop.end(matches!(error, DeliveryError::Stopped))
            .unwrap_or_else(|| {
                let left = usize::try_from(job.max_attempts - job.attempt).unwrap_or(0);
                let after = match &error {
                    DeliveryError::Refused { after, .. } => *after,
                    _ => None,
                };
                End::Failed(error.to_string(), pause(left, after, rand::random()))
            })
    }

    async fn deliver(&self, job: &ClaimedJob, stop: &Stop) -> Result<End, DeliveryError> {
        let Delivery { webhook, event, body } = serde_json::from_str(&job.args)
            .map_err(|error| DeliveryError::Unusable(format!("its arguments are invalid: {error}")))?;
        let receiver = match self.receiver(webhook).await {
            Ok(Some(receiver)) if receiver.is_disabled => return Ok(kept(job)),
            Ok(Some(receiver)) => receiver,
            // The webhook was removed after the event was emitted.
            Ok(None) => return Ok(End::Cancelled("job cancelled by worker".to_owned())),
            Err(error) => return Ok(not_started(job.id, error)?),
        };
        let started = Instant::now();
        let sent = tokio::select! {
            biased;
            () = stop.token.cancelled() => return Err(DeliveryError::Stopped),
            sent = tokio::time::timeout(TIMEOUT, self.send(&receiver, &event, body)) => {
                sent.unwrap_or(Err(DeliveryError::TimedOut))
            }
        };
        let outcome = match &sent {
            Ok(_) => "delivered",
            Err(DeliveryError::Refused { status, .. }) if *status == StatusCode::GONE => "gone",
            Err(_) if job.attempt >= job.max_attempts => "given_up",
            Err(_) => "failed",
        };
        metrics::counter!("weir_webhook_deliveries_total", "outcome" => outcome).increment(1);
        match sent {
            Ok(status) => {
                let millis = started.elapsed().as_millis() as u64;
                self.note_delivery(webhook).await;
                Ok(End::Completed(json!({ "status": status.as_u16(), "ms": millis })))
            }
            Err(DeliveryError::Refused { status, .. }) if status == StatusCode::GONE => {
                self.disable(job.id, webhook, true).await?;
                Ok(kept(job))
            }
            Err(error) => {
                tracing::info!(job = job.id, %webhook, %error, outcome, "could not deliver an event to a webhook");
                if outcome == "given_up" {
                    self.disable(job.id, webhook, false).await?;
                }
                Err(error)
            }
        }
    }

    /// Notes at most once a minute that an event was delivered.
    async fn note_delivery(&self, webhook: Uuid) {
        let is_recent = |noted: &Instant| noted.elapsed() < NOTE_INTERVAL;
        if self.noted.lock().get(&webhook).is_some_and(is_recent) {
            return;
        }
        let noting = self
            .context
            .pool
            .with(async |client| Ok::<_, DatabaseError>(control::note_delivery(client, webhook).await?));
        match noting.await {
            Ok(()) => {
                self.noted.lock().insert(webhook, Instant::now());
            }
            Err(error) => tracing::debug!(%webhook, %error, "could not note a delivery"),
        }
    }

    /// The receiver of deliveries. A missing or disabled webhook is not cached, because it may be enabled at any
    /// moment.
    async fn receiver(&self, webhook: Uuid) -> Result<Option<Arc<Receiver>>, DatabaseError> {
        let known = self.known.lock().get(&webhook).cloned();
        if let Some((_, receiver)) = known.filter(|(asked, _)| asked.elapsed() < CACHE_TIME) {
            return Ok(Some(receiver));
        }
        let looked_up = self
            .context
            .pool
            .with(async |client| Ok::<_, DatabaseError>(control::receiver(client, webhook).await?));
        let receiver = looked_up.await?.map(Arc::new);
        let mut known = self.known.lock();
        match &receiver {
            Some(receiver) if !receiver.is_disabled => {
                known.insert(webhook, (Instant::now(), Arc::clone(receiver)))
            }
            _ => known.remove(&webhook),
        };
        Ok(receiver)
    }

    /// Sends one event. Returns the response if the receiver accepted the event.
    async fn send(
        &self,
        receiver: &Receiver,
        event: &str,
        body: String,
    ) -> Result<StatusCode, DeliveryError> {
        let unusable = |reason: &dyn std::fmt::Display| DeliveryError::Unusable(reason.to_string());
        // Checked again, because the allowed addresses may have changed since the webhook was created.
        let url: Url = receiver.url.parse().map_err(|error| unusable(&error))?;
        outbound::check(&url, self.reach).map_err(|error| unusable(&error))?;
        let secrets = receiver.secrets.iter().map(|secret| secret.parse::<Secret>());
        let secrets = secrets
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| unusable(&error))?;
        let mut request = self.client.post(url).header(CONTENT_TYPE, "application/json");
        for (name, value) in outbound::headers(&secrets, event, Timestamp::now(), body.as_bytes()) {
            request = request.header(name, value);
        }
        // The `webhook-id` makes a repeated request safe.
        let request = request.body(body).build().map_err(unreachable)?;
        let response = outbound::send(&self.client, request).await.map_err(unreachable)?;
        let status = response.status();
        if status.is_success() {
            finish(response).await;
            return Ok(status);
        }
        let after = outbound::retry_after(response.headers(), Timestamp::now());
        let body = outbound::start_of(response, MAX_MESSAGE).await;
        Err(DeliveryError::Refused {
            status,
            body: storable(String::from_utf8_lossy(&body).trim().to_owned()),
            after,
        })
    }

    /// The receiver wants no more events, or has failed for days.
    async fn disable(&self, job_id: i64, webhook: Uuid, is_gone: bool) -> Result<(), DeliveryError> {
        self.known.lock().remove(&webhook);
        let because = if is_gone {
            "the receiver returned 410 Gone"
        } else {
            "an event failed for three days, another one failed too, and none was delivered since"
        };
        let disabled = self.context.pool.with(async |client| {
            let disabled = if is_gone {
                control::disable_webhook(client, webhook, because)
                    .await
                    .map(|()| true)
            } else {
                control::disable_failing_webhook(client, webhook, job_id, because).await
            };
            disabled.map_err(|error| match error {
                control::ControlError::Database(error) => error,
                // The other variants occur only for requests of operators.
                _ => DatabaseError::Contended,
            })
        });
        if disabled.await.map_err(Internal::no_database(job_id))? {
            tracing::warn!(%webhook, because, "disabled a webhook");
        }
        Ok(())
    }
}

/// Keeps the delivery to a disabled webhook for a week. It can be replayed during that time.
fn kept(job: &ClaimedJob) -> End {
    if Timestamp::now().duration_since(job.created_at) < KEPT {
        End::Snoozed(KEPT_INTERVAL)
    } else {
        metrics::counter!("weir_webhook_deliveries_total", "outcome" => "given_up").increment(1);
        End::Discarded("job discarded by worker".to_owned(), json!({}))
    }
}

/// Reads a short response completely. A long or stalled response costs only its connection.
async fn finish(response: Response) {
    if response
        .content_length()
        .is_some_and(|length| length <= SHORT_ANSWER)
    {
        let _ = tokio::time::timeout(Duration::from_secs(1), response.bytes()).await;
    }
}

fn unreachable(error: reqwest::Error) -> DeliveryError {
    DeliveryError::Unreachable(outbound::reason(error))
}

/// The pause before the next attempt, with `left` attempts left. `jitter` from 0 to 1 spreads it by a tenth, so that
/// deliveries that failed together are not retried together.
fn pause(left: usize, after: Option<Duration>, jitter: f64) -> Duration {
    let seconds = PAUSES[PAUSES.len().saturating_sub(left.max(1)).min(PAUSES.len() - 1)];
    let pause = Duration::from_secs(seconds).mul_f64(0.9 + 0.2 * jitter);
    pause.max(after.unwrap_or_default().min(MAX_AFTER))
}

/// Makes this process work the queues of all webhooks, including those created later, for as long as it is polled.
pub(super) async fn sync_webhook_queues(
    pool: &ConnectionPool,
    lanes: &Lanes,
    workers: usize,
) -> std::convert::Infallible {
    let mut worked = HashSet::<String>::new();
    loop {
        let looked =
            pool.with(async |client| Ok::<_, DatabaseError>(control::delivery_queues(client).await?));
        match looked.await {
            Ok(queues) => {
                let wanted: HashSet<String> = queues.into_iter().collect();
                let new: Vec<String> = wanted.difference(&worked).cloned().collect();
                if let Err(error) = attempts::touch_queues(pool, &new).await {
                    tracing::debug!(%error, "could not show that webhooks are in use");
                }
                new.iter().for_each(|queue| lanes.add(queue, workers));
                worked.difference(&wanted).for_each(|queue| lanes.remove(queue));
                worked = wanted;
            }
            Err(error) => tracing::debug!(%error, "could not read the webhooks"),
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_attempts_take_three_days_and_restart_on_request() {
        let seconds = |left| pause(left, None, 0.5).as_secs();
        let pauses: Vec<u64> = (1..=9).rev().map(seconds).collect();
        assert_eq!(pauses, PAUSES);
        assert_eq!(pauses.iter().sum::<u64>() / 3600, 75);
        assert_eq!(seconds(0), 86_400, "another program added an attempt");
        assert_eq!(seconds(50), 5);
    }

    #[test]
    fn retry_after_of_a_receiver_is_respected_up_to_a_day() {
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(pause(9, hour, 0.5), Duration::from_secs(3600));
        assert_eq!(pause(5, hour, 0.5), Duration::from_secs(18_000));
        assert_eq!(pause(9, Some(Duration::MAX), 0.5), MAX_AFTER);
    }
}

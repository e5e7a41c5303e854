//! Webhooks and their deliveries.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::{Array, ArrayBuilder, ObjectBuilder, Type};
use uuid::Uuid;
use weir_ledger::control::{self, Replay, Webhook};

use super::super::answers::{InvalidBody, LacksScope, NoKey, NoSuchWebhook, Unavailable, WebhookConflict};
use super::super::caller::Operator;
use super::super::problem::ApiError;
use super::super::state::Api;
use super::request;
use crate::webhooks::{self, Revealed};

/// A webhook.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookView {
    id: Uuid,
    /// The URL that events are sent to.
    #[schema(example = "https://example.com/weir")]
    url: String,
    /// The types of events that it receives.
    events: Vec<String>,
    /// The percentages of a limit at which `quota.threshold` is sent.
    thresholds: Vec<i16>,
    created_at: Timestamp,
    /// Until when deliveries are also signed with the previous secret.
    previous_secret_until: Option<Timestamp>,
    /// Since when its events wait, for up to a week, until it is enabled again.
    disabled_at: Option<Timestamp>,
    /// Why it is disabled.
    disabled_because: Option<String>,
    /// Waiting deliveries, including retries. At most 100 000 are counted. Not in the answer to a rotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    waiting: Option<i64>,
    /// Abandoned deliveries of the last days. At most 100 000 are counted. Not in the answer to a rotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    failed: Option<i64>,
    /// The error of a recent failed attempt, among waiting and abandoned deliveries.
    last_error: Option<String>,
    /// The workers that deliver to it, in all live processes. 0: its events wait until `weir work` or `weir up` runs. Not
    /// in the answer to a rotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    workers: Option<i64>,
    /// The secret that signs deliveries. Only in the answer that creates or rotates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    secret: Option<String>,
}

impl From<Webhook> for WebhookView {
    fn from(webhook: Webhook) -> Self {
        Self {
            id: webhook.id,
            url: webhook.url,
            events: webhook.events,
            thresholds: webhook.thresholds,
            created_at: webhook.created_at,
            previous_secret_until: webhook.previous_until,
            disabled_at: webhook.disabled_at,
            disabled_because: webhook.disabled_because,
            waiting: webhook.deliveries.as_ref().map(|deliveries| deliveries.waiting),
            failed: webhook.deliveries.as_ref().map(|deliveries| deliveries.failed),
            workers: webhook.deliveries.as_ref().map(|deliveries| deliveries.workers),
            last_error: webhook.deliveries.and_then(|deliveries| deliveries.last_error),
            secret: None,
        }
    }
}

impl From<Revealed> for WebhookView {
    fn from(revealed: Revealed) -> Self {
        Self {
            secret: Some(revealed.secret),
            ..Self::from(revealed.webhook)
        }
    }
}

/// All webhooks.
#[derive(Serialize, ToSchema)]
pub(super) struct WebhookList {
    /// The oldest first.
    webhooks: Vec<WebhookView>,
}

/// The webhook to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedWebhook {
    /// The URL that deliveries are sent to.
    #[schema(example = "https://example.com/weir", format = "uri", min_length = 1)]
    url: String,
    #[serde(default)]
    #[schema(schema_with = wanted_events)]
    events: Vec<String>,
    /// The percentages of a limit, 1 to 1000, at which `quota.threshold` is sent. Default: 80 and 100.
    #[serde(default)]
    #[schema(max_items = 20)]
    thresholds: Vec<i16>,
}

fn wanted_events() -> Array {
    let names = control::WEBHOOK_EVENTS;
    ArrayBuilder::new()
        .description(Some("The events to deliver. Default: all"))
        .items(
            ObjectBuilder::new()
                .schema_type(Type::String)
                .enum_values(Some(names)),
        )
        .build()
}

/// The deliveries to repeat. Exactly one of the two is required.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedReplay {
    /// The id of the event to deliver again, even if it was delivered.
    event: Option<String>,
    /// All events since then that were not delivered.
    undelivered_since: Option<Timestamp>,
}

/// The deliveries that will be repeated.
#[derive(Serialize, ToSchema)]
pub(super) struct Replayed {
    /// Their number.
    replayed: u64,
}

/// A test event.
#[derive(Serialize, ToSchema)]
pub(super) struct TestEvent {
    /// Its id, which is also the delivery's `webhook-id`.
    event: String,
    /// The job that delivers it.
    job_id: i64,
}

/// The webhook in a path.
pub(super) type Named = Result<Path<Uuid>, PathRejection>;

fn named(path: Named) -> Result<Uuid, ApiError> {
    match path {
        Ok(Path(id)) => Ok(id),
        Err(_) => Err(ApiError::NotFound("A webhook's id is a UUID.".to_owned())),
    }
}

/// Lists all webhooks with the state of their deliveries.
///
/// The oldest comes first. The secrets are not included.
#[utoipa::path(
    get,
    path = "/admin/webhooks",
    operation_id = "listWebhooks",
    tag = "Webhooks",
    responses((status = 200, body = WebhookList, description = "The webhooks"), NoKey, LacksScope, Unavailable)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    _operator: Operator,
) -> Result<Json<WebhookList>, ApiError> {
    let webhooks = api
        .pool
        .with::<_, ApiError>(async |client| Ok(control::webhooks(client).await?))
        .await?;
    let webhooks = webhooks.into_iter().map(WebhookView::from).collect();
    Ok(Json(WebhookList { webhooks }))
}

/// Creates a webhook.
///
/// It receives events that are committed from now on. Only this answer contains the secret.
#[utoipa::path(
    post,
    path = "/admin/webhooks",
    operation_id = "createWebhook",
    tag = "Webhooks",
    request_body = WantedWebhook,
    responses(
        (status = 201, body = WebhookView, description = "The webhook"),
        NoKey, LacksScope, WebhookConflict, InvalidBody, Unavailable,
    )
)]
pub(super) async fn add(
    State(api): State<Arc<Api>>,
    operator: Operator,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let wanted: WantedWebhook = request::body(body)?;
    let made = api
        .changes
        .of::<_, ApiError, _>(Uuid::nil(), || {
            async |client| {
                let WantedWebhook {
                    url,
                    events,
                    thresholds,
                } = &wanted;
                Ok(webhooks::add(client, &api.settings, &operator.actor, url, events, thresholds).await?)
            }
        })
        .await?;
    Ok((StatusCode::CREATED, Json(WebhookView::from(made))).into_response())
}

/// Deletes a webhook.
///
/// Its waiting deliveries are dropped.
#[utoipa::path(
    delete,
    path = "/admin/webhooks/{id}",
    operation_id = "deleteWebhook",
    tag = "Webhooks",
    params(("id" = Uuid, Path, description = "The webhook's id")),
    responses((status = 204, description = "Done"), NoKey, LacksScope, NoSuchWebhook, Unavailable)
)]
pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    id: Named,
    operator: Operator,
) -> Result<StatusCode, ApiError> {
    let id = named(id)?;
    api.changes
        .of::<_, ApiError, _>(id, || {
            async |client| Ok(control::remove_webhook(client, &operator.actor, id).await?)
        })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Creates a new secret for a webhook.
///
/// Only this answer contains the secret. The old secret stays valid for 24 hours.
#[utoipa::path(
    post,
    path = "/admin/webhooks/{id}/rotate",
    operation_id = "rotateWebhookSecret",
    tag = "Webhooks",
    params(("id" = Uuid, Path, description = "The webhook's id")),
    responses((status = 200, body = WebhookView, description = "The webhook"), NoKey, LacksScope, NoSuchWebhook, Unavailable)
)]
pub(super) async fn rotate(
    State(api): State<Arc<Api>>,
    id: Named,
    operator: Operator,
) -> Result<Json<WebhookView>, ApiError> {
    let id = named(id)?;
    let revealed = api
        .changes
        .of::<_, ApiError, _>(id, || {
            async |client| Ok(webhooks::rotate(client, &operator.actor, id).await?)
        })
        .await?;
    Ok(Json(revealed.into()))
}

/// Enables a disabled webhook.
///
/// It receives the events of the last week that were not delivered to it, even if it was enabled already.
#[utoipa::path(
    post,
    path = "/admin/webhooks/{id}/enable",
    operation_id = "enableWebhook",
    tag = "Webhooks",
    params(("id" = Uuid, Path, description = "The webhook's id")),
    responses((status = 204, description = "Done"), NoKey, LacksScope, NoSuchWebhook, Unavailable)
)]
pub(super) async fn enable(
    State(api): State<Arc<Api>>,
    id: Named,
    operator: Operator,
) -> Result<StatusCode, ApiError> {
    let id = named(id)?;
    api.changes
        .of::<_, ApiError, _>(id, || {
            async |client| {
                control::enable_webhook(client, &operator.actor, id).await?;
                // Also if it is enabled already: an earlier call may have ended in between.
                let all = Replay::UndeliveredSince(Timestamp::UNIX_EPOCH);
                control::replay_webhook(client, &operator.actor, id, &all).await?;
                Ok(())
            }
        })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sends a webhook an event of the type `webhook.test`.
///
/// The delivery uses the same signature and retries as any other.
#[utoipa::path(
    post,
    path = "/admin/webhooks/{id}/test",
    operation_id = "testWebhook",
    tag = "Webhooks",
    params(("id" = Uuid, Path, description = "The webhook's id")),
    responses((status = 202, body = TestEvent, description = "The event is queued"), NoKey, LacksScope, NoSuchWebhook, WebhookConflict, Unavailable)
)]
pub(super) async fn test(
    State(api): State<Arc<Api>>,
    id: Named,
    operator: Operator,
) -> Result<Response, ApiError> {
    let id = named(id)?;
    let sent = api
        .changes
        .of::<_, ApiError, _>(id, || {
            async |client| Ok(control::test_webhook(client, &operator.actor, id).await?)
        })
        .await?;
    let view = TestEvent {
        event: sent.event,
        job_id: sent.job_id,
    };
    Ok((StatusCode::ACCEPTED, Json(view)).into_response())
}

/// Delivers events again, with the same ids, as long as River keeps the deliveries.
///
/// Successful deliveries are kept for a day, abandoned ones for a week.
#[utoipa::path(
    post,
    path = "/admin/webhooks/{id}/replay",
    operation_id = "replayDeliveries",
    tag = "Webhooks",
    params(("id" = Uuid, Path, description = "The webhook's id")),
    request_body = WantedReplay,
    responses(
        (status = 200, body = Replayed, description = "The deliveries are queued"),
        NoKey, LacksScope, NoSuchWebhook, WebhookConflict, InvalidBody, Unavailable,
    )
)]
pub(super) async fn replay(
    State(api): State<Arc<Api>>,
    id: Named,
    operator: Operator,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Replayed>, ApiError> {
    let id = named(id)?;
    let wanted: WantedReplay = request::body(body)?;
    let what = match (wanted.event, wanted.undelivered_since) {
        (Some(event), None) => Replay::Event(event),
        (None, Some(since)) => Replay::UndeliveredSince(since),
        _ => {
            return Err(ApiError::Unprocessable(
                "Send either event or undelivered_since.".to_owned(),
            ));
        }
    };
    let replayed = api
        .changes
        .of::<_, ApiError, _>(id, || {
            async |client| Ok(control::replay_webhook(client, &operator.actor, id, &what).await?)
        })
        .await?;
    Ok(Json(Replayed { replayed }))
}

//! Usage events for billing.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE, LINK};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;
use weir_ledger::control::{self, UsageEvent};
use weir_ledger::database::DatabaseError;

use super::super::answers::{LacksScope, NoKey, OutOfRange, Unavailable};
use super::super::caller::Operator;
use super::super::problem::ApiError;
use super::super::state::Api;
use super::request;

/// A part of the events.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// The `next` of the previous answer, `now`, or a time. `now` starts after all events so far. A time starts with the
    /// first event at that time or later. Default: the first event.
    #[param(min_length = 1)]
    after: Option<String>,
    /// The maximum number of items. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
}

/// A part of the usage events.
#[derive(Serialize, ToSchema)]
pub(super) struct UsageEvents {
    events: Vec<CloudEvent>,
    /// The cursor for the next request, even if there is no event yet.
    next: String,
}

/// A usage event as a CloudEvent (1.0). An event has the same `id` each time it is read.
#[derive(Serialize, ToSchema)]
pub struct CloudEvent {
    #[schema(example = "1.0")]
    specversion: &'static str,
    id: Uuid,
    /// The `USAGE_EVENT_SOURCE` setting.
    #[schema(example = "weir")]
    source: String,
    #[schema(example = "weir.usage")]
    r#type: &'static str,
    /// The subject in the holder's tokens.
    subject: String,
    time: Timestamp,
    #[schema(example = "application/json")]
    datacontenttype: &'static str,
    data: UsageData,
}

/// The usage that an event reports.
#[derive(Serialize, ToSchema)]
pub(super) struct UsageData {
    meter: String,
    /// A negative amount is a refund.
    amount: i64,
    /// The part that was paid from grants.
    from_grants: i64,
    /// The part that exceeded a soft limit when the job was accepted.
    overage: i64,
    /// Null for an adjustment.
    job_id: Option<i64>,
    /// The start of the billing period in which it counts.
    period_start: Timestamp,
    /// The reason of an adjustment.
    reason: Option<String>,
}

impl CloudEvent {
    /// The event in this form, with this `source`.
    #[must_use]
    pub fn new(event: UsageEvent, source: &str) -> Self {
        Self {
            specversion: "1.0",
            id: event.id,
            source: source.to_owned(),
            r#type: "weir.usage",
            subject: event.subject.unwrap_or_else(|| event.user.to_string()),
            time: event.at,
            datacontenttype: "application/json",
            data: UsageData {
                meter: event.meter.to_string(),
                amount: event.amount,
                from_grants: event.from_grants,
                overage: event.overage,
                job_id: event.job_id,
                period_start: event.period_start,
                reason: event.reason,
            },
        }
    }
}

/// The media type of an array of CloudEvents.
const BATCH: &str = "application/cloudevents-batch+json";

/// Whether the client accepts a batch. `*/*` does not count.
fn wants_batch(headers: &HeaderMap) -> bool {
    let accepted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let weight = |part: &str| part.strip_prefix("q=").and_then(|q| q.parse::<f32>().ok());
        parts
            .next()
            .is_some_and(|media| media.eq_ignore_ascii_case(BATCH))
            && parts.filter_map(weight).all(|q| q > 0.0)
    })
}

/// The events as an array. The cursor is in the `Link` header.
fn batch(events: &[CloudEvent], next: &str, limit: i64) -> Response {
    let mut response = Json(events).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(BATCH));
    let link = format!("</admin/usage/events?after={next}&limit={limit}>; rel=\"next\"");
    if let Ok(link) = HeaderValue::from_str(&link) {
        headers.insert(LINK, link);
    }
    response
}

/// Lists the usage events of all holders, for billing.
///
/// Each event appears once and none is left out: an event that is committed later never appears before a cursor.
///
/// With `Accept: application/cloudevents-batch+json`, the answer is an array, and the `Link` header has the next
/// request.
#[utoipa::path(
    get,
    path = "/admin/usage/events",
    operation_id = "listUsageEvents",
    tag = "Usage",
    params(Page),
    responses(
        (
            status = 200,
            description = "The events",
            content(
                (UsageEvents = "application/json"),
                (Vec<CloudEvent> = "application/cloudevents-batch+json"),
            ),
            headers(("Link" = String, description = "The next request, with a batch")),
        ),
        NoKey, LacksScope, OutOfRange, Unavailable,
    )
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    _operator: Operator,
    page: Result<Query<Page>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let wants = |what: &str| ApiError::Unprocessable(what.to_owned());
    let wants_limit = || wants("limit must be a whole number from 1 to 1000");
    let Ok(Query(Page { after, limit })) = page else {
        return Err(wants_limit());
    };
    let limit = request::limit(limit).ok_or_else(wants_limit)?;
    let begin = match after.as_deref() {
        Some("now") => None,
        Some(after) => Some(match after.parse() {
            Ok(time) => control::UsageCursor::since(time),
            Err(_) => after.parse().map_err(wants)?,
        }),
        None => Some(control::UsageCursor::default()),
    };
    let (events, next) = api
        .pool
        .with(async |client| {
            Ok::<_, DatabaseError>(match begin {
                Some(after) => control::usage_after(client, after, limit).await?,
                None => (Vec::new(), control::usage_now(client).await?),
            })
        })
        .await?;
    let source = &api.settings.usage_event_source;
    let events: Vec<_> = events
        .into_iter()
        .map(|event| CloudEvent::new(event, source))
        .collect();
    let next = next.to_string();
    Ok(if wants_batch(&headers) {
        batch(&events, &next, limit)
    } else {
        Json(UsageEvents { events, next }).into_response()
    })
}

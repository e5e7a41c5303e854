//! Usage events for billing.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
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
    #[schema(example = "weir")]
    source: &'static str,
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

impl From<UsageEvent> for CloudEvent {
    fn from(event: UsageEvent) -> Self {
        Self {
            specversion: "1.0",
            id: event.id,
            source: "weir",
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

/// Lists the usage events of all holders, for billing.
///
/// Each event appears once and none is left out: an event that is committed later never appears before a cursor.
#[utoipa::path(
    get,
    path = "/admin/usage/events",
    operation_id = "listUsageEvents",
    tag = "Usage",
    params(Page),
    responses((status = 200, body = UsageEvents, description = "The events"), NoKey, LacksScope, OutOfRange, Unavailable)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    _operator: Operator,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<UsageEvents>, ApiError> {
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
    Ok(Json(UsageEvents {
        events: events.into_iter().map(CloudEvent::from).collect(),
        next: next.to_string(),
    }))
}

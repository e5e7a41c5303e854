//! Changes of a holder's plan and overrides.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::ToSchema;
use weir_ledger::control::{self, Effective, Override, PlanChange};
use weir_policy::span::Span;

use super::super::answers::{AlreadyUsed, InvalidBody, LacksScope, NoKey, Unavailable};
use super::super::caller::Operator;
use super::super::problem::{ApiError, ProblemDetails};
use super::super::state::Api;
use super::holder::{Changed, HolderView, view};
use super::request::{self, Names};

/// The plan to assign to a holder.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedPlan {
    /// The plan's name.
    #[schema(example = "pro", min_length = 1)]
    plan: String,
    /// The payment provider's id of the event. The same id has an effect once.
    #[schema(min_length = 1, max_length = 255)]
    event_id: String,
    /// When the event happened there. An event older than the last one changes nothing.
    occurred_at: Timestamp,
    /// When it takes effect: `now` or `period_end`.
    #[serde(default)]
    #[schema(value_type = String, example = "now")]
    effective: Effective,
}

/// Sets the plan of a holder.
///
/// Creates the holder if Weir has never seen it. The same event has an effect once, and an older event has none.
#[utoipa::path(
    put,
    path = "/admin/holders/{subject}/plan",
    operation_id = "setPlan",
    tag = "Holders",
    params(("subject" = String, Path, description = "The subject in the holder's tokens", min_length = 1, max_length = 255)),
    request_body = WantedPlan,
    responses(
        (status = 200, body = Changed, description = "The holder, or why nothing changed"),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "The subject is not valid", content_type = "application/problem+json"),
        AlreadyUsed, InvalidBody, Unavailable,
    )
)]
pub(super) async fn plan(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Names(subject): Names<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<HolderView>, ApiError> {
    let (person, wanted): (_, WantedPlan) = (request::person(&api, &subject)?, request::body(body)?);
    let change = PlanChange {
        plan: &wanted.plan,
        event_id: &wanted.event_id,
        occurred_at: wanted.occurred_at,
        effective: wanted.effective,
    };
    let outcome = api
        .changes
        .of::<_, ApiError, _>(person.id, || {
            async |client| Ok(control::set_plan(client, &operator.actor, &person, &change).await?)
        })
        .await?;
    let mut holder = view(&api, &person).await?;
    holder.applied = Some(outcome.applied);
    holder.repeated = Some(outcome.repeated);
    Ok(Json(holder))
}

/// The limits and slots that replace the plan's for a holder.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedOverride {
    /// By window (`month`, `day`, `hour`, `minute`). Null is unlimited. Default: the plan's limits.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Option<i64>>)]
    limits: BTreeMap<Span, Option<i64>>,
    /// The maximum number of running jobs. Default: the plan's.
    #[schema(minimum = 1, maximum = 1_000_000)]
    slots: Option<u32>,
    /// When it expires. Default: never.
    expires_at: Option<Timestamp>,
}

/// Gives a holder other limits or slots of a meter than its plan.
///
/// Replaces the holder's earlier override of this meter.
#[utoipa::path(
    put,
    path = "/admin/holders/{subject}/overrides/{meter}",
    operation_id = "setOverride",
    tag = "Holders",
    params(
        ("subject" = String, Path, description = "The subject in the holder's tokens", min_length = 1, max_length = 255),
        ("meter" = String, Path, description = "The meter's name", min_length = 1),
    ),
    request_body = WantedOverride,
    responses(
        (status = 200, body = Changed, description = "The holder, or why nothing changed"),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "There is no such meter", content_type = "application/problem+json"),
        InvalidBody, Unavailable,
    )
)]
pub(super) async fn put_override(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Names((subject, meter)): Names<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<HolderView>, ApiError> {
    let (person, wanted): (_, WantedOverride) = (request::person(&api, &subject)?, request::body(body)?);
    let wanted = Override {
        limits: wanted.limits,
        slots: wanted.slots,
        expires_at: wanted.expires_at,
    };
    api.changes
        .of::<_, ApiError, _>(person.id, || {
            async |client| Ok(control::set_override(client, &operator.actor, &person, &meter, &wanted).await?)
        })
        .await?;
    view(&api, &person).await.map(Json)
}

/// Deletes a holder's override of a meter.
///
/// The limits and slots of the plan apply again.
#[utoipa::path(
    delete,
    path = "/admin/holders/{subject}/overrides/{meter}",
    operation_id = "deleteOverride",
    tag = "Holders",
    params(
        ("subject" = String, Path, description = "The subject in the holder's tokens", min_length = 1, max_length = 255),
        ("meter" = String, Path, description = "The meter's name", min_length = 1),
    ),
    responses(
        (status = 200, body = Changed, description = "The holder, or why nothing changed"),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "There is no such meter", content_type = "application/problem+json"),
        Unavailable,
    )
)]
pub(super) async fn delete_override(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Names((subject, meter)): Names<(String, String)>,
) -> Result<Json<HolderView>, ApiError> {
    let person = request::person(&api, &subject)?;
    api.changes
        .of::<_, ApiError, _>(person.id, || {
            async |client| Ok(control::remove_override(client, &operator.actor, &person, &meter).await?)
        })
        .await?;
    view(&api, &person).await.map(Json)
}

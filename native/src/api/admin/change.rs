//! Changes of a holder.

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

use super::super::answers::{LacksScope, NoKey, NotWanted, Unavailable, UsedBefore};
use super::super::caller::Operator;
use super::super::problem::{ApiError, ProblemDetails};
use super::super::state::Api;
use super::holder::{Changed, HolderView, view};
use super::request::{self, Names};

/// The plan that a holder shall have.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedPlan {
    /// The plan's name.
    #[schema(example = "pro")]
    plan: String,
    /// The payment provider's id of the event: the same again changes nothing.
    event_id: String,
    /// When it happened there: an event older than the last one changes nothing.
    occurred_at: Timestamp,
    /// From when on it counts: `now`, or `period_end`.
    #[serde(default)]
    #[schema(value_type = String, example = "now")]
    effective: Effective,
}

/// Sets the plan of a holder, which is made if it was never seen.
#[utoipa::path(
    put,
    path = "/admin/holders/{subject}/plan",
    params(("subject" = String, Path, description = "The text that names the holder in tokens")),
    request_body = WantedPlan,
    responses(
        (status = 200, body = Changed),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "Nobody can be called that", content_type = "application/problem+json"),
        UsedBefore, NotWanted, Unavailable,
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

/// What shall count for a holder instead of its plan's.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedOverride {
    /// By window (`month`, `day`, `hour`, `minute`); null is unlimited, and what is absent is the plan's.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Option<i64>>)]
    limits: BTreeMap<Span, Option<i64>>,
    /// How many jobs may be worked on at once; absent is the plan's.
    slots: Option<u32>,
    /// Until when it counts; absent is until it is deleted.
    expires_at: Option<Timestamp>,
}

/// Gives a holder limits or slots of its own for a meter, instead of those it had of its own.
#[utoipa::path(
    put,
    path = "/admin/holders/{subject}/overrides/{meter}",
    params(
        ("subject" = String, Path, description = "The text that names the holder in tokens"),
        ("meter" = String, Path, description = "The meter's name"),
    ),
    request_body = WantedOverride,
    responses(
        (status = 200, body = Changed),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "There is no such meter", content_type = "application/problem+json"),
        NotWanted, Unavailable,
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

/// Ends what a holder has of its own; the plan's counts again.
#[utoipa::path(
    delete,
    path = "/admin/holders/{subject}/overrides/{meter}",
    params(
        ("subject" = String, Path, description = "The text that names the holder in tokens"),
        ("meter" = String, Path, description = "The meter's name"),
    ),
    responses(
        (status = 200, body = Changed),
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

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
use weir_ledger::control::{self, Effective, NotApplied, Override, PaidPeriod, PlanChange};
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
    /// The provider's id of the subscription. The end of a subscription, an event with the default plan, is not applied
    /// when the plan comes from another subscription.
    #[schema(min_length = 1, max_length = 255, nullable = false)]
    subscription: Option<String>,
    /// The start of the period that was paid for. Billing periods then start on its day of the month, and usage since the
    /// start of the current one moves to it. Default: the billing periods stay.
    #[schema(nullable = false)]
    period_start: Option<Timestamp>,
    /// The end of that period, a whole number of months after `period_start`, at most 36. Pass it for anchors after the
    /// 28th of a month.
    #[schema(nullable = false)]
    period_end: Option<Timestamp>,
}

impl WantedPlan {
    fn period(&self) -> Result<Option<PaidPeriod>, ApiError> {
        match (self.period_start, self.period_end) {
            (Some(start), end) => Ok(Some(PaidPeriod { start, end })),
            (None, None) => Ok(None),
            (None, Some(_)) => Err(ApiError::Unprocessable(
                "period_end needs period_start.".to_owned(),
            )),
        }
    }
}

/// Sets the plan of a holder.
///
/// Creates an unknown holder. A repeated event has no effect. The same applies to an older event, and to the end of a
/// superseded subscription. Among events of the same second, the end of another subscription is applied first, and the
/// end of the same subscription last.
#[utoipa::path(
    put,
    path = "/admin/holders/{subject}/plan",
    operation_id = "setPlan",
    tag = "Holders",
    params(("subject" = String, Path, description = "The subject in the holder's tokens", min_length = 1, max_length = 255)),
    request_body = WantedPlan,
    responses(
        (status = 200, body = Changed, description = "The holder, or the reason why nothing changed"),
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
    let (user, wanted): (_, WantedPlan) = (request::user(&api, &subject)?, request::body(body)?);
    let change = PlanChange {
        plan: &wanted.plan,
        event_id: &wanted.event_id,
        occurred_at: wanted.occurred_at,
        effective: wanted.effective,
        subscription: wanted.subscription.as_deref(),
        period: wanted.period()?,
    };
    let outcome = api
        .changes
        .of::<_, ApiError, _>(user.id, || {
            async |client| Ok(control::set_plan(client, &operator.actor, &user, &change).await?)
        })
        .await?;
    let mut holder = view(&api, &user).await?;
    holder.applied = Some(outcome.not_applied.is_none());
    holder.reason = outcome.not_applied.map(NotApplied::as_str);
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
    /// The number of jobs at once, however busy the workers are. Default: the plan's.
    #[schema(minimum = 1, maximum = 1_000_000)]
    slots: Option<u32>,
    /// The number of jobs at once on workers that would be idle, at least `slots`. Default: the plan's.
    #[schema(minimum = 1, maximum = 1_000_000)]
    burst: Option<u32>,
    /// When it expires. Default: never.
    expires_at: Option<Timestamp>,
}

/// Overrides the plan's limits or slots of a meter for a holder.
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
        (status = 200, body = Changed, description = "The holder, or the reason why nothing changed"),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "Unknown meter", content_type = "application/problem+json"),
        InvalidBody, Unavailable,
    )
)]
pub(super) async fn put_override(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Names((subject, meter)): Names<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<HolderView>, ApiError> {
    let (user, wanted): (_, WantedOverride) = (request::user(&api, &subject)?, request::body(body)?);
    let wanted = Override {
        limits: wanted.limits,
        slots: wanted.slots,
        burst: wanted.burst,
        expires_at: wanted.expires_at,
    };
    api.changes
        .of::<_, ApiError, _>(user.id, || {
            async |client| Ok(control::set_override(client, &operator.actor, &user, &meter, &wanted).await?)
        })
        .await?;
    view(&api, &user).await.map(Json)
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
        (status = 200, body = Changed, description = "The holder, or the reason why nothing changed"),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "Unknown meter", content_type = "application/problem+json"),
        Unavailable,
    )
)]
pub(super) async fn delete_override(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Names((subject, meter)): Names<(String, String)>,
) -> Result<Json<HolderView>, ApiError> {
    let user = request::user(&api, &subject)?;
    api.changes
        .of::<_, ApiError, _>(user.id, || {
            async |client| Ok(control::remove_override(client, &operator.actor, &user, &meter).await?)
        })
        .await?;
    view(&api, &user).await.map(Json)
}

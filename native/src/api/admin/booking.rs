//! Corrections of a holder's usage, and grants.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;
use weir_ledger::control::{self, Credit, NewAdjustment, NewGrant};

use super::super::answers::{AlreadyUsed, InvalidBody, LacksScope, NoKey, Unavailable};
use super::super::caller::Operator;
use super::super::problem::{ApiError, NotApplied, ProblemDetails};
use super::super::state::Api;
use super::holder::{GrantView, Lowered};
use super::request::{self, Names};

/// A correction of usage.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedAdjustment {
    /// The meter's name.
    #[schema(min_length = 1)]
    meter: String,
    /// The amount to add. A negative amount is a refund. Not 0.
    #[schema(minimum = -999_999_999_999_999_i64, maximum = 999_999_999_999_999_i64)]
    amount: i64,
    /// What a refund returns first: `grants` (what grants paid for) or `plan`. Overage is returned before both.
    #[serde(default)]
    #[schema(value_type = String, example = "grants")]
    credit: Credit,
    /// The reason, for the audit log and billing.
    #[schema(min_length = 1)]
    reason: String,
}

/// A booked correction.
#[derive(Serialize, ToSchema)]
pub(super) struct AdjustmentView {
    /// The id of its usage event.
    id: Uuid,
    /// The usage of this billing period after the correction.
    used: i64,
    /// The part of the amount that returned to grants. 0 or negative, as in the usage event.
    from_grants: i64,
    /// The part of the amount that was overage. 0 or negative, as in the usage event.
    overage: i64,
}

/// Adds to the usage of the current billing period, or refunds some of it.
///
/// The correction appears in the usage events. A refund returns to grants what they paid for. The same `Idempotency-Key`
/// books once.
#[utoipa::path(
    post,
    path = "/admin/holders/{subject}/adjustments",
    operation_id = "createAdjustment",
    tag = "Holders",
    params(
        ("subject" = String, Path, description = "The subject in the holder's tokens", min_length = 1, max_length = 255),
        ("Idempotency-Key" = String, Header, description = "A repeated key has no further effect", min_length = 1, max_length = 255),
    ),
    request_body = WantedAdjustment,
    responses(
        (status = 200, body = NotApplied, description = "The user was deleted"),
        (status = 201, body = AdjustmentView, description = "The adjustment is booked"),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "Unknown meter", content_type = "application/problem+json"),
        AlreadyUsed, InvalidBody, Unavailable,
    )
)]
pub(super) async fn adjustment(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Names(subject): Names<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (user, wanted): (_, WantedAdjustment) = (request::user(&api, &subject)?, request::body(body)?);
    let key = request::idempotency_key(&headers)?;
    let wanted = NewAdjustment {
        meter: &wanted.meter,
        amount: wanted.amount,
        reason: &wanted.reason,
        credit: wanted.credit,
    };
    let booked = api
        .changes
        .of::<_, ApiError, _>(user.id, || {
            async |client| Ok(control::adjust(client, &operator.actor, &user, &wanted, Some(key)).await?)
        })
        .await?;
    let view = AdjustmentView {
        id: booked.created.id,
        used: booked.created.used,
        from_grants: booked.created.from_grants,
        overage: booked.created.overage,
    };
    Ok((StatusCode::CREATED, Json(view)).into_response())
}

/// An amount beyond the plan.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedAmount {
    /// The meter's name.
    #[schema(min_length = 1)]
    meter: String,
    /// The amount.
    #[schema(minimum = 1, maximum = 999_999_999_999_999_i64)]
    amount: i64,
    /// When it expires. Default: never.
    expires_at: Option<Timestamp>,
    /// The reason, for the audit log.
    #[schema(min_length = 1)]
    reason: String,
}

/// Grants an amount beyond the plan.
///
/// It is drawn on when the billing period has no room. The same `Idempotency-Key` books once.
#[utoipa::path(
    post,
    path = "/admin/holders/{subject}/grants",
    operation_id = "createGrant",
    tag = "Holders",
    params(
        ("subject" = String, Path, description = "The subject in the holder's tokens", min_length = 1, max_length = 255),
        ("Idempotency-Key" = String, Header, description = "A repeated key has no further effect", min_length = 1, max_length = 255),
    ),
    request_body = WantedAmount,
    responses(
        (status = 200, body = NotApplied, description = "The user was deleted"),
        (status = 201, body = GrantView, description = "The grant is booked"),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "Unknown meter", content_type = "application/problem+json"),
        AlreadyUsed, InvalidBody, Unavailable,
    )
)]
pub(super) async fn grant(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Names(subject): Names<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (user, wanted): (_, WantedAmount) = (request::user(&api, &subject)?, request::body(body)?);
    let key = request::idempotency_key(&headers)?;
    let wanted = NewGrant {
        meter: &wanted.meter,
        amount: wanted.amount,
        expires_at: wanted.expires_at,
        reason: &wanted.reason,
    };
    let granted = api
        .changes
        .of::<_, ApiError, _>(user.id, || {
            async |client| Ok(control::grant(client, &operator.actor, &user, &wanted, Some(key)).await?)
        })
        .await?;
    Ok((StatusCode::CREATED, Json(GrantView::from(granted.created))).into_response())
}

/// The rest of a grant.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LowerAmount {
    /// The new amount. What is used or reserved of the grant stays. 0 ends the grant.
    #[schema(minimum = 0, maximum = 999_999_999_999_999_i64)]
    amount: i64,
    /// The reason, for the audit log.
    #[schema(min_length = 1)]
    reason: String,
}

/// Lowers or ends a grant, such as after a refund of its purchase.
///
/// The amount is not lowered below what is used or reserved. A smaller grant stays unchanged, so that a repeated request
/// has no further effect. After a grant ended, amounts that unfinished jobs have reserved do not return to it.
#[utoipa::path(
    put,
    path = "/admin/holders/{subject}/grants/{grant}",
    operation_id = "lowerGrant",
    tag = "Holders",
    params(
        ("subject" = String, Path, description = "The subject in the holder's tokens", min_length = 1, max_length = 255),
        ("grant" = String, Path, description = "The id of the grant", min_length = 1),
    ),
    request_body = LowerAmount,
    responses(
        (status = 200, body = Lowered, description = "The grant, or the reason why nothing changed"),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "The holder has no such grant", content_type = "application/problem+json"),
        InvalidBody, Unavailable,
    )
)]
pub(super) async fn lower(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Names((subject, grant)): Names<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<GrantView>, ApiError> {
    let (user, wanted): (_, LowerAmount) = (request::user(&api, &subject)?, request::body(body)?);
    let grant: Uuid = grant
        .parse()
        .map_err(|_| ApiError::NotFound(format!("unknown grant {grant:?}")))?;
    let LowerAmount { amount, reason } = &wanted;
    let lowered = api
        .changes
        .of::<_, ApiError, _>(user.id, || {
            async |client| {
                Ok(control::lower_grant(client, &operator.actor, &user, grant, *amount, reason).await?)
            }
        })
        .await?;
    Ok(Json(lowered.into()))
}

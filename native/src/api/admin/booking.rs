//! What is booked for a holder: corrections of usage, and amounts beyond the plan.

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
use weir_ledger::control::{self, WantedGrant};

use super::super::answers::{LacksScope, NoKey, NotWanted, Unavailable, UsedBefore};
use super::super::caller::Operator;
use super::super::problem::{ApiError, NotApplied, ProblemDetails};
use super::super::state::Api;
use super::holder::GrantView;
use super::request::{self, Names};

/// A correction of usage.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedAdjustment {
    /// The meter's name.
    meter: String,
    /// How much is added; what is negative is given back.
    amount: i64,
    /// Why, for the log and for billing.
    reason: String,
}

/// A correction that was booked.
#[derive(Serialize, ToSchema)]
pub(super) struct AdjustmentView {
    /// The id of its usage event.
    id: Uuid,
    /// What is used in this billing period since.
    used: i64,
}

/// Adds to the usage of the current billing period, or gives back.
#[utoipa::path(
    post,
    path = "/admin/holders/{subject}/adjustments",
    params(
        ("subject" = String, Path, description = "The text that names the holder in tokens"),
        ("Idempotency-Key" = String, Header, description = "The same key books once"),
    ),
    request_body = WantedAdjustment,
    responses(
        (status = 200, body = NotApplied, description = "The user was deleted"),
        (status = 201, body = AdjustmentView),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "There is no such meter", content_type = "application/problem+json"),
        UsedBefore, NotWanted, Unavailable,
    )
)]
pub(super) async fn adjustment(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Names(subject): Names<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (person, wanted): (_, WantedAdjustment) = (request::person(&api, &subject)?, request::body(body)?);
    let key = request::idempotency_key(&headers)?;
    let booked = api
        .changes
        .of::<_, ApiError, _>(person.id, || {
            async |client| {
                let WantedAdjustment {
                    meter,
                    amount,
                    reason,
                } = &wanted;
                Ok(control::adjust(
                    client,
                    &operator.actor,
                    &person,
                    meter,
                    *amount,
                    reason,
                    Some(key),
                )
                .await?)
            }
        })
        .await?;
    let view = AdjustmentView {
        id: booked.made.id,
        used: booked.made.used,
    };
    Ok((StatusCode::CREATED, Json(view)).into_response())
}

/// An amount beyond the plan.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedAmount {
    /// The meter's name.
    meter: String,
    /// How much.
    amount: i64,
    /// Until when it can be drawn on; absent is for ever.
    expires_at: Option<Timestamp>,
    /// Why, for the log.
    reason: String,
}

/// Gives an amount beyond the plan, which is drawn on when the month has no room.
#[utoipa::path(
    post,
    path = "/admin/holders/{subject}/grants",
    params(
        ("subject" = String, Path, description = "The text that names the holder in tokens"),
        ("Idempotency-Key" = String, Header, description = "The same key books once"),
    ),
    request_body = WantedAmount,
    responses(
        (status = 200, body = NotApplied, description = "The user was deleted"),
        (status = 201, body = GrantView),
        NoKey, LacksScope,
        (status = 404, body = ProblemDetails, description = "There is no such meter", content_type = "application/problem+json"),
        UsedBefore, NotWanted, Unavailable,
    )
)]
pub(super) async fn grant(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Names(subject): Names<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let (person, wanted): (_, WantedAmount) = (request::person(&api, &subject)?, request::body(body)?);
    let key = request::idempotency_key(&headers)?;
    let wanted = WantedGrant {
        meter: &wanted.meter,
        amount: wanted.amount,
        expires_at: wanted.expires_at,
        reason: &wanted.reason,
    };
    let given = api
        .changes
        .of::<_, ApiError, _>(person.id, || {
            async |client| Ok(control::grant(client, &operator.actor, &person, &wanted, Some(key)).await?)
        })
        .await?;
    Ok((StatusCode::CREATED, Json(GrantView::from(given.made))).into_response())
}

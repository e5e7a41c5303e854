//! Dry runs of submissions.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};
use weir_ledger::holder::Holder;
use weir_ledger::read;

use super::answers::{LacksScope, NoService, OutOfRange, Unauthenticated, Unavailable};
use super::caller::Caller;
use super::problem::ApiError;
use super::quota::{Quota, WindowQuota};
use super::state::Api;
use crate::config::service::MAX_AMOUNT;

/// The submission to check.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Wanted {
    /// The name of the service
    #[param(min_length = 1)]
    service: String,
    /// The maximum amount that the job may use. Default: the service's fixed amount. Required if the service has none
    #[param(minimum = 0, maximum = 1_000_000_000_000_000_i64)]
    amount: Option<i64>,
}

/// The outcome that a submission would have now.
#[derive(Serialize, ToSchema)]
pub(super) struct Checked {
    #[schema(value_type = CheckedOutcome)]
    outcome: String,
    /// The current quota of the billing period, without the amount. Null for an anonymous caller.
    #[schema(value_type = Option<Quota>)]
    quota: Option<Value>,
    /// The windows without room, when the quota would be exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false, value_type = Option<Vec<WindowQuota>>)]
    windows: Option<Value>,
}

/// `admitted`: the job would get a slot. `parked`: it would wait for one. The others are refusals: the quota has no room,
/// the sums would be out of range, or the plan's maximum of waiting jobs is reached.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "describes what check_submission() returns")]
pub(super) enum CheckedOutcome {
    Admitted,
    Parked,
    OverQuota,
    TooLarge,
    TooManyWaiting,
}

/// Checks whether a submission of the caller would be accepted now.
///
/// Reserves nothing, so another submission may take the room in between.
#[utoipa::path(
    get,
    path = "/api/quota",
    operation_id = "checkQuota",
    tag = "Usage",
    params(Wanted),
    responses(
        (status = 200, body = Checked, description = "The outcome of such a submission"),
        Unauthenticated, LacksScope, NoService, OutOfRange, Unavailable,
    )
)]
pub(super) async fn check(
    State(api): State<Arc<Api>>,
    caller: Caller,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Checked>, ApiError> {
    check_for_holder(&api, caller.holder, wanted).await
}

/// Checks a submission of this holder.
pub(super) async fn check_for_holder(
    api: &Api,
    holder: Holder,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Checked>, ApiError> {
    let wants = || {
        ApiError::Unprocessable(format!(
            "service must be a service's name, and amount a whole number from 0 to {MAX_AMOUNT}."
        ))
    };
    let Ok(Query(Wanted { service, amount })) = wanted else {
        return Err(wants());
    };
    let service = api
        .settings
        .service(&service)
        .ok_or_else(|| ApiError::NoService(service.clone()))?;
    let amount = amount.or_else(|| service.fixed_amount()).ok_or_else(|| {
        ApiError::Unprocessable(format!(
            "The service {} has no fixed amount; send amount.",
            service.name
        ))
    })?;
    if !(0..=MAX_AMOUNT).contains(&amount) {
        return Err(wants());
    }
    let checked = read::check::check(&api.pool, holder.id, holder.user_id, service.meter, amount).await?;
    let mut quota = checked.quota;
    let windows = quota
        .as_mut()
        .and_then(Value::as_object_mut)
        .and_then(|quota| quota.remove("windows"));
    Ok(Json(Checked {
        outcome: checked.outcome,
        quota,
        windows,
    }))
}

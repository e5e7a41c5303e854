//! A holder's usage, by period.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use weir_ledger::control::{self, PeriodUsage};
use weir_policy::span::Span;

use super::super::answers::{LacksScope, NoKey, OutOfRange, Unavailable, UnknownHolder};
use super::super::caller::Operator;
use super::super::problem::ApiError;
use super::super::state::Api;
use super::request::{self, Names};

/// The periods to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Periods {
    /// `month`, the billing period, or `day`, `hour` or `minute`. Default: `month`.
    #[param(value_type = Option<String>)]
    window: Option<Span>,
    /// Only this meter. Default: all meters.
    #[param(min_length = 1)]
    meter: Option<String>,
    /// The maximum number of items. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<i64>,
}

/// A holder's usage.
#[derive(Serialize, ToSchema)]
pub(super) struct UsageByPeriod {
    /// The newest first. A period without usage and reservations is left out.
    periods: Vec<PeriodView>,
}

/// A holder's usage of a meter in a period.
#[derive(Serialize, ToSchema)]
pub(super) struct PeriodView {
    meter: String,
    start: Timestamp,
    end: Timestamp,
    /// The amount charged.
    used: i64,
    /// The amount reserved by unfinished jobs.
    reserved: i64,
    /// The part of both that is paid from grants.
    from_grants: i64,
}

impl From<PeriodUsage> for PeriodView {
    fn from(usage: PeriodUsage) -> Self {
        Self {
            meter: usage.meter,
            start: usage.start,
            end: usage.end,
            used: usage.used,
            reserved: usage.reserved,
            from_grants: usage.from_grants,
        }
    }
}

/// Shows a holder's usage, by period and meter.
///
/// Billing periods are kept. Shorter windows are kept for some days.
#[utoipa::path(
    get,
    path = "/admin/holders/{subject}/usage",
    operation_id = "listUsageByPeriod",
    tag = "Usage",
    params(("subject" = String, Path, description = "The subject in the holder's tokens", min_length = 1, max_length = 255), Periods),
    responses((status = 200, body = UsageByPeriod, description = "The usage"), NoKey, LacksScope, UnknownHolder, OutOfRange, Unavailable)
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    _operator: Operator,
    Names(subject): Names<String>,
    periods: Result<Query<Periods>, QueryRejection>,
) -> Result<Json<UsageByPeriod>, ApiError> {
    let user = request::user(&api, &subject)?;
    let wants = || {
        ApiError::Unprocessable(
            "window must be month, day, hour or minute, and limit a whole number from 1 to 1000".to_owned(),
        )
    };
    let Ok(Query(Periods { window, meter, limit })) = periods else {
        return Err(wants());
    };
    let limit = request::limit(limit).ok_or_else(wants)?;
    let window = window.unwrap_or(Span::Month);
    let usage = api
        .pool
        .with::<_, ApiError>(async |client| {
            Ok(control::usage_by_period(client, &user, window, meter.as_deref(), limit).await?)
        })
        .await?;
    Ok(Json(UsageByPeriod {
        periods: usage.into_iter().map(PeriodView::from).collect(),
    }))
}

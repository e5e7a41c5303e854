//! What the caller's plan allows and what of it is taken.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::answers::{Unauthenticated, Unavailable};
use super::caller::Caller;
use super::problem::ApiError;
use super::quota::Quota;
use super::state::Api;
use crate::status;
use weir_ledger::database::DatabaseError;
use weir_ledger::event_type::EventType;

/// A billing period, from `start` up to but not including `end`.
#[derive(Serialize, ToSchema)]
pub(super) struct Period {
    start: Timestamp,
    end: Timestamp,
}

/// The usage of the current billing period. An anonymous caller has no plan: `period` and the quotas are null.
#[derive(Serialize, ToSchema)]
pub(super) struct Usage {
    tier: String,
    period: Option<Period>,
    /// In analyses.
    analysis: Option<Quota>,
    /// In test cases.
    specview: Option<Quota>,
}

/// The caller's quota.
#[utoipa::path(
    get,
    path = "/api/usage",
    responses(
        (status = 200, body = Usage),
        Unauthenticated, Unavailable,
    )
)]
pub(super) async fn usage(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Usage>, ApiError> {
    let Some(user) = caller.holder.user_id else {
        // Asked all the same, so that the answer means that the database can be reached.
        api.pool.query("SELECT 1", &[]).await?;
        let anonymous = Usage {
            tier: "anonymous".to_owned(),
            period: None,
            analysis: None,
            specview: None,
        };
        return Ok(Json(anonymous));
    };
    let usage = api
        .pool
        .read(async |client| Ok::<_, DatabaseError>(status::usage(&**client, user).await?))
        .await?;
    let quota = |event_type| usage.quota(event_type).cloned().map(Quota::from);
    let (analysis, specview) = (quota(EventType::Analysis), quota(EventType::Specview));
    Ok(Json(Usage {
        tier: usage.tier,
        period: Some(Period {
            start: usage.period_start,
            end: usage.period_end,
        }),
        analysis,
        specview,
    }))
}

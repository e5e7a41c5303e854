//! What the caller's plan allows and what of it is taken.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use weir_policy::admission::Account;

use super::answers::{Away, Outside};
use super::caller::Caller;
use super::{Api, ApiError};
use crate::reservation::Quota;
use crate::service::EventType;

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
        Outside, Away,
    )
)]
pub(super) async fn usage(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Usage>, ApiError> {
    let client = api.pool.get().await?;
    let Some(user) = caller.holder.user_id else {
        // Asked all the same, so that the answer means that the database can be reached.
        client.query_one("SELECT 1", &[]).await?;
        let anonymous = Usage {
            tier: "anonymous".to_owned(),
            period: None,
            analysis: None,
            specview: None,
        };
        return Ok(Json(anonymous));
    };
    let statement = client.prepare_cached(include_str!("../sql/usage.sql")).await?;
    let row = client.query_one(&statement, &[&user]).await?;
    let period = Period {
        start: row.get("period_start"),
        end: row.get("period_end"),
    };
    let quota = |event_type: EventType| {
        let name = event_type.as_str();
        let limit: Option<i32> = row.get(format!("{name}_limit").as_str());
        let account = Account {
            limit: limit.map(i64::from),
            used: row.get(format!("{name}_used").as_str()),
            reserved: row.get(format!("{name}_reserved").as_str()),
            slot_limit: None,
            slots_in_use: 0,
            parked: 0,
        };
        Some(Quota::of(&account, period.end))
    };
    let (analysis, specview) = (quota(EventType::Analysis), quota(EventType::Specview));
    Ok(Json(Usage {
        tier: row.get("tier"),
        period: Some(period),
        analysis,
        specview,
    }))
}

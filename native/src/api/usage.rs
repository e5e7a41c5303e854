//! The caller's quota and usage.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, RefBuilder, Schema, SchemaType};
use utoipa::{PartialSchema, ToSchema};

use super::answers::{LacksScope, NoSubject, Unauthenticated, Unavailable};
use super::caller::Caller;
use super::problem::ApiError;
use super::quota::{Quota, WindowQuota};
use super::state::Api;
use weir_ledger::read::{self, probes};

/// A billing period, from `start` up to but not including `end`.
#[derive(Serialize, ToSchema)]
pub(super) struct Period {
    start: Timestamp,
    end: Timestamp,
}

/// The current quotas of a meter.
#[derive(Serialize, ToSchema)]
pub(super) struct MeterUsage {
    /// The meter's name. `Usage` has a member of the same name.
    name: String,
    /// The unit, in the plural.
    #[schema(example = "analyses")]
    unit: String,
    /// The billing period, and the shorter windows for which the plan has a limit.
    windows: Vec<WindowQuota>,
}

/// The usage of the current billing period. An anonymous caller has no plan: `period` and the quotas are null.
#[derive(Serialize, ToSchema)]
pub(super) struct Usage {
    /// The plan; `anonymous` without a plan.
    plan: String,
    /// The same as `plan`, until the next release.
    #[schema(deprecated)]
    tier: String,
    period: Option<Period>,
    /// All meters, with all their windows. Empty without a plan.
    meters: Vec<MeterUsage>,
    /// The quota of the billing period, by the meter's name.
    #[serde(flatten)]
    by_meter: BTreeMap<String, MonthsQuota>,
}

/// The quota of the billing period; null without a plan.
#[derive(Serialize)]
pub(super) struct MonthsQuota(Option<Quota>);

impl ToSchema for MonthsQuota {}

impl PartialSchema for MonthsQuota {
    /// Null as a value, because oapi-codegen cannot compile a map with members of the type null.
    fn schema() -> RefOr<Schema> {
        let null = ObjectBuilder::new()
            .schema_type(SchemaType::AnyValue)
            .enum_values(Some([serde_json::Value::Null]));
        let quota = RefBuilder::new()
            .ref_location_from_schema_name(Quota::name())
            .description(Some("The quota of the billing period; null without a plan."));
        RefOr::T(Schema::OneOf(OneOfBuilder::new().item(quota).item(null).build()))
    }
}

/// Shows the caller's usage and quota.
///
/// Anonymous callers have no plan, so `period` and the quotas are null.
#[utoipa::path(
    get,
    path = "/api/usage",
    operation_id = "getUsage",
    tag = "Usage",
    responses(
        (status = 200, body = Usage, description = "The usage"),
        Unauthenticated, LacksScope, NoSubject, Unavailable,
    )
)]
pub(super) async fn usage(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Usage>, ApiError> {
    let Some(user) = caller.holder.user_id else {
        // A successful answer also means that the database can be reached.
        probes::ping(&api.pool).await?;
        let names = api.settings.catalogue.meters.keys();
        let anonymous = Usage {
            plan: "anonymous".to_owned(),
            tier: "anonymous".to_owned(),
            period: None,
            meters: Vec::new(),
            by_meter: names.map(|name| (name.clone(), MonthsQuota(None))).collect(),
        };
        return Ok(Json(anonymous));
    };
    let usage = api
        .pool
        .with(async |client| read::usage::usage(&**client, user).await)
        .await?;
    let by_meter = usage.meters.iter().map(|meter| {
        let quota = Quota::from(meter.quotas.month);
        (meter.meter.to_string(), MonthsQuota(Some(quota)))
    });
    Ok(Json(Usage {
        tier: usage.plan.clone(),
        plan: usage.plan,
        period: Some(Period {
            start: usage.period_start,
            end: usage.period_end,
        }),
        by_meter: by_meter.collect(),
        meters: usage
            .meters
            .into_iter()
            .map(|meter| MeterUsage {
                name: meter.meter.to_string(),
                windows: meter.quotas.iter().copied().map(WindowQuota::from).collect(),
                unit: meter.unit,
            })
            .collect(),
    }))
}

//! A holder as operators and billing see it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde::Serialize;
use tokio_postgres::Client;
use utoipa::ToSchema;
use uuid::Uuid;
use weir_ledger::control::{self, ControlError, Granted, User};
use weir_ledger::holder::Holders;
use weir_ledger::read;

use super::super::answers::{LacksScope, NoKey, Unavailable, UnknownHolder};
use super::super::caller::Operator;
use super::super::job::Job;
use super::super::jobs::jobs_of;
use super::super::problem::{ApiError, NotApplied};
use super::super::quota::WindowQuota;
use super::super::state::Api;
use super::request::{self, Names};
use crate::config::Settings;

/// The number of newest jobs to show.
const JOBS: i64 = 20;

/// A holder.
#[derive(Serialize, ToSchema)]
pub struct HolderView {
    /// The subject in its tokens.
    subject: String,
    /// Its id in the tables.
    holder: Uuid,
    /// The current plan.
    pub(in crate::api) plan: String,
    /// The next plan, if a change is scheduled.
    pub(in crate::api) next_plan: Option<NextPlan>,
    /// By the name of the meter.
    pub(in crate::api) meters: BTreeMap<String, MeterView>,
    /// The newest jobs, without their outputs.
    jobs: Vec<Job>,
    /// After a change of plan: whether it was applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    pub(super) applied: Option<bool>,
    /// Why a change of plan was not applied. `older`: a newer event was applied before. `superseded`: the event ends a
    /// subscription, and the plan comes from another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    pub(super) reason: Option<&'static str>,
    /// Only in the answer to a change of plan: whether this event was already received.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    pub(super) repeated: Option<bool>,
}

/// The answer to a change.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(
    dead_code,
    reason = "describes what `HolderView` and `NotApplied` serialise to"
)]
pub(super) enum Changed {
    Holder(Box<HolderView>),
    NotApplied(NotApplied),
}

/// A scheduled change of plan.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct NextPlan {
    pub(in crate::api) plan: String,
    /// When it takes effect.
    pub(in crate::api) at: Timestamp,
}

/// A holder's usage of a meter.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct MeterView {
    /// The unit, in the plural.
    unit: String,
    /// The billing period, and the shorter windows that have a limit.
    pub(in crate::api) windows: Vec<WindowQuota>,
    /// Amounts beyond the plan, in the order in which they are drawn on.
    pub(in crate::api) grants: Vec<GrantView>,
    slots: SlotsView,
    /// Jobs that wait for a slot.
    parked: i64,
    /// The limits and slots that replace the plan's; null if there are none.
    pub(in crate::api) overrides: Option<OverrideView>,
}

/// An amount beyond the plan.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct GrantView {
    id: Uuid,
    meter: String,
    /// The amount granted.
    pub(in crate::api) amount: i64,
    /// The amount that is neither used nor reserved.
    pub(in crate::api) left: i64,
    /// When it expires; null is never.
    pub(in crate::api) expires_at: Option<Timestamp>,
    pub(in crate::api) reason: String,
}

/// The answer to a request to lower a grant.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(
    dead_code,
    reason = "describes what `GrantView` and `NotApplied` serialise to"
)]
pub(super) enum Lowered {
    Grant(GrantView),
    NotApplied(NotApplied),
}

impl From<Granted> for GrantView {
    fn from(granted: Granted) -> Self {
        let Granted {
            id,
            meter,
            amount,
            left,
            expires_at,
            reason,
        } = granted;
        Self {
            id,
            meter,
            amount,
            left,
            expires_at,
            reason,
        }
    }
}

/// A holder's slots for a meter.
#[derive(Serialize, ToSchema)]
pub(super) struct SlotsView {
    /// Jobs that hold a slot.
    in_use: i64,
    /// The number of slots; null if they are not limited.
    limit: Option<i64>,
    /// The number of jobs at once on workers that would be idle; null if it is not more than the slots.
    burst: Option<i64>,
}

/// Limits and slots of one holder.
#[derive(Serialize, ToSchema)]
pub(in crate::api) struct OverrideView {
    /// By window (`month`, `day`, `hour`, `minute`). Null is unlimited. An absent window has the plan's limit.
    #[schema(value_type = BTreeMap<String, Option<i64>>)]
    pub(in crate::api) limits: BTreeMap<weir_policy::span::Span, Option<i64>>,
    /// The number of slots; null is the plan's.
    pub(in crate::api) slots: Option<u32>,
    /// The number of jobs at once on workers that would be idle; null is the plan's.
    pub(in crate::api) burst: Option<u32>,
    /// When it expires.
    pub(in crate::api) expires_at: Option<Timestamp>,
}

/// Shows a holder with its plan, quota and newest jobs.
///
/// Returns 404 for a subject that Weir has never seen.
#[utoipa::path(
    get,
    path = "/admin/holders/{subject}",
    operation_id = "getHolder",
    tag = "Holders",
    params(("subject" = String, Path, description = "The subject in the holder's tokens", min_length = 1, max_length = 255)),
    responses((status = 200, body = HolderView, description = "The holder"), NoKey, LacksScope, UnknownHolder, Unavailable)
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    _operator: Operator,
    Names(subject): Names<String>,
) -> Result<Json<HolderView>, ApiError> {
    let user = request::user(&api, &subject)?;
    view(&api, &user).await.map(Json)
}

/// The holder after a change, for the routes that change it.
pub(super) async fn view(api: &Api, user: &User) -> Result<HolderView, ApiError> {
    api.pool
        .with(async |client| Ok(holder_view(client, &api.settings, user).await?))
        .await
}

/// Reads a holder.
///
/// # Errors
///
/// When the holder is unknown, or the database query fails.
pub async fn holder_view(
    client: &Client,
    settings: &Settings,
    user: &User,
) -> Result<HolderView, ControlError> {
    if !user.is_known(client).await? {
        return Err(ControlError::UserNotFound(user.subject.to_string()));
    }
    let subject = Holders::subject_of(client, user.id).await?;
    let status = control::plan_status(client, user.id).await?;
    let usage = read::usage::usage(client, user.id).await?;
    let held = read::holders::counts(client, user.id).await?;
    let grants = control::grants_of(client, user).await?;
    let mut meters = BTreeMap::new();
    for meter in usage.meters {
        let of_meter = held.iter().find(|of| of.meter == meter.meter);
        let overrides = control::override_of(client, user, meter.meter).await?;
        let view = MeterView {
            unit: meter.unit,
            windows: meter.quotas.iter().copied().map(WindowQuota::from).collect(),
            grants: grants
                .iter()
                .filter(|one| one.meter == meter.meter.as_str())
                .cloned()
                .map(GrantView::from)
                .collect(),
            slots: SlotsView {
                in_use: of_meter.map_or(0, |of| of.slots_in_use),
                limit: meter.slot_limit,
                burst: meter.burst,
            },
            parked: of_meter.map_or(0, |of| of.parked),
            overrides: overrides.map(|one| OverrideView {
                limits: one.limits,
                slots: one.slots,
                burst: one.burst,
                expires_at: one.expires_at,
            }),
        };
        meters.insert(meter.meter.to_string(), view);
    }
    let jobs = read::jobs::newest(client, user.id, i64::MAX, JOBS).await?;
    Ok(HolderView {
        subject: subject.unwrap_or_else(|| user.subject.to_string()),
        holder: user.id,
        plan: status.plan,
        next_plan: status
            .next
            .zip(status.next_at)
            .map(|(plan, at)| NextPlan { plan, at }),
        meters,
        jobs: jobs_of(jobs, settings),
        applied: None,
        reason: None,
        repeated: None,
    })
}

//! Changes of all jobs that match a filter, and of lanes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_ledger::control::{self, JobFilter};

use super::super::answers::{InvalidBody, LacksScope, NoKey, NoLane, NoService, NotInRiver, Unavailable};
use super::super::caller::Operator;
use super::super::job_report::{JobReport, job_report};
use super::super::problem::ApiError;
use super::super::state::Api;
use super::request;
use crate::river_control::{self, JobChange, PauseError};

/// Selects failed or unfinished jobs. At least one condition.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct JobSelection {
    /// Jobs of this service.
    #[schema(min_length = 1)]
    service: Option<String>,
    /// Jobs of this River kind. Not with `service`.
    #[schema(min_length = 1)]
    kind: Option<String>,
    /// Jobs of the holder with this subject.
    #[schema(min_length = 1, max_length = 255)]
    subject: Option<String>,
    /// Jobs whose error contains this text, in any case.
    #[schema(min_length = 1)]
    error: Option<String>,
    /// Jobs that ended, or were submitted, at least this many seconds ago.
    older_than: Option<u32>,
    /// Only jobs with a larger id: `next` of the previous answer.
    #[serde(default)]
    after: i64,
    /// Only count the jobs.
    #[serde(default)]
    dry_run: bool,
}

/// The result for one slice of the matching jobs.
#[derive(Serialize, ToSchema)]
pub(super) struct ChangedJobs {
    /// The number of matching jobs, at most 1000.
    matching: usize,
    /// For `after` of the next request; null when no job matched.
    next: Option<i64>,
    /// The number of jobs by outcome: `retried`, `over_quota`, `too_many_waiting` and others of `weir_retry`, or `cancelled`,
    /// `ended` and `not_found`.
    outcomes: BTreeMap<&'static str, usize>,
}

/// Shows a job with its attempts, and why it waits.
///
/// As `weir job show`, also for jobs of other programs.
#[utoipa::path(
    get,
    path = "/admin/jobs/{id}",
    operation_id = "getJobReport",
    tag = "Jobs",
    params(("id" = i64, Path, description = "River's id")),
    responses((status = 200, body = JobReport, description = "The job"), NoKey, LacksScope, NotInRiver, Unavailable)
)]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    _operator: Operator,
    id: Result<Path<i64>, PathRejection>,
) -> Result<Json<JobReport>, ApiError> {
    let missing = || {
        ApiError::NotFound("River has no job of this id; it deletes finished jobs after a while.".to_owned())
    };
    let Ok(Path(id)) = id else {
        return Err(missing());
    };
    let report = api
        .pool
        .with::<_, ApiError>(async |client| Ok(job_report(client, &api.settings, id).await?))
        .await?;
    report.map(Json).ok_or_else(missing)
}

/// Runs failed jobs again, at most 1000.
///
/// Repeat the request with `after` until `next` is null. Each job reserves quota as a new submission would, so some may be
/// over their user's quota. A cancelled or expired job runs again with `POST /api/jobs/{id}/retry`.
#[utoipa::path(
    post,
    path = "/admin/jobs/retry",
    operation_id = "retryJobs",
    tag = "Jobs",
    request_body = JobSelection,
    responses(
        (status = 200, body = ChangedJobs, description = "The jobs that are queued again"),
        NoKey, LacksScope, NoService, InvalidBody, Unavailable,
    )
)]
pub(super) async fn retry(
    State(api): State<Arc<Api>>,
    operator: Operator,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangedJobs>, ApiError> {
    change(&api, &operator, body, JobChange::Retry).await
}

/// Cancels unfinished jobs, at most 1000.
///
/// Repeat the request with `after` until `next` is null. Running jobs stop a moment later.
#[utoipa::path(
    post,
    path = "/admin/jobs/cancel",
    operation_id = "cancelJobs",
    tag = "Jobs",
    request_body = JobSelection,
    responses(
        (status = 200, body = ChangedJobs, description = "The jobs that are cancelled"),
        NoKey, LacksScope, NoService, InvalidBody, Unavailable,
    )
)]
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    operator: Operator,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangedJobs>, ApiError> {
    change(&api, &operator, body, JobChange::Cancel).await
}

/// Runs jobs again, or cancels them.
async fn change(
    api: &Api,
    operator: &Operator,
    body: Result<Bytes, BytesRejection>,
    wanted: JobChange,
) -> Result<Json<ChangedJobs>, ApiError> {
    let (filter, after, dry_run) = filter(api, body)?;
    let actor = &operator.actor;
    let changed = api.pool.with(async |client| {
        let jobs = control::matching_jobs(client, &filter, wanted.states(), after).await?;
        let outcomes = if dry_run {
            BTreeMap::new()
        } else {
            let changed = wanted.apply(&api.river, client, actor, &jobs, Some(&filter), |_| ());
            changed.await?
        };
        Ok::<_, ApiError>(ChangedJobs {
            matching: jobs.len(),
            next: jobs.last().copied(),
            outcomes,
        })
    });
    let changed = changed.await?;
    api.feed.hurry();
    Ok(Json(changed))
}

/// The filter of a body, `after` and `dry_run`.
fn filter(api: &Api, body: Result<Bytes, BytesRejection>) -> Result<(JobFilter, i64, bool), ApiError> {
    let wanted: JobSelection = request::body(body)?;
    let is_twofold = wanted.service.is_some() && wanted.kind.is_some();
    let kind = |name: &String| match api.settings.service(name) {
        Some(service) => Ok(vec![service.kind.clone()]),
        None => Err(ApiError::NoService(name.clone())),
    };
    let holder = |subject: &String| request::user(api, subject).map(|user| user.id);
    let filter = JobFilter {
        kinds: match wanted.kind {
            Some(kind) => Some(vec![kind]),
            None => wanted.service.as_ref().map(kind).transpose()?,
        },
        holder: wanted.subject.as_ref().map(holder).transpose()?,
        error: wanted.error,
        older_than: wanted
            .older_than
            .map(|seconds| Duration::from_secs(seconds.into())),
        ..JobFilter::default()
    };
    if is_twofold || filter.is_empty() {
        let detail = "Give at least one of service, kind, subject, error and older_than, and not both service and kind.";
        return Err(ApiError::Unprocessable(detail.to_owned()));
    }
    Ok((filter, wanted.after, wanted.dry_run))
}

/// Starts no more jobs of a lane.
///
/// Running jobs continue, and submissions are accepted.
#[utoipa::path(
    post,
    path = "/admin/lanes/{queue}/pause",
    operation_id = "pauseLane",
    tag = "Jobs",
    params(("queue" = String, Path, description = "The lane's queue, such as `analysis_default`")),
    responses((status = 204, description = "Paused"), NoKey, LacksScope, NoLane, Unavailable)
)]
pub(super) async fn pause(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Path(queue): Path<String>,
) -> Result<StatusCode, ApiError> {
    set_paused(&api, &operator, &queue, true).await
}

/// Starts jobs of a paused lane again.
///
/// A lane that is not paused stays as it is.
#[utoipa::path(
    post,
    path = "/admin/lanes/{queue}/resume",
    operation_id = "resumeLane",
    tag = "Jobs",
    params(("queue" = String, Path, description = "The lane's queue, such as `analysis_default`")),
    responses((status = 204, description = "Resumed"), NoKey, LacksScope, NoLane, Unavailable)
)]
pub(super) async fn resume(
    State(api): State<Arc<Api>>,
    operator: Operator,
    Path(queue): Path<String>,
) -> Result<StatusCode, ApiError> {
    set_paused(&api, &operator, &queue, false).await
}

async fn set_paused(
    api: &Api,
    operator: &Operator,
    queue: &str,
    pauses: bool,
) -> Result<StatusCode, ApiError> {
    let changed = api.pool.with(async |client| {
        let actor = &operator.actor;
        let changed =
            river_control::set_paused(&api.settings, &api.river, client, actor, queue, pauses).await;
        changed.map_err(|error| match error {
            PauseError::Unknown(_) | PauseError::Unworked(_) => ApiError::NotFound(error.to_string()),
            PauseError::River(error) => error.into(),
            PauseError::Log(error) => error.into(),
        })
    });
    changed.await?;
    Ok(StatusCode::NO_CONTENT)
}

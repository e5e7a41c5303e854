//! The demonstration's jobs in one shared queue, without Weir's admission. Only in development mode.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use riverqueue::{InsertOpts, JobArgs, JobListParams, JobRow, JobState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;
use weir_policy::lane::Lane;

use super::answers::{LacksScope, Unauthenticated, Unavailable};
use super::caller::Caller;
use super::problem::{ApiError, ProblemDetails};
use super::state::Api;
use crate::config::service::Service;

/// The maximum number of jobs of one request, and of one answer.
const MAX_JOBS: u32 = 200;

/// A job as a plain River client inserts it: without `user_id`, so no limit applies.
#[derive(Serialize, Deserialize, JobArgs)]
#[river(kind = "demo:shared")]
struct SharedWork {
    user: u32,
}

/// Jobs to insert into the shared queue.
#[derive(Deserialize, ToSchema)]
pub(super) struct SharedSubmission {
    /// Groups the jobs of one demonstration.
    run: Uuid,
    /// One job for each, in this order; the number is only returned with the job.
    #[schema(example = json!([0, 1, 2]), min_items = 1, max_items = 200)]
    users: Vec<u32>,
}

/// Which jobs to list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SharedRun {
    /// The demonstration that the jobs belong to.
    run: Uuid,
}

/// A job of the shared queue.
#[derive(Serialize, ToSchema)]
pub(super) struct SharedJob {
    id: i64,
    /// The number from the submission.
    user: u32,
    created_at: Timestamp,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
}

impl From<&JobRow> for SharedJob {
    fn from(row: &JobRow) -> Self {
        Self {
            id: row.id,
            user: row.decode_args::<SharedWork>().map_or(0, |args| args.user),
            created_at: row.created_at,
            started_at: row.attempted_at.filter(|_| row.state != JobState::Available),
            finished_at: row.finalized_at,
        }
    }
}

/// Inserts jobs into one queue for all users, without Weir's admission.
///
/// Only a server in development mode has this route.
#[utoipa::path(
    post,
    path = "/api/dev/shared-queue",
    operation_id = "submitSharedJobs",
    tag = "Development",
    request_body = SharedSubmission,
    responses(
        (status = 202, body = Vec<SharedJob>, description = "The jobs"),
        Unauthenticated, LacksScope,
        (status = 404, body = ProblemDetails, description = "The catalogue has no service demo_shared", content_type = "application/problem+json"),
        (status = 422, body = ProblemDetails, description = "run is not a UUID, or users is not a list of 1 to 200 numbers", content_type = "application/problem+json"),
        Unavailable,
    )
)]
pub(super) async fn submit(
    State(api): State<Arc<Api>>,
    _caller: Caller,
    body: Bytes,
) -> Result<(StatusCode, Json<Vec<SharedJob>>), ApiError> {
    let service = service(&api)?;
    let wanted = serde_json::from_slice(&body)
        .ok()
        .filter(|SharedSubmission { users, .. }| (1..=MAX_JOBS as usize).contains(&users.len()));
    let Some(SharedSubmission { run, users }) = wanted else {
        return Err(ApiError::Unprocessable(format!(
            "run must be a UUID, and users a list of 1 to {MAX_JOBS} numbers."
        )));
    };
    let opts = InsertOpts::default()
        .with_queue(service.queue(Lane::Default))
        .with_tags([run.to_string()]);
    let jobs = users.into_iter().map(|user| (SharedWork { user }, opts.clone()));
    let inserted = api.river.insert_many(jobs).await?;
    let jobs = inserted.iter().map(|inserted| SharedJob::from(&inserted.job.row));
    Ok((StatusCode::ACCEPTED, Json(jobs.collect())))
}

/// Lists the jobs of one demonstration, by id.
///
/// Only a server in development mode has this route.
#[utoipa::path(
    get,
    path = "/api/dev/shared-queue",
    operation_id = "listSharedJobs",
    tag = "Development",
    params(SharedRun),
    responses(
        (status = 200, body = Vec<SharedJob>, description = "The jobs"),
        Unauthenticated, LacksScope,
        (status = 404, body = ProblemDetails, description = "The catalogue has no service demo_shared", content_type = "application/problem+json"),
        (status = 422, body = ProblemDetails, description = "run is not a UUID", content_type = "application/problem+json"),
        Unavailable,
    )
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    _caller: Caller,
    run: Result<Query<SharedRun>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Vec<SharedJob>>, ApiError> {
    let service = service(&api)?;
    let Ok(Query(SharedRun { run })) = run else {
        return Err(ApiError::Unprocessable("run must be a UUID.".to_owned()));
    };
    let params = JobListParams::default()
        .kinds([&service.kind])
        .tags_all([run.to_string()])
        .limit(MAX_JOBS);
    let listed = api.river.jobs().list(params).await?;
    Ok(Json(listed.jobs.iter().map(SharedJob::from).collect()))
}

/// The service that runs the shared queue.
fn service(api: &Api) -> Result<&Service, ApiError> {
    let mut services = api.settings.services.iter();
    services
        .find(|service| service.kind == SharedWork::KIND)
        .ok_or(ApiError::NoRoute)
}

//! Changes of all jobs that match a filter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_ledger::control::{self, JobFilter};

use super::super::answers::{InvalidBody, LacksScope, NoKey, NoService, Unavailable};
use super::super::caller::Operator;
use super::super::problem::ApiError;
use super::super::state::Api;
use super::request;

/// Selects failed jobs. At least one condition.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedRetries {
    /// Jobs of this service.
    #[schema(min_length = 1)]
    service: Option<String>,
    /// Jobs of the holder with this subject.
    #[schema(min_length = 1, max_length = 255)]
    subject: Option<String>,
    /// Jobs whose error contains this text, in any case.
    #[schema(min_length = 1)]
    error: Option<String>,
    /// Jobs that failed at least this many seconds ago.
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
pub(super) struct Retries {
    /// The number of matching jobs, at most 1000.
    matching: usize,
    /// For `after` of the next request; null when no job matched.
    next: Option<i64>,
    /// The number of jobs by outcome: `retried`, `over_quota`, `too_many_waiting` and others of `weir_retry`.
    outcomes: BTreeMap<&'static str, usize>,
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
    request_body = WantedRetries,
    responses(
        (status = 200, body = Retries, description = "The jobs that are queued again"),
        NoKey, LacksScope, NoService, InvalidBody, Unavailable,
    )
)]
pub(super) async fn retry(
    State(api): State<Arc<Api>>,
    operator: Operator,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Retries>, ApiError> {
    let wanted: WantedRetries = request::body(body)?;
    let kind = |name: &String| match api.settings.service(name) {
        Some(service) => Ok(vec![service.kind.clone()]),
        None => Err(ApiError::NoService(name.clone())),
    };
    let holder = |subject: &String| request::user(&api, subject).map(|user| user.id);
    let filter = JobFilter {
        kinds: wanted.service.as_ref().map(kind).transpose()?,
        holder: wanted.subject.as_ref().map(holder).transpose()?,
        error: wanted.error,
        older_than: wanted
            .older_than
            .map(|seconds| Duration::from_secs(seconds.into())),
        ..JobFilter::default()
    };
    if filter.is_empty() {
        let detail = "Give at least one of service, subject, error and older_than.";
        return Err(ApiError::Unprocessable(detail.to_owned()));
    }
    let (actor, after, dry_run) = (&operator.actor, wanted.after, wanted.dry_run);
    let retries = api.pool.with(async |client| {
        let jobs = control::matching_jobs(client, &filter, &control::FAILED, after).await?;
        let outcomes = if dry_run {
            BTreeMap::new()
        } else {
            control::retry_jobs(client, actor, &jobs, Some(&filter), || ()).await?
        };
        Ok::<_, ApiError>(Retries {
            matching: jobs.len(),
            next: jobs.last().copied(),
            outcomes,
        })
    });
    let retries = retries.await?;
    api.feed.hurry();
    Ok(Json(retries))
}

//! Submits several jobs at once, all or none.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio_postgres::Transaction;
use utoipa::ToSchema;
use weir_ledger::holder::Holder;
use weir_ledger::reservation::{Answer, Idempotency, Quotas, Submission, submit_all};

use super::answers::{LacksScope, Unauthenticated, Unavailable};
use super::caller::Caller;
use super::job::Job;
use super::job_timing::JobTiming;
use super::jobs::{self, Origin, key_reused, over_quota};
use super::problem::{ApiError, ProblemDetails};
use super::quota::{self, Quota};
use super::receiving::Received;
use super::state::Api;
use crate::config::service::Service;
use crate::telemetry::traces;

/// The most jobs of one batch.
const MAX_JOBS: usize = 100;

/// The arguments of a batch's jobs.
#[derive(ToSchema)]
#[schema(value_type = Vec<Object>, min_items = 1, max_items = 100)]
#[allow(dead_code, reason = "describes a body that is read as JSON")]
pub(super) struct BatchArguments(Vec<Value>);

/// An accepted batch.
#[derive(Serialize, ToSchema)]
pub(super) struct AcceptedBatch {
    /// One job for each of the arguments, in their order, without outputs. A job that existed before is returned for
    /// the arguments that it matches.
    jobs: Vec<Job>,
    /// The plan's quota including all of them.
    quota: Option<Quota>,
}

/// Submits several jobs of one service, all or none.
///
/// The body is an array of their arguments. Anonymous callers cannot submit batches.
#[utoipa::path(
    post,
    path = "/api/jobs/{id}/batch",
    operation_id = "submitBatch",
    tag = "Jobs",
    params(
        ("id" = String, Path, description = "The name of the service", min_length = 1),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated key returns the same jobs for 24 hours, regardless of the order of members. If the arguments, the time or the priority differ: 422", min_length = 1, max_length = 255),
        ("Weir-Run-At" = Option<String>, Header, description = "When the jobs run: an RFC 3339 time within 366 days. Default: immediately", example = "2027-01-31T08:00:00Z", pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$"),
        ("Weir-Expires-In" = Option<i32>, Header, description = "The seconds from now, or from Weir-Run-At, after which jobs that still wait are cancelled and return their quota. Default: the service's `expires_in`", minimum = 1, maximum = 31622400),
        ("Weir-Priority" = Option<i16>, Header, description = "Priority within their lane, from 1 (first) to 4. Default: 1", minimum = 1, maximum = 4),
    ),
    request_body(content = BatchArguments, description = "The arguments of 1 to 100 jobs: an array of JSON objects, at most 256 KiB in total"),
    responses(
        (status = 202, body = AcceptedBatch, description = "All jobs are accepted"),
        (status = 400, body = ProblemDetails, description = "The body is not JSON", content_type = "application/problem+json"),
        Unauthenticated, LacksScope,
        (status = 404, body = ProblemDetails, description = "Unknown service", content_type = "application/problem+json"),
        (status = 413, body = ProblemDetails, description = "The body is larger than 256 KiB", content_type = "application/problem+json"),
        (status = 422, body = ProblemDetails, description = "The service rejects some of the arguments, or the key was used with a different request", content_type = "application/problem+json"),
        (status = 429, body = ProblemDetails, description = "The batch exceeds the plan's quota; no job is accepted", content_type = "application/problem+json"),
        Unavailable,
    )
)]
pub(super) async fn submit(
    State(api): State<Arc<Api>>,
    service: Result<Path<String>, PathRejection>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let Ok(Path(name)) = service else {
        return Err(ApiError::NoRoute);
    };
    caller.signed_in()?;
    let service = api
        .settings
        .service(&name)
        .ok_or_else(|| ApiError::NoService(name.clone()))?;
    let Received {
        value: body,
        room: _room,
    } = api.receiving.json(caller.holder.id, body).await?;
    let when = JobTiming::parse(&headers, Timestamp::now())?;
    let idempotency = jobs::idempotency(&headers, &name, &body, when)?;
    let arguments = arguments(body)?;
    let span = traces::submission(&caller.trace, &service.name, &service.kind, caller.holder);
    let handler = api.handlers.get(&service.kind).ok_or(ApiError::Internal)?;
    let mut submissions = Vec::with_capacity(arguments.len());
    for (index, args) in arguments.into_iter().enumerate() {
        let amount = handler.reserve(caller.holder, &args).await;
        let amount = amount.map_err(|refusal| at(index, refusal.into()))?;
        // Each job has its own key, so that a repeated batch returns the same jobs. Each key has the hash of the whole
        // batch, so that a different batch is refused even if it shares jobs.
        let idempotency = idempotency.as_ref().map(|whole| Idempotency {
            key: format!("{}#{index}", whole.key),
            request_hash: whole.request_hash.clone(),
        });
        let origin = Origin {
            caller: &caller,
            traceparent: span.context().traceparent(),
        };
        let submission = jobs::submission(service, origin, args, amount, idempotency, when);
        submissions.push(submission.map_err(|error| at(index, error))?);
    }
    let group: Vec<&Submission> = submissions.iter().collect();
    let read = async |transaction: &Transaction<'_>, answers: &[Answer]| {
        existing_jobs(transaction, &api, caller.holder, service, answers).await
    };
    let (answers, existing) = api
        .changes
        .of::<_, ApiError, _>(caller.holder.id, || {
            async |client| submit_all(client, &group, read).await
        })
        .await?;
    api.database
        .notify(answers.iter().filter_map(Answer::claimable_in));
    let (accepted, quotas) = accepted(service, &submissions, answers, &existing)?;
    drop(span);
    api.feed.hurry();
    let fields = quota::fields(service.meter, quotas.as_ref());
    let body = AcceptedBatch {
        jobs: accepted,
        quota: quotas.map(|quotas| quotas.month.into()),
    };
    Ok((StatusCode::ACCEPTED, AppendHeaders(fields), Json(body)).into_response())
}

/// The arguments of the jobs.
fn arguments(body: Value) -> Result<Vec<Map<String, Value>>, ApiError> {
    match body {
        Value::Array(all) if (1..=MAX_JOBS).contains(&all.len()) => {
            let all = all.into_iter().enumerate();
            all.map(|(index, args)| jobs::arguments(args).map_err(|error| at(index, error)))
                .collect()
        }
        _ => Err(ApiError::Unprocessable(format!(
            "The body must be an array with the arguments of 1 to {MAX_JOBS} jobs."
        ))),
    }
}

/// An error in the arguments of the job at this index.
fn at(index: usize, error: ApiError) -> ApiError {
    match error {
        ApiError::Unprocessable(wants) => ApiError::Unprocessable(format!("[{index}]: {wants}")),
        other => other,
    }
}

/// Reads the existing jobs that the answers name. This happens before the commit: if it fails, nothing is reserved. Does
/// not read outputs, because those of a hundred jobs may be hundreds of megabytes.
async fn existing_jobs(
    transaction: &Transaction<'_>,
    api: &Api,
    holder: Holder,
    service: &Service,
    answers: &[Answer],
) -> Result<HashMap<i64, Job>, ApiError> {
    let ids: Vec<i64> = answers
        .iter()
        .filter_map(|answer| match answer {
            Answer::Repeated { job_id, .. } | Answer::Folded { job_id, .. } => Some(*job_id),
            _ => None,
        })
        .collect();
    let mut existing = HashMap::new();
    if !ids.is_empty() {
        let jobs = jobs::by_ids_within(transaction, api, holder, service, &ids).await?;
        existing.extend(jobs.into_iter().map(|job| (job.id, job)));
    }
    if ids.iter().all(|id| existing.contains_key(id)) {
        Ok(existing)
    } else {
        Err(ApiError::NoJob)
    }
}

/// The jobs, and the quota after the last of them. An error if one was refused: then all were.
fn accepted(
    service: &Service,
    submissions: &[Submission],
    answers: Vec<Answer>,
    existing: &HashMap<i64, Job>,
) -> Result<(Vec<Job>, Option<Quotas>), ApiError> {
    let mut accepted = Vec::with_capacity(answers.len());
    let mut quotas = None;
    for answer in answers {
        let (job, quota) = match answer {
            Answer::Accepted { job, quota } => (Job::accepted(job, service), quota),
            Answer::Repeated { job_id, quota } | Answer::Folded { job_id, quota } => {
                (existing.get(&job_id).cloned().ok_or(ApiError::NoJob)?, quota)
            }
            Answer::OverQuota { quota, full } => {
                let amount = submissions
                    .iter()
                    .fold(0_i64, |sum, one| sum.saturating_add(one.amount));
                return Err(over_quota(service, quota, full, amount));
            }
            Answer::TooLarge { .. } => return Err(jobs::too_large_an_amount()),
            Answer::TooManyWaiting { most, .. } => return Err(ApiError::TooManyWaiting(most)),
            Answer::KeyReused => return Err(key_reused()),
        };
        accepted.push(job);
        quotas = quota.or(quotas);
    }
    Ok((accepted, quotas))
}

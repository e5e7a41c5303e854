//! Submits, reads and cancels the caller's jobs.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio_postgres::Transaction;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::answers::{LacksScope, NoSubject, NoSuchJob, OutOfRange, Unauthenticated, Unavailable};
use super::caller::Caller;
use super::headers::{self, MAX_KEY};
use super::job::Job;
use super::job_timing::JobTiming;
use super::problem::{ApiError, OverQuota, ProblemDetails};
use super::receiving::Received;
use super::state::Api;
use crate::config::Settings;
use crate::config::service::Service;
use weir_ledger::holder::Holder;
use weir_ledger::json::comparable;
use weir_ledger::read::jobs::{self as read, JobView};
use weir_ledger::reservation::{self, Answer, Idempotency, Quotas, Retried, Submission};

use super::quota::{self, Quota};
use crate::telemetry::traces;
use weir_ledger::job_metadata::{EXPIRES_IN, REQUEST_ID, SUBJECT, TRACEPARENT};
use weir_ledger::settlement::Ended;
use weir_ledger::unique_key;

/// An accepted submission.
#[derive(Serialize, ToSchema)]
pub(super) struct Accepted {
    job: Job,
    /// The plan's quota including this job; null for an anonymous caller.
    quota: Option<Quota>,
    /// Whether the job existed before, and River's uniqueness matched it. In that case, nothing was reserved.
    folded: bool,
    /// The token that reads, follows and cancels the job. Only in answers to anonymous callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    token: Option<String>,
}

/// Submits a job. The body is the job's arguments.
///
/// The job starts as soon as its user has a free slot and a worker of its lane is free. Until then it is queued. A
/// submission over the quota is refused.
#[utoipa::path(
    post,
    path = "/api/jobs/{id}",
    operation_id = "submitJob",
    tag = "Jobs",
    params(
        ("id" = String, Path, description = "The name of the service", min_length = 1),
        ("Idempotency-Key" = Option<String>, Header, description = "A repeated key returns the same job for 24 hours, regardless of the order of members. If the arguments, the times or the priority differ: 422", min_length = 1, max_length = 255),
        // A pattern, because openapi-python-client leaves out operations with a header of the format date-time.
        ("Weir-Run-At" = Option<String>, Header, description = "When the job runs: an RFC 3339 time within 366 days. Default: immediately. For users only", example = "2027-01-31T08:00:00Z", pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$"),
        ("Weir-Expires-In" = Option<i32>, Header, description = "The seconds from now, or from Weir-Run-At, after which a job that still waits is cancelled and returns its quota. Default: the service's `expires_in`", minimum = 1, maximum = 31622400),
        ("Weir-Priority" = Option<i16>, Header, description = "Priority within its lane, from 1 (first) to 4. Default: 1", minimum = 1, maximum = 4),
    ),
    request_body(content = Object, description = "The job's arguments, a JSON object of at most 256 KiB"),
    responses(
        (status = 202, body = Accepted, description = "The job is accepted", headers(("Location" = String, description = "The job"))),
        (status = 400, body = ProblemDetails, description = "The body is not JSON", content_type = "application/problem+json"),
        Unauthenticated, LacksScope,
        (status = 404, body = ProblemDetails, description = "Unknown service", content_type = "application/problem+json"),
        (status = 413, body = ProblemDetails, description = "The body is larger than 256 KiB", content_type = "application/problem+json"),
        (status = 422, body = ProblemDetails, description = "The service rejects these arguments, or the key was used with a different request", content_type = "application/problem+json"),
        (status = 429, body = ProblemDetails, description = "Over the plan's quota, or over the anonymous rate limit", content_type = "application/problem+json"),
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
    let service = api
        .settings
        .service(&name)
        .ok_or_else(|| ApiError::NoService(name.clone()))?;
    let Received {
        value: args,
        room: _room,
    } = api.receiving.json(caller.holder.id, body).await?;
    let when = JobTiming::parse(&headers, Timestamp::now())?;
    let idempotency = idempotency(&headers, &name, &args, when)?.map(|own| Idempotency {
        key: own_key(&own.key),
        ..own
    });
    if when.run_at.is_some() {
        // An anonymous client could submit without limit, and its jobs would be kept for a year.
        caller.signed_in()?;
    }
    let mut span = traces::submission(&caller.trace, &service.name, &service.kind, caller.holder);
    let origin = Origin {
        caller: &caller,
        traceparent: span.context().traceparent(),
    };
    let args = arguments(args)?;
    let handler = api.handlers.get(&service.kind).ok_or(ApiError::Internal)?;
    let amount = handler.reserve(caller.holder, &args).await?;
    let submission = submission(service, origin, args, amount, idempotency, when)?;
    let answer = api.reserver.submit(submission).await?;
    let (job, quota, folded) = match answer {
        // Taken from what was committed. The job is accepted whatever the database does next.
        Answer::Accepted { job, quota } => (Job::accepted(job, service), quota, false),
        Answer::Repeated { job_id, quota } => {
            let job = match holders_job(&api, caller.holder, job_id).await {
                Err(ApiError::NoJob) => deleted(&api, caller.holder, service, job_id).await,
                job => job,
            };
            (job?, quota, false)
        }
        Answer::Folded { job_id, quota } => (holders_job(&api, caller.holder, job_id).await?, quota, true),
        Answer::OverQuota { quota, full } => return Err(over_quota(service, quota, full, amount)),
        Answer::TooLarge { .. } => return Err(too_large_an_amount()),
        Answer::TooManyWaiting { most, .. } => return Err(ApiError::TooManyWaiting(most)),
        Answer::KeyReused => return Err(key_reused()),
    };
    span.set("messaging.message.id", job.id.to_string());
    drop(span);
    api.feed.hurry();
    let location = [(header::LOCATION, format!("/api/jobs/{}", job.id))];
    let fields = quota::fields(service.meter, quota.as_ref());
    let accepted = Accepted {
        token: match caller.holder.user_id {
            Some(_) => None,
            None => api.job_tokens.of(job.id, job.created_at),
        },
        job,
        quota: quota.map(|quota| quota.month.into()),
        folded,
    };
    let body = api.sending.json(caller.holder.id, &accepted)?;
    Ok((StatusCode::ACCEPTED, location, AppendHeaders(fields), body).into_response())
}

/// The submitter and the trace context.
pub(super) struct Origin<'a> {
    pub(super) caller: &'a Caller,
    pub(super) traceparent: Option<String>,
}

/// A job's arguments.
pub(super) fn arguments(args: Value) -> Result<Map<String, Value>, ApiError> {
    let Value::Object(mut args) = args else {
        return Err(ApiError::Unprocessable(
            "The arguments must be a JSON object.".to_owned(),
        ));
    };
    // The body cannot choose the job's owner.
    args.remove("user_id");
    Ok(args)
}

/// The submission of a job with these arguments. The handler has returned the amount that the job may use.
pub(super) fn submission(
    service: &Service,
    Origin { caller, traceparent }: Origin<'_>,
    mut args: Map<String, Value>,
    amount: i64,
    idempotency: Option<Idempotency>,
    when: JobTiming,
) -> Result<Submission, ApiError> {
    // As the token has it, so that other River clients' jobs can name the same holder.
    if let Some(user) = &caller.user {
        args.insert("user_id".to_owned(), user.holder.as_str().into());
    }
    // Otherwise clients that share an address would get each other's jobs.
    let unique_key = match caller.holder.user_id {
        Some(user) => unique_key::key(user, &service.kind, &args, &service.unique_by)?,
        None => None,
    };
    let mut metadata = json!({ REQUEST_ID: caller.request_id });
    if let Some(user) = &caller.user {
        metadata[SUBJECT] = user.subject.as_str().into();
    }
    if let Some(traceparent) = traceparent {
        metadata[TRACEPARENT] = traceparent.into();
    }
    let default = service.expires_in.map(|expires_in| expires_in.as_secs_f64());
    if let Some(seconds) = when.expires_in.map(f64::from).or(default) {
        metadata[EXPIRES_IN] = seconds.into();
    }
    Ok(Submission {
        holder: caller.holder,
        subject: caller.user.as_ref().map(|user| user.holder.clone()),
        service: service.name.clone(),
        meter: service.meter,
        kind: service.kind.clone(),
        max_attempts: service.max_attempts,
        args: Value::Object(args),
        metadata,
        amount,
        idempotency,
        unique_key,
        run_at: when.run_at,
        priority: when.priority,
    })
}

/// The refusal of a submission over the limits of these windows.
pub(super) fn over_quota(
    service: &Service,
    quotas: Quotas,
    full: Vec<reservation::Quota>,
    amount: i64,
) -> ApiError {
    ApiError::OverQuota(Box::new(OverQuota {
        meter: service.meter,
        quotas,
        full,
        amount,
    }))
}

/// The refusal of an amount that would overflow the account's sums.
pub(super) fn too_large_an_amount() -> ApiError {
    ApiError::Unprocessable(format!(
        "The amount is too large: usage and reservations together can be at most {}.",
        i64::MAX
    ))
}

/// The refusal of a key that was used for another request.
pub(super) fn key_reused() -> ApiError {
    ApiError::Unprocessable(
        "This Idempotency-Key was used with another request; use a new key for a new request.".to_owned(),
    )
}

/// The key of a single submission, other than every key of a batch's job: `KEY#INDEX`. SQL: `submit_options`.
fn own_key(key: &str) -> String {
    let index = key.rsplit_once('#').map_or("", |(_, index)| index);
    if (1..=2).contains(&index.len()) && index.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("{key:#<256}")
    } else {
        key.to_owned()
    }
}

pub(super) fn idempotency(
    headers: &HeaderMap,
    service: &str,
    body: &Value,
    when: JobTiming,
) -> Result<Option<Idempotency>, ApiError> {
    let key = headers::idempotency_key(headers).map_err(|_| {
        ApiError::Unprocessable(format!(
            "Idempotency-Key must be one header of 1 to {MAX_KEY} printable ASCII characters."
        ))
    })?;
    let Some(key) = key else { return Ok(None) };
    // Compares values, so that spaces, the order of members and the spelling of numbers do not matter.
    let body = comparable(body);
    let mut request = json!([service, when.requested_run_at, when.priority, body]);
    // At the end, and only if it is there, so that keys from before keep their hash.
    if let (Some(expires_in), Some(request)) = (when.expires_in, request.as_array_mut()) {
        request.push(expires_in.into());
    }
    let hash = Sha256::new().chain_update(request.to_string());
    Ok(Some(Idempotency {
        key: key.to_owned(),
        request_hash: hash.finalize().to_vec(),
    }))
}

/// The job with that id, if it is the signed-in user's or if the caller has its token.
pub(super) async fn by_id(api: &Api, caller: &Caller, id: i64) -> Result<Job, ApiError> {
    let token = caller.job_token.as_deref();
    if let Some(created_at) = token.and_then(|token| api.job_tokens.verify(id, token)) {
        return one(api, read::anonymous(&api.pool, id, created_at).await?);
    }
    caller.holder.user_id.ok_or(ApiError::NoJob)?;
    holders_job(api, caller.holder, id).await
}

/// The holder's job of that id. An address proves no ownership, so callers must have checked the access before.
async fn holders_job(api: &Api, holder: Holder, id: i64) -> Result<Job, ApiError> {
    one(api, read::by_id(&api.pool, holder.id, id).await?)
}

/// The remaining record of a holder's job after its row was deleted.
async fn deleted(api: &Api, holder: Holder, service: &Service, id: i64) -> Result<Job, ApiError> {
    let found = read::deleted(&api.pool, holder.id, &[id], &service.kind, service.max_attempts).await?;
    one(api, found.into_iter().next())
}

fn one(api: &Api, found: Option<JobView>) -> Result<Job, ApiError> {
    let job = found.map(|view| Job::of(view, &api.settings));
    job.ok_or(ApiError::NoJob)
}

/// Shows one of the caller's jobs.
///
/// Jobs of other users are not found.
#[utoipa::path(
    get,
    path = "/api/jobs/{id}",
    operation_id = "getJob",
    tag = "Jobs",
    params(
        ("id" = i64, Path, description = "The job's id", minimum = 1),
        ("Weir-Job-Token" = Option<String>, Header, description = "The job's token. Required for anonymous callers", min_length = 1),
    ),
    responses(
        (status = 200, body = Job, description = "The job"),
        Unauthenticated, LacksScope, NoSuchJob, NoSubject, Unavailable,
    )
)]
pub(super) async fn get(
    State(api): State<Arc<Api>>,
    id: Result<Path<i64>, PathRejection>,
    caller: Caller,
) -> Result<Response, ApiError> {
    // An id that is not a number belongs to no job.
    let Ok(Path(id)) = id else {
        return Err(ApiError::NoJob);
    };
    let job = by_id(&api, &caller, id).await?;
    api.sending.json(caller.holder.id, &job)
}

/// Cancels a job.
///
/// Its reservation and its slot are released. A finished job does not change.
#[utoipa::path(
    delete,
    path = "/api/jobs/{id}",
    operation_id = "cancelJob",
    tag = "Jobs",
    params(
        ("id" = i64, Path, description = "The job's id", minimum = 1),
        ("Weir-Job-Token" = Option<String>, Header, description = "The job's token. Required for anonymous callers", min_length = 1),
    ),
    responses(
        (status = 200, body = Job, description = "A running job stops a moment later"),
        Unauthenticated, LacksScope, NoSuchJob, NoSubject, Unavailable,
    )
)]
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    id: Result<Path<i64>, PathRejection>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let Ok(Path(id)) = id else {
        return Err(ApiError::NoJob);
    };
    by_id(&api, &caller, id).await?;
    // A client with a job's token may not be the client that submitted it.
    let own = caller.job_token.is_none().then_some(caller.holder.id);
    end(&api, id, own).await?;
    let job = by_id(&api, &caller, id).await?;
    api.sending.json(caller.holder.id, &job)
}

/// Runs a failed, expired or cancelled job again.
///
/// It reserves quota as a new submission would. It keeps its id, its attempts and their errors, and it no longer expires.
/// If it has no attempts left, it gets one more.
#[utoipa::path(
    post,
    path = "/api/jobs/{id}/retry",
    operation_id = "retryJob",
    tag = "Jobs",
    params(
        ("id" = i64, Path, description = "The job's id", minimum = 1),
        ("Weir-Job-Token" = Option<String>, Header, description = "The job's token. Required for anonymous callers", min_length = 1),
    ),
    responses(
        (status = 202, body = Accepted, description = "The job is queued again"),
        Unauthenticated, LacksScope, NoSuchJob,
        (status = 409, body = ProblemDetails, description = "The job has not failed, or an equal job is unfinished", content_type = "application/problem+json"),
        NoSubject,
        (status = 429, body = ProblemDetails, description = "Over the plan's quota", content_type = "application/problem+json"),
        Unavailable,
    )
)]
pub(super) async fn retry(
    State(api): State<Arc<Api>>,
    id: Result<Path<i64>, PathRejection>,
    caller: Caller,
) -> Result<Response, ApiError> {
    let Ok(Path(id)) = id else {
        return Err(ApiError::NoJob);
    };
    let job = by_id(&api, &caller, id).await?;
    let service = api.settings.service(&job.service).ok_or(ApiError::NoJob)?;
    let retried = api
        .changes
        .of::<_, ApiError, _>(caller.holder.id, || {
            async |client| Ok(reservation::retry::<tokio_postgres::Client>(client, id).await?)
        })
        .await?;
    let quota = match retried {
        Retried::Accepted(quota) => quota,
        Retried::NotFound => return Err(ApiError::NoJob),
        Retried::NotFailed => {
            let detail = "Only a failed, expired or cancelled job that was not charged can run again.";
            return Err(ApiError::Conflict(detail.to_owned()));
        }
        Retried::Folded => {
            return Err(ApiError::Conflict("An equal job is unfinished.".to_owned()));
        }
        Retried::OverQuota { quota, full, amount } => return Err(over_quota(service, quota, full, amount)),
        Retried::TooLarge => return Err(too_large_an_amount()),
        Retried::TooManyWaiting(most) => return Err(ApiError::TooManyWaiting(most)),
    };
    api.feed.hurry();
    let fields = quota::fields(service.meter, quota.as_ref());
    let accepted = Accepted {
        job: by_id(&api, &caller, id).await?,
        quota: quota.map(|quota| quota.month.into()),
        folded: false,
        token: None,
    };
    let body = api.sending.json(caller.holder.id, &accepted)?;
    Ok((StatusCode::ACCEPTED, AppendHeaders(fields), body).into_response())
}

/// Cancels a job for an authorised caller, and releases its reservation. A finished job does not change.
pub(super) async fn end(api: &Api, id: i64, holder: Option<Uuid>) -> Result<(), ApiError> {
    api.river.jobs().cancel(id).await?;
    // The reservation is released before the answer, so that the next submission can use the quota and the slot.
    if let Err(error) = api
        .settler
        .settle(Ended {
            job_id: id,
            holder,
            success: None,
        })
        .await
    {
        tracing::warn!(job = id, %error, "could not settle now; reconciliation will");
    }
    api.feed.hurry();
    Ok(())
}

/// A part of the list.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// The maximum number of items. Default: 20.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
    /// Only jobs with a smaller id: the last id of the previous page. Default: the newest jobs.
    before: Option<i64>,
}

/// Lists the caller's jobs, newest first, without their outputs.
///
/// Anonymous callers have no list: many clients share an address.
#[utoipa::path(
    get,
    path = "/api/jobs",
    operation_id = "listJobs",
    tag = "Jobs",
    params(Page),
    responses(
        (status = 200, body = [Job], description = "The jobs"),
        Unauthenticated, LacksScope, OutOfRange, Unavailable,
    )
)]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    page: Result<Query<Page>, QueryRejection>,
    caller: Caller,
) -> Result<Json<Vec<Job>>, ApiError> {
    caller.signed_in()?;
    let wants = "limit must be a whole number from 1 to 100, and before the id of a job";
    let Ok(Query(Page { limit, before })) = page else {
        return Err(ApiError::Unprocessable(wants.to_owned()));
    };
    let limit = limit.unwrap_or(20);
    if !(1..=100).contains(&limit) {
        return Err(ApiError::Unprocessable(wants.to_owned()));
    }
    newest_first(&api, caller.holder, before, limit).await.map(Json)
}

/// The holder's newest jobs before that id.
pub(super) async fn newest_first(
    api: &Api,
    holder: Holder,
    before: Option<i64>,
    limit: i64,
) -> Result<Vec<Job>, ApiError> {
    let found = read::newest(&api.pool, holder.id, before.unwrap_or(i64::MAX), limit).await?;
    Ok(jobs_of(found, &api.settings))
}

/// The jobs among these ids that belong to the holder.
pub(super) async fn by_ids(api: &Api, holder: Holder, ids: &[i64]) -> Result<Vec<Job>, ApiError> {
    let found = read::by_ids(&api.pool, holder.id, ids).await?;
    Ok(jobs_of(found, &api.settings))
}

/// The same inside a transaction, including deleted jobs.
pub(super) async fn by_ids_within(
    transaction: &Transaction<'_>,
    api: &Api,
    holder: Holder,
    service: &Service,
    ids: &[i64],
) -> Result<Vec<Job>, ApiError> {
    let mut found = read::by_ids(transaction, holder.id, ids).await?;
    if found.len() < ids.len() {
        found.extend(read::deleted(transaction, holder.id, ids, &service.kind, service.max_attempts).await?);
    }
    Ok(jobs_of(found, &api.settings))
}

pub(super) fn jobs_of(found: Vec<JobView>, settings: &Settings) -> Vec<Job> {
    found.into_iter().map(|view| Job::of(view, settings)).collect()
}

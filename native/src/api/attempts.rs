//! Routes for endpoints that answer later: progress and the end of an attempt. An attempt's token is valid for that
//! attempt only.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use weir_ledger::attempts::{self, AttemptError, Claim, ExtraQuota, Failure};
use weir_ledger::json::check_numbers;
use weir_ledger::read;

use super::answers::{AttemptEnded, InvalidBody, NoAttempt, TooLarge, Unavailable};
use super::job_timing::MAX_AHEAD;
use super::problem::ApiError;
use super::state::Api;
use crate::handler::{MAX_OUTPUT, Outcome};

/// An output and the members around it. JSON may need six bytes for a character.
const MAX_COMPLETION: usize = MAX_OUTPUT + 64 * 1024;

/// For all other bodies of an attempt.
const MAX_REPORT: usize = 128 * 1024;

/// The routes of an attempt, at the origin only: the edge does not forward them.
pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    let complete = OpenApiRouter::new()
        .routes(routes!(complete))
        .layer(DefaultBodyLimit::max(MAX_COMPLETION));
    let others = OpenApiRouter::new()
        .routes(routes!(fail))
        .routes(routes!(progress))
        .routes(routes!(extend))
        .routes(routes!(heartbeat))
        .layer(DefaultBodyLimit::max(MAX_REPORT));
    complete.merge(others)
}

/// The attempt that a request's token names.
pub(super) struct Attempt {
    job_id: i64,
    claim: String,
    created_at: Timestamp,
}

impl Attempt {
    fn claim(&self) -> Claim<'_> {
        Claim {
            job_id: self.job_id,
            claim: &self.claim,
            created_at: self.created_at,
        }
    }
}

impl FromRequestParts<Arc<Api>> for Attempt {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let job: Result<Path<i64>, PathRejection> = Path::from_request_parts(parts, api).await;
        let Ok(Path(job_id)) = job else {
            return Err(ApiError::NoAttempt);
        };
        let mut shown = parts.headers.get_all(AUTHORIZATION).iter();
        let (Some(bearer), None) = (shown.next(), shown.next()) else {
            return Err(ApiError::NoAttempt);
        };
        bearer
            .to_str()
            .ok()
            .and_then(|bearer| bearer.strip_prefix("Bearer "))
            .and_then(|token| api.attempt_tokens.verify(job_id, token.trim()))
            .map(|claim| Self {
                job_id,
                claim: claim.claim.to_owned(),
                created_at: claim.created_at,
            })
            .ok_or(ApiError::NoAttempt)
    }
}

impl From<AttemptError> for ApiError {
    fn from(error: AttemptError) -> Self {
        match error {
            AttemptError::Ended(end) => Self::AttemptEnded(end),
            AttemptError::Invalid(wants) => Self::Unprocessable(format!("The body is not valid: {wants}.")),
            AttemptError::Database(error) => error.into(),
        }
    }
}

fn body<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>, most: usize) -> Result<T, ApiError> {
    let body = body.map_err(|rejection| match rejection.status() {
        axum::http::StatusCode::PAYLOAD_TOO_LARGE => ApiError::LargerThan(most),
        _ => ApiError::Unprocessable("The body could not be read.".to_owned()),
    })?;
    serde_json::from_slice(&body)
        .map_err(|error| ApiError::Unprocessable(format!("The body is not valid: {error}.")))
}

/// The result of an attempt.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Completion {
    /// The job's output, of at most 4 MiB.
    #[serde(default)]
    output: Value,
    /// The part of the reservation that the job used, in the meter's unit. Default: all of it.
    #[schema(required = false, nullable = false, minimum = 0)]
    used: Option<i64>,
}

/// A completed job.
#[derive(Serialize, ToSchema)]
pub(super) struct Completed {
    /// The amount charged to the user.
    charged: i64,
}

/// Completes the job and charges its user.
///
/// The same attempt can repeat the call and gets the same answer.
#[utoipa::path(
    post,
    path = "/worker/jobs/{id}/complete",
    operation_id = "completeAttempt",
    tag = "Workers",
    params(("id" = i64, Path, description = "The job's id, from the header Weir-Job-Id", minimum = 1)),
    request_body = Completion,
    responses((status = 200, body = Completed, description = "The job is completed"), NoAttempt, AttemptEnded, TooLarge, InvalidBody, Unavailable)
)]
pub(super) async fn complete(
    State(api): State<Arc<Api>>,
    attempt: Attempt,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Completed>, ApiError> {
    let Completion { output, used } = body(bytes, MAX_OUTPUT)?;
    if used.is_some_and(|used| used < 0) {
        return Err(ApiError::Unprocessable("used must be 0 or more.".to_owned()));
    }
    let outcome = Outcome { output, used };
    if !outcome.fits() {
        return Err(ApiError::LargerThan(MAX_OUTPUT));
    }
    check_numbers(&outcome.output)
        .map_err(|error| ApiError::Unprocessable(format!("The output cannot be stored: {error}.")))?;
    let charged = attempt
        .change(&api, || {
            async |client| attempts::complete(client, attempt.claim(), &outcome.output, used).await
        })
        .await?;
    attempt.log("completed", Some(charged));
    api.feed.hurry();
    Ok(Json(Completed { charged }))
}

/// Why an attempt failed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Failed {
    /// The error message, for the job's owner. The first 10 000 characters are kept.
    error: String,
    /// Whether a retry may help.
    #[serde(default = "yes")]
    #[schema(required = false, default = true)]
    retry: bool,
    /// When to retry, at least a second from now. Default: the service's retry policy.
    #[schema(required = false, nullable = false)]
    retry_at: Option<Timestamp>,
}

fn yes() -> bool {
    true
}

/// The state of a job after a failed attempt.
#[derive(Serialize, ToSchema)]
pub(super) struct AfterFailure {
    /// `retry`; `discarded` after the last attempt; `cancelled` if the job was cancelled.
    #[schema(example = "retry")]
    outcome: String,
}

/// Records that the attempt has failed.
///
/// The job is retried, unless this was its last attempt or `retry` is false.
#[utoipa::path(
    post,
    path = "/worker/jobs/{id}/fail",
    operation_id = "failAttempt",
    tag = "Workers",
    params(("id" = i64, Path, description = "The job's id, from the header Weir-Job-Id", minimum = 1)),
    request_body = Failed,
    responses((status = 200, body = AfterFailure, description = "The failure is recorded"), NoAttempt, AttemptEnded, TooLarge, InvalidBody, Unavailable)
)]
pub(super) async fn fail(
    State(api): State<Arc<Api>>,
    attempt: Attempt,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<AfterFailure>, ApiError> {
    let Failed {
        error,
        retry,
        retry_at,
    } = body(bytes, MAX_REPORT)?;
    if retry_at.is_some_and(|at| at.duration_since(Timestamp::now()) > MAX_AHEAD) {
        return Err(ApiError::Unprocessable(
            "retry_at must be within 366 days.".to_owned(),
        ));
    }
    let failure = Failure {
        error,
        retry_at,
        is_permanent: !retry,
    };
    let outcome = attempt
        .change(&api, || {
            async |client| attempts::fail(client, attempt.claim(), &failure).await
        })
        .await?;
    attempt.log(&outcome, None);
    api.feed.hurry();
    Ok(Json(AfterFailure { outcome }))
}

/// The progress of an attempt.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Progressed {
    /// From 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    fraction: f64,
    /// A message for people, at most 1000 bytes.
    #[schema(max_length = 1000, required = false, nullable = false)]
    message: Option<String>,
}

/// A recorded report.
#[derive(Serialize, ToSchema)]
pub(super) struct Recorded {
    /// When the attempt is taken over unless it reports again; null while its first answer is outstanding.
    deadline_at: Option<Timestamp>,
}

/// Records the progress of the attempt.
///
/// The job's owner sees it. The call also counts as a heartbeat.
#[utoipa::path(
    post,
    path = "/worker/jobs/{id}/progress",
    operation_id = "reportProgress",
    tag = "Workers",
    params(("id" = i64, Path, description = "The job's id, from the header Weir-Job-Id", minimum = 1)),
    request_body = Progressed,
    responses((status = 200, body = Recorded, description = "The report is recorded"), NoAttempt, AttemptEnded, TooLarge, InvalidBody, Unavailable)
)]
pub(super) async fn progress(
    State(api): State<Arc<Api>>,
    attempt: Attempt,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Recorded>, ApiError> {
    let Progressed { fraction, message } = body(bytes, MAX_REPORT)?;
    record(&api, &attempt, Some(&attempts::Progress { fraction, message })).await
}

/// Keeps the attempt alive.
///
/// Without a heartbeat before the deadline, the attempt ends and the job is retried.
#[utoipa::path(
    post,
    path = "/worker/jobs/{id}/heartbeat",
    operation_id = "sendHeartbeat",
    tag = "Workers",
    params(("id" = i64, Path, description = "The job's id, from the header Weir-Job-Id", minimum = 1)),
    responses((status = 200, body = Recorded, description = "The report is recorded"), NoAttempt, AttemptEnded, Unavailable)
)]
pub(super) async fn heartbeat(
    State(api): State<Arc<Api>>,
    attempt: Attempt,
) -> Result<Json<Recorded>, ApiError> {
    record(&api, &attempt, None).await
}

async fn record(
    api: &Api,
    attempt: &Attempt,
    progress: Option<&attempts::Progress>,
) -> Result<Json<Recorded>, ApiError> {
    let recorded = api
        .pool
        .with(async |client| attempts::record_progress(client, attempt.claim(), progress).await);
    Ok(Json(Recorded {
        deadline_at: recorded.await?,
    }))
}

/// The quota that an attempt requests: `more` than it has, or a `total`. Repeating a `total` changes nothing.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedExtension {
    /// In the meter's unit, at least 1.
    #[schema(minimum = 1, required = false, nullable = false)]
    more: Option<i64>,
    /// In the meter's unit, at least 1, including the amount reserved before.
    #[schema(minimum = 1, required = false, nullable = false)]
    total: Option<i64>,
}

/// The answer to a request for more quota.
#[derive(Serialize, ToSchema)]
pub(super) struct Extended {
    /// Whether there was room. If not, nothing has changed, and the attempt continues.
    extended: bool,
    /// The billing period's quota: `used`, `reserved`, `limit`, `remaining`, `reset_at`. Null for a job without a
    /// holder.
    #[schema(value_type = Option<Object>)]
    quota: Option<Value>,
}

/// Reserves more quota for the job.
///
/// The call also counts as a heartbeat.
#[utoipa::path(
    post,
    path = "/worker/jobs/{id}/extend",
    operation_id = "extendReservation",
    tag = "Workers",
    params(("id" = i64, Path, description = "The job's id, from the header Weir-Job-Id", minimum = 1)),
    request_body = WantedExtension,
    responses((status = 200, body = Extended, description = "The quota after the call"), NoAttempt, AttemptEnded, TooLarge, InvalidBody, Unavailable)
)]
pub(super) async fn extend(
    State(api): State<Arc<Api>>,
    attempt: Attempt,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Extended>, ApiError> {
    let extra = match body(bytes, MAX_REPORT)? {
        WantedExtension {
            more: Some(more),
            total: None,
        } => ExtraQuota::More(more),
        WantedExtension {
            more: None,
            total: Some(total),
        } => ExtraQuota::Total(total),
        _ => {
            return Err(ApiError::Unprocessable(
                "The body must have either more or total.".to_owned(),
            ));
        }
    };
    let extended = attempt
        .change(&api, || {
            async |client| attempts::extend(client, attempt.claim(), extra).await
        })
        .await?;
    Ok(Json(Extended {
        extended: extended.is_extended,
        quota: extended.quota,
    }))
}

impl Attempt {
    /// Changes a holder's data, after the holder's earlier changes.
    async fn change<T, C: AsyncFnOnce(&mut ClientWrapper) -> Result<T, AttemptError>>(
        &self,
        api: &Api,
        change: impl Fn() -> C,
    ) -> Result<T, AttemptError> {
        let holder = read::attempts::holder(&api.pool, self.job_id).await?;
        // A job without a holder has no other change to wait for.
        api.changes.of(holder.unwrap_or_else(Uuid::new_v4), change).await
    }

    fn log(&self, outcome: &str, charged: Option<i64>) {
        weir_ledger::access_log!(
            outcome != "completed",
            job = self.job_id,
            claim = self.claim,
            outcome,
            charged,
            "an endpoint has answered"
        );
    }
}

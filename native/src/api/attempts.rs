//! Routes for endpoints that answer later: progress and the end of an attempt. The bearer of an attempt's token acts
//! for that attempt only.

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
use weir_ledger::attempts::{self, AttemptError, Claim, Failure, Needs};
use weir_ledger::json::check_numbers;
use weir_ledger::read;

use super::answers::{AttemptOver, NoAttempt, NotWanted, TooLarge, Unavailable};
use super::problem::ApiError;
use super::state::Api;
use super::when::FARTHEST;
use crate::handler::{MAX_OUTPUT, Outcome};

/// An output with what is around it: a letter of it may be written in six bytes.
const MAX_COMPLETION: usize = MAX_OUTPUT + 64 * 1024;

/// Whatever else an attempt says.
const MAX_WORD: usize = 128 * 1024;

/// The routes, for whoever reaches the origin: the edge forwards none of them.
pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    let complete = OpenApiRouter::new()
        .routes(routes!(complete))
        .layer(DefaultBodyLimit::max(MAX_COMPLETION));
    let others = OpenApiRouter::new()
        .routes(routes!(fail))
        .routes(routes!(progress))
        .routes(routes!(extend))
        .routes(routes!(heartbeat))
        .layer(DefaultBodyLimit::max(MAX_WORD));
    complete.merge(others)
}

/// The attempt whose token a request shows.
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
            AttemptError::Over(over) => Self::AttemptOver(over),
            AttemptError::Invalid(wants) => Self::Unprocessable(format!("Not as it must be: {wants}.")),
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
        .map_err(|error| ApiError::Unprocessable(format!("The body is not what is wanted: {error}.")))
}

/// What an attempt has made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Completion {
    /// The job's output, of at most 4 MiB.
    #[serde(default)]
    output: Value,
    /// What it used of its reservation, in the meter's unit; all of it unless told.
    #[schema(required = false, nullable = false, minimum = 0)]
    used: Option<i64>,
}

/// A job that is completed.
#[derive(Serialize, ToSchema)]
pub(super) struct Completed {
    /// What its user was charged.
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
    responses((status = 200, body = Completed, description = "The job is completed"), NoAttempt, AttemptOver, TooLarge, NotWanted, Unavailable)
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

/// How an attempt has failed.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Failed {
    /// What went wrong, for the job's owner. The first 10 000 letters are kept.
    error: String,
    /// Whether trying again may help.
    #[serde(default = "yes")]
    #[schema(required = false, default = true)]
    retry: bool,
    /// When to try again, not sooner than in a second; as the service says unless told.
    #[schema(required = false, nullable = false)]
    retry_at: Option<Timestamp>,
}

fn yes() -> bool {
    true
}

/// What becomes of a job whose attempt has failed.
#[derive(Serialize, ToSchema)]
pub(super) struct AfterFailure {
    /// `retry`; `discarded` when that was the last attempt; `cancelled` when somebody wanted that.
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
    responses((status = 200, body = AfterFailure, description = "The failure is recorded"), NoAttempt, AttemptOver, TooLarge, NotWanted, Unavailable)
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
    } = body(bytes, MAX_WORD)?;
    if retry_at.is_some_and(|at| at.duration_since(Timestamp::now()) > FARTHEST) {
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

/// How far an attempt is.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Progressed {
    /// From 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    fraction: f64,
    /// For people, at most 1000 bytes.
    #[schema(max_length = 1000, required = false, nullable = false)]
    message: Option<String>,
}

/// A report that was recorded.
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
    responses((status = 200, body = Recorded, description = "The report is recorded"), NoAttempt, AttemptOver, TooLarge, NotWanted, Unavailable)
)]
pub(super) async fn progress(
    State(api): State<Arc<Api>>,
    attempt: Attempt,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Recorded>, ApiError> {
    let Progressed { fraction, message } = body(bytes, MAX_WORD)?;
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
    responses((status = 200, body = Recorded, description = "The report is recorded"), NoAttempt, AttemptOver, Unavailable)
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
    let heard = api
        .pool
        .with(async |client| attempts::record_progress(client, attempt.claim(), progress).await);
    Ok(Json(Recorded {
        deadline_at: heard.await?,
    }))
}

/// How much quota an attempt asks for: `more` than it has, or so much in `total`. To say the latter again changes nothing.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedExtension {
    /// In the meter's unit, from 1.
    #[schema(minimum = 1, required = false, nullable = false)]
    more: Option<i64>,
    /// In the meter's unit, from 1, with what was reserved before.
    #[schema(minimum = 1, required = false, nullable = false)]
    total: Option<i64>,
}

/// What became of a wish for more quota.
#[derive(Serialize, ToSchema)]
pub(super) struct Extended {
    /// Whether there was room. Without, nothing has changed, and the attempt goes on.
    extended: bool,
    /// The billing period's quota: `used`, `reserved`, `limit`, `remaining`, `reset_at`; null for a job of nobody's.
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
    responses((status = 200, body = Extended, description = "The quota after the call"), NoAttempt, AttemptOver, TooLarge, NotWanted, Unavailable)
)]
pub(super) async fn extend(
    State(api): State<Arc<Api>>,
    attempt: Attempt,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Extended>, ApiError> {
    let needs = match body(bytes, MAX_WORD)? {
        WantedExtension {
            more: Some(more),
            total: None,
        } => Needs::More(more),
        WantedExtension {
            more: None,
            total: Some(total),
        } => Needs::Total(total),
        _ => {
            return Err(ApiError::Unprocessable(
                "The body must have either more or total.".to_owned(),
            ));
        }
    };
    let extended = attempt
        .change(&api, || {
            async |client| attempts::extend(client, attempt.claim(), needs).await
        })
        .await?;
    Ok(Json(Extended {
        extended: extended.is_extended,
        quota: extended.quota,
    }))
}

impl Attempt {
    /// Changes what the job's holder has, in line with its other changes.
    async fn change<T, C: AsyncFnOnce(&mut ClientWrapper) -> Result<T, AttemptError>>(
        &self,
        api: &Api,
        change: impl Fn() -> C,
    ) -> Result<T, AttemptError> {
        let holder = read::attempts::holder(&api.pool, self.job_id).await?;
        // Without a holder there is no other change to wait for.
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

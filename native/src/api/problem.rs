//! Maps errors to problem details (RFC 9457).

use std::borrow::Cow;

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use weir_policy::problem::{CONTENT_TYPE, Problem, QUOTA_EXCEEDED};

use crate::handler::Refusal;
use crate::river_control::JobChangeError;
use weir_ledger::attempts::AttemptEnd;
use weir_ledger::control::ControlError;
use weir_ledger::database::{DatabaseError, FromDatabase};
use weir_ledger::meter::Meter;
use weir_ledger::reservation::{self, Quotas, ReserveError};
use weir_ledger::unique_key::TooDeep;

use super::quota::{self, Quota, WindowQuota};

/// The longest `Retry-After` in seconds, 24 days: browsers' timers overflow after 2³¹ milliseconds.
const MAX_RETRY_AFTER: i64 = 24 * 24 * 60 * 60;

/// `Retry-After` in seconds, when the database is unreachable or too many streams are open.
const RETRY_AFTER_OUTAGE: i64 = 2;

/// Problem details (RFC 9457), as the API's description has them. Some have further members.
#[derive(ToSchema)]
#[allow(dead_code, reason = "describes what `Problem` serialises to")]
pub(super) struct ProblemDetails {
    /// A URI for the kind of problem; `about:blank` when the status is enough.
    r#type: String,
    /// A short summary.
    title: String,
    /// The HTTP status.
    status: u16,
    /// The reason in this case, and what to do.
    detail: String,
    /// The plan's quota, if it is exceeded.
    #[schema(required = false, nullable = false)]
    quota: Option<Quota>,
    /// When all windows without room will have renewed, if the quota is exceeded.
    #[schema(required = false, nullable = false)]
    renews_at: Option<Timestamp>,
    /// The windows without room, if the quota is exceeded.
    #[schema(required = false, nullable = false)]
    windows: Option<Vec<WindowQuota>>,
}

/// A change that was not applied.
#[derive(Serialize, ToSchema)]
pub(super) struct NotApplied {
    #[schema(example = false)]
    applied: bool,
    /// The reason: `deleted` if the user was deleted in the last 30 days and has submitted nothing since.
    #[schema(example = "deleted")]
    reason: &'static str,
}

impl NotApplied {
    const DELETED: Self = Self {
        applied: false,
        reason: "deleted",
    };
}

/// A submission that does not fit into the plan.
#[derive(Debug)]
pub struct OverQuota {
    /// The service's meter.
    pub(super) meter: Meter,
    /// The plan's quotas for it.
    pub(super) quotas: Quotas,
    /// The windows without room.
    pub(super) full: Vec<reservation::Quota>,
    /// The requested amount.
    pub(super) amount: i64,
}

/// Every error that the API returns.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No valid assertion from the edge.
    #[error("unauthorized: {0}")]
    Unauthorized(String),
    /// An invalid service key, and why it is invalid.
    #[error("service key refused: {0}")]
    BadKey(&'static str),
    /// A route that requires a service key.
    #[error("no service key")]
    NoKey,
    /// A service key without the required scope.
    #[error("forbidden: {0}")]
    Forbidden(String),
    /// An unknown holder or meter.
    #[error("not found: {0}")]
    NotFound(String),
    /// A change of a deleted user. It is acknowledged, so that a payment provider does not send it again.
    #[error("deleted")]
    Deleted,
    /// A conflict with the current state.
    #[error("conflict: {0}")]
    Conflict(String),
    /// An anonymous caller uses a feature for users: lists, batches, scheduled jobs.
    #[error("not signed in")]
    NotSignedIn,
    /// An unknown path.
    #[error("no such route")]
    NoRoute,
    /// A method that the path does not support.
    #[error("no such method")]
    NoMethod,
    /// The job does not exist or belongs to another caller.
    #[error("no such job")]
    NoJob,
    /// An unknown service.
    #[error("no service {0:?}")]
    NoService(String),
    /// The body is not valid JSON.
    #[error("malformed: {0}")]
    Malformed(String),
    /// The body is JSON, but not valid for this route.
    #[error("unprocessable: {0}")]
    Unprocessable(String),
    /// The body is too large.
    #[error("too large")]
    TooLarge,
    /// The body, or the output in it, exceeds this many bytes.
    #[error("larger than {0} bytes")]
    LargerThan(usize),
    /// The body arrives too slowly.
    #[error("too slow")]
    TooSlow,
    /// No valid token for an attempt at the job.
    #[error("no attempt token")]
    NoAttempt,
    /// The attempt has ended.
    #[error("the attempt is over: {0:?}")]
    AttemptEnded(AttemptEnd),
    /// Over the plan's quota.
    #[error("over quota")]
    OverQuota(Box<OverQuota>),
    /// The plan's maximum number of waiting jobs is reached.
    #[error("too many jobs wait")]
    TooManyWaiting(u32),
    /// The caller's maximum number of open event streams is reached.
    #[error("too many streams")]
    TooManyStreams,
    /// The database is not available.
    #[error("unavailable: {0}")]
    Database(DatabaseError),
    /// Another dependency is not available.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// An internal error.
    #[error("internal")]
    Internal,
}

impl From<DatabaseError> for ApiError {
    fn from(error: DatabaseError) -> Self {
        Self::Database(error)
    }
}

impl FromDatabase for ApiError {
    fn database(&self) -> Option<&DatabaseError> {
        match self {
            Self::Database(error) => Some(error),
            _ => None,
        }
    }
}

impl From<tokio_postgres::Error> for ApiError {
    fn from(error: tokio_postgres::Error) -> Self {
        DatabaseError::from(error).into()
    }
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> Self {
        let text = sentence(&error.to_string());
        match error {
            ControlError::Database(error) => error.into(),
            ControlError::UnknownPlan(..) | ControlError::Invalid(_) => Self::Unprocessable(text),
            ControlError::UnknownMeter(..)
            | ControlError::UserNotFound(_)
            | ControlError::GrantNotFound(_)
            | ControlError::WebhookNotFound(_)
            | ControlError::KeyNotFound(_) => Self::NotFound(text),
            ControlError::UserDeleted(_) => Self::Deleted,
            ControlError::Conflict(_) => Self::Conflict(text),
        }
    }
}

/// A message as a sentence. The name of a field stays as it is.
fn sentence(message: &str) -> String {
    let (first, _) = message.split_once(' ').unwrap_or((message, ""));
    if first.contains('_') {
        return format!("{message}.");
    }
    let mut letters = message.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

impl From<riverqueue::Error> for ApiError {
    fn from(error: riverqueue::Error) -> Self {
        match error {
            riverqueue::Error::NotFound(_) => Self::NoJob,
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<JobChangeError> for ApiError {
    fn from(error: JobChangeError) -> Self {
        match error {
            JobChangeError::River(error) => error.into(),
            JobChangeError::Control(error) => error.into(),
        }
    }
}

impl From<TooDeep> for ApiError {
    fn from(error: TooDeep) -> Self {
        Self::Unprocessable(sentence(&error.to_string()))
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Arguments(wants) => Self::Unprocessable(wants),
            Refusal::Database(error) => error.into(),
        }
    }
}

impl From<ReserveError> for ApiError {
    fn from(error: ReserveError) -> Self {
        match error {
            ReserveError::Unstorable(reason) => Self::Unprocessable(format!(
                "the arguments contain text that cannot be stored: {reason}"
            )),
            ReserveError::Database(error) => error.into(),
            error @ ReserveError::Overloaded => Self::Unavailable(error.to_string()),
        }
    }
}

impl ApiError {
    fn problem(&self) -> (Problem, Vec<(HeaderName, String)>) {
        if let Self::OverQuota(over) = self {
            return over_quota(over);
        }
        let problem = problem(self.status(), &self.detail());
        let problem = match self.violated_policy() {
            Some(policy) => problem
                .with_type(QUOTA_EXCEEDED)
                .with("violated-policies", vec![policy]),
            None => problem,
        };
        (problem, self.header().into_iter().collect())
    }

    fn status(&self) -> StatusCode {
        match self {
            // Acknowledged: see `NotApplied`.
            Self::Deleted => StatusCode::OK,
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::Unauthorized(_) | Self::BadKey(_) | Self::NoKey | Self::NotSignedIn | Self::NoAttempt => {
                StatusCode::UNAUTHORIZED
            }
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) | Self::NoRoute | Self::NoJob | Self::NoService(_) => StatusCode::NOT_FOUND,
            Self::NoMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::Conflict(_) | Self::AttemptEnded(_) => StatusCode::CONFLICT,
            Self::TooLarge | Self::LargerThan(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unprocessable(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::OverQuota(_) | Self::TooManyWaiting(_) | Self::TooManyStreams => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Database(_) | Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn detail(&self) -> Cow<'_, str> {
        let text = match self {
            Self::Unauthorized(reason) => {
                return format!("{reason}. Requests must come through the edge.").into();
            }
            Self::BadKey(reason) => {
                return format!(
                    "The service key is not accepted: {reason}. `weir key list` shows the valid keys."
                )
                .into();
            }
            Self::NoService(name) => {
                return format!("Unknown service {name:?}; /api/lanes lists the services.").into();
            }
            Self::LargerThan(most) => {
                return format!(
                    "The body may have at most {most} bytes. Store larger data elsewhere and send its URL."
                )
                .into();
            }
            Self::TooManyWaiting(most) => {
                return format!(
                    "{most} jobs are waiting, the maximum of this plan. Submit again when some of them have started, or \
                     upgrade."
                )
                .into();
            }
            Self::Forbidden(reason)
            | Self::NotFound(reason)
            | Self::Conflict(reason)
            | Self::Malformed(reason)
            | Self::Unprocessable(reason) => reason,
            Self::NoKey => {
                "This requires a service key with the scope admin: Authorization: Bearer weir_sk_… (`weir key create --scope \
                 admin`)."
            }
            Self::Deleted => "The user was deleted.",
            Self::NotSignedIn => {
                "Sign in to list jobs, to submit several at once, or to submit one for later. Without signing in, read each \
                 job with the token from the response to its submission (header Weir-Job-Token)."
            }
            Self::NoRoute => "There is nothing at this path; see /api/openapi.json.",
            Self::NoMethod => "This path does not support this method; see /api/openapi.json.",
            Self::NoJob => "You have no job with this id.",
            Self::TooLarge => "The body may have at most 256 KiB; send fewer files at a time.",
            Self::TooSlow => "The body took too long to arrive. Send it again, or send less at a time.",
            Self::NoAttempt => {
                "This requires the token of an attempt of this job: Authorization: Bearer …, with the value of the request's \
                 Weir-Attempt-Token."
            }
            Self::AttemptEnded(AttemptEnd::JobCancelled) => "The job was cancelled. Stop working on it.",
            Self::AttemptEnded(AttemptEnd::JobEnded) => "The job has ended. Stop working on it.",
            Self::AttemptEnded(AttemptEnd::Retried) => {
                "This attempt is over, and the job is retried. Stop working on this attempt."
            }
            Self::OverQuota(_) => "This submission exceeds the plan's quota.",
            Self::TooManyStreams => {
                "Too many event streams are open. Close one; /api/jobs/events streams all jobs."
            }
            Self::Database(_) | Self::Unavailable(_) => {
                "The service is temporarily unavailable. Try again; with an Idempotency-Key, a retry is safe."
            }
            Self::Internal => "An internal error occurred. It has been logged.",
        };
        text.into()
    }

    /// The policy that a 429 violated (RateLimit fields for HTTP).
    fn violated_policy(&self) -> Option<&'static str> {
        match self {
            Self::TooManyWaiting(_) => Some("waiting"),
            Self::TooManyStreams => Some("streams"),
            _ => None,
        }
    }

    fn header(&self) -> Option<(HeaderName, String)> {
        match self.status() {
            StatusCode::UNAUTHORIZED => Some((header::WWW_AUTHENTICATE, "Bearer".to_owned())),
            StatusCode::REQUEST_TIMEOUT => Some((header::CONNECTION, "close".to_owned())),
            // The duration of the earlier jobs is unknown.
            StatusCode::TOO_MANY_REQUESTS if matches!(self, Self::TooManyWaiting(_)) => None,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Some((header::RETRY_AFTER, RETRY_AFTER_OUTAGE.to_string()))
            }
            _ => None,
        }
    }
}

fn problem(status: StatusCode, detail: &str) -> Problem {
    Problem::new(
        status.as_u16(),
        status.canonical_reason().unwrap_or("Error"),
        detail,
    )
}

/// Names every window without room, because a retry fails until all of them have room. `Retry-After` is omitted if
/// waiting does not help, and if the wait would be too long. `renews_at` has the time.
fn over_quota(over: &OverQuota) -> (Problem, Vec<(HeaderName, String)>) {
    let OverQuota {
        meter,
        quotas,
        full,
        amount,
    } = over;
    let renewed = full.iter().map(|quota| quota.window.end).max();
    let seconds = renewed.map_or(0, |end| end.as_second() - Timestamp::now().as_second());
    let windows = full.iter().map(|quota| {
        format!(
            "{} left until {}",
            quota.remaining.unwrap_or_default(),
            quota.window.end.strftime("%Y-%m-%dT%H:%M:%SZ")
        )
    });
    let left = windows.collect::<Vec<_>>().join(", and ");
    // An amount above a window's whole limit does not fit into the next window either.
    let largest = full
        .iter()
        .filter_map(|quota| {
            let limit = quota.ceiling.or(quota.limit)?.checked_add(quota.granted)?;
            Some((limit, quota.window.span.as_str()))
        })
        .min()
        .filter(|(limit, _)| limit < amount);
    let detail = match largest {
        Some((limit, span)) => format!(
            "The request needs {amount}, but your plan allows {limit} per {span} and has {left}. Upgrade, or request less."
        ),
        None => format!("Your plan has {left}. Upgrade, or retry after the reset."),
    };
    let policies: Vec<String> = full.iter().map(|window| quota::policy(*meter, window)).collect();
    let without_room: Vec<WindowQuota> = full.iter().copied().map(WindowQuota::from).collect();
    let problem = Problem::new(429, "Quota Exceeded", detail)
        .with_type(QUOTA_EXCEEDED)
        .with("violated-policies", policies)
        .with("quota", json(Quota::from(quotas.month)))
        .with("renews_at", json(renewed))
        .with("windows", json(without_room));
    let mut headers = quota::fields(*meter, Some(quotas));
    if largest.is_none() && seconds <= MAX_RETRY_AFTER {
        headers.push((header::RETRY_AFTER, seconds.max(1).to_string()));
    }
    (problem, headers)
}

fn json(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match &self {
            // The reason is only logged, because it may reveal internals.
            Self::Database(error) => tracing::warn!(reason = %error, "answered 503"),
            Self::Unavailable(reason) => tracing::warn!(reason, "answered 503"),
            Self::Internal => tracing::error!("answered 500"),
            Self::Deleted => return Json(NotApplied::DELETED).into_response(),
            _ => {}
        }
        let (problem, headers) = self.problem();
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (
            status,
            [
                (header::CONTENT_TYPE, CONTENT_TYPE),
                (header::CACHE_CONTROL, "no-store"),
            ],
            problem.to_json(),
        )
            .into_response();
        for (name, value) in headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

//! Reads paths, bodies and headers of requests to `/admin`.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use weir_ledger::control::User;

use super::super::headers::{self, MAX_KEY};
use super::super::problem::ApiError;
use super::super::state::Api;

/// The parameters of a path. A path that is not valid text gets a 404 as a problem document.
pub(super) struct Names<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Api>> for Names<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let path = Path::from_request_parts(parts, api).await;
        path.map(|Path(names)| Self(names))
            .map_err(|_| ApiError::NotFound("The path is not percent-encoded UTF-8.".to_owned()))
    }
}

/// The holder that a path names.
pub(super) fn user(api: &Api, subject: &str) -> Result<User, ApiError> {
    let subject = subject
        .parse()
        .map_err(|error: weir_policy::subject::SubjectError| {
            ApiError::NotFound(format!("The subject is not valid: {error}."))
        })?;
    Ok(User::of(api.holders, subject))
}

/// The body, of any content type.
pub(super) fn body<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, ApiError> {
    let body = body.map_err(|_| ApiError::TooLarge)?;
    serde_json::from_slice(&body)
        .map_err(|error| ApiError::Unprocessable(format!("The body is not valid: {error}.")))
}

/// The key by which a repeated request is recognised. Required when amounts are booked.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<&str, ApiError> {
    headers::idempotency_key(headers).ok().flatten().ok_or_else(|| {
        ApiError::Unprocessable(format!(
            "Send one Idempotency-Key of 1 to {MAX_KEY} printable ASCII characters, so that a retry is not counted \
             twice."
        ))
    })
}

/// The maximum number of items, 1 to 1000. Default: 100.
pub(super) fn limit(wanted: Option<i64>) -> Option<i64> {
    Some(wanted.unwrap_or(100)).filter(|limit| (1..=1000).contains(limit))
}

//! `http`: an endpoint does the work.
//!
//! Weir sends it the job's arguments as JSON with `POST`, and these headers:
//!
//! - `Weir-Job-Id` and `Weir-Attempt`
//! - `Idempotency-Key`, which all attempts of the job share
//! - `traceparent`, where traces are exported
//! - where a secret is set, a signature by Standard Webhooks, and `Weir-Attempt-Token`, which authenticates the
//!   endpoint's own requests (`api/attempts.rs`)
//!
//! A 2xx response is success: its body is the output, and a number `used` in it is the amount to charge. After a 202,
//! the endpoint answers later through the API.
//!
//! 400, 409, 410, 413 and 422 are final, and so is a problem document with `"retry": false`. Everything else is
//! retried, not before the response's `Retry-After`. That includes 401, 403, 404 and 421, which endpoints return during
//! a deployment.
//!
//! Redirects are not followed: arguments go only to the configured URL. The connection is closed when the
//! attempt is over before the response has arrived.

use async_trait::async_trait;
use jiff::Timestamp;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url};
use secrecy::ExposeSecret;
use serde_json::{Map, Value};

use super::attempt::{Attempt, Handler, HandlerError, MAX_OUTPUT, Outcome, Refusal, Worked};
use crate::config::service::Amount;
use crate::outbound::{self, Reach, Secret};
use uuid::Uuid;
use weir_ledger::holder::Holder;

/// The header with the attempt's token.
const TOKEN_HEADER: &str = "weir-attempt-token";

/// Maximum length of the message from an error's body.
const MAX_MESSAGE: usize = 2_000;

/// Maximum number of bytes read from an error's body.
const MAX_ERROR: usize = 64 * 1024;

pub(super) struct Http {
    client: Client,
    url: Url,
    secrets: Vec<Secret>,
    amount: Amount,
}

impl Http {
    /// `private`: whether the endpoint may be in a private network.
    pub(super) fn new(url: Url, private: bool, secrets: Vec<Secret>, amount: Amount) -> Self {
        Self {
            client: outbound::client(Reach::of(private)),
            url,
            secrets,
            amount,
        }
    }

    async fn ask(&self, attempt: &Attempt) -> Result<Worked, HandlerError> {
        let body =
            serde_json::to_vec(&attempt.args).map_err(|error| HandlerError::Permanent(error.to_string()))?;
        let mut request = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header("weir-job-id", attempt.job_id)
            .header("weir-attempt", attempt.attempt)
            .header("idempotency-key", attempt.key.to_string());
        if !self.secrets.is_empty() {
            // Each request is a separate message, so that receivers do not drop it as a duplicate.
            let id = format!("msg_{}", Uuid::new_v4().simple());
            for (name, value) in outbound::headers(&self.secrets, &id, Timestamp::now(), &body) {
                request = request.header(name, value);
            }
        }
        if let Some(token) = &attempt.token {
            let mut value = HeaderValue::from_str(token.expose_secret())
                .map_err(|_| HandlerError::Failed(String::new()))?;
            value.set_sensitive(true);
            request = request.header(TOKEN_HEADER, value);
        }
        if let Some(place) = &attempt.traceparent {
            request = request.header("traceparent", place);
        }
        // Its `Idempotency-Key` makes a repeated request safe.
        let request = request.body(body).build().map_err(failed)?;
        let response = outbound::send(&self.client, request).await.map_err(failed)?;
        let status = response.status();
        let retry_after = outbound::retry_after(response.headers(), Timestamp::now());
        if !status.is_success() {
            let is_problem = is_problem(response.headers());
            let body = outbound::start_of(response, MAX_ERROR).await;
            let start = body.get(..MAX_MESSAGE).unwrap_or(&body);
            let message = format!("{status}: {}", String::from_utf8_lossy(start).trim());
            return Err(match retry_after {
                _ if is_final(status) || is_problem && forbids_retry(&body) => {
                    HandlerError::Permanent(message)
                }
                Some(after) => HandlerError::RetryAfter { message, after },
                None => HandlerError::Failed(message),
            });
        }
        if status == StatusCode::ACCEPTED {
            if attempt.token.is_none() {
                tracing::error!(
                    job = attempt.job_id,
                    "the endpoint answers later, but cannot authenticate: set HANDLER_SECRET"
                );
                let what = "the endpoint answers later, which this process does not allow";
                return Err(HandlerError::Failed(what.to_owned()));
            }
            return Ok(Worked::Later);
        }
        let body = read(response, MAX_OUTPUT).await.map_err(|error| match error {
            Some(error) => failed(error),
            None => HandlerError::Permanent(format!("the output is larger than {MAX_OUTPUT} bytes")),
        })?;
        // 204 and similar.
        let output: Value = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&body)
                .map_err(|error| HandlerError::Failed(format!("the output is not JSON: {error}")))?
        };
        Ok(Outcome::from_output(output)?.into())
    }
}

#[async_trait]
impl Handler for Http {
    async fn reserve(&self, _holder: Holder, args: &Map<String, Value>) -> Result<i64, Refusal> {
        self.amount.of(args).map_err(Refusal::Arguments)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        tokio::select! {
            finished = self.ask(&attempt) => finished,
            () = attempt.cancelled.cancelled() => Err(HandlerError::Cancelled),
        }
    }
}

/// The request itself is at fault, and would fail again.
fn is_final(status: StatusCode) -> bool {
    [
        StatusCode::BAD_REQUEST,
        StatusCode::CONFLICT,
        StatusCode::GONE,
        StatusCode::PAYLOAD_TOO_LARGE,
        StatusCode::UNPROCESSABLE_ENTITY,
    ]
    .contains(&status)
}

/// Whether the body is problem details (RFC 9457).
fn is_problem(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/problem+json"))
}

/// Whether problem details rule out a retry.
fn forbids_retry(body: &[u8]) -> bool {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    problem.get("retry") == Some(&Value::Bool(false))
}

/// The message omits the URL, because the job's owner reads the message.
fn failed(error: reqwest::Error) -> HandlerError {
    HandlerError::Failed(outbound::reason(error))
}

/// The body, or the error that interrupted it: `None` when the body is longer than `most`.
async fn read(mut response: Response, most: usize) -> Result<Vec<u8>, Option<reqwest::Error>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(Some)? {
        if body.len() + chunk.len() > most {
            return Err(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_client_errors_are_final() {
        for (code, expected) in [
            (400, true),
            (409, true),
            (410, true),
            (413, true),
            (422, true),
            (401, false),
            (403, false),
            (404, false),
            (421, false),
            (408, false),
            (425, false),
            (429, false),
            (500, false),
            (302, false),
        ] {
            assert_eq!(is_final(StatusCode::from_u16(code).unwrap()), expected, "{code}");
        }
    }
}

//! The caller of a request: the client that the edge's assertion names, or the holder that a service key acts for.

use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use weir_policy::assertion::{self, AssertionError};

use super::headers::{self, REQUEST_ID};
use super::job_token;
use super::problem::ApiError;
use super::service_key;
use super::state::Api;
use crate::telemetry::traces::TraceContext;
use weir_ledger::control::Scope;
use weir_ledger::holder::Holder;
use weir_policy::subject::Identity;

/// The caller of a request.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) holder: Holder,
    /// The user that the token names; `None` for an anonymous caller.
    pub(super) user: Option<Identity>,
    pub(super) request_id: String,
    /// The trace context that the request continues.
    pub(super) trace: TraceContext,
    /// The request's job token.
    pub(super) job_token: Option<String>,
    /// When the user's token expires, in seconds since the Unix epoch; `None` without a token.
    pub(super) token_expires_at: Option<u64>,
    /// The name of the service key; `None` without one.
    pub(super) key: Option<String>,
}

impl Caller {
    /// Refuses anonymous callers. They have no list of jobs, because many clients share an address.
    pub(super) fn signed_in(&self) -> Result<(), ApiError> {
        self.holder.user_id.map(|_| ()).ok_or(ApiError::NotSignedIn)
    }
}

/// The job token in the header, or in the query.
fn job_token(parts: &Parts) -> Option<String> {
    let header = parts.headers.get(job_token::HEADER);
    if let Some(token) = header.and_then(|value| value.to_str().ok()) {
        return Some(token.to_owned());
    }
    let query = parts.uri.query()?.split('&');
    let mut values = query.filter_map(|pair| pair.strip_prefix(job_token::PARAMETER)?.strip_prefix('='));
    values.next().map(str::to_owned)
}

/// The caller and request id for the access log. Only the extractor of the caller fills it, from a verified assertion,
/// so that a client cannot write another request's id into the log.
#[derive(Clone)]
pub(super) struct RequestRecord {
    caller: Arc<OnceLock<Caller>>,
    key: Arc<OnceLock<String>>,
    trace: TraceContext,
}

impl RequestRecord {
    pub(super) fn new(trace: TraceContext) -> Self {
        Self {
            caller: Arc::default(),
            key: Arc::default(),
            trace,
        }
    }

    pub(super) fn caller(&self) -> Option<&Caller> {
        self.caller.get()
    }

    /// The name of the service key.
    pub(super) fn key(&self) -> Option<&str> {
        self.key.get().map(String::as_str)
    }
}

/// The assertion of a request, and what it must match.
pub(super) struct Asserted<'a> {
    pub(super) token: &'a str,
    pub(super) method: &'a str,
    /// Path and query.
    pub(super) path: &'a str,
    /// Seconds since the Unix epoch.
    pub(super) now: u64,
}

impl<'a> Asserted<'a> {
    pub(super) fn of(parts: &'a Parts) -> Self {
        let mut values = parts.headers.get_all(assertion::HEADER).iter();
        Self {
            token: match (values.next(), values.next()) {
                (Some(value), None) => value.to_str().unwrap_or_default(),
                // With two assertions, it is unclear which one counts.
                _ => "",
            },
            method: parts.method.as_str(),
            path: parts.uri.path_and_query().map_or("/", |path| path.as_str()),
            now: jiff::Timestamp::now().as_second().unsigned_abs(),
        }
    }
}

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let record = parts.extensions.get::<RequestRecord>();
        let trace = record.map(|record| record.trace.clone()).unwrap_or_default();
        let caller = if service_key::shown(parts).is_some() {
            let is_safe = matches!(parts.method, Method::GET | Method::HEAD);
            let scope = if is_safe { Scope::Read } else { Scope::Submit };
            let key = service_key::verified(api, parts, scope).await?;
            if let Some(record) = record {
                let _ = record.key.set(key.name.clone());
            }
            let user = service_key::on_behalf_of(parts)?;
            Self {
                holder: api.holders.subject(&user.holder),
                user: Some(user),
                request_id: headers::request_id(parts.headers.get(REQUEST_ID)),
                job_token: None,
                token_expires_at: None,
                key: Some(key.name),
                trace,
            }
        } else {
            let Asserted {
                token,
                method,
                path,
                now,
            } = Asserted::of(parts);
            let verified = assertion::verify(&api.keys, token, method, path, now)
                .map_err(|error: AssertionError| ApiError::Unauthorized(error.to_string()))?;
            Self {
                holder: api.holders.of(&verified.caller),
                token_expires_at: verified.caller.token_expires_at,
                key: None,
                user: verified.caller.user,
                request_id: verified.request_id,
                job_token: job_token(parts),
                trace,
            }
        };
        if let Some(record) = record {
            // A request has one caller, so this is set once.
            let _ = record.caller.set(caller.clone());
        }
        Ok(caller)
    }
}

/// An authenticated caller of `/admin`.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    /// As in the log of changes.
    pub(super) actor: String,
}

impl FromRequestParts<Arc<Api>> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let key = service_key::verified(api, parts, Scope::Admin).await?;
        if let Some(record) = parts.extensions.get::<RequestRecord>() {
            let _ = record.key.set(key.name.clone());
        }
        Ok(Self {
            actor: format!("key:{}", key.name),
        })
    }
}

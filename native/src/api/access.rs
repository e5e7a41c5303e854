//! Counts each request, and logs one line for it if `ACCESS_LOG` asks for it.

use std::borrow::Cow;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use metrics::{counter, histogram};
use uuid::Uuid;

use super::caller::RequestRecord;
use super::headers::{REQUEST_ID, request_id};
use crate::telemetry::traces;

/// Counts and logs a request when its answer starts. An event stream continues after its line.
pub(super) async fn log(mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = method(request.method());
    // The route, not the path: labels and logs must not grow with the number of jobs.
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "none".to_owned(), |path| path.as_str().to_owned());
    let mut span = traces::request(method, &route, request.headers());
    let record = RequestRecord::new(span.context());
    request.extensions_mut().insert(record.clone());
    let given_id = request.headers().get(REQUEST_ID).cloned();
    let mut response = next.run(request).await;
    let status = response.status().as_u16();
    let elapsed = started.elapsed();
    counter!("weir_http_requests_total", "method" => method, "route" => route.clone(), "status" => status.to_string())
        .increment(1);
    histogram!("weir_http_request_duration_seconds").record(elapsed.as_secs_f64());
    let caller = record.caller();
    let request_id = match (caller, record.key()) {
        (Some(caller), _) => Cow::Borrowed(&*caller.request_id),
        (None, Some(_)) => Cow::Owned(request_id(given_id.as_ref())),
        // A new id. Clients choose the `X-Request-Id` they send, so it could lead to another request's lines.
        (None, None) => Cow::Owned(Uuid::now_v7().to_string()),
    };
    // The edge adds its own request id to the answers that it forwards.
    if (caller.is_none() || record.key().is_some())
        && let Ok(id) = HeaderValue::from_str(&request_id)
    {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    span.set("http.response.status_code", i64::from(status));
    span.set("weir.request_id", request_id.clone().into_owned());
    if let Some(user) = caller.and_then(|caller| caller.holder.user_id) {
        span.set("user.id", user.to_string());
    }
    if response.status().is_server_error() {
        span.failed(i64::from(status), String::new());
    }
    // Changes by an operator or a backend are rare, and each is worth a line. So are the answers that a wrong setup
    // gets.
    let is_change = route.starts_with("/admin") && method != "GET" && method != "HEAD";
    weir_ledger::access_log!(
        is_change || status == 401 || status >= 500,
        request_id = &*request_id,
        user = caller
            .and_then(|caller| caller.holder.user_id)
            .map(tracing::field::display),
        // The user who asked, within an organisation.
        subject = caller.and_then(|caller| Some(caller.user.as_ref()?.subject.as_str())),
        // The service key, for backends that call on behalf of users.
        key = record.key(),
        method,
        route,
        status,
        duration_ms = (elapsed.as_secs_f64() * 1e6).round() / 1e3,
        "request"
    );
    response
}

/// Only known methods, because a client can send any word.
fn method(method: &axum::http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

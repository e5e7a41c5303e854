//! Forwarding a request to the origin and its response to the client. Bodies are streamed, and a request's is counted.

use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Request, Response};
use weir_policy::address::ClientAddress;
use weir_policy::assertion::{self, Caller};
use weir_policy::problem::Problem;
use weir_policy::token::User;

use crate::clock;
use crate::context::RequestContext;
use crate::events::Event;
use crate::glue::{self, HeaderChanges, Names};
use crate::trace::Trace;

/// Request headers that are forwarded. All others are dropped: anything that could be taken for an identity, in any
/// spelling, hop-by-hop headers, and `Authorization` and `Cookie`, which the edge has already checked.
const REQUEST_HEADERS: [&str; 20] = [
    "accept",
    "accept-language",
    "cache-control",
    "content-encoding",
    "content-language",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-event-id",
    "prefer",
    "range",
    "tracestate",
    "user-agent",
    // What an anonymous submitter proves itself with: not an identity, and only the origin can verify it.
    "weir-job-token",
    "weir-priority",
    "weir-run-at",
];

/// Response headers that are passed to the client. `Set-Cookie` is not among them: the origin sets no cookies.
const RESPONSE_HEADERS: [&str; 21] = [
    "accept-ranges",
    "allow",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "last-modified",
    "link",
    "location",
    // The quotas of a user. The edge appends its own policy.
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "server-timing",
    "vary",
    "www-authenticate",
    // For a proxy in front of the edge.
    "x-accel-buffering",
];

thread_local! {
    static LISTED: (Names, Names) = (
        glue::names(&REQUEST_HEADERS.join("\n")),
        glue::names(&RESPONSE_HEADERS.join("\n")),
    );
}

/// A request to be forwarded.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) request: &'a Request,
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    pub(crate) scheme: &'a str,
    pub(crate) path_and_query: &'a str,
    pub(crate) user: Option<&'a User>,
    pub(crate) address: ClientAddress,
    pub(crate) trace: &'a Trace,
}

/// The result of forwarding: the origin's response, or a problem to answer with.
pub(crate) enum Forwarded {
    Response(Response),
    Problem(Problem),
}

/// Sends the request and waits for the headers of the origin's response.
pub(crate) async fn send(
    context: &RequestContext<'_>,
    outgoing: &Outgoing<'_>,
) -> Result<Forwarded, JsValue> {
    let config = context.config;
    let changes = request_changes(context, outgoing)?;
    let url = format!("{}{}", config.origin, outgoing.path_and_query);
    let sent = LISTED.with(|(listed, _)| {
        glue::forward(
            &url,
            outgoing.request,
            listed,
            changes.packed(),
            config.max_body_bytes,
            config.upload_timeout_ms,
            config.origin_timeout_ms,
        )
    });
    // `fetch` refuses some methods, such as CONNECT and TRACE.
    let Ok(response) = sent else {
        return Ok(Forwarded::Problem(Problem::new(
            501,
            "Not Implemented",
            "The method is not supported.",
        )));
    };
    // After a timeout, the runtime cancels the fetch as soon as the client has its response.
    let error = match JsFuture::from(response).await {
        Ok(response) => {
            let response: Response = response.unchecked_into();
            let status = response.status();
            // No response can be made with any other.
            if (200..600).contains(&status) {
                return Ok(Forwarded::Response(response));
            }
            context.report(
                Event::OriginUnreachable,
                &format!("the origin answered with status {status}"),
            );
            return Ok(Forwarded::Problem(
                unreachable().with("request_id", context.request_id),
            ));
        }
        Err(error) => error,
    };
    let problem = match error.as_string().as_deref() {
        Some(glue::TOO_LARGE) => {
            let detail = format!("The body may have at most {} bytes.", config.max_body_bytes);
            Problem::new(413, "Content Too Large", detail)
        }
        Some(glue::CLIENT_ABORTED) => {
            context.report(Event::ClientAborted, "the body broke off");
            Problem::new(400, "Bad Request", "The body broke off.")
        }
        Some(glue::CLIENT_SLOW) => {
            let detail = format!("no complete body within {} ms", config.upload_timeout_ms);
            context.report(Event::ClientSlow, &detail);
            Problem::new(408, "Request Timeout", "The body did not arrive in time.")
        }
        Some(glue::TIMED_OUT) => {
            let detail = format!("no response within {} ms", config.origin_timeout_ms);
            context.report(Event::OriginTimedOut, &detail);
            let detail = "The origin did not answer in time. Please try again later.";
            Problem::new(504, "Gateway Timeout", detail)
        }
        _ => {
            context.report(Event::OriginUnreachable, &crate::timeout::message(&error));
            unreachable()
        }
    };
    Ok(Forwarded::Problem(problem.with("request_id", context.request_id)))
}

/// There is no usable response of the origin.
fn unreachable() -> Problem {
    Problem::new(
        502,
        "Bad Gateway",
        "The origin could not be reached. Please try again later.",
    )
}

/// The headers that the edge adds to the client's.
fn request_changes(context: &RequestContext<'_>, outgoing: &Outgoing<'_>) -> Result<HeaderChanges, JsValue> {
    let caller = Caller {
        user: outgoing.user.map(|user| user.identity.clone()),
        client_address: outgoing.address.key.to_string(),
        token_expires_at: outgoing.user.map(|user| user.expires_at),
    };
    let assertion = assertion::sign(
        &context.config.assertion_key,
        &caller,
        outgoing.method,
        outgoing.path_and_query,
        context.request_id,
        clock::now_ms() / 1000,
    )
    .map_err(|error| JsValue::from_str(&error.to_string()))?;
    let mut changes = HeaderChanges::default();
    changes
        .set(assertion::HEADER, &assertion)
        .set("traceparent", &outgoing.trace.traceparent)
        .set("x-request-id", context.request_id)
        .set("x-forwarded-host", outgoing.host)
        .set("x-forwarded-proto", outgoing.scheme);
    if let Some(address) = outgoing.address.address {
        let address = address.to_string();
        changes
            .set("x-forwarded-for", &address)
            .set("x-real-ip", &address);
    }
    if !outgoing.trace.continued {
        changes.remove("tracestate");
    }
    Ok(changes)
}

/// The origin's response with the edge's own fields.
pub(crate) fn pass(response: &Response, fields: &HeaderChanges) -> Result<Response, JsValue> {
    // Responses depend on the caller. If the origin allows caching, then only in the caller's own cache.
    let cache_control = glue::cache_control(response)
        .map_or_else(|| "no-store".to_owned(), |directives| private(&directives));
    let mut changes = HeaderChanges::default();
    changes.set("cache-control", &cache_control).extend(fields);
    LISTED.with(|(_, listed)| glue::pass(response, listed, changes.packed()))
}

/// The same directives, restricted to private caches.
fn private(cache_control: &str) -> String {
    let directives: Vec<_> = cache_control
        .split(',')
        .map(str::trim)
        .filter(|directive| !directive.is_empty())
        .collect();
    let has = |name: &str| {
        directives
            .iter()
            .any(|directive| directive.eq_ignore_ascii_case(name))
    };
    if has("no-store") || has("private") {
        return cache_control.to_owned();
    }
    let is_shared = |directive: &&str| {
        let directive = directive.to_ascii_lowercase();
        directive == "public" || directive.starts_with("s-maxage")
    };
    let kept = directives
        .iter()
        .copied()
        .filter(|directive| !is_shared(directive));
    std::iter::once("private")
        .chain(kept)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_shared_cache_may_store_a_response() {
        assert_eq!(private("public, max-age=60, s-maxage=600"), "private, max-age=60");
        assert_eq!(private("max-age=60"), "private, max-age=60");
        assert_eq!(private("private, max-age=60"), "private, max-age=60");
        assert_eq!(private("no-store"), "no-store");
    }

    #[test]
    fn no_header_that_could_name_a_caller_is_forwarded() {
        for name in REQUEST_HEADERS {
            assert!(!["authorization", "cookie", "forwarded", "host", "connection"].contains(&name));
            // In whose name a backend calls is for backends to say, at the origin.
            assert_ne!(name, "weir-on-behalf-of");
            // A job token names a job, and the origin verifies it; the others are about the job that is submitted.
            let of_jobs = ["weir-job-token", "weir-priority", "weir-run-at"];
            let may_name_a_caller = ["x-", "cf-", "weir"]
                .iter()
                .any(|prefix| name.starts_with(prefix));
            assert!(!may_name_a_caller || of_jobs.contains(&name), "{name}");
        }
    }
}

//! Forwarding a request to the origin and its response to the client. Bodies are streamed, and a request's is counted.

use serde_json::{Value, json};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Request, Response};
use weir_policy::address::ClientAddress;
use weir_policy::assertion::{self, Caller, TokenClaims};
use weir_policy::header::passes_to_client;
use weir_policy::problem::Problem;
use weir_policy::token::User;

use crate::clock;
use crate::config::Config;
use crate::context::RequestContext;
use crate::events::Event;
use crate::glue::{self, HeaderChanges, HeaderFilter};
use crate::origin::Origin;
use crate::timeout::message;
use crate::trace::Trace;

thread_local! {
    static TO_CLIENT: HeaderFilter = glue::header_filter(passes_to_client);
    static WITH_CORS_TO_CLIENT: HeaderFilter =
        glue::header_filter(|name| passes_to_client(name) || name.starts_with("access-control-"));
}

/// Decides which headers pass to the origin.
fn to_origin(config: &Config) -> &HeaderFilter {
    config.to_origin.get_or_init(|| {
        let identity = config.identity_headers.clone();
        glue::header_filter(move |name| identity.pass_to_origin(name))
    })
}

/// A request to be forwarded.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) request: &'a Request,
    pub(crate) origin: &'a Origin,
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    pub(crate) scheme: &'a str,
    pub(crate) path_and_query: &'a str,
    /// The client asks for a WebSocket, the only protocol that the runtime can upgrade to.
    pub(crate) opens_websocket: bool,
    pub(crate) user: Option<&'a User>,
    /// The claims of the user's token that the origin receives.
    pub(crate) claims: &'a TokenClaims,
    /// The client's header, if the route passes it.
    pub(crate) authorization: Option<&'a str>,
    /// The client's header, if the route passes it.
    pub(crate) cookie: Option<&'a str>,
    pub(crate) address: ClientAddress,
    pub(crate) trace: &'a Trace,
    /// `None` if the Worker's own handler gets bodies of any length.
    pub(crate) max_body_bytes: Option<u32>,
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
    let mut changes = request_changes(context, outgoing)?;
    let (url, service) = match outgoing.origin {
        Origin::Url { base, .. } => (format!("{base}{}", outgoing.path_and_query), None),
        Origin::Service { binding, base } => {
            let (scheme, host) = base
                .as_deref()
                .and_then(|base| base.split_once("://"))
                .unwrap_or((outgoing.scheme, outgoing.host));
            // Only requests over the network get this header from the runtime.
            changes.set("host", host);
            let url = format!("{scheme}://{host}{}", outgoing.path_and_query);
            (url, Some(binding.as_str()))
        }
    };
    let caller = outgoing
        .origin
        .is_own_handler()
        .then(|| caller_of_handler(outgoing).to_string());
    let has_timeout = !outgoing.origin.is_own_handler() || config.handler.origin_timeout;
    let sent = glue::forward(
        context.bindings,
        service,
        &url,
        outgoing.request,
        caller.as_deref(),
        to_origin(config),
        changes.packed(),
        outgoing.max_body_bytes,
        config.upload_timeout_ms,
        has_timeout.then_some(config.origin_timeout_ms),
    );
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
            let is_upgrade = status == 101 && outgoing.opens_websocket;
            // No response can be made with any other.
            if is_upgrade || (200..600).contains(&status) {
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
    let problem = failure(context, outgoing, &error);
    Ok(Forwarded::Problem(problem.with("request_id", context.request_id)))
}

/// The problem for an error of [`glue::forward`], which it reports. Not part of its caller, because isolates compile whole
/// functions.
#[cold]
#[inline(never)]
fn failure(context: &RequestContext<'_>, outgoing: &Outgoing<'_>, error: &JsValue) -> Problem {
    let config = context.config;
    match error.as_string().as_deref() {
        Some(glue::TOO_LARGE) => {
            let max = outgoing.max_body_bytes.unwrap_or(u32::MAX);
            let detail = format!("The body may have at most {max} bytes.");
            Problem::new(413, "Content Too Large", detail)
        }
        Some(glue::CLIENT_ABORTED) => {
            context.report(Event::ClientAborted, "the body ended early");
            Problem::new(400, "Bad Request", "The body ended early.")
        }
        Some(glue::CLIENT_SLOW) => {
            let detail = format!("no more of the body for {} ms", config.upload_timeout_ms);
            context.report(Event::ClientSlow, &detail);
            Problem::new(408, "Request Timeout", "The body did not arrive in time.")
        }
        Some(glue::TIMED_OUT) => {
            let detail = format!("no response within {} ms", config.origin_timeout_ms);
            context.report(Event::OriginTimedOut, &detail);
            let detail = "The origin did not answer in time. Please try again later.";
            Problem::new(504, "Gateway Timeout", detail)
        }
        _ if outgoing.origin.is_own_handler() => {
            context.report(Event::HandlerFailed, &message(error));
            let detail = "The handler failed. Its error is in the log.";
            Problem::new(500, "Internal Server Error", detail)
        }
        _ => {
            context.report(Event::OriginUnreachable, &message(error));
            unreachable()
        }
    }
}

/// The origin sent no usable response.
fn unreachable() -> Problem {
    Problem::new(
        502,
        "Bad Gateway",
        "The origin could not be reached. Please try again later.",
    )
}

/// The signed caller, for an origin.
fn signed_caller(context: &RequestContext<'_>, outgoing: &Outgoing<'_>) -> Result<String, JsValue> {
    let caller = Caller {
        user: outgoing.user.map(|user| user.identity.clone()),
        client_address: outgoing.address.key.to_string(),
        token_expires_at: outgoing.user.map(|user| user.expires_at),
    };
    assertion::sign_with_claims(
        &context.config.assertion_key,
        &caller,
        outgoing.claims,
        outgoing.method,
        outgoing.path_and_query,
        context.request_id,
        clock::now_ms() / 1000,
    )
    .map_err(|error| JsValue::from_str(&error.to_string()))
}

/// The caller, for the Worker's own handler.
fn caller_of_handler(outgoing: &Outgoing<'_>) -> Value {
    let identity = outgoing.user.map(|user| &user.identity);
    json!({
        "account": identity.map(|identity| identity.holder.as_str()),
        "user": identity.map(|identity| identity.subject.as_str()),
        "address": outgoing.address.key.to_string(),
        "tokenExpiresAt": outgoing.user.map(|user| user.expires_at),
        "claims": outgoing.claims,
    })
}

/// The headers that the edge adds to the client's.
fn request_changes(context: &RequestContext<'_>, outgoing: &Outgoing<'_>) -> Result<HeaderChanges, JsValue> {
    let mut changes = HeaderChanges::default();
    // The Worker's own handler gets the caller as it is.
    if !outgoing.origin.is_own_handler() {
        changes.set(assertion::HEADER, &signed_caller(context, outgoing)?);
    }
    changes
        .set("traceparent", &outgoing.trace.traceparent)
        .set("x-request-id", context.request_id)
        .set("x-forwarded-host", outgoing.host)
        .set("x-forwarded-proto", outgoing.scheme);
    let credentials = [
        ("authorization", outgoing.authorization),
        ("cookie", outgoing.cookie),
    ];
    for (name, value) in credentials {
        if let Some(value) = value {
            changes.set(name, value);
        }
    }
    if let Some(address) = outgoing.address.address {
        let address = address.to_string();
        changes
            .set("x-forwarded-for", &address)
            .set("x-real-ip", &address);
    }
    if outgoing.opens_websocket {
        changes.set("upgrade", "websocket");
    }
    if !outgoing.trace.continued {
        changes.remove("tracestate");
    }
    Ok(changes)
}

/// The origin's response with the edge's own fields. Without `cors`, its fields of CORS pass too. The Worker's own handler
/// (`is_own`) decides on all other fields.
pub(crate) fn pass(
    response: &Response,
    fields: &HeaderChanges,
    is_own: bool,
    cors: bool,
) -> Result<Response, JsValue> {
    let mut changes = HeaderChanges::default();
    if !is_own {
        // Responses depend on the caller. If the origin allows caching, then only in the caller's own cache.
        let cache_control = glue::cache_control(response)
            .map_or_else(|| "no-store".to_owned(), |directives| private(&directives));
        changes.set("cache-control", &cache_control);
    }
    changes.extend(fields);
    let filter = match (is_own, cors) {
        (_, true) => &TO_CLIENT,
        (false, false) => &WITH_CORS_TO_CLIENT,
        (true, false) => return glue::pass(response, None, changes.packed()),
    };
    filter.with(|filter| glue::pass(response, Some(filter), changes.packed()))
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
    fn shared_caches_may_not_store_responses() {
        assert_eq!(private("public, max-age=60, s-maxage=600"), "private, max-age=60");
        assert_eq!(private("max-age=60"), "private, max-age=60");
        assert_eq!(private("private, max-age=60"), "private, max-age=60");
        assert_eq!(private("no-store"), "no-store");
    }
}

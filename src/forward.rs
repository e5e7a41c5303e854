//! Forwarding a request to the origin and its answer to the client, bodies streaming past without being looked at.

use js_sys::Promise;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{AbortController, Headers, Request, RequestInit, RequestRedirect, Response, ResponseInit};
use weir_policy::address::ClientAddress;
use weir_policy::assertion::{self, Caller};
use weir_policy::problem::Problem;

use crate::answer::Fields;
use crate::bindings::{Bindings, fetch_url};
use crate::clock;
use crate::config::Config;
use crate::events::{Event, report};
use crate::trace::Trace;
use crate::wait::{NoValue, within};

/// Request headers that the origin gets to see. All others stay behind: whatever might pass for an identity, in
/// whatever spelling, hop-by-hop headers, and `Authorization` and `Cookie`, which the edge has dealt with.
const REQUEST_HEADERS: [&str; 17] = [
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
];

/// Response headers that the client gets to see. No cookies: the origin has none to set.
const RESPONSE_HEADERS: [&str; 18] = [
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
    "retry-after",
    "server-timing",
    "vary",
    "www-authenticate",
];

/// A request on its way to the origin.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) request: &'a Request,
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    pub(crate) scheme: &'a str,
    pub(crate) path_and_query: &'a str,
    pub(crate) user_id: Option<String>,
    pub(crate) address: ClientAddress,
    pub(crate) trace: &'a Trace,
}

/// What came of it: the origin's answer, or a problem to answer with.
pub(crate) enum Forwarded {
    Answer(Response),
    Problem(Problem),
}

/// Sends the request and waits for the origin's answer to begin.
pub(crate) async fn send(
    bindings: &Bindings,
    config: &Config,
    outgoing: &Outgoing<'_>,
) -> Result<Forwarded, JsValue> {
    let controller = AbortController::new()?;
    let init = RequestInit::new();
    init.set_method(outgoing.method);
    init.set_headers(request_headers(config, outgoing)?.as_ref());
    init.set_redirect(RequestRedirect::Manual);
    init.set_signal(Some(&controller.signal()));
    if let Some(body) = outgoing.request.body() {
        init.set_body_opt_readable_stream(Some(&body));
    }
    let url = format!("{}{}", config.origin, outgoing.path_and_query);
    let answer: Promise = match fetch_url(&url, &init) {
        Ok(answer) => answer,
        // The method is one that cannot be forwarded, such as CONNECT or TRACE.
        Err(_) => {
            return Ok(Forwarded::Problem(Problem::new(
                501,
                "Not Implemented",
                "The method is not supported.",
            )));
        }
    };
    match within(answer, config.origin_timeout_ms).await {
        Ok(response) => Ok(Forwarded::Answer(response.unchecked_into())),
        Err(NoValue::TimedOut) => {
            controller.abort();
            report(
                bindings,
                Event::OriginTimedOut,
                &format!("no answer within {} ms", config.origin_timeout_ms),
            );
            Ok(Forwarded::Problem(
                Problem::new(
                    504,
                    "Gateway Timeout",
                    "The origin did not answer in time. Please try again later.",
                )
                .with("request_id", outgoing.trace.request_id.clone()),
            ))
        }
        Err(NoValue::Failed(error)) => {
            report(bindings, Event::OriginUnreachable, &crate::wait::message(&error));
            Ok(Forwarded::Problem(
                Problem::new(
                    502,
                    "Bad Gateway",
                    "The origin could not be reached. Please try again later.",
                )
                .with("request_id", outgoing.trace.request_id.clone()),
            ))
        }
    }
}

fn request_headers(config: &Config, outgoing: &Outgoing<'_>) -> Result<Headers, JsValue> {
    let incoming = outgoing.request.headers();
    let headers = Headers::new()?;
    for name in REQUEST_HEADERS {
        if name == "tracestate" && !outgoing.trace.continued {
            continue;
        }
        if let Some(value) = incoming.get(name)? {
            headers.set(name, &value)?;
        }
    }
    let caller = Caller {
        user_id: outgoing.user_id.clone(),
        client_address: outgoing.address.key.to_string(),
    };
    let assertion = assertion::sign(
        &config.assertion_key,
        &caller,
        outgoing.method,
        outgoing.path_and_query,
        &outgoing.trace.request_id,
        clock::now_ms() / 1000,
    )
    .map_err(|error| JsValue::from_str(&error.to_string()))?;
    headers.set(assertion::HEADER, &assertion)?;
    headers.set("traceparent", &outgoing.trace.traceparent)?;
    headers.set("x-request-id", &outgoing.trace.request_id)?;
    headers.set("x-forwarded-host", outgoing.host)?;
    headers.set("x-forwarded-proto", outgoing.scheme)?;
    if let Some(address) = outgoing.address.address {
        let address = address.to_string();
        headers.set("x-forwarded-for", &address)?;
        headers.set("x-real-ip", &address)?;
    }
    Ok(headers)
}

/// The origin's answer as the client gets it, with the edge's own fields.
pub(crate) fn answer(response: &Response, fields: &Fields) -> Result<Response, JsValue> {
    let incoming = response.headers();
    let headers = Headers::new()?;
    for name in RESPONSE_HEADERS {
        if let Some(value) = incoming.get(name)? {
            headers.set(name, &value)?;
        }
    }
    // Answers depend on who asks. An origin that means one to be kept says so, and then only the asker may keep it.
    let cache_control = match headers.get("cache-control")? {
        None => "no-store".to_owned(),
        Some(said) => private(&said),
    };
    headers.set("cache-control", &cache_control)?;
    for (name, value) in fields {
        match *name {
            // The origin may have said something of its own.
            "server-timing" | "vary" => headers.append(name, value)?,
            _ => headers.set(name, value)?,
        }
    }
    let init = ResponseInit::new();
    init.set_status(response.status());
    init.set_headers(&headers);
    Response::new_with_opt_readable_stream_and_init(response.body().as_ref(), &init)
}

/// The same directives, for the asker alone.
fn private(cache_control: &str) -> String {
    let directives: Vec<_> = cache_control
        .split(',')
        .map(str::trim)
        .filter(|directive| !directive.is_empty())
        .collect();
    let is = |name: &str| {
        directives
            .iter()
            .any(|directive| directive.eq_ignore_ascii_case(name))
    };
    if is("no-store") || is("private") {
        return cache_control.to_owned();
    }
    let shared = |directive: &&str| {
        let directive = directive.to_ascii_lowercase();
        directive == "public" || directive.starts_with("s-maxage")
    };
    let kept = directives.iter().copied().filter(|directive| !shared(directive));
    std::iter::once("private")
        .chain(kept)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_shared_cache_may_keep_an_answer() {
        assert_eq!(private("public, max-age=60, s-maxage=600"), "private, max-age=60");
        assert_eq!(private("max-age=60"), "private, max-age=60");
        assert_eq!(private("private, max-age=60"), "private, max-age=60");
        assert_eq!(private("no-store"), "no-store");
    }

    #[test]
    fn no_header_that_could_name_a_caller_is_forwarded() {
        for name in REQUEST_HEADERS {
            assert!(!["authorization", "cookie", "forwarded", "host", "connection"].contains(&name));
            assert!(!name.starts_with("x-") && !name.starts_with("cf-") && !name.starts_with("weir"));
        }
    }
}

//! Forwarding a request to the origin and its answer to the client, bodies streaming past without being looked at.

use wasm_bindgen::{JsCast, JsValue};
use web_sys::{Request, Response};
use weir_policy::address::ClientAddress;
use weir_policy::assertion::{self, Caller};
use weir_policy::problem::Problem;

use crate::call::Call;
use crate::clock;
use crate::events::Event;
use crate::glue::{self, Changes, Names};
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

thread_local! {
    static LISTED: (Names, Names) = (glue::names(&REQUEST_HEADERS.join("\n")), glue::names(&RESPONSE_HEADERS.join("\n")));
}

/// A request on its way to the origin.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) request: &'a Request,
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    pub(crate) scheme: &'a str,
    pub(crate) path_and_query: &'a str,
    pub(crate) user_id: Option<&'a str>,
    pub(crate) address: ClientAddress,
    pub(crate) trace: &'a Trace,
}

/// What came of it: the origin's answer, or a problem to answer with.
pub(crate) enum Forwarded {
    Answer(Response),
    Problem(Problem),
}

/// Sends the request and waits for the origin's answer to begin.
pub(crate) async fn send(call: &Call<'_>, outgoing: &Outgoing<'_>) -> Result<Forwarded, JsValue> {
    let config = call.config;
    let changes = request_changes(call, outgoing)?;
    let url = format!("{}{}", config.origin, outgoing.path_and_query);
    let sent = LISTED
        .with(|(listed, _)| glue::forward(&url, outgoing.method, outgoing.request, listed, changes.packed()));
    // The method is one that cannot be forwarded, such as CONNECT or TRACE.
    let Ok(answer) = sent else {
        return Ok(Forwarded::Problem(Problem::new(
            501,
            "Not Implemented",
            "The method is not supported.",
        )));
    };
    // Past its time, the request ends with the one that it was made for: when that is answered.
    let problem = match within(answer, config.origin_timeout_ms).await {
        Ok(response) => return Ok(Forwarded::Answer(response.unchecked_into())),
        Err(NoValue::TimedOut) => {
            let detail = format!("no answer within {} ms", config.origin_timeout_ms);
            call.report(Event::OriginTimedOut, &detail);
            let detail = "The origin did not answer in time. Please try again later.";
            Problem::new(504, "Gateway Timeout", detail)
        }
        Err(NoValue::Failed(error)) => {
            call.report(Event::OriginUnreachable, &crate::wait::message(&error));
            Problem::new(
                502,
                "Bad Gateway",
                "The origin could not be reached. Please try again later.",
            )
        }
    };
    Ok(Forwarded::Problem(problem.with("request_id", call.request_id)))
}

/// What the origin gets to see beside the client's headers.
fn request_changes(call: &Call<'_>, outgoing: &Outgoing<'_>) -> Result<Changes, JsValue> {
    let caller = Caller {
        user_id: outgoing.user_id.map(str::to_owned),
        client_address: outgoing.address.key.to_string(),
    };
    let assertion = assertion::sign(
        &call.config.assertion_key,
        &caller,
        outgoing.method,
        outgoing.path_and_query,
        call.request_id,
        clock::now_ms() / 1000,
    )
    .map_err(|error| JsValue::from_str(&error.to_string()))?;
    let mut changes = Changes::default();
    changes
        .set(assertion::HEADER, &assertion)
        .set("traceparent", &outgoing.trace.traceparent)
        .set("x-request-id", call.request_id)
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

/// The origin's answer as the client gets it, with the edge's own fields.
pub(crate) fn answer(response: &Response, fields: &Changes) -> Result<Response, JsValue> {
    // Answers depend on who asks. An origin that means one to be kept says so, and then only the asker may keep it.
    let said = glue::values_of(&response.headers(), "cache-control");
    let cache_control = said
        .lines()
        .value()
        .map_or_else(|| "no-store".to_owned(), private);
    let mut changes = Changes::default();
    changes.set("cache-control", &cache_control).extend(fields);
    LISTED.with(|(_, listed)| glue::pass(response, listed, changes.packed()))
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

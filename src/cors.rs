//! Cross-origin access: which pages of other origins may read the API's responses.

use std::str::FromStr;

use http::Uri;
use thiserror::Error;
use weir_policy::header::is_name;

/// The origins whose pages may read responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedOrigins {
    /// Any origin, but without the browser's cookies: a page must send a bearer token, which it only has if it was
    /// given one.
    Any,
    /// These origins, also with cookies.
    Listed(Vec<String>),
}

/// What is no origin of pages.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not an origin; expected `*` alone, or scheme and host such as `https://app.example.com`")]
pub(crate) struct OriginError(String);

impl FromStr for AllowedOrigins {
    type Err = OriginError;

    /// `*`, or origins separated by commas, such as `https://app.example.com`.
    fn from_str(text: &str) -> Result<Self, OriginError> {
        if text.trim() == "*" {
            return Ok(Self::Any);
        }
        text.split(',')
            .map(str::trim)
            .filter(|origin| !origin.is_empty())
            .map(listed)
            .collect::<Result<_, _>>()
            .map(Self::Listed)
    }
}

/// An origin as browsers write it (RFC 6454, section 6.2). `null`, that of every sandboxed frame, is none.
fn listed(text: &str) -> Result<String, OriginError> {
    let wrong = || OriginError(text.to_owned());
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(wrong());
    };
    let has_more = uri.path_and_query().is_some_and(|path| path != "/") || text.contains(['#', '@', '*']);
    let has_no_port = authority.as_str() == authority.host();
    if has_more || authority.host().is_empty() || !has_no_port && authority.port_u16().is_none() {
        return Err(wrong());
    }
    let usual_port = match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    let host = authority.host();
    let origin = match authority.port_u16().filter(|port| Some(*port) != usual_port) {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    };
    Ok(origin.to_ascii_lowercase())
}

/// What a page may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Read responses.
    pub(crate) read: bool,
    /// Read responses to requests with the browser's cookies, which lets the page act as its visitor.
    pub(crate) credentials: bool,
}

impl AllowedOrigins {
    /// What a page of `origin` (the header's value) may do.
    pub(crate) fn access(&self, origin: &str) -> Access {
        match self {
            Self::Any => Access {
                read: true,
                credentials: false,
            },
            Self::Listed(origins) => {
                let listed = origins
                    .iter()
                    .any(|listed| listed == &origin.to_ascii_lowercase());
                Access {
                    read: listed,
                    credentials: listed,
                }
            }
        }
    }
}

/// Response headers that scripts may read, in addition to the safelisted ones.
pub(crate) const EXPOSED: &str =
    "RateLimit, RateLimit-Policy, Retry-After, Location, X-Request-Id, Server-Timing, WWW-Authenticate";

/// Methods that a preflight allows.
pub(crate) const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";

/// Request headers that a preflight allows to pages of any origin.
const REQUEST_HEADERS: &str = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, \
    If-Match, If-None-Match, Cache-Control, Traceparent, Tracestate, Weir-Job-Token, Weir-Priority, Weir-Run-At";

/// How many requested headers are allowed in addition, and how long their names may be.
const MAX_REQUESTED: usize = 32;
const MAX_NAME_BYTES: usize = 64;

/// The request headers that a preflight allows. `requested` are those that a page of a listed origin asks for: libraries
/// add headers of their own, such as `baggage` and `sentry-trace`, and the page would fail without them. The edge forwards
/// none that it would not forward anyway.
pub(crate) fn request_headers(requested: &str) -> String {
    let mut allowed = REQUEST_HEADERS.to_owned();
    let names = requested
        .split(',')
        .map(str::trim)
        .filter(|name| name.len() <= MAX_NAME_BYTES && is_name(name));
    for name in names.take(MAX_REQUESTED) {
        allowed.push_str(", ");
        allowed.push_str(name);
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(configured: &str, origin: &str) -> (bool, bool) {
        let access = configured.parse::<AllowedOrigins>().unwrap().access(origin);
        (access.read, access.credentials)
    }

    #[test]
    fn any_page_may_read_but_not_with_cookies() {
        assert_eq!(access("*", "https://anything.example"), (true, false));
    }

    #[test]
    fn a_listed_page_may_use_cookies_and_others_may_not_read() {
        let listed = "https://app.example.com, https://Admin.example.com/";
        assert_eq!(access(listed, "https://app.example.com"), (true, true));
        assert_eq!(access(listed, "https://admin.example.com"), (true, true));
        for other in [
            "https://app.example.com.evil.example",
            "http://app.example.com",
            "null",
            "",
        ] {
            assert_eq!(access(listed, other), (false, false), "{other}");
        }
    }

    #[test]
    fn requested_headers_are_allowed_when_they_are_names_and_few() {
        let long = "a".repeat(MAX_NAME_BYTES + 1);
        let allowed = request_headers(&format!("baggage, x:y,\"q\",a b,,é, {long},x-ok"));
        assert_eq!(allowed, format!("{REQUEST_HEADERS}, baggage, x-ok"));
        assert_eq!(request_headers(""), REQUEST_HEADERS);
        let many = request_headers(&"x,".repeat(1000));
        assert_eq!(many.matches(", x").count(), MAX_REQUESTED);
    }

    #[test]
    fn an_origin_is_listed_as_browsers_write_it() {
        let listed = "HTTPS://app.example.com:443, http://localhost:5173,chrome-extension://abc, ,";
        for origin in [
            "https://app.example.com",
            "http://localhost:5173",
            "chrome-extension://abc",
        ] {
            assert_eq!(access(listed, origin), (true, true), "{origin}");
        }
        assert_eq!(access(listed, "http://localhost"), (false, false));
    }

    #[test]
    fn what_no_page_has_as_its_origin_is_refused_and_named() {
        for wrong in [
            "null",
            "app.example.com",
            "https://app.example.com/path",
            "https://app.example.com?query",
            "https://app.example.com#fragment",
            "https://user@app.example.com",
            "https://",
            "https://app.example.com:",
            "https://app.example.com:99999",
            "https://*.example.com/",
            "*",
        ] {
            let listed = format!("https://other.example.com,{wrong}");
            let error = listed.parse::<AllowedOrigins>().unwrap_err();
            assert_eq!(error, OriginError(wrong.to_owned()));
        }
    }
}

//! Cross-origin access: which pages of other origins may read the API's responses.

use std::str::FromStr;

use http::Uri;
use thiserror::Error;
use weir_policy::header::is_name;

/// The origins of pages that may read responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedOrigins {
    /// Any origin, but without the browser's cookies: a page must send a bearer token, which it only has if it was
    /// given one.
    Any,
    /// These origins, also with cookies.
    Listed(Vec<String>),
}

/// The text is not an origin of pages.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not an origin; expected `*` alone, or scheme and host such as `https://app.example.com` or `https://*.example.com`"
)]
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

const WILDCARD: &str = "https://*.";

/// An origin, or with [`WILDCARD`] at its start the origins with one more label.
fn listed(text: &str) -> Result<String, OriginError> {
    let wrong = || OriginError(text.to_owned());
    let Some(rest) = text.strip_prefix(WILDCARD) else {
        return exact(text).ok_or_else(wrong);
    };
    // A whole top-level domain is always a mistake.
    let domain = exact(&format!("https://{rest}")).filter(|origin| origin.contains('.'));
    let domain = domain.ok_or_else(wrong)?;
    Ok(domain.replacen("https://", WILDCARD, 1))
}

/// Whether a listed origin has a wildcard that stands for a label of this origin.
fn has_wildcard_for(listed: &str, origin: &str) -> bool {
    let label = listed
        .strip_prefix("https://*")
        .and_then(|domain| origin.strip_prefix("https://")?.strip_suffix(domain));
    let is_label = |label: &str| {
        !label.is_empty()
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    label.is_some_and(is_label)
}

/// An origin as browsers write it (RFC 6454, section 6.2). `null`, that of every sandboxed frame, is none.
fn exact(text: &str) -> Option<String> {
    let uri: Uri = text.parse().ok()?;
    let (scheme, authority) = (uri.scheme_str()?, uri.authority()?);
    let has_more = uri.path_and_query().is_some_and(|path| path != "/") || text.contains(['#', '@', '*']);
    let has_no_port = authority.as_str() == authority.host();
    if has_more || authority.host().is_empty() || !has_no_port && authority.port_u16().is_none() {
        return None;
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
    Some(origin.to_ascii_lowercase())
}

/// A page's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Read responses.
    pub(crate) read: bool,
    /// Read responses to requests with the browser's cookies, which lets the page act as its visitor.
    pub(crate) credentials: bool,
}

impl AllowedOrigins {
    /// The rights of a page of `origin`, the header's value.
    pub(crate) fn access(&self, origin: &str) -> Access {
        match self {
            Self::Any => Access {
                read: true,
                credentials: false,
            },
            Self::Listed(origins) => {
                let origin = origin.to_ascii_lowercase();
                // No page's origin contains an asterisk.
                let is_listed = !origin.contains('*') && origins.contains(&origin);
                Access {
                    read: is_listed || origins.iter().any(|listed| has_wildcard_for(listed, &origin)),
                    credentials: is_listed,
                }
            }
        }
    }
}

/// Response headers that scripts may read, in addition to the safelisted ones.
const EXPOSED: &str =
    "RateLimit, RateLimit-Policy, Retry-After, Location, X-Request-Id, Server-Timing, WWW-Authenticate";

/// Request headers that a preflight allows to pages of any origin.
const REQUEST_HEADERS: &str = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, \
    If-Match, If-None-Match, Cache-Control, Traceparent, Tracestate, Weir-Job-Token, Weir-Priority, Weir-Run-At";

/// Names of headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names(Vec<String>);

/// Methods in upper case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Methods(Vec<String>);

impl Methods {
    pub(crate) const DEFAULT: &'static str = "GET, HEAD, POST, PUT, PATCH, DELETE";
}

/// A text that is not a name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{name}` is not {expected}")]
pub(crate) struct NameError {
    name: String,
    expected: &'static str,
}

/// Names separated by commas.
fn names(text: &str, is_valid: fn(&str) -> bool, expected: &'static str) -> Result<Vec<String>, NameError> {
    text.split(',')
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .map(|name| {
            if is_valid(&name) {
                Ok(name)
            } else {
                Err(NameError { name, expected })
            }
        })
        .collect()
}

impl FromStr for Names {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let is_valid = |name: &str| is_name(name) && !name.contains('*');
        names(text, is_valid, "a header; expected names such as `X-Total-Count`").map(Self)
    }
}

impl FromStr for Methods {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let is_valid = |name: &str| name.bytes().all(|byte| byte.is_ascii_uppercase());
        names(text, is_valid, "a method; expected methods such as `GET, POST`").map(Self)
    }
}

/// The methods and headers that pages of other origins may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CorsFields {
    /// Methods that a preflight allows.
    pub(crate) methods: String,
    /// Request headers that a preflight allows.
    request_headers: String,
    /// Response headers that scripts may read.
    pub(crate) exposed: String,
}

/// The maximum number of additional requested headers, and the maximum length of their names.
const MAX_REQUESTED: usize = 32;
const MAX_NAME_BYTES: usize = 64;

impl CorsFields {
    /// These methods, and these headers in addition to the default ones.
    pub(crate) fn new(methods: &Methods, request_headers: &Names, response_headers: &Names) -> Self {
        let with = |default: &str, more: &Names| {
            let more = more.0.iter().map(String::as_str);
            std::iter::once(default)
                .chain(more)
                .collect::<Vec<_>>()
                .join(", ")
        };
        Self {
            methods: methods.0.join(", "),
            request_headers: with(REQUEST_HEADERS, request_headers),
            exposed: with(EXPOSED, response_headers),
        }
    }

    /// The request headers that a preflight allows. `requested` are those that a page of an allowed origin asks for.
    /// Libraries add headers such as `baggage` and `sentry-trace`, and the page would fail without them. The edge
    /// forwards only those that it would forward anyway, and a page without credentials has no rights of a user.
    pub(crate) fn request_headers(&self, requested: &str) -> String {
        let mut allowed = self.request_headers.clone();
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
    fn a_wildcard_is_one_label_over_https_and_does_not_allow_cookies() {
        let listed = "https://*.Pages.dev, https://*.app.example.com:8443/,https://pr-1.pages.dev";
        for (origin, may) in [
            ("https://site.pages.dev", (true, false)),
            ("https://Site-2.pages.dev", (true, false)),
            ("https://a.app.example.com:8443", (true, false)),
            ("https://pr-1.pages.dev", (true, true)),
            ("https://pages.dev", (false, false)),
            ("https://.pages.dev", (false, false)),
            ("https://a.b.pages.dev", (false, false)),
            ("http://site.pages.dev", (false, false)),
            ("https://site.pages.dev:8443", (false, false)),
            ("https://site.pages.dev.evil.example", (false, false)),
            ("https://evilpages.dev", (false, false)),
            ("https://evil.example/.pages.dev", (false, false)),
            ("https://evil.example#.pages.dev", (false, false)),
            ("https://a@b.pages.dev", (false, false)),
            ("https://*.pages.dev", (false, false)),
            ("https://a.app.example.com", (false, false)),
        ] {
            assert_eq!(access(listed, origin), may, "{origin}");
        }
    }

    #[test]
    fn settings_add_headers_and_replace_methods() {
        let fields = CorsFields::new(
            &"GET, QUERY".parse().unwrap(),
            &"X-Api-Key".parse().unwrap(),
            &"X-Total-Count, Link".parse().unwrap(),
        );
        assert_eq!(fields.methods, "GET, QUERY");
        assert_eq!(
            fields.request_headers("a"),
            format!("{REQUEST_HEADERS}, X-Api-Key, a")
        );
        assert_eq!(fields.exposed, format!("{EXPOSED}, X-Total-Count, Link"));
        for wrong in ["*", "X A", "é", "a:b"] {
            assert!(wrong.parse::<Names>().is_err(), "{wrong}");
        }
        assert!("get".parse::<Methods>().is_err());
    }

    #[test]
    fn a_few_valid_requested_headers_are_allowed() {
        let fields = CorsFields::new(&Methods::default(), &Names::default(), &Names::default());
        let request_headers = |requested: &str| fields.request_headers(requested);
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
    fn invalid_origins_are_refused_by_name() {
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
            "http://*.example.com",
            "https://*.com",
            "https://*example.com",
            "https://*.*.example.com",
            "https://a.*.example.com",
            "https://*.example.com/path",
            "https://*.",
            "*",
        ] {
            let listed = format!("https://other.example.com,{wrong}");
            let error = listed.parse::<AllowedOrigins>().unwrap_err();
            assert_eq!(error, OriginError(wrong.to_owned()));
        }
    }
}

//! Cross-origin access: which pages of other origins may read the API's responses.

use std::convert::Infallible;
use std::str::FromStr;

/// The origins whose pages may read responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedOrigins {
    /// Any origin, but without the browser's cookies: a page must send a bearer token, which it only has if it was
    /// given one.
    Any,
    /// These origins, also with cookies.
    Listed(Vec<String>),
}

impl FromStr for AllowedOrigins {
    type Err = Infallible;

    /// `*`, or origins separated by commas, such as `https://app.example.com`.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        if text.trim() == "*" {
            return Ok(Self::Any);
        }
        let origins = text
            .split(',')
            .map(|origin| origin.trim().trim_end_matches('/').to_ascii_lowercase());
        Ok(Self::Listed(
            origins.filter(|origin| !origin.is_empty()).collect(),
        ))
    }
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

/// Request headers that a preflight allows.
pub(crate) const REQUEST_HEADERS: &str = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, \
    If-Match, If-None-Match, Cache-Control, Traceparent, Tracestate, Weir-Job-Token, Weir-Priority, Weir-Run-At";

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
}

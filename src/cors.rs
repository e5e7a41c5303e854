//! Cross-origin access: which pages of other origins may read the API's answers, and with what.

use std::convert::Infallible;
use std::str::FromStr;

/// The pages that may read answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedOrigins {
    /// Those of any origin, but without the browser's cookies: they must bring a bearer token, which only who was
    /// given one has.
    Any,
    /// Those of these origins, also with cookies.
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

/// What a page may do with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Read it.
    pub(crate) read: bool,
    /// Read it although the browser sent its cookies along, which lets a page act as its visitor.
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

/// Headers that scripts may read beside the few that they always may.
pub(crate) const EXPOSED: &str =
    "RateLimit, RateLimit-Policy, Retry-After, Location, X-Request-Id, Server-Timing, WWW-Authenticate";

/// Methods that a preflight allows.
pub(crate) const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";

/// Request headers that a preflight allows.
pub(crate) const REQUEST_HEADERS: &str = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, \
    If-Match, If-None-Match, Cache-Control, Traceparent, Tracestate";

#[cfg(test)]
mod tests {
    use super::*;

    fn access(configured: &str, origin: &str) -> (bool, bool) {
        let access = configured.parse::<AllowedOrigins>().unwrap().access(origin);
        (access.read, access.credentials)
    }

    #[test]
    fn any_page_may_read_but_not_with_its_visitors_cookies() {
        assert_eq!(access("*", "https://anything.example"), (true, false));
    }

    #[test]
    fn a_listed_page_may_act_as_its_visitor_and_others_may_not_read() {
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

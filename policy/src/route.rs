//! Routes: which of the policies for anonymous requests applies, and which paths are reserved.

use std::str::FromStr;

use thiserror::Error;

/// The class of an API request. Each class has its own policy for anonymous requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteClass {
    /// Starts work and costs money. Counted exactly (web ADR-21).
    Limited,
    /// Any other API request, such as polling a job. The policy is looser.
    Other,
}

/// The routes under the exact policy: methods with path prefixes, separated by commas, such as `POST /api/jobs/`. The
/// method `*` matches any method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedRoutes(Vec<Route>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Route {
    method: Option<String>,
    prefix: String,
}

/// A malformed route in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a route; expected a method and a path under /api/, such as `POST /api/jobs/`")]
pub struct RouteError(String);

impl FromStr for LimitedRoutes {
    type Err = RouteError;

    fn from_str(text: &str) -> Result<Self, RouteError> {
        text.split(',')
            .map(str::trim)
            .filter(|route| !route.is_empty())
            .map(route)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn route(text: &str) -> Result<Route, RouteError> {
    let wrong = || RouteError(text.to_owned());
    let (method, prefix) = text.split_once(char::is_whitespace).ok_or_else(wrong)?;
    let prefix = prefix.trim();
    let is_method =
        method == "*" || (!method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase()));
    if !is_method || !prefix.starts_with("/api/") {
        return Err(wrong());
    }
    Ok(Route {
        method: (method != "*").then(|| method.to_owned()),
        prefix: prefix.to_owned(),
    })
}

impl LimitedRoutes {
    /// The class of an API request. `path` is the request's path without its query.
    pub fn class(&self, method: &str, path: &str) -> RouteClass {
        let normalized = normalized(path);
        let limited = self.0.iter().any(|route| {
            route.method.as_deref().is_none_or(|wanted| wanted == method)
                && normalized.starts_with(&route.prefix)
        });
        if limited {
            RouteClass::Limited
        } else {
            RouteClass::Other
        }
    }
}

/// Whether a path is reserved for requests of the edge itself to the origin, in any spelling. Requests of clients
/// to such a path are never forwarded.
pub fn is_reserved_for_edge(path: &str) -> bool {
    normalized(path).starts_with("/api/edge/")
}

/// The path as a server behind the edge might interpret it: percent-decoded, without empty segments. It only serves to
/// classify requests, so that another spelling of a path has the same policy. The forwarded path is unchanged.
fn normalized(path: &str) -> std::borrow::Cow<'_, str> {
    if !path.contains('%') && !path.contains("//") {
        return path.into();
    }
    let bytes = path.as_bytes();
    let mut decoded: Vec<u8> = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escaped = (byte == b'%')
            .then(|| hex_pair(bytes.get(at + 1..at + 3)?))
            .flatten();
        at += if escaped.is_some() { 3 } else { 1 };
        let byte = escaped.unwrap_or(byte);
        if byte != b'/' || decoded.last() != Some(&b'/') {
            decoded.push(byte);
        }
    }
    String::from_utf8_lossy(&decoded).into_owned().into()
}

fn hex_pair(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    match pair {
        [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_of_the_edge_are_reserved_in_any_spelling() {
        let report = crate::counts::PATH;
        for path in [
            report,
            "/api//edge/counts",
            "/api/%65dge/counts",
            "/api/edge%2Fcounts",
            "/api/edge/",
        ] {
            assert!(is_reserved_for_edge(path), "{path}");
        }
        for path in ["/api/edges", "/api/jobs/edge/", "/api/edge"] {
            assert!(!is_reserved_for_edge(path), "{path}");
        }
    }

    fn class(method: &str, path: &str) -> RouteClass {
        "POST /api/jobs/"
            .parse::<LimitedRoutes>()
            .unwrap()
            .class(method, path)
    }

    #[test]
    fn submissions_are_limited_and_reads_are_not() {
        assert_eq!(class("POST", "/api/jobs/analysis"), RouteClass::Limited);
        assert_eq!(class("GET", "/api/jobs/17"), RouteClass::Other);
        assert_eq!(class("DELETE", "/api/jobs/17"), RouteClass::Other);
        assert_eq!(class("POST", "/api/usage"), RouteClass::Other);
    }

    #[test]
    fn another_spelling_of_a_path_has_the_same_policy() {
        for path in [
            "/api//jobs/analysis",
            "/api/%6aobs/analysis",
            "/api/%6Aobs%2Fanalysis",
            "//api/jobs//x",
        ] {
            assert_eq!(class("POST", path), RouteClass::Limited, "{path}");
        }
    }

    #[test]
    fn several_routes_and_any_method_can_be_configured() {
        let routes: LimitedRoutes = "POST /api/jobs/, * /api/lanes,".parse().unwrap();
        assert_eq!(routes.class("GET", "/api/lanes"), RouteClass::Limited);
        assert_eq!(routes.class("POST", "/api/jobs/x"), RouteClass::Limited);
        assert_eq!(routes.class("GET", "/api/jobs/1"), RouteClass::Other);
    }

    #[test]
    fn a_malformed_route_is_refused() {
        for text in [
            "/api/jobs/",
            "POST",
            "POST jobs",
            "post /api/jobs/",
            "POST /jobs/",
        ] {
            assert_eq!(
                text.parse::<LimitedRoutes>(),
                Err(RouteError(text.to_owned())),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn classifying_an_arbitrary_path_does_not_panic(path in ".{0,80}") {
            class("POST", &path);
        }

        #[test]
        fn percent_encoding_does_not_change_the_class(escape in proptest::collection::vec(any::<bool>(), 18)) {
            let path: String = "/api/jobs/analysis"
                .bytes()
                .zip(escape)
                .map(|(byte, escape)| if escape { format!("%{byte:02x}") } else { (byte as char).to_string() })
                .collect();
            prop_assert_eq!(class("POST", &path), RouteClass::Limited);
        }
    }
}

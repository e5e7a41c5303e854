//! Routes: which of the policies for anonymous requests applies, and which paths are reserved.

use std::str::FromStr;

use percent_encoding::percent_decode_str;
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

/// Routes of the configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RouteError {
    /// One is malformed.
    #[error("`{0}` is not a route; expected a method and a path under /api/, such as `POST /api/jobs/`")]
    Malformed(String),
    /// There is none, so nothing would be limited.
    #[error("there is no route; expected one at least, such as `POST /api/jobs/`")]
    None,
}

impl FromStr for LimitedRoutes {
    type Err = RouteError;

    fn from_str(text: &str) -> Result<Self, RouteError> {
        let routes = text
            .split(',')
            .map(str::trim)
            .filter(|route| !route.is_empty())
            .map(route)
            .collect::<Result<Vec<_>, _>>()?;
        if routes.is_empty() {
            return Err(RouteError::None);
        }
        Ok(Self(routes))
    }
}

fn route(text: &str) -> Result<Route, RouteError> {
    let wrong = || RouteError::Malformed(text.to_owned());
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
    /// The class of an API request. `path` is the request's path without its query. Case is ignored, since the origin may
    /// ignore it, too.
    pub fn class(&self, method: &str, path: &str) -> RouteClass {
        let normalized = normalized(path);
        let limited = self.0.iter().any(|route| {
            route.method.as_deref().is_none_or(|wanted| wanted == method)
                && is_below(&normalized, &route.prefix)
        });
        if limited {
            RouteClass::Limited
        } else {
            RouteClass::Other
        }
    }
}

/// Who may send requests to a path of the origin through the edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// Any client.
    Public,
    /// Clients of a development stack, while development is switched on.
    Development,
    /// No client: routes of the edge itself, of operators, of workers, and any path outside `/api/`.
    Private,
}

/// The exposure of a path. It is the same for every spelling of the path that a server behind the edge might accept.
pub fn exposure(path: &str) -> Exposure {
    let path = normalized(path);
    if !path.starts_with("/api/") || is_below(&path, "/api/edge/") {
        Exposure::Private
    } else if is_below(&path, "/api/dev/") {
        Exposure::Development
    } else {
        Exposure::Public
    }
}

fn is_below(path: &str, prefix: &str) -> bool {
    path.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// The path as a server behind the edge might interpret it: percent-decoded, with `\` as `/`, without empty and dot
/// segments. It only serves to classify requests, so that another spelling of a path has the same policy. The
/// forwarded path is unchanged.
fn normalized(path: &str) -> std::borrow::Cow<'_, str> {
    if !path.contains(['%', '\\']) && !path.contains("//") && !path.contains("/.") {
        return path.into();
    }
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let directory = decoded.ends_with(['/', '\\']) && !segments.is_empty();
    format!("/{}{}", segments.join("/"), if directory { "/" } else { "" }).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_spelling_of_a_path_exposes_a_private_route() {
        let report = crate::counts::PATH;
        for path in [
            report,
            "/api//edge/counts",
            "/api/%65dge/counts",
            "/api/edge%2Fcounts",
            "/api/edge/",
            "/api/EDGE/counts",
            "/api/jobs/%2e%2e/edge/counts",
            "/admin/holders/x",
            "/admin/usage/events",
            "/ADMIN/audit-log",
            "/api/%2e%2e/admin/audit-log",
            "/api/jobs/../../admin/holders/x/plan",
            "/worker/jobs/1/complete",
            "/console",
            "/console/jobs/1/cancel",
            "/api/../console",
            "/api/%2e%2e/console",
            "/api/..%2fadmin",
            "/api/..%5cadmin",
            "/api/%2e%2e%2f%2e%2e%2fworker/",
            "/api",
            "/",
            "",
        ] {
            assert_eq!(exposure(path), Exposure::Private, "{path}");
        }
        for path in [
            "/api/dev/token",
            "/api//dev/token",
            "/api/%64ev/token",
            "/api/Dev/token",
            "/api/jobs/../dev/token",
            "/api/jobs%2f..%5Cdev%2ftoken",
            "/api/./dev/",
        ] {
            assert_eq!(exposure(path), Exposure::Development, "{path}");
        }
        for path in [
            "/api/edges",
            "/api/jobs/edge/",
            "/api/edge",
            "/api/devices/",
            "/api/jobs/..",
            "/api/jobs/../",
            "/api/%zz/%c3%28",
        ] {
            let expected = if path == "/api/jobs/.." {
                Exposure::Private
            } else {
                Exposure::Public
            };
            assert_eq!(exposure(path), expected, "{path}");
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
            "/api/Jobs/analysis",
            "/api/JOBS/analysis",
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
                Err(RouteError::Malformed(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn a_list_without_a_route_is_refused_since_it_would_limit_nothing() {
        for text in ["", ",", " , "] {
            assert_eq!(text.parse::<LimitedRoutes>(), Err(RouteError::None), "{text}");
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

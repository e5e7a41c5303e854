//! Headers: which ones pass between client and origin (RFC 9110, 7.6.1), and which client headers could be mistaken for
//! the edge's own.
//!
//! Names are compared as gateways to CGI, WSGI and PHP do: without case, and with `-`, `_` and `.` as the same
//! character. Otherwise `X_User_Id` would reach such a backend as `X-User-Id`.

use std::str::FromStr;

use thiserror::Error;

/// Headers for one connection only, or for the transfer of the message over it.
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "content-length",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Request headers that the edge does not forward.
const EDGE_REQUEST_HEADERS: [&str; 25] = [
    // The edge has checked these. A route may let them pass.
    "authorization",
    "cookie",
    // The edge has the body already, and knows the host.
    "expect",
    "host",
    // Addresses, as other proxies name them.
    "cf-*",
    "client-ip",
    "fastly-client-ip",
    "forwarded",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-forwarded*",
    "x-original-forwarded-for",
    "x-originating-ip",
    "x-real-ip",
    "x-remote-addr",
    "x-remote-ip",
    // These replace the method or path that the edge has counted and signed.
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-url",
    // The edge's own statements, and headers that name the user a backend calls for.
    "weir-*",
    "x-request-id",
];

/// Weir's own headers that clients may send: an anonymous submitter's job token, which only the origin can verify, and
/// options of a job.
const CLIENT_HEADERS: [&str; 4] = [
    "weir-expires-in",
    "weir-job-token",
    "weir-priority",
    "weir-run-at",
];

/// Response headers that the edge does not forward. The edge controls cross-origin access itself, and an `alt-svc`
/// header would let clients bypass the edge.
const EDGE_RESPONSE_HEADERS: [&str; 2] = ["access-control-*", "alt-svc"];

/// The request headers from which backends commonly read a user's name, set by a proxy that they trust.
const COMMON_IDENTITY_HEADERS: &str = "Remote-*, X-Auth-Request-*, X-Auth-User*, X-Authenticated-*, X-Remote-*, \
     X-User, X-User-Email, X-User-Groups, X-User-Id, X-User-Name, X-User-Role*, X-Webauth-*";

/// Request headers that identify a user to the backend, in addition to those that every proxy sets: names, or prefixes
/// of names with `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityHeaders(Vec<String>);

/// A text that is not a header name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a header; expected a name such as `X-User-Id`, or a prefix such as `X-User-*`")]
pub struct HeaderError(String);

impl FromStr for IdentityHeaders {
    type Err = HeaderError;

    /// Names separated by commas, in addition to the common ones.
    fn from_str(text: &str) -> Result<Self, HeaderError> {
        let names = COMMON_IDENTITY_HEADERS.split(',').chain(text.split(','));
        let names = names.map(str::trim).filter(|name| !name.is_empty());
        names
            .map(|name| {
                let start = name.strip_suffix('*').unwrap_or(name);
                let is_valid = is_name(start) && !start.contains('*');
                is_valid
                    .then(|| folded(name))
                    .ok_or_else(|| HeaderError(name.to_owned()))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl IdentityHeaders {
    /// Whether a request header passes to the origin. `name` is the header's name in any spelling.
    pub fn pass_to_origin(&self, name: &str) -> bool {
        let name = folded(name);
        let ends_here = || {
            let configured = self.0.iter().map(String::as_str);
            HOP_BY_HOP
                .into_iter()
                .chain(EDGE_REQUEST_HEADERS)
                .chain(configured)
                .any(|pattern| matches(pattern, &name))
        };
        CLIENT_HEADERS.contains(&name.as_str()) || !ends_here()
    }
}

/// Whether a response header passes to the client.
pub fn passes_to_client(name: &str) -> bool {
    let name = folded(name);
    !HOP_BY_HOP
        .into_iter()
        // The body's length belongs to the body, which is passed unchanged.
        .filter(|hop| *hop != "content-length")
        .chain(EDGE_RESPONSE_HEADERS)
        .any(|pattern| matches(pattern, &name))
}

/// Whether a text is a header's name (RFC 9110, 5.1).
pub fn is_name(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token)
}

/// Whether a pattern matches a folded name. A `*` at its end makes it a prefix.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// The name in lower case, with `-` for every other mark. An asterisk stays.
fn folded(name: &str) -> String {
    name.chars()
        .map(|letter| match letter {
            '*' => '*',
            letter if letter.is_ascii_alphanumeric() => letter.to_ascii_lowercase(),
            _ => '-',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn passes(name: &str) -> bool {
        let identity: IdentityHeaders = "".parse().unwrap();
        identity.pass_to_origin(name)
    }

    #[test]
    fn end_to_end_headers_pass_to_the_origin() {
        for name in [
            "Accept",
            "Accept-Encoding",
            "Baggage",
            "Content-Type",
            "Idempotency-Key",
            "Origin",
            "Referer",
            "Sec-Fetch-Site",
            "Stripe-Signature",
            "User-Agent",
            "Weir-Job-Token",
            "Weir-Priority",
            "Weir-Run-At",
            "X-Api-Key",
            "X-CSRF-Token",
            "X-Requested-With",
            "X-User-Agent",
        ] {
            assert!(passes(name), "{name}");
        }
    }

    #[test]
    fn identity_and_address_headers_do_not_pass_to_the_origin() {
        for name in [
            "Authorization",
            "CF-Connecting-IP",
            "CF-Access-Authenticated-User-Email",
            "Cookie",
            "Forwarded",
            "Proxy-Authorization",
            "Remote-User",
            "True-Client-IP",
            "Weir-Assertion",
            "Weir-On-Behalf-Of",
            "X-Forwarded",
            "X-Forwarded-For",
            "X-Forwarded-User",
            "X-Http-Method-Override",
            "X-Original-URL",
            "X-Real-IP",
            "X-Request-Id",
            "X-User-Id",
        ] {
            assert!(!passes(name), "{name}");
            assert!(!passes(&name.replace('-', "_")), "{name} with underscores");
            assert!(
                !passes(&name.to_uppercase().replace('-', ".")),
                "{name} with dots"
            );
        }
    }

    #[test]
    fn names_are_added_to_the_common_identity_headers() {
        let identity: IdentityHeaders = "X-Org, X-Tenant-*,".parse().unwrap();
        for (name, passes) in [
            ("x-org", false),
            ("x-org-id", true),
            ("x-tenant-id", false),
            ("X_TENANT_ID", false),
            ("x-user-id", false),
            ("authorization", false),
        ] {
            assert_eq!(identity.pass_to_origin(name), passes, "{name}");
        }
        for wrong in ["X User", "*", "X-*-Id", "é"] {
            let error = wrong.parse::<IdentityHeaders>().unwrap_err();
            assert_eq!(error, HeaderError(wrong.to_owned()));
        }
    }

    #[test]
    fn hop_by_hop_and_edge_headers_are_removed_from_responses() {
        for (name, passes) in [
            ("set-cookie", true),
            ("content-security-policy", true),
            ("content-length", true),
            ("x-total-count", true),
            ("www-authenticate", true),
            ("connection", false),
            ("keep-alive", false),
            ("transfer-encoding", false),
            ("proxy-authenticate", false),
            ("access-control-allow-origin", false),
            ("alt-svc", false),
        ] {
            assert_eq!(passes_to_client(name), passes, "{name}");
        }
    }

    proptest! {
        #[test]
        fn header_names_match_in_any_spelling(
            place in 0..(HOP_BY_HOP.len() + EDGE_REQUEST_HEADERS.len()), rest in "[a-z-]{0,8}",
            marks in proptest::collection::vec(0..3_usize, 40), upper in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let all: Vec<_> = HOP_BY_HOP.into_iter().chain(EDGE_REQUEST_HEADERS).collect();
            let name = match all[place].strip_suffix('*') {
                Some(start) => format!("{start}{rest}"),
                None => all[place].to_owned(),
            };
            prop_assume!(!CLIENT_HEADERS.contains(&name.as_str()));
            let spelt: String = name.chars().zip(marks.iter().zip(&upper)).map(|(letter, (mark, upper))| match letter {
                '-' => ['-', '_', '.'][*mark],
                letter if *upper => letter.to_ascii_uppercase(),
                letter => letter,
            }).collect();
            prop_assert!(!passes(&spelt), "{}", spelt);
        }

        #[test]
        fn arbitrary_header_names_do_not_panic(name in ".{0,40}", list in ".{0,40}") {
            let _ = list.parse::<IdentityHeaders>();
            passes(&name);
            passes_to_client(&name);
        }
    }
}

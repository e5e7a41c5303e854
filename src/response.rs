//! Responses that the edge creates.

use serde_json::json;
use wasm_bindgen::JsValue;
use web_sys::Response;
use weir_policy::assertion::ClaimsTooLong;
use weir_policy::problem::{self, Problem};
use weir_policy::token::TokenError;

use crate::glue::{self, HeaderChanges};
use crate::rate_limit_fields::PolicyStatus;

/// The fields of every response that the edge creates or forwards. HSTS (RFC 6797) is only valid over TLS.
pub(crate) fn base_fields(is_https: bool) -> HeaderChanges {
    let mut fields = HeaderChanges::default();
    fields.set("x-content-type-options", "nosniff");
    if is_https {
        // An origin may have a stricter one.
        fields.set_absent("strict-transport-security", "max-age=31536000");
    }
    fields
}

/// A response with a problem as its body. It must not be cached: the problem may be gone a moment later.
pub(crate) fn problem(problem: &Problem, fields: &HeaderChanges) -> Result<Response, JsValue> {
    let mut headers = HeaderChanges::default();
    headers
        .set("content-type", problem::CONTENT_TYPE)
        .set("cache-control", "no-store")
        .set("x-content-type-options", "nosniff")
        .extend(fields);
    glue::respond(problem.status, headers.packed(), Some(&problem.to_json()))
}

/// A response without a body.
pub(crate) fn empty(status: u16, fields: &HeaderChanges) -> Result<Response, JsValue> {
    glue::respond(status, fields.packed(), None)
}

/// How the fields of the client's policy are added to those of a response. Both fields are lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fields {
    /// Users also have the origin's quotas.
    Append,
    /// Anonymous clients have only the edge's policies.
    Replace,
    /// The fields of the Worker's own handler stay.
    Yield,
}

/// Adds the fields of the client's policy.
pub(crate) fn add_rate_limit_fields(status: &PolicyStatus, how: Fields, changes: &mut HeaderChanges) {
    if how == Fields::Replace {
        changes.remove("ratelimit-policy").remove("ratelimit");
    }
    let Some((policy, left)) = status.fields() else {
        return;
    };
    for (name, value) in [("ratelimit-policy", &policy), ("ratelimit", &left)] {
        if how == Fields::Yield {
            changes.set_absent(name, value);
        } else {
            changes.append(name, value);
        }
    }
}

/// An anonymous client is over its limit. Title, status and detail are those of web ADR-21 word for word, since clients may
/// match them.
pub(crate) const TOO_MANY_ANONYMOUS: &str =
    "Rate limit exceeded. Please sign in for higher limits or try again later.";

/// A user is over the limit.
pub(crate) const TOO_MANY_OF_USER: &str = "Rate limit exceeded. Please try again later.";

/// A client has sent too many invalid tokens.
pub(crate) const TOO_MANY_BAD_TOKENS: &str = "Too many requests with invalid tokens. Please try again later.";

/// A client is over its limit. Type and `violated-policies` are those of the draft on rate limit fields.
pub(crate) fn too_many_requests(status: &PolicyStatus, detail: &str) -> Problem {
    Problem::new(429, "Too Many Requests", detail)
        .with_type(problem::QUOTA_EXCEEDED)
        .with("violated-policies", json!([status.named.name]))
}

/// Neither the counting object nor the native limiter can count the submission.
pub(crate) fn counting_unavailable(is_user: bool) -> Problem {
    let detail = if is_user {
        "Submissions cannot be counted right now. Please try again later."
    } else {
        "Anonymous requests cannot be accepted right now. Please sign in or try again later."
    };
    Problem::new(503, "Service Unavailable", detail).with_type(problem::TEMPORARY_REDUCED_CAPACITY)
}

/// The edge does not have the keys that could verify the token.
pub(crate) fn unverifiable() -> Problem {
    let detail = "Your sign-in cannot be verified right now. Please try again later.";
    Problem::new(503, "Service Unavailable", detail)
}

/// The bearer token is not valid.
pub(crate) fn unauthenticated(error: &TokenError) -> Problem {
    Problem::new(401, "Unauthorized", sentence(&error.to_string()))
}

/// The field `WWW-Authenticate` for a bearer token that is not valid (RFC 6750, 3).
pub(crate) fn challenge(error: &TokenError) -> String {
    format!("Bearer realm=\"weir\", error=\"invalid_token\", error_description=\"{error}\"")
}

/// Only users may send the request.
pub(crate) fn sign_in_required() -> Problem {
    Problem::new(401, "Unauthorized", "Please sign in.")
}

/// The configuration refuses the client's address.
pub(crate) fn denied_address() -> Problem {
    Problem::new(403, "Forbidden", "Requests from your address are not accepted.")
}

/// The path does not exist.
pub(crate) fn not_found() -> Problem {
    Problem::new(404, "Not Found", "There is nothing at this path.")
}

/// The claims that the assertion repeats are too long. A sign-in would not help, so this is not 401.
pub(crate) fn claims_too_long(error: ClaimsTooLong) -> Problem {
    Problem::new(
        431,
        "Request Header Fields Too Large",
        sentence(&error.to_string()),
    )
}

/// Path and query are too long.
pub(crate) fn uri_too_long() -> Problem {
    Problem::new(414, "URI Too Long", "Path and query may have at most 16 KB.")
}

/// The edge itself failed. The log has the reason.
pub(crate) fn internal() -> Problem {
    Problem::new(
        500,
        "Internal Server Error",
        "The edge could not handle the request.",
    )
}

/// The edge's configuration has errors. Only the log has them, because they would show an attacker how the edge is set
/// up.
pub(crate) fn misconfigured() -> Problem {
    Problem::new(
        500,
        "Misconfigured",
        "The edge is misconfigured. Its log has the errors.",
    )
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        format!("{}{}.", first.to_uppercase(), letters.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate_limit_fields::NamedPolicy;
    use weir_policy::window::{Algorithm, Policy};

    #[test]
    fn the_429_has_the_wording_of_the_adr() {
        let policy = Policy {
            limit: 10,
            window_ms: 60_000,
            algorithm: Algorithm::Fixed,
        };
        let status = PolicyStatus {
            named: NamedPolicy { name: "anon", policy },
            result: None,
        };
        assert_eq!(
            serde_json::to_value(too_many_requests(&status, TOO_MANY_ANONYMOUS)).unwrap(),
            json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Too Many Requests",
                "status": 429,
                "detail": "Rate limit exceeded. Please sign in for higher limits or try again later.",
                "violated-policies": ["anon"],
            })
        );
    }

    #[test]
    fn every_reason_to_refuse_a_token_is_valid_in_a_header() {
        let errors = [
            TokenError::TooLong,
            TokenError::Malformed("it does not have three parts"),
            TokenError::UnknownKey,
            TokenError::BadSignature,
            TokenError::Expired,
            TokenError::NotYetValid,
            TokenError::WrongIssuerOrAudience,
            TokenError::NotAnAccessToken,
            TokenError::MissingClaim,
        ];
        for error in errors {
            let challenge = challenge(&error);
            assert_eq!(challenge.matches('"').count(), 6, "{challenge}");
            assert!(
                !challenge.contains(['\\', '\r', '\n']) && challenge.is_ascii(),
                "{challenge}"
            );
        }
        assert_eq!(
            unauthenticated(&TokenError::Expired).detail,
            "The token has expired."
        );
    }

    #[test]
    fn hsts_is_not_sent_over_plain_http() {
        assert!(!base_fields(false).packed().contains("strict-transport-security"));
        assert!(base_fields(true).packed().contains("strict-transport-security"));
    }
}

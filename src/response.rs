//! Responses that the edge makes itself.

use serde_json::json;
use wasm_bindgen::JsValue;
use web_sys::Response;
use weir_policy::problem::{self, Problem};
use weir_policy::token::TokenError;

use crate::glue::{self, HeaderChanges};
use crate::rate_limit_fields::PolicyStatus;

/// A response with a problem as its body. It must not be cached: the problem may be gone a moment later.
pub(crate) fn problem(problem: &Problem, fields: &HeaderChanges) -> Result<Response, JsValue> {
    let mut headers = HeaderChanges::default();
    headers
        .set("content-type", problem::CONTENT_TYPE)
        .set("cache-control", "no-store")
        .extend(fields);
    glue::respond(problem.status, headers.packed(), Some(&problem.to_json()))
}

/// A response without a body.
pub(crate) fn empty(status: u16, fields: &HeaderChanges) -> Result<Response, JsValue> {
    glue::respond(status, fields.packed(), None)
}

/// Sets the fields that tell an anonymous client about its policy.
pub(crate) fn set_rate_limit_fields(status: &PolicyStatus, fields: &mut HeaderChanges) {
    fields.set("ratelimit-policy", &status.policy_field());
    if let Some(field) = status.limit_field() {
        fields.set("ratelimit", &field);
    }
}

/// An anonymous client is over its limit. Title, status and detail are those of web ADR-21 word for word, since clients
/// may match them; type and `violated-policies` are those of the draft on rate limit fields.
pub(crate) fn too_many_requests(status: &PolicyStatus) -> Problem {
    Problem::new(
        429,
        "Too Many Requests",
        "Rate limit exceeded. Please sign in for higher limits or try again later.",
    )
    .with_type(problem::QUOTA_EXCEEDED)
    .with("violated-policies", json!([status.named.name]))
}

/// Neither counting object nor native limiter can count a submission.
pub(crate) fn counting_unavailable() -> Problem {
    Problem::new(
        503,
        "Service Unavailable",
        "Anonymous requests cannot be accepted right now. Please sign in or try again later.",
    )
    .with_type(problem::TEMPORARY_REDUCED_CAPACITY)
}

/// The bearer token is not valid.
pub(crate) fn unauthenticated(error: &TokenError) -> Problem {
    Problem::new(401, "Unauthorized", sentence(&error.to_string()))
}

/// The field `WWW-Authenticate` for a bearer token that is not valid (RFC 6750, 3).
pub(crate) fn challenge(error: &TokenError) -> String {
    let description: String = error
        .to_string()
        .chars()
        .filter(|c| !matches!(c, '"' | '\\'))
        .collect();
    format!("Bearer realm=\"weir\", error=\"invalid_token\", error_description=\"{description}\"")
}

/// The path does not exist.
pub(crate) fn not_found() -> Problem {
    Problem::new(404, "Not Found", "There is nothing at this path.")
}

/// The edge itself failed. The log has the reason.
pub(crate) fn internal() -> Problem {
    Problem::new(
        500,
        "Internal Server Error",
        "The edge could not handle the request.",
    )
}

/// The edge's configuration has errors.
pub(crate) fn misconfigured(errors: &[String]) -> Problem {
    Problem::new(
        500,
        "Misconfigured",
        "The edge's configuration has errors; its operator must fix them.",
    )
    .with("errors", json!(errors))
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
            serde_json::to_value(too_many_requests(&status)).unwrap(),
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
    fn a_challenge_is_well_formed() {
        let challenge = challenge(&TokenError::Malformed("a \"quoted\\\" text".into()));
        assert_eq!(challenge.matches('"').count(), 6);
        assert_eq!(
            unauthenticated(&TokenError::Expired).detail,
            "The token has expired."
        );
    }
}

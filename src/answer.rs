//! Answers that the edge gives by itself.

use serde_json::json;
use wasm_bindgen::JsValue;
use web_sys::Response;
use weir_policy::problem::{self, Problem};
use weir_policy::token::TokenError;

use crate::fields::Allowance;
use crate::glue::{self, Changes};

/// An answer that carries a problem. Never stored by anyone: what went wrong now may go right in a moment.
pub(crate) fn problem(problem: &Problem, fields: &Changes) -> Result<Response, JsValue> {
    let mut headers = Changes::default();
    headers
        .set("content-type", problem::CONTENT_TYPE)
        .set("cache-control", "no-store")
        .extend(fields);
    glue::respond(problem.status, headers.packed(), Some(&problem.to_json()))
}

/// An answer without a body.
pub(crate) fn empty(status: u16, fields: &Changes) -> Result<Response, JsValue> {
    glue::respond(status, fields.packed(), None)
}

/// The fields that tell an anonymous client about its policy.
pub(crate) fn rate_limit_fields(allowance: &Allowance, fields: &mut Changes) {
    fields.set("ratelimit-policy", &allowance.policy_field());
    if let Some(field) = allowance.limit_field() {
        fields.set("ratelimit", &field);
    }
}

/// The problem of an anonymous client over its limit: the three members of web ADR-21, word for word, since clients
/// may match them, with the type and the member that the draft on rate limit fields gives such a problem.
pub(crate) fn too_many_requests(allowance: &Allowance) -> Problem {
    Problem::new(
        429,
        "Too Many Requests",
        "Rate limit exceeded. Please sign in for higher limits or try again later.",
    )
    .with_type(problem::QUOTA_EXCEEDED)
    .with("violated-policies", json!([allowance.named.name]))
}

/// The problem of a submission that nothing can count.
pub(crate) fn cannot_count() -> Problem {
    Problem::new(
        503,
        "Service Unavailable",
        "Anonymous requests cannot be accepted right now. Please sign in or try again later.",
    )
    .with_type(problem::TEMPORARY_REDUCED_CAPACITY)
}

/// The problem of a bearer token that is not valid.
pub(crate) fn unauthorized(error: &TokenError) -> Problem {
    Problem::new(401, "Unauthorized", sentence(&error.to_string()))
}

/// The field `WWW-Authenticate` that goes with it (RFC 6750, 3).
pub(crate) fn challenge(error: &TokenError) -> String {
    let description: String = error
        .to_string()
        .chars()
        .filter(|c| !matches!(c, '"' | '\\'))
        .collect();
    format!("Bearer realm=\"weir\", error=\"invalid_token\", error_description=\"{description}\"")
}

/// The problem of a path that is not there.
pub(crate) fn not_found() -> Problem {
    Problem::new(404, "Not Found", "There is nothing at this path.")
}

/// The problem of an error of the edge's own. What exactly went wrong is for the log.
pub(crate) fn internal() -> Problem {
    Problem::new(
        500,
        "Internal Server Error",
        "The edge could not handle the request.",
    )
}

/// The problem of an edge whose configuration is wrong. The list names variables and what they should be, no secret.
pub(crate) fn misconfigured(errors: &[String]) -> Problem {
    Problem::new(
        500,
        "Misconfigured",
        "The edge's configuration has errors; its operator must mend them.",
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
    use crate::fields::Named;
    use weir_policy::window::{Algorithm, Policy};

    #[test]
    fn the_429_has_the_members_of_the_adr_word_for_word() {
        let policy = Policy {
            limit: 10,
            window_ms: 60_000,
            algorithm: Algorithm::Fixed,
        };
        let allowance = Allowance {
            named: Named { name: "anon", policy },
            verdict: None,
        };
        assert_eq!(
            serde_json::to_value(too_many_requests(&allowance)).unwrap(),
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
    fn a_challenge_is_one_well_formed_header() {
        let challenge = challenge(&TokenError::Malformed("a \"quoted\\\" text".into()));
        assert_eq!(challenge.matches('"').count(), 6);
        assert_eq!(
            unauthorized(&TokenError::Expired).detail,
            "The token has expired."
        );
    }
}

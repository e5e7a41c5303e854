//! Problem details for HTTP APIs (RFC 9457), the format of all errors of the edge and the origin.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The media type of a serialised [`Problem`].
pub const CONTENT_TYPE: &str = "application/problem+json";

/// The type of a problem that means no more than its status code (RFC 9457, 4.2.1).
pub const ABOUT_BLANK: &str = "about:blank";

/// The type of a problem caused by a quota policy. Its member `violated-policies` has the names of the policies
/// (draft-ietf-httpapi-ratelimit-headers).
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The type of a problem of a server that temporarily accepts fewer requests than usual
/// (draft-ietf-httpapi-ratelimit-headers).
pub const TEMPORARY_REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The members that RFC 9457 defines. Extensions must not use their names.
const STANDARD_MEMBERS: [&str; 5] = ["type", "title", "status", "detail", "instance"];

/// A problem. It serialises to the body of an `application/problem+json` response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A URI that identifies the type of problem, or [`ABOUT_BLANK`].
    #[serde(default = "about_blank")]
    pub r#type: String,
    /// A short summary, the same for every occurrence of the type.
    pub title: String,
    /// The HTTP status code.
    pub status: u16,
    /// The cause of this occurrence, and how the client can proceed.
    pub detail: String,
    /// Extension members.
    #[serde(flatten)]
    pub extensions: Map<String, Value>,
}

impl Problem {
    /// A problem of type `about:blank`.
    pub fn new(status: u16, title: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            r#type: about_blank(),
            title: title.into(),
            status,
            detail: detail.into(),
            extensions: Map::new(),
        }
    }

    /// Sets the type.
    #[must_use]
    pub fn with_type(mut self, uri: impl Into<String>) -> Self {
        self.r#type = uri.into();
        self
    }

    /// Adds an extension member. Ignores the names of standard members, so that no body contains a name twice.
    #[must_use]
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        if !STANDARD_MEMBERS.contains(&member) {
            self.extensions.insert(member.to_owned(), value.into());
        }
        self
    }

    /// The body of the response, as JSON.
    pub fn to_json(&self) -> String {
        // Serialisation never fails here. The fallback makes sure that an error response never fails itself.
        serde_json::to_string(self)
            .unwrap_or_else(|_| format!(r#"{{"type":"{ABOUT_BLANK}","status":{}}}"#, self.status))
    }
}

fn about_blank() -> String {
    ABOUT_BLANK.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_problem_serialises_standard_and_extension_members() {
        let problem = Problem::new(429, "Quota Exceeded", "No analyses left.")
            .with_type(QUOTA_EXCEEDED)
            .with("quota", json!({"used": 10, "limit": 10}));
        assert_eq!(
            serde_json::from_str::<Value>(&problem.to_json()).unwrap(),
            json!({
                "type": QUOTA_EXCEEDED,
                "title": "Quota Exceeded",
                "status": 429,
                "detail": "No analyses left.",
                "quota": {"used": 10, "limit": 10},
            })
        );
    }

    #[test]
    fn an_extension_member_cannot_replace_a_standard_member() {
        let problem = Problem::new(404, "Not Found", "Job not found.").with("status", 200);
        assert_eq!(problem.to_json().matches("\"status\"").count(), 1);
        assert!(problem.to_json().contains("\"status\":404"));
    }

    #[test]
    fn a_problem_without_a_type_is_about_blank() {
        let problem: Problem =
            serde_json::from_str(r#"{"title":"Not Found","status":404,"detail":"Nothing here."}"#).unwrap();
        assert_eq!(problem.r#type, ABOUT_BLANK);
    }

    proptest! {
        #[test]
        fn every_problem_is_parsed_from_its_json(
            status in 400u16..600,
            title in ".{0,40}",
            detail in ".{0,80}",
            member in "[a-z]{1,12}",
            value in any::<i64>(),
        ) {
            let problem = Problem::new(status, title, detail).with(&member, value);
            prop_assert_eq!(serde_json::from_str::<Problem>(&problem.to_json()).unwrap(), problem);
        }
    }
}

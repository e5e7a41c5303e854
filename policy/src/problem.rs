//! Problem details for HTTP APIs, RFC 9457: the one shape of every error that the edge and the origin answer.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The media type of a serialised [`Problem`].
pub const CONTENT_TYPE: &str = "application/problem+json";

/// The type of a problem that says no more than its status code does (RFC 9457, 4.2.1).
pub const ABOUT_BLANK: &str = "about:blank";

/// The type of a problem that a quota policy caused; its member `violated-policies` names the policies
/// (draft-ietf-httpapi-ratelimit-headers).
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The type of a problem of a server that for a while can take less than it usually does
/// (draft-ietf-httpapi-ratelimit-headers).
pub const TEMPORARY_REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Members that RFC 9457 defines; an extension may not take one of these names.
const STANDARD_MEMBERS: [&str; 5] = ["type", "title", "status", "detail", "instance"];

/// One problem, as RFC 9457 describes it. Serialises to the body of an `application/problem+json` answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// A URI that names the kind of problem. [`ABOUT_BLANK`] when the status says it all.
    #[serde(default = "about_blank")]
    pub r#type: String,
    /// A short summary that does not change from one occurrence to the next.
    pub title: String,
    /// The HTTP status code of the answer that carries this problem.
    pub status: u16,
    /// What happened this time and, where there is something to do, what to do.
    pub detail: String,
    /// A URI reference of this very occurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Members of the problem's own, beside the standard ones.
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
            instance: None,
            extensions: Map::new(),
        }
    }

    /// The same problem with a type of its own.
    #[must_use]
    pub fn with_type(mut self, uri: impl Into<String>) -> Self {
        self.r#type = uri.into();
        self
    }

    /// The same problem with a reference to this occurrence.
    #[must_use]
    pub fn with_instance(mut self, reference: impl Into<String>) -> Self {
        self.instance = Some(reference.into());
        self
    }

    /// The same problem with one more member of its own. A standard member's name is refused silently: the
    /// standard member stays what it is, so that no body ever carries a name twice.
    #[must_use]
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        if !STANDARD_MEMBERS.contains(&member) {
            self.extensions.insert(member.to_owned(), value.into());
        }
        self
    }

    /// The body of the answer, JSON.
    pub fn to_json(&self) -> String {
        // A map with string keys and JSON values always serialises; the fallback is there so that an error
        // answer can never itself fail.
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
    fn a_problem_serialises_its_standard_members_and_its_own() {
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
    fn an_extension_cannot_overwrite_a_standard_member() {
        let problem = Problem::new(404, "Not Found", "There is no such job.").with("status", 200);
        assert_eq!(problem.to_json().matches("\"status\"").count(), 1);
        assert!(problem.to_json().contains("\"status\":404"));
    }

    #[test]
    fn a_body_without_a_type_is_about_blank() {
        let problem: Problem =
            serde_json::from_str(r#"{"title":"Not Found","status":404,"detail":"Nothing here."}"#).unwrap();
        assert_eq!(problem.r#type, ABOUT_BLANK);
    }

    proptest! {
        #[test]
        fn every_problem_comes_back_from_its_json(
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

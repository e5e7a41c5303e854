//! The access log: a line of JSON for a request, with the id that its answer carries and the origin and the workers
//! write too, so that one id finds the whole story.
//!
//! Lines are billed. A request that was forwarded has its line at the origin, and who is denied is denied so often that a
//! flood would write the bill; so by default only what ends here and somebody will ask about has one. No line has a
//! client's address, a token or a query.

use serde::Serialize;
use weir_policy::counts::Outcome;
use worker::console_log;

/// Which requests have a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessLog {
    /// Those that failed (500 and more) and those with a token that is not valid (401).
    Errors,
    Off,
    All,
}

impl AccessLog {
    /// Whether a request that is answered with this status has a line.
    pub(crate) fn wants(self, status: u16) -> bool {
        match self {
            Self::Off => false,
            Self::Errors => status == 401 || status >= 500,
            Self::All => true,
        }
    }
}

/// Paths are as long as a client likes. What is beyond this is left out, in bytes.
const LONGEST_PATH: usize = 200;

/// What a line says.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    event: &'static str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    method: &'a str,
    path: &'a str,
    status: u16,
    outcome: &'static str,
    duration_ms: u64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    pub(crate) status: u16,
    pub(crate) outcome: Outcome,
    /// The user's id, when a valid token said it.
    pub(crate) user: Option<&'a str>,
    pub(crate) duration_ms: u64,
}

impl<'a> Line<'a> {
    pub(crate) fn new(request_id: &'a str, method: &'a str, path: &'a str, end: End<'a>) -> Self {
        Self {
            event: "request",
            request_id,
            user: end.user,
            method,
            path: shortened(path),
            status: end.status,
            outcome: end.outcome.name(),
            duration_ms: end.duration_ms,
        }
    }

    pub(crate) fn write(&self) {
        // Texts and numbers; it cannot fail.
        let line = serde_json::to_string(self).unwrap_or_default();
        console_log!("{line}");
    }
}

fn shortened(path: &str) -> &str {
    path.get(..path.floor_char_boundary(LONGEST_PATH))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_have_no_line_unless_all_have() {
        for (status, errors) in [
            (200, false),
            (202, false),
            (404, false),
            (429, false),
            (401, true),
            (500, true),
            (504, true),
        ] {
            assert_eq!(AccessLog::Errors.wants(status), errors, "{status}");
            assert!(AccessLog::All.wants(status) && !AccessLog::Off.wants(status));
        }
    }

    #[test]
    fn a_line_is_one_line_of_json_whatever_the_path() {
        let end = End {
            status: 429,
            outcome: Outcome::Denied,
            user: None,
            duration_ms: 3,
        };
        let path = format!("/api/\"\n\u{2028}{}ü", "ä".repeat(500));
        let line = serde_json::to_string(&Line::new("id", "POST", &path, end)).unwrap();
        assert!(line.len() < 400 && !line.contains('\n'), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["outcome"], "denied");
        assert_eq!(read.get("user"), None);
    }
}

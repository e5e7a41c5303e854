//! The access log: one line of JSON per request. Its request id is also in the response and in the logs of the origin
//! and the workers.
//!
//! Cloudflare bills log lines. The origin logs forwarded requests, and in a flood, each denial would write a line. So
//! by default, only errors that end at the edge are logged. No line contains a client's address, a token or a query.

use serde::Serialize;
use weir_policy::counts::RequestOutcome;
use weir_policy::subject::Identity;
use worker::console_log;

/// Which requests are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessLog {
    /// Failed requests (status 500 and above) and requests with an invalid token (401).
    Errors,
    Off,
    All,
}

impl AccessLog {
    /// Whether a request with this status is logged.
    pub(crate) fn records(self, status: u16) -> bool {
        match self {
            Self::Off => false,
            Self::Errors => status == 401 || status >= 500,
            Self::All => true,
        }
    }
}

/// Paths are cut to this many bytes: clients choose their length.
const MAX_PATH_BYTES: usize = 200;

/// A line of the log.
#[derive(Debug, Serialize)]
pub(crate) struct LogLine<'a> {
    event: &'static str,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a str>,
    method: &'a str,
    path: &'a str,
    status: u16,
    outcome: &'static str,
    duration_ms: u64,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestSummary<'a> {
    pub(crate) status: u16,
    pub(crate) outcome: RequestOutcome,
    /// The authenticated user.
    pub(crate) user: Option<&'a Identity>,
    pub(crate) duration_ms: u64,
}

impl<'a> LogLine<'a> {
    pub(crate) fn new(
        request_id: &'a str,
        method: &'a str,
        path: &'a str,
        summary: RequestSummary<'a>,
    ) -> Self {
        Self {
            event: "request",
            request_id,
            user: summary.user.map(|user| user.subject.as_str()),
            holder: summary
                .user
                .filter(|user| user.holder != user.subject)
                .map(|user| user.holder.as_str()),
            method,
            path: shortened(path),
            status: summary.status,
            outcome: summary.outcome.name(),
            duration_ms: summary.duration_ms,
        }
    }

    pub(crate) fn write(&self) {
        // Strings and numbers always serialise.
        let line = serde_json::to_string(self).unwrap_or_default();
        console_log!("{line}");
    }
}

fn shortened(path: &str) -> &str {
    path.get(..path.floor_char_boundary(MAX_PATH_BYTES))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_denials_are_not_logged() {
        for (status, errors) in [
            (200, false),
            (202, false),
            (404, false),
            (429, false),
            (401, true),
            (500, true),
            (504, true),
        ] {
            assert_eq!(AccessLog::Errors.records(status), errors, "{status}");
            assert!(AccessLog::All.records(status) && !AccessLog::Off.records(status));
        }
    }

    #[test]
    fn a_record_is_one_line_of_json_for_any_path() {
        let summary = RequestSummary {
            status: 429,
            outcome: RequestOutcome::Denied,
            user: None,
            duration_ms: 3,
        };
        let path = format!("/api/\"\n\u{2028}{}ü", "ä".repeat(500));
        let line = serde_json::to_string(&LogLine::new("id", "POST", &path, summary)).unwrap();
        assert!(line.len() < 400 && !line.contains('\n'), "{line}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["outcome"], "denied");
        assert_eq!(read.get("user"), None);
    }
}

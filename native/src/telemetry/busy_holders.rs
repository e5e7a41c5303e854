//! The holders with the most waiting jobs, as samples of a metric.
//!
//! The exporter keeps every value of a label until the process ends, so it cannot have names that come and go.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use weir_ledger::read::holders::BusyHolder;

use super::metrics::HOLDER_WAITING_JOBS;

/// The number of holders with a sample.
pub(super) const MAX_HOLDERS: i64 = 3;

/// The samples of the last count; empty while they are unknown.
#[derive(Default)]
pub(super) struct BusyHolders(Mutex<String>);

impl BusyHolders {
    pub(super) fn set(&self, holders: &[BusyHolder]) {
        let (name, help) = HOLDER_WAITING_JOBS;
        let mut text = format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
        for holder in holders {
            let label = holder.name().replace('\\', r"\\").replace('"', "\\\"");
            let _ = writeln!(text, "{name}{{holder=\"{label}\"}} {}", holder.waiting);
        }
        if holders.is_empty() {
            // A missing metric and a metric without jobs look the same to an alert.
            let _ = writeln!(text, "{name}{{holder=\"\"}} 0");
        }
        self.replace(text);
    }

    pub(super) fn unknown(&self) {
        self.replace(String::new());
    }

    /// The samples in Prometheus' text format.
    pub(super) fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_holder_has_a_sample_with_an_escaped_name() {
        let busy = BusyHolders::default();
        let holder = |subject: Option<&str>| BusyHolder {
            holder: Uuid::nil(),
            subject: subject.map(str::to_owned),
            plan: "free".to_owned(),
            waiting: 7,
            parked: 7,
            running: 1,
            oldest_turn_ms: 0,
        };
        busy.set(&[holder(Some("a\"\\b")), holder(None)]);
        let text = busy.text();
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"weir_holder_waiting_jobs{holder="a\"\\b"} 7"#,
                r#"weir_holder_waiting_jobs{holder="00000000-0000-0000-0000-000000000000"} 7"#,
            ]
        );
        busy.unknown();
        assert_eq!(busy.text(), "");
    }
}

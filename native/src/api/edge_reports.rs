//! Remembers which of the edge's reports were counted.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

/// The number of reports to remember, so that a repeated one is counted once. Enough for an hour of thirty isolates, or
/// for 100 s of a thousand.
const REMEMBERED: usize = 10_000;

/// The reports that were counted most recently.
#[derive(Debug, Default)]
pub(super) struct RecentReports(Mutex<Latest>);

#[derive(Debug, Default)]
struct Latest {
    ids: HashSet<Arc<str>>,
    /// The same, oldest first.
    order: VecDeque<Arc<str>>,
}

impl RecentReports {
    /// Whether this is the first report with this id. Remembers the id.
    pub(super) fn is_first(&self, id: &str) -> bool {
        let mut latest = self.0.lock();
        let id: Arc<str> = id.into();
        if !latest.ids.insert(Arc::clone(&id)) {
            return false;
        }
        latest.order.push_back(id);
        if latest.order.len() > REMEMBERED
            && let Some(oldest) = latest.order.pop_front()
        {
            latest.ids.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_remembered_up_to_a_limit() {
        let reports = RecentReports::default();
        assert!(reports.is_first("0"));
        assert!(!reports.is_first("0"));
        for id in 1..=REMEMBERED {
            assert!(reports.is_first(&id.to_string()));
        }
        assert!(!reports.is_first(&REMEMBERED.to_string()));
        assert_eq!(reports.0.lock().ids.len(), REMEMBERED);
        assert!(reports.is_first("0"), "forgotten by now");
    }
}

//! The durations and the failures of recent commits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A failure counts for this long, unless a commit succeeds before. If a load balancer sends no more requests to a
/// process with a failure, no commit would ever succeed.
const FAILED_FOR: Duration = Duration::from_secs(10);

/// The commits of this process.
#[derive(Clone, Default)]
pub(super) struct RecentCommits(Arc<Mutex<Recent>>);

#[derive(Default)]
struct Recent {
    longest: Duration,
    failed_at: Option<Instant>,
}

impl RecentCommits {
    /// A commit succeeded after this time, most of which is the flush of the WAL on the server and its synchronous
    /// standby. Transactions keep their locks for as long.
    pub(super) fn record(&self, time: Duration) {
        metrics::histogram!("weir_commit_seconds").record(time.as_secs_f64());
        let mut recent = self.0.lock();
        recent.longest = time.max(recent.longest * 7 / 8);
        recent.failed_at = None;
    }

    /// The server lacked disk or memory for a transaction.
    pub(super) fn record_failure(&self) {
        self.0.lock().failed_at = Some(Instant::now());
    }

    /// The longest recent commit.
    pub(super) fn longest(&self) -> Duration {
        self.0.lock().longest
    }

    /// Whether the last transaction failed for lack of disk or memory, a short time ago.
    pub(super) fn have_failed(&self) -> bool {
        let failed_at = self.0.lock().failed_at;
        failed_at.is_some_and(|at| at.elapsed() < FAILED_FOR)
    }
}

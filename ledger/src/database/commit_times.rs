//! The durations of commits.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// How long commits of this process take, most of which is the flush of the WAL on the server and its synchronous
/// standby. Transactions keep their locks for as long.
#[derive(Clone, Default)]
pub(super) struct CommitTimes(Arc<Mutex<Duration>>);

impl CommitTimes {
    pub(super) fn record(&self, time: Duration) {
        metrics::histogram!("weir_commit_seconds").record(time.as_secs_f64());
        let mut recent = self.0.lock();
        *recent = time.max(*recent * 7 / 8);
    }

    /// The longest recent commit.
    pub(super) fn recent(&self) -> Duration {
        *self.0.lock()
    }
}

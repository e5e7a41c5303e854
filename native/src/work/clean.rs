//! Cleanup: keeps results and history as plans require, and deletes expired rows. Each round processes one slice of
//! each task until a pass is complete. The next pass starts after a pause.

use std::time::{Duration, Instant};

use tokio_postgres::Error;
use weir_ledger::database::{DatabaseError, PreparedClient};
use weir_ledger::pass::{Pass, Slice};
use weir_ledger::reconciliation::{
    self as ledger, FIRST_FINISHED, FIRST_HOLDER, FinishedCursor, HolderCursor,
};

/// Between two complete passes.
const PASS_INTERVAL: Duration = Duration::from_secs(15);

/// After a slice without work.
const REST: Duration = Duration::from_secs(5);

/// Between two scans of all finished jobs that River still has. Scans in between cover jobs that ended since the last
/// scan. A transaction that commits very late ended its jobs before that.
const KEEP_ALL_INTERVAL: Duration = Duration::from_hours(1);

/// The position of each pass.
pub(super) struct Cleaner {
    passed: Option<Instant>,
    /// Whether a caller waits for the current pass.
    hurried: bool,
    submissions: Pass<i64>,
    abandoned: Pass<i64>,
    outputs: Pass<i64>,
    holders: Pass<HolderCursor>,
    finished: [Finished; 3],
    kept_all: Instant,
}

/// Advances a pass by one slice. A failed slice ends the pass.
fn advance<C: Copy>(pass: &mut Pass<C>, slice: Result<Slice<C>, Error>) -> Result<i64, Error> {
    match slice {
        Ok(slice) => {
            pass.advance(slice);
            Ok(slice.done)
        }
        Err(error) => {
            pass.skip_to(None);
            Err(error)
        }
    }
}

/// The finished jobs of one state.
struct Finished {
    state: &'static str,
    after: FinishedCursor,
    is_under_way: bool,
}

impl Cleaner {
    /// Starts with the first slice of everything.
    pub(super) fn new() -> Self {
        Self {
            passed: None,
            hurried: false,
            submissions: Pass::new(REST),
            abandoned: Pass::new(REST),
            outputs: Pass::new(REST),
            holders: Pass::new(REST),
            finished: ["completed", "cancelled", "discarded"].map(|state| Finished {
                state,
                after: FIRST_FINISHED,
                is_under_way: false,
            }),
            kept_all: Instant::now(),
        }
    }

    /// Whether a pass has finished since the last [`Self::hurry`].
    pub(super) fn has_passed(&self) -> bool {
        self.passed.is_some() && !self.is_under_way()
    }

    /// Makes the next round start a pass without rests.
    pub(super) fn hurry(&mut self) {
        self.passed = None;
        self.hurried = true;
    }

    fn is_under_way(&self) -> bool {
        self.submissions.is_under_way()
            || self.abandoned.is_under_way()
            || self.outputs.is_under_way()
            || self.holders.is_under_way()
            || self.finished.iter().any(|finished| finished.is_under_way)
    }

    /// Runs the slices of one round. They are independent: a failed slice does not stop the others.
    pub(super) async fn round(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let may_start = self.passed.is_none_or(|last| last.elapsed() >= PASS_INTERVAL);
        if !may_start && !self.is_under_way() {
            self.hurried = false;
            return Ok(());
        }
        let mut failure = None;
        let mut failed = |error: Error| failure = Some(error);
        // Runs before the steps that delete: a submission outlives River's job only while the job is kept.
        if self.kept_all.elapsed() >= KEEP_ALL_INTERVAL {
            self.kept_all = Instant::now();
            self.finished
                .iter_mut()
                .for_each(|finished| finished.after = FIRST_FINISHED);
        }
        for finished in &mut self.finished {
            if may_start || finished.is_under_way {
                let next = ledger::keep_finished(client, finished.state, finished.after).await;
                let next = next.map_err(&mut failed).unwrap_or(None);
                finished.is_under_way = next.is_some();
                finished.after = next.unwrap_or(finished.after);
            }
        }
        let hurried = self.hurried;
        if self.submissions.is_due(may_start, hurried) {
            let slice = ledger::clean_submissions(client, self.submissions.after().unwrap_or(0)).await;
            advance(&mut self.submissions, slice).map_or_else(&mut failed, |_| ());
        }
        if self.abandoned.is_due(may_start, hurried) {
            let slice = ledger::cancel_abandoned(client, self.abandoned.after().unwrap_or(0)).await;
            match advance(&mut self.abandoned, slice) {
                Ok(0) => {}
                Ok(cancelled) => tracing::warn!(cancelled, "cancelled jobs of deleted accounts"),
                Err(error) => failed(error),
            }
        }
        if self.outputs.is_due(may_start, hurried) {
            let slice = ledger::clean_outputs(client, self.outputs.after().unwrap_or(0)).await;
            advance(&mut self.outputs, slice).map_or_else(&mut failed, |_| ());
        }
        if self.holders.is_due(may_start, hurried) {
            let slice = ledger::clean_holders(client, self.holders.after().unwrap_or(FIRST_HOLDER)).await;
            advance(&mut self.holders, slice).map_or_else(&mut failed, |_| ());
        }
        if may_start {
            ledger::clean_finished(client).await.unwrap_or_else(&mut failed);
            ledger::clean_folded(client).await.unwrap_or_else(&mut failed);
            ledger::clean_windows(client).await.unwrap_or_else(&mut failed);
            let cleaned = ledger::clean_deleted_users(client).await;
            cleaned.unwrap_or_else(&mut failed);
            self.passed = Some(Instant::now());
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }
}

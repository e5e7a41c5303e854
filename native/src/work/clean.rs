//! Keeping what plans keep, and deleting what nobody will ask for any more: a slice of each a round, until all is gone
//! through; then again after a while.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, Error};
use weir_ledger::database::DatabaseError;
use weir_ledger::reconciliation::{
    self as ledger, FIRST_FINISHED, FIRST_HOLDER, FinishedCursor, HolderCursor,
};

/// Between two passes through everything.
const PASS_INTERVAL: Duration = Duration::from_secs(15);

/// Between two looks at all finished jobs that River still has. Those in between are at what ended since the last one; a
/// transaction that commits very late ends its jobs before that.
const KEEP_ALL_INTERVAL: Duration = Duration::from_hours(1);

/// Where the passes are in what they go through.
pub(super) struct Cleaner {
    passed: Option<Instant>,
    submissions: i64,
    abandoned: i64,
    outputs: i64,
    holders: HolderCursor,
    finished: [Finished; 3],
    kept_all: Instant,
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
            submissions: 0,
            abandoned: 0,
            outputs: 0,
            holders: FIRST_HOLDER,
            finished: ["completed", "cancelled", "discarded"].map(|state| Finished {
                state,
                after: FIRST_FINISHED,
                is_under_way: false,
            }),
            kept_all: Instant::now(),
        }
    }

    /// Whether a pass is over since the last [`Self::again`].
    pub(super) fn has_passed(&self) -> bool {
        self.passed.is_some() && !self.is_under_way()
    }

    /// Has the next round begin a pass.
    pub(super) fn again(&mut self) {
        self.passed = None;
    }

    fn is_under_way(&self) -> bool {
        self.submissions > 0
            || self.abandoned > 0
            || self.outputs > 0
            || self.holders != FIRST_HOLDER
            || self.finished.iter().any(|finished| finished.is_under_way)
    }

    /// The slices of one round. Each is on its own: what one of them cannot do keeps no other from going on.
    pub(super) async fn round(&mut self, client: &Client) -> Result<(), DatabaseError> {
        let is_due = self.passed.is_none_or(|last| last.elapsed() >= PASS_INTERVAL);
        if !is_due && !self.is_under_way() {
            return Ok(());
        }
        let is_due_for = |is_under_way: bool| is_due || is_under_way;
        let mut failure = None;
        let mut failed = |error: Error| failure = Some(error);
        // Before what makes room: a submission outlives River's job only while the job is kept.
        if self.kept_all.elapsed() >= KEEP_ALL_INTERVAL {
            self.kept_all = Instant::now();
            self.finished
                .iter_mut()
                .for_each(|finished| finished.after = FIRST_FINISHED);
        }
        for finished in &mut self.finished {
            if is_due_for(finished.is_under_way) {
                let next = ledger::keep_finished(client, finished.state, finished.after).await;
                let next = next.map_err(&mut failed).unwrap_or(None);
                finished.is_under_way = next.is_some();
                finished.after = next.unwrap_or(finished.after);
            }
        }
        if is_due_for(self.submissions > 0) {
            let next = ledger::clean_submissions(client, self.submissions).await;
            self.submissions = next.map_err(&mut failed).unwrap_or(0);
        }
        if is_due_for(self.abandoned > 0) {
            let done = ledger::cancel_abandoned(client, self.abandoned).await;
            let (cancelled, next) = done.map_err(&mut failed).unwrap_or((0, 0));
            self.abandoned = next;
            if cancelled > 0 {
                tracing::warn!(cancelled, "cancelled jobs of deleted accounts");
            }
        }
        if is_due_for(self.outputs > 0) {
            let next = ledger::clean_outputs(client, self.outputs).await;
            self.outputs = next.map_err(&mut failed).unwrap_or(0);
        }
        if is_due_for(self.holders != FIRST_HOLDER) {
            let next = ledger::clean_holders(client, self.holders).await;
            self.holders = next.map_err(&mut failed).unwrap_or(FIRST_HOLDER);
        }
        if is_due {
            ledger::clean_finished(client).await.unwrap_or_else(&mut failed);
            ledger::clean_cache(client).await.unwrap_or_else(&mut failed);
            ledger::clean_windows(client).await.unwrap_or_else(&mut failed);
            self.passed = Some(Instant::now());
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }
}

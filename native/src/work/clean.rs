//! Keeping what plans keep, and deleting what nobody will ask for any more: a slice of each a round, until all is gone
//! through; then again after a while. Where a slice has nothing to do, the next one has time: what this costs goes by what
//! there is to do, and not by how much is there.

use std::time::{Duration, Instant};

use tokio_postgres::{Client, Error};
use weir_ledger::database::DatabaseError;
use weir_ledger::reconciliation::{
    self as ledger, FIRST_FINISHED, FIRST_HOLDER, FinishedCursor, HolderCursor, Slice,
};

/// Between two passes through everything.
const PASS_INTERVAL: Duration = Duration::from_secs(15);

/// After a slice in which nothing was to be done.
const REST: Duration = Duration::from_secs(5);

/// Between two looks at all finished jobs that River still has. Those in between are at what ended since the last one; a
/// transaction that commits very late ends its jobs before that.
const KEEP_ALL_INTERVAL: Duration = Duration::from_hours(1);

/// Where a pass is in what it goes through.
struct Pass<C> {
    /// The slice before; `None` between two passes.
    after: Option<C>,
    rested: Option<Instant>,
}

impl<C: Copy> Pass<C> {
    const fn new() -> Self {
        Self {
            after: None,
            rested: None,
        }
    }

    /// Whether it has a slice in this round, in which passes begin or not.
    fn has_turn(&self, begins: bool, hurries: bool) -> bool {
        match self.after {
            None => begins,
            Some(_) => hurries || self.rested.is_none_or(|rested| rested <= Instant::now()),
        }
    }

    /// Goes on behind a slice. One that failed ends the pass.
    fn go_on(&mut self, slice: Result<Slice<C>, Error>) -> Result<i64, Error> {
        self.after = slice.as_ref().map_or(None, |slice| slice.next);
        let done = slice?.done;
        self.rested = (done == 0).then(|| Instant::now() + REST);
        Ok(done)
    }
}

/// Where the passes are in what they go through.
pub(super) struct Cleaner {
    passed: Option<Instant>,
    /// Whether somebody waits for the pass that is under way.
    hurries: bool,
    submissions: Pass<i64>,
    abandoned: Pass<i64>,
    outputs: Pass<i64>,
    holders: Pass<HolderCursor>,
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
            hurries: false,
            submissions: Pass::new(),
            abandoned: Pass::new(),
            outputs: Pass::new(),
            holders: Pass::new(),
            finished: ["completed", "cancelled", "discarded"].map(|state| Finished {
                state,
                after: FIRST_FINISHED,
                is_under_way: false,
            }),
            kept_all: Instant::now(),
        }
    }

    /// Whether a pass is over since the last [`Self::hurry`].
    pub(super) fn has_passed(&self) -> bool {
        self.passed.is_some() && !self.is_under_way()
    }

    /// Has the next round begin a pass, which does not rest.
    pub(super) fn hurry(&mut self) {
        self.passed = None;
        self.hurries = true;
    }

    fn is_under_way(&self) -> bool {
        self.submissions.after.is_some()
            || self.abandoned.after.is_some()
            || self.outputs.after.is_some()
            || self.holders.after.is_some()
            || self.finished.iter().any(|finished| finished.is_under_way)
    }

    /// The slices of one round. Each is on its own: what one of them cannot do keeps no other from going on.
    pub(super) async fn round(&mut self, client: &Client) -> Result<(), DatabaseError> {
        let begins = self.passed.is_none_or(|last| last.elapsed() >= PASS_INTERVAL);
        if !begins && !self.is_under_way() {
            self.hurries = false;
            return Ok(());
        }
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
            if begins || finished.is_under_way {
                let next = ledger::keep_finished(client, finished.state, finished.after).await;
                let next = next.map_err(&mut failed).unwrap_or(None);
                finished.is_under_way = next.is_some();
                finished.after = next.unwrap_or(finished.after);
            }
        }
        let hurries = self.hurries;
        if self.submissions.has_turn(begins, hurries) {
            let slice = ledger::clean_submissions(client, self.submissions.after.unwrap_or(0)).await;
            self.submissions.go_on(slice).map_or_else(&mut failed, |_| ());
        }
        if self.abandoned.has_turn(begins, hurries) {
            let slice = ledger::cancel_abandoned(client, self.abandoned.after.unwrap_or(0)).await;
            match self.abandoned.go_on(slice) {
                Ok(0) => {}
                Ok(cancelled) => tracing::warn!(cancelled, "cancelled jobs of deleted accounts"),
                Err(error) => failed(error),
            }
        }
        if self.outputs.has_turn(begins, hurries) {
            let slice = ledger::clean_outputs(client, self.outputs.after.unwrap_or(0)).await;
            self.outputs.go_on(slice).map_or_else(&mut failed, |_| ());
        }
        if self.holders.has_turn(begins, hurries) {
            let slice = ledger::clean_holders(client, self.holders.after.unwrap_or(FIRST_HOLDER)).await;
            self.holders.go_on(slice).map_or_else(&mut failed, |_| ());
        }
        if begins {
            ledger::clean_finished(client).await.unwrap_or_else(&mut failed);
            ledger::clean_cache(client).await.unwrap_or_else(&mut failed);
            ledger::clean_windows(client).await.unwrap_or_else(&mut failed);
            self.passed = Some(Instant::now());
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(next: Option<i64>, done: i64) -> Result<Slice<i64>, Error> {
        Ok(Slice { next, done })
    }

    #[test]
    fn a_pass_rests_where_nothing_is_to_be_done_and_goes_on_at_once_where_something_is() {
        let mut pass = Pass::new();
        assert!(!pass.has_turn(false, false), "it has not begun");
        assert!(pass.has_turn(true, false));
        pass.go_on(slice(Some(10), 0)).unwrap();
        assert!(!pass.has_turn(true, false), "it rests, also when others begin");
        assert!(pass.has_turn(false, true), "unless somebody waits for it");
        pass.go_on(slice(Some(20), 1)).unwrap();
        assert!(pass.has_turn(false, false));
        pass.go_on(slice(None, 0)).unwrap();
        assert!(!pass.has_turn(false, true), "it is over");
        assert!(pass.has_turn(true, false));
    }
}

//! Counts of this isolate that have not been reported to the origin.

use std::cell::RefCell;
use std::rc::Rc;

use weir_policy::counts::{Event, RequestOutcome, Tally};

use crate::panics;

thread_local! {
    static TALLY: Rc<RefCell<Tally>> = {
        let tally = Rc::new(RefCell::new(Tally::default()));
        panics::preserve("counts", &tally);
        tally
    };
}

/// Calls `change` with the isolate's tally. `change` must not call back into this module.
pub(crate) fn with<R>(change: impl FnOnce(&mut Tally) -> R) -> R {
    TALLY.with(|tally| change(&mut tally.borrow_mut()))
}

/// Counts an event.
pub(crate) fn count_event(event: Event) {
    with(|tally| tally.event(event));
}

/// Counts a request.
pub(crate) fn count_request(outcome: RequestOutcome) {
    with(|tally| tally.request(outcome));
}

/// Counts the request that panicked. Other requests that were running in the isolate end with it, uncounted.
pub(crate) fn count_panic() {
    let _ = TALLY.try_with(|tally| {
        // The panic may have happened while the tally was borrowed.
        let Ok(mut tally) = tally.try_borrow_mut() else {
            return;
        };
        tally.request(RequestOutcome::Failed);
        tally.event(Event::Internal);
    });
}

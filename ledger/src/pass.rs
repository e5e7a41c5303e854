//! A pass through a large table, one slice at a time. Its cost depends on the work to do and not on the size: after a
//! slice without work, the next one waits.

use std::time::{Duration, Instant};

/// A completed slice.
#[derive(Clone, Copy, Debug)]
pub struct Slice<C> {
    /// The start of the next slice; `None` after the last one.
    pub next: Option<C>,
    /// The number of changed rows.
    pub done: i64,
}

/// The position of a pass.
#[derive(Debug)]
pub struct Pass<C> {
    after: Option<C>,
    rest: Duration,
    rests_until: Option<Instant>,
}

impl<C: Copy> Pass<C> {
    /// A pass that has not started. It rests for this long after a slice without work.
    #[must_use]
    pub const fn new(rest: Duration) -> Self {
        Self {
            after: None,
            rest,
            rests_until: None,
        }
    }

    /// The previous slice; `None` between two passes.
    #[must_use]
    pub const fn after(&self) -> Option<C> {
        self.after
    }

    /// Whether a pass is in progress.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        self.after.is_some()
    }

    /// Whether a slice is due, in a round that may start passes or not. A hurried pass does not rest.
    #[must_use]
    pub fn is_due(&self, may_start: bool, hurried: bool) -> bool {
        match self.after {
            None => may_start,
            Some(_) => hurried || self.rests_until.is_none_or(|until| until <= Instant::now()),
        }
    }

    /// Continues after a slice.
    pub fn advance(&mut self, slice: Slice<C>) {
        self.after = slice.next;
        self.rests_until = (slice.done == 0).then(|| Instant::now() + self.rest);
    }

    /// Continues after a failed slice, without a rest; `None` ends the pass.
    pub fn skip_to(&mut self, next: Option<C>) {
        self.after = next;
        self.rests_until = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_rests_after_a_slice_without_work() {
        let slice = |next, done| Slice { next, done };
        let mut pass = Pass::new(Duration::from_hours(1));
        assert!(!pass.is_due(false, false), "it has not started");
        assert!(pass.is_due(true, false));
        pass.advance(slice(Some(10), 0));
        assert!(
            !pass.is_due(true, false),
            "it rests although a new pass may start"
        );
        assert!(pass.is_due(false, true), "a hurried pass does not rest");
        pass.advance(slice(Some(20), 1));
        assert!(pass.is_due(false, false));
        pass.advance(slice(Some(30), 0));
        pass.skip_to(Some(40));
        assert!(
            pass.is_due(false, false),
            "after a failed slice, it does not rest"
        );
        assert_eq!(pass.after(), Some(40));
        pass.advance(slice(None, 0));
        assert!(!pass.is_due(false, true), "it is over");
        assert!(pass.is_due(true, false));
    }
}

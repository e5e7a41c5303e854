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

    /// Whether a pass is under way.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        self.after.is_some()
    }

    /// Whether a slice is due, in a round that may start passes or not. A hurried pass does not rest.
    #[must_use]
    pub fn has_turn(&self, begins: bool, hurries: bool) -> bool {
        match self.after {
            None => begins,
            Some(_) => hurries || self.rests_until.is_none_or(|until| until <= Instant::now()),
        }
    }

    /// Continues after a slice.
    pub fn go_on(&mut self, slice: Slice<C>) {
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
    fn an_idle_pass_rests_and_a_busy_one_continues() {
        let slice = |next, done| Slice { next, done };
        let mut pass = Pass::new(Duration::from_hours(1));
        assert!(!pass.has_turn(false, false), "it has not begun");
        assert!(pass.has_turn(true, false));
        pass.go_on(slice(Some(10), 0));
        assert!(!pass.has_turn(true, false), "it rests, also when others begin");
        assert!(pass.has_turn(false, true), "unless somebody waits for it");
        pass.go_on(slice(Some(20), 1));
        assert!(pass.has_turn(false, false));
        pass.go_on(slice(Some(30), 0));
        pass.skip_to(Some(40));
        assert!(
            pass.has_turn(false, false),
            "a slice that failed says nothing of the next"
        );
        assert_eq!(pass.after(), Some(40));
        pass.go_on(slice(None, 0));
        assert!(!pass.has_turn(false, true), "it is over");
        assert!(pass.has_turn(true, false));
    }
}

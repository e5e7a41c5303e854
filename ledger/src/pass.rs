//! A pass through something large, a slice at a time. It costs what there is to do, and not what is there: where a slice
//! has nothing to do, the next one has time.

use std::time::{Duration, Instant};

/// A slice of what is gone through.
#[derive(Clone, Copy, Debug)]
pub struct Slice<C> {
    /// Where the next one starts; `None` when this was the last.
    pub next: Option<C>,
    /// How many rows were changed.
    pub done: i64,
}

/// Where a pass is in what it goes through.
#[derive(Debug)]
pub struct Pass<C> {
    after: Option<C>,
    rest: Duration,
    rests_until: Option<Instant>,
}

impl<C: Copy> Pass<C> {
    /// One that has not begun, and that rests for so long after a slice in which nothing was to be done.
    #[must_use]
    pub const fn new(rest: Duration) -> Self {
        Self {
            after: None,
            rest,
            rests_until: None,
        }
    }

    /// The slice before; `None` between two passes.
    #[must_use]
    pub const fn after(&self) -> Option<C> {
        self.after
    }

    /// Whether it has begun and is not over.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        self.after.is_some()
    }

    /// Whether it has a slice now, in a round in which passes begin or not. One that hurries does not rest.
    #[must_use]
    pub fn has_turn(&self, begins: bool, hurries: bool) -> bool {
        match self.after {
            None => begins,
            Some(_) => hurries || self.rests_until.is_none_or(|until| until <= Instant::now()),
        }
    }

    /// Goes on behind a slice.
    pub fn go_on(&mut self, slice: Slice<C>) {
        self.after = slice.next;
        self.rests_until = (slice.done == 0).then(|| Instant::now() + self.rest);
    }

    /// Goes on behind a slice that failed, without a rest; `None` ends the pass.
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

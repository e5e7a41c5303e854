//! How often the database is asked what is going on, however many want to know.

use std::time::Duration;

/// What was found is shown for this long at least.
const SHOWN_FOR: Duration = Duration::from_secs(1);

/// And for this many times as long as it took to find it: a look counts what waits, which may be a million jobs, and is
/// not to take more than a twentieth of the time.
const TIMES_AS_LONG: u32 = 20;

/// But for this long at most.
const MAX_INTERVAL: Duration = Duration::from_secs(10);

/// For how long what a look found is shown before somebody looks again.
#[must_use]
pub fn shown_for(took: Duration) -> Duration {
    (took * TIMES_AS_LONG).clamp(SHOWN_FOR, MAX_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_takes_a_twentieth_of_the_time_and_nobody_sees_what_is_old() {
        let shown = |millis| shown_for(Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 3, 50].map(shown), [1000, 1000, 1000]);
        assert_eq!([100, 300, 500].map(shown), [2000, 6000, 10_000]);
        assert_eq!(shown(60_000), 10_000);
    }
}

//! How many jobs to claim ahead of the workers: as many as they work off before anybody would notice. No I/O.

use std::time::Duration;

/// For how long a job that was claimed ahead waits for its worker, as far as the handlers' pace tells. A claim is one
/// transaction and takes about as long, so that much keeps the workers busy while River makes the next one.
const AHEAD: Duration = Duration::from_millis(5);

/// What a pool starts with: long enough that nothing is claimed ahead.
const UNKNOWN: Duration = Duration::from_secs(1);

/// How much of the way to a shorter time is gone with each handler.
const FALL: u32 = 16;

/// How long handlers take: rises at once and falls slowly (a peak-sensitive moving average), so that one long job counts
/// for more than many short ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace(Duration);

impl Pace {
    pub(super) const fn unknown() -> Self {
        Self(UNKNOWN)
    }

    /// A handler took this long.
    pub(super) fn took(&mut self, time: Duration) {
        self.0 = if time >= self.0 {
            time
        } else {
            self.0 - (self.0 - time) / FALL
        };
    }

    /// How many jobs to claim ahead of so many workers, `most` at most: a power of two, so that it seldom changes, or
    /// none.
    pub(super) fn ahead(&self, workers: usize, most: usize) -> usize {
        let jobs = AHEAD.as_nanos() * workers as u128 / self.0.as_nanos().max(1);
        let jobs = usize::try_from(jobs).unwrap_or(usize::MAX).min(most);
        jobs.checked_ilog2().map_or(0, |log| 1 << log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(times: impl IntoIterator<Item = Duration>) -> Pace {
        let mut pace = Pace::unknown();
        for time in times {
            pace.took(time);
        }
        pace
    }

    fn always(time: Duration) -> Pace {
        after(std::iter::repeat_n(time, 1000))
    }

    #[test]
    fn a_pool_that_knows_nothing_claims_nothing_ahead() {
        assert_eq!(Pace::unknown().ahead(100, 400), 0);
    }

    #[test]
    fn as_many_as_are_worked_off_in_five_milliseconds() {
        assert_eq!(always(Duration::from_millis(20)).ahead(10, 400), 2);
        assert_eq!(always(Duration::from_millis(1)).ahead(10, 400), 32);
        assert_eq!(always(Duration::from_millis(60)).ahead(10, 400), 0);
        assert_eq!(always(Duration::from_secs(60)).ahead(1000, 4000), 0);
    }

    #[test]
    fn never_more_than_allowed() {
        assert_eq!(always(Duration::ZERO).ahead(10, 40), 32);
        assert_eq!(always(Duration::ZERO).ahead(10, 0), 0);
    }

    #[test]
    fn one_long_job_stops_it_and_it_takes_many_short_ones_to_go_on() {
        let mut pace = always(Duration::from_micros(10));
        pace.took(Duration::from_secs(10));
        assert_eq!(pace.ahead(10, 40), 0);
        for _ in 0..50 {
            pace.took(Duration::from_micros(10));
        }
        assert_eq!(pace.ahead(10, 40), 0);
        for _ in 0..200 {
            pace.took(Duration::from_micros(10));
        }
        assert_eq!(pace.ahead(10, 40), 32);
    }
}

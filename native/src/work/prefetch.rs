//! Prefetch: how many jobs to claim before a worker is free for them. No I/O, no clock.

use std::time::{Duration, Instant};

/// The intended wait of a prefetched job for its worker, by the handlers' pace. A claim is one transaction and takes
/// about as long, so this keeps the workers busy during River's next claim. When claims pause for longer, prefetched
/// jobs wait as long.
const PREFETCH_WAIT: Duration = Duration::from_millis(5);

/// Finished handlers are counted over this window.
const WINDOW: Duration = Duration::from_millis(25);

/// The initial estimate of a pool: long enough to prefetch nothing.
const UNKNOWN: Duration = Duration::from_secs(1);

/// Each handler moves the estimate by this fraction towards a shorter time.
const FALL: u32 = 16;

/// The input of a pool's prefetch: how fast its handlers are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefetch {
    /// The typical duration of handlers. It rises immediately and falls slowly (a peak-sensitive moving average), so
    /// that one long job outweighs many short ones.
    time: Duration,
    /// The number of handlers finished in the current window, and in the previous one.
    now: usize,
    before: usize,
    since: Instant,
    /// The pause between claims.
    pause: Duration,
}

impl Prefetch {
    pub(super) fn unknown(now: Instant) -> Self {
        Self {
            time: UNKNOWN,
            now: 0,
            before: 0,
            since: now,
            pause: Duration::ZERO,
        }
    }

    /// Records a handler that took `time`, while claims pause for `pause`.
    pub(super) fn took(&mut self, time: Duration, pause: Duration, now: Instant) {
        self.pause = pause;
        self.time = if time >= self.time {
            time
        } else {
            self.time - (self.time - time) / FALL
        };
        let elapsed = now.saturating_duration_since(self.since);
        let window = WINDOW.max(pause * 2);
        if elapsed >= window {
            self.before = if elapsed < window * 2 { self.now } else { 0 };
            self.now = 0;
            self.since = now;
        }
        self.now += 1;
    }

    /// A job prefetched for this many workers timed out waiting.
    pub(super) fn slowed_down(&mut self, workers: usize) {
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        self.time = self
            .time
            .max(PREFETCH_WAIT.saturating_mul(workers.saturating_add(1)));
        self.now = 0;
        self.before = 0;
    }

    /// The number of jobs to prefetch for this many workers, at most `most`. It is zero or a power of two, so that it
    /// rarely changes. It does not exceed the number of recently finished jobs, because workers with a long job take no
    /// other.
    pub(super) fn jobs(&self, workers: usize, most: usize) -> usize {
        let wait = PREFETCH_WAIT.max(self.pause * 2);
        let jobs = wait.as_nanos() * workers as u128 / self.time.as_nanos().max(1);
        let jobs = usize::try_from(jobs).unwrap_or(usize::MAX);
        let jobs = jobs.min(self.before.max(self.now)).min(most);
        jobs.checked_ilog2().map_or(0, |log| 1 << log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(10);
    const NONE: Duration = Duration::ZERO;

    /// A pool after `count` handlers, one each `every`, and the time at the end.
    fn after(count: u32, every: Duration, took: Duration) -> (Prefetch, Instant) {
        let start = Instant::now();
        let mut prefetch = Prefetch::unknown(start);
        for n in 1..=count {
            prefetch.took(took, NONE, start + every * n);
        }
        (prefetch, start + every * count)
    }

    #[test]
    fn a_new_pool_does_not_prefetch() {
        assert_eq!(Prefetch::unknown(Instant::now()).jobs(100, 400), 0);
    }

    #[test]
    fn five_milliseconds_of_work_are_prefetched() {
        let prefetched = |took: Duration, workers: u32| {
            let (prefetch, _) = after(1000, took / workers, took);
            prefetch.jobs(workers as usize, 400)
        };
        assert_eq!(prefetched(Duration::from_millis(20), 10), 2);
        assert_eq!(prefetched(Duration::from_millis(1), 10), 32);
        assert_eq!(prefetched(Duration::from_millis(60), 10), 0);
        assert_eq!(prefetched(Duration::from_secs(60), 1000), 0);
    }

    #[test]
    fn the_prefetch_never_exceeds_its_maximum() {
        let (prefetch, _) = after(1000, SHORT, SHORT);
        assert_eq!(prefetch.jobs(10, 40), 32);
        assert_eq!(prefetch.jobs(10, 0), 0);
    }

    #[test]
    fn idle_workers_do_not_affect_the_prefetch() {
        // One worker in a thousand has short jobs; the others still run their first.
        let millisecond = Duration::from_millis(1);
        let (prefetch, _) = after(1000, millisecond, millisecond);
        assert_eq!(prefetch.jobs(1000, 4000), 16);
    }

    #[test]
    fn old_jobs_do_not_affect_the_prefetch() {
        let (mut prefetch, then) = after(1000, SHORT, SHORT);
        prefetch.took(SHORT, NONE, then + Duration::from_secs(10));
        assert_eq!(prefetch.jobs(10, 40), 1);
    }

    #[test]
    fn one_long_job_stops_prefetching_for_many_short_ones() {
        let (mut prefetch, mut now) = after(1000, SHORT, SHORT);
        prefetch.took(Duration::from_secs(10), NONE, now);
        assert_eq!(prefetch.jobs(10, 40), 0);
        let mut go_on = |count| {
            for _ in 0..count {
                now += SHORT;
                prefetch.took(SHORT, NONE, now);
            }
            prefetch.jobs(10, 40)
        };
        assert_eq!(go_on(50), 0);
        assert_eq!(go_on(1000), 32);
    }

    #[test]
    fn nothing_is_prefetched_after_an_empty_wait() {
        for workers in [1, 10, 10_000] {
            let (mut prefetch, now) = after(1000, SHORT, SHORT);
            prefetch.slowed_down(workers);
            assert_eq!(prefetch.jobs(workers, 400), 0);
            prefetch.took(SHORT, NONE, now + SHORT);
            assert!(prefetch.jobs(workers, 400) <= 1);
        }
    }

    #[test]
    fn a_pause_between_claims_increases_the_prefetch() {
        let (every, pause) = (Duration::from_millis(1), Duration::from_millis(64));
        let (mut prefetch, mut now) = after(1000, every, every);
        assert_eq!(prefetch.jobs(10, 400), 16);
        for _ in 0..300 {
            now += every;
            prefetch.took(every, pause, now);
        }
        assert_eq!(prefetch.jobs(10, 400), 128);
    }
}

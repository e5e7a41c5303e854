//! Where claims start in the order of a queue's jobs. No I/O, no clock.
//!
//! River orders available jobs by an index. While another session holds an old snapshot, PostgreSQL keeps the index
//! entries of all jobs claimed since then. A claim from the start of the queue reads them all, however few jobs it finds.
//! All jobs before the newest claimed one are claimed, so the next claim can start there.
//!
//! A job may become available later with an earlier start. So claims start a little earlier than they could, and a
//! *look* regularly checks whether there are jobs before that. If there are, the next claim reads the whole queue.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::claim_pace::ClaimCost;

/// Most jobs become available this long after their start at the latest, because a transaction may commit late. A claim
/// reads the entries of this time, so more would cost more at each claim.
const LATENESS: Duration = Duration::from_secs(2);

/// The time between two looks: this many times as long as the look, within these limits.
const PAUSE: u32 = 20;
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// A look that takes longer has failed: its statement has a shorter time limit.
const MAX_LOOK: Duration = Duration::from_secs(15);

/// The jobs that a claim reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The whole queue.
    All,
    /// The whole queue. Later claims should know where to start.
    SlowAll,
    /// Jobs that start at this time or later, by the database's clock.
    From(Timestamp),
}

/// Where the claims of one queue start.
#[derive(Debug)]
pub(super) struct ClaimStart {
    /// The cost of reading the whole queue.
    cost: ClaimCost,
    /// All jobs that start before this time are claimed, as far as is known.
    from: Option<Timestamp>,
    /// Whether there may be earlier jobs.
    has_earlier: bool,
    /// When the next look is due.
    due: Instant,
}

impl ClaimStart {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            cost: ClaimCost::default(),
            from: None,
            has_earlier: false,
            due: now,
        }
    }

    /// The jobs that the next claim reads.
    pub(super) fn scope(&self) -> Scope {
        match self.from {
            _ if self.cost.is_cheap() => Scope::All,
            Some(from) if !self.has_earlier => Scope::From(from),
            _ => Scope::SlowAll,
        }
    }

    /// The start of the next claim, unless it reads all jobs.
    pub(super) fn since(&self) -> Option<Timestamp> {
        match self.scope() {
            Scope::From(since) => Some(since),
            Scope::All | Scope::SlowAll => None,
        }
    }

    /// Records a claim that took `time` and found `jobs`. All jobs that start before `until` are claimed now, if that is
    /// known.
    pub(super) fn claimed(&mut self, scope: Scope, time: Duration, jobs: usize, until: Option<Timestamp>) {
        if !matches!(scope, Scope::From(_)) {
            self.cost.record(time, jobs);
            self.has_earlier = false;
        }
        self.from = until.and_then(|until| until.checked_sub(LATENESS).ok());
    }

    /// The queue was paused, so its claims have found nothing, whatever was available.
    pub(super) fn resume(&mut self) {
        self.has_earlier = true;
    }

    /// Begins a look if one is due. It checks whether there are available jobs that start before the returned time.
    pub(super) fn look(&mut self, now: Instant) -> Option<Timestamp> {
        let Scope::From(from) = self.scope() else {
            return None;
        };
        if now < self.due {
            return None;
        }
        self.due = now + MAX_LOOK;
        Some(from)
    }

    /// Ends a look that took `time`. `has_earlier`: whether it found a job; `None` if it failed.
    pub(super) fn looked(&mut self, time: Duration, has_earlier: Option<bool>, now: Instant) {
        self.has_earlier = has_earlier != Some(false);
        // Otherwise, it has not read the whole queue.
        if !self.has_earlier {
            self.cost.record(time, 0);
        }
        self.due = now + (time * PAUSE).clamp(MIN_PAUSE, MAX_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(40);
    const FAST: Duration = Duration::from_millis(1);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Claims are slow, and the last one has claimed all jobs until 100.
    fn slow(now: Instant) -> ClaimStart {
        let mut start = ClaimStart::new(now);
        for _ in 0..100 {
            start.claimed(Scope::All, SLOW, 1, None);
        }
        assert_eq!(start.scope(), Scope::SlowAll, "nothing is known yet");
        start.claimed(Scope::SlowAll, SLOW, 1, Some(at(100)));
        start
    }

    #[test]
    fn the_first_claim_after_a_pause_reads_the_whole_queue() {
        let mut start = slow(Instant::now());
        assert!(matches!(start.scope(), Scope::From(_)));
        start.resume();
        assert_eq!(start.scope(), Scope::SlowAll);
        start.claimed(Scope::SlowAll, SLOW, 1, Some(at(100)));
        assert!(matches!(start.scope(), Scope::From(_)));
    }

    #[test]
    fn cheap_claims_read_the_whole_queue_and_need_no_look() {
        let now = Instant::now();
        let mut start = ClaimStart::new(now);
        assert_eq!(start.scope(), Scope::All);
        start.claimed(Scope::All, FAST, 1, Some(at(100)));
        assert_eq!(start.scope(), Scope::All);
        assert_eq!(start.look(now), None);
    }

    #[test]
    fn slow_claims_start_before_the_first_unclaimed_job() {
        let mut start = slow(Instant::now());
        assert_eq!(start.scope(), Scope::From(at(98)));
        start.claimed(start.scope(), FAST, 1, Some(at(107)));
        assert_eq!(start.scope(), Scope::From(at(105)));
    }

    #[test]
    fn one_look_at_a_time_is_due_after_a_while() {
        let now = Instant::now();
        for (time, pause) in [
            (SLOW, 1000),
            (Duration::from_millis(150), 3000),
            (MAX_PAUSE, 5000),
        ] {
            let mut start = slow(now);
            assert_eq!(start.look(now), Some(at(98)));
            assert_eq!(start.look(now), None, "one is under way");
            start.looked(time, Some(false), now);
            let next = now + Duration::from_millis(pause);
            assert_eq!(start.look(next - FAST), None);
            assert_eq!(start.look(next), Some(at(98)));
            assert_eq!(
                start.look(next + MAX_LOOK),
                Some(at(98)),
                "the last one has no end"
            );
        }
    }

    #[test]
    fn a_claim_reads_the_whole_queue_after_a_look_with_a_job_or_an_error() {
        let now = Instant::now();
        for found in [Some(true), None] {
            let mut start = slow(now);
            start.look(now);
            let before = start.scope();
            start.looked(SLOW, found, now);
            // A claim that began before the end of the look has not read that job.
            start.claimed(before, FAST, 0, Some(at(101)));
            assert_eq!(start.scope(), Scope::SlowAll);
            start.claimed(start.scope(), SLOW, 1, Some(at(102)));
            assert_eq!(start.scope(), Scope::From(at(100)));
        }
    }

    #[test]
    fn claims_read_the_whole_queue_again_once_that_is_cheap() {
        let now = Instant::now();
        let mut start = slow(now);
        for _ in 0..10 {
            start.looked(FAST, Some(false), now);
        }
        assert_eq!(start.scope(), Scope::All);
        let mut start = slow(now);
        for _ in 0..100 {
            start.looked(FAST, Some(true), now);
            start.claimed(start.scope(), SLOW, 1, Some(at(100)));
        }
        assert_ne!(
            start.scope(),
            Scope::All,
            "a look ends at the first job that it finds"
        );
    }
}

//! Claim pace: how soon a claim may follow the previous one.
//!
//! A claim usually takes less than a millisecond, and the next one may follow immediately. When claims are slow, fewer
//! claims of more jobs each do the same work.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weir_policy::lane::Lane;

/// The shortest time between two claims of a lane. River's default of 100 ms would keep small pools idle most of the time
/// when jobs are short.
pub const FETCH_COOLDOWN: Duration = Duration::from_millis(1);

/// The maximum, including when claims take longer. A claim brings at most a few jobs per worker, so longer pauses would
/// limit what small pools can do.
const MAX_COOLDOWN: Duration = Duration::from_millis(256);

/// A claim that costs less is not worth avoiding.
const CHEAP_CLAIM: Duration = Duration::from_millis(5);

/// Time allowed per job that a claim finds.
const PER_JOB: Duration = Duration::from_micros(200);

/// While claims are slow, a lane spends about one part in this many of its time on them, unless that needs longer pauses
/// than [`MAX_COOLDOWN`]. Users wait for the jobs of the priority lane. The jobs of the scheduled lane can wait.
const fn share(lane: Lane) -> u32 {
    match lane {
        Lane::Priority => 2,
        Lane::Default => 4,
        Lane::Scheduled => 8,
    }
}

/// The duration of claims, without the time for the jobs that they find. It rises slowly and falls quickly, so that a
/// busy machine alone does not raise it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClaimCost(Duration);

impl ClaimCost {
    pub(super) fn record(&mut self, time: Duration, jobs: usize) {
        let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
        let time = time.saturating_sub(PER_JOB.saturating_mul(jobs));
        self.0 = if time < self.0 {
            self.0 - (self.0 - time) / 4
        } else {
            self.0 + (time - self.0) / 16
        };
    }

    pub(super) fn is_cheap(self) -> bool {
        self.0 < CHEAP_CLAIM
    }

    /// A power of two in milliseconds, so that it rarely changes.
    fn cooldown(self, lane: Lane) -> Duration {
        if self.is_cheap() {
            return FETCH_COOLDOWN;
        }
        let pause = (self.0 * (share(lane) - 1)).min(MAX_COOLDOWN).as_millis();
        Duration::from_millis(1 << pause.max(1).ilog2())
    }
}

/// The pace of a process's claims. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct ClaimPace(Arc<Mutex<ClaimCost>>);

impl ClaimPace {
    /// How soon a claim of this lane may follow the previous one.
    pub(super) fn cooldown(&self, lane: Lane) -> Duration {
        self.0.lock().cooldown(lane)
    }

    /// Records a claim that took `time` and found `jobs`.
    pub(super) fn record(&self, time: Duration, jobs: usize) {
        self.0.lock().record(time, jobs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(claims: u32, time: Duration, jobs: usize) -> ClaimCost {
        let mut cost = ClaimCost::default();
        for _ in 0..claims {
            cost.record(time, jobs);
        }
        cost
    }

    #[test]
    fn cheap_claims_are_not_delayed() {
        assert_eq!(ClaimCost::default().cooldown(Lane::Default), FETCH_COOLDOWN);
        assert_eq!(
            after(1000, Duration::from_millis(4), 1).cooldown(Lane::Default),
            FETCH_COOLDOWN
        );
    }

    #[test]
    fn a_claim_of_many_jobs_may_take_longer() {
        let time = Duration::from_millis(40);
        assert_eq!(after(1000, time, 200).cooldown(Lane::Default), FETCH_COOLDOWN);
        assert!(after(1000, time, 1).cooldown(Lane::Default) > time);
    }

    #[test]
    fn slow_claims_take_a_quarter_of_the_time() {
        let cooldown = after(1000, Duration::from_millis(22), 1).cooldown(Lane::Default);
        assert_eq!(cooldown, Duration::from_millis(64));
        assert_eq!(
            after(1000, Duration::from_secs(9), 1).cooldown(Lane::Default),
            MAX_COOLDOWN
        );
    }

    #[test]
    fn slow_claims_delay_the_priority_lane_least() {
        let cooldown = |lane| after(1000, Duration::from_millis(22), 1).cooldown(lane);
        assert_eq!(Lane::ALL.map(cooldown), [16, 64, 128].map(Duration::from_millis));
    }

    #[test]
    fn a_single_slow_claim_does_not_change_the_pace() {
        let mut cost = after(1000, Duration::from_millis(1), 1);
        cost.record(Duration::from_millis(50), 1);
        assert_eq!(cost.cooldown(Lane::Default), FETCH_COOLDOWN);
    }

    #[test]
    fn the_pace_recovers_within_a_few_claims() {
        let mut cost = after(1000, Duration::from_millis(50), 1);
        for _ in 0..10 {
            cost.record(Duration::from_millis(1), 1);
        }
        assert_eq!(cost.cooldown(Lane::Default), FETCH_COOLDOWN);
    }
}

//! The count of one client in one window of time (web ADR-21), in eight bytes. Times are milliseconds since the Unix
//! epoch.
//!
//! - The fixed window starts with the client's first request, so the windows of different clients do not end together.
//!   It admits exactly the limit.
//! - The sliding window is the generic cell rate algorithm: a client that has not sent for a window may send the whole
//!   limit at once. The rest arrives evenly, one request per window divided by the limit. In any interval of a window's
//!   length, it admits less than twice the limit.

use serde::{Deserialize, Serialize};

/// The largest limit that can be configured: the maximum that fits into [`LimitResult::pack`].
pub const MAX_LIMIT: u32 = (1 << 20) - 1;

/// The longest window that can be configured, in milliseconds: a day.
pub const MAX_WINDOW_MS: u64 = 24 * 60 * 60 * 1000;

/// How requests are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// The window starts with an address's first request. After its end, the next request starts a new one.
    #[default]
    Fixed,
    /// Each request makes room for another one after a window divided by the limit.
    Sliding,
}

/// A limit per address and window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The number of requests, 1 to [`MAX_LIMIT`].
    pub limit: u32,
    /// The length of the window, in milliseconds, at most [`MAX_WINDOW_MS`].
    pub window_ms: u64,
    /// How requests are counted.
    pub algorithm: Algorithm,
}

/// The result of counting one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitResult {
    /// Whether the request is within the limit.
    pub admitted: bool,
    /// The requests counted in the window, including this one if it is admitted.
    pub used: u32,
    /// The time until more requests are admitted, in milliseconds.
    pub reset_after_ms: u64,
}

impl LimitResult {
    /// The requests left until then.
    pub fn remaining(&self, limit: u32) -> u32 {
        limit.saturating_sub(self.used)
    }

    /// The result as one number that a double represents exactly: the cheapest return value of a Durable Object.
    pub fn pack(&self) -> f64 {
        let used = u64::from(self.used.min(MAX_LIMIT));
        let reset = self.reset_after_ms.min(MAX_WINDOW_MS);
        ((reset << 21) + (used << 1) + u64::from(self.admitted)) as f64
    }

    /// Decodes a number that [`LimitResult::pack`] returned. Returns `None` for any other number.
    pub fn unpack(packed: f64) -> Option<Self> {
        let whole =
            packed.fract() == 0.0 && (0.0..=(((MAX_WINDOW_MS << 21) + 0x1f_ffff) as f64)).contains(&packed);
        let bits = packed as u64;
        whole.then_some(Self {
            admitted: bits & 1 == 1,
            used: (bits >> 1) as u32 & MAX_LIMIT,
            reset_after_ms: bits >> 21,
        })
    }
}

/// The count of a client. A window that would end more than two of the policy's windows from now comes from a clock that
/// was ahead, and does not count.
///
/// For a fixed window, the upper 44 bits are its end in milliseconds, and the lower 20 the requests. For a sliding one,
/// it is the time at which all of its requests have left the window, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window(pub(crate) u64);

const NANOS: u64 = 1_000_000;

impl Window {
    /// The time after which it does not count.
    pub(crate) fn ends_at(self, algorithm: Algorithm) -> u64 {
        match algorithm {
            Algorithm::Fixed => self.0 >> 20,
            Algorithm::Sliding => self.0.div_ceil(NANOS),
        }
    }

    /// Counts `cost` requests at `now`, or none of them if not all are within the limit. Returns the new count.
    pub(crate) fn take(self, policy: &Policy, cost: u32, now: u64) -> (LimitResult, Self) {
        let window_ms = policy.window_ms;
        let is_open = (now + 1..=now + 2 * window_ms).contains(&self.ends_at(policy.algorithm));
        match policy.algorithm {
            Algorithm::Fixed => {
                let (end, used) = if is_open {
                    (self.0 >> 20, (self.0 as u32 & MAX_LIMIT).min(policy.limit))
                } else {
                    (now + window_ms, 0)
                };
                let admitted = cost <= policy.limit - used;
                let used = if admitted { used + cost } else { used };
                let result = LimitResult {
                    admitted,
                    used,
                    reset_after_ms: end - now,
                };
                (result, Self(end << 20 | u64::from(used)))
            }
            Algorithm::Sliding => {
                let (now, window) = (now * NANOS, window_ms * NANOS);
                let interval = window / u64::from(policy.limit);
                let empty_at = if is_open { self.0.max(now) } else { now };
                let after = empty_at + interval * u64::from(cost);
                let admitted = after <= now + window;
                let empty_at = if admitted { after } else { empty_at };
                let left = empty_at - now;
                let room_in = if admitted {
                    // Until one of the counted requests leaves the window.
                    left.saturating_sub(1) % interval + 1
                } else {
                    after - now - window
                };
                let result = LimitResult {
                    admitted,
                    used: (left.div_ceil(interval) as u32).min(policy.limit),
                    reset_after_ms: room_in.div_ceil(NANOS),
                };
                (result, Self(empty_at))
            }
        }
    }

    /// The count without `cost` of its requests. An empty one if none are left.
    pub(crate) fn refund(self, policy: &Policy, cost: u32, now: u64) -> Self {
        match policy.algorithm {
            Algorithm::Fixed => match (self.0 as u32 & MAX_LIMIT).min(policy.limit).saturating_sub(cost) {
                0 => Self::default(),
                used => Self(self.0 >> 20 << 20 | u64::from(used)),
            },
            Algorithm::Sliding => {
                let interval = policy.window_ms * NANOS / u64::from(policy.limit);
                let empty_at = self.0.saturating_sub(interval.saturating_mul(u64::from(cost)));
                if empty_at > now * NANOS {
                    Self(empty_at)
                } else {
                    Self::default()
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1_800_000_000_000;

    fn policy(algorithm: Algorithm, limit: u32) -> Policy {
        Policy {
            limit,
            window_ms: 60_000,
            algorithm,
        }
    }

    fn take(window: &mut Window, policy: &Policy, now: u64) -> LimitResult {
        let (result, after) = window.take(policy, 1, now);
        if result.admitted {
            *window = after;
        }
        result
    }

    #[test]
    fn a_fixed_window_ends_its_length_after_the_first_request() {
        let (policy, mut window) = (policy(Algorithm::Fixed, 3), Window::default());
        let seen: Vec<_> = [0, 1_000, 2_000, 59_999, 60_000]
            .map(|at| take(&mut window, &policy, START + at))
            .iter()
            .map(|result| (result.admitted, result.used, result.reset_after_ms))
            .collect();
        assert_eq!(
            seen,
            [
                (true, 1, 60_000),
                (true, 2, 59_000),
                (true, 3, 58_000),
                (false, 3, 1),
                (true, 1, 60_000)
            ]
        );
    }

    #[test]
    fn a_sliding_window_admits_the_limit_at_once_and_then_evenly() {
        let (policy, mut window) = (policy(Algorithm::Sliding, 3), Window::default());
        let mut at = |at| {
            let result = take(&mut window, &policy, START + at);
            (result.admitted, result.used, result.reset_after_ms)
        };
        assert_eq!(
            [at(0), at(0), at(0)],
            [(true, 1, 20_000), (true, 2, 20_000), (true, 3, 20_000)]
        );
        assert_eq!(at(5_000), (false, 3, 15_000));
        assert_eq!(at(20_000), (true, 3, 20_000));
        assert_eq!(at(39_999), (false, 3, 1));
        assert_eq!(at(200_000), (true, 1, 20_000));
    }

    #[test]
    fn several_requests_count_as_a_whole_or_not_at_all() {
        for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
            let policy = policy(algorithm, 10);
            let (first, window) = Window::default().take(&policy, 7, START);
            assert_eq!((first.admitted, first.used), (true, 7));
            let (refused, same) = window.take(&policy, 4, START);
            assert_eq!((refused.admitted, refused.used, same), (false, 7, window));
            assert!(window.take(&policy, 3, START).0.admitted);
        }
    }

    #[test]
    fn refunded_requests_may_be_sent_again_until_the_same_time() {
        for (algorithm, next) in [(Algorithm::Fixed, 59_999), (Algorithm::Sliding, 5_999)] {
            let policy = policy(algorithm, 10);
            let (_, full) = Window::default().take(&policy, 10, START);
            let some = full.refund(&policy, 3, START + 1);
            let (again, refilled) = some.take(&policy, 3, START + 1);
            assert!(again.admitted && refilled == full, "{algorithm:?}");
            let denied = refilled.take(&policy, 1, START + 1).0;
            assert_eq!((denied.admitted, denied.reset_after_ms), (false, next));
            assert_eq!(full.refund(&policy, u32::MAX, START + 1), Window::default());
        }
    }

    #[test]
    fn a_window_far_in_the_future_does_not_count() {
        for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
            let mut window = Window::default();
            let day = Policy {
                window_ms: MAX_WINDOW_MS,
                ..policy(algorithm, 1)
            };
            assert!(take(&mut window, &day, START).admitted);
            assert!(
                take(&mut window, &policy(algorithm, 1), START).admitted,
                "{algorithm:?}"
            );
        }
    }

    #[test]
    fn a_lower_limit_applies_at_once() {
        let mut window = Window::default();
        for _ in 0..5 {
            take(&mut window, &policy(Algorithm::Fixed, 5), START);
        }
        let result = take(&mut window, &policy(Algorithm::Fixed, 3), START);
        assert_eq!((result.admitted, result.used), (false, 3));
    }

    proptest! {
        #[test]
        fn no_window_admits_more_than_the_limit(
            gaps in proptest::collection::vec(0u64..20_000, 1..80), limit in 1u32..8,
        ) {
            let (fixed, sliding) = (policy(Algorithm::Fixed, limit), policy(Algorithm::Sliding, limit));
            let (mut a, mut b) = (Window::default(), Window::default());
            let (mut now, mut start, mut used) = (START, 0, 0);
            let mut admitted = Vec::new();
            for gap in gaps {
                now += gap;
                if take(&mut a, &fixed, now).admitted {
                    if now >= start + 60_000 {
                        (start, used) = (now, 0);
                    }
                    used += 1;
                    prop_assert!(used <= limit);
                }
                if take(&mut b, &sliding, now).admitted {
                    admitted.push(now);
                    let recent = admitted.iter().filter(|at| **at + 60_000 > now).count();
                    prop_assert!(recent < 2 * limit as usize, "{recent}");
                }
            }
        }

        #[test]
        fn a_denial_names_the_time_of_the_next_admission(
            algorithm in prop_oneof![Just(Algorithm::Fixed), Just(Algorithm::Sliding)],
            gaps in proptest::collection::vec(0u64..20_000, 1..40), limit in 1u32..8,
        ) {
            let (policy, mut window, mut now) = (policy(algorithm, limit), Window::default(), START);
            for gap in gaps {
                now += gap;
                let result = take(&mut window, &policy, now);
                prop_assert!(result.reset_after_ms > 0 && result.reset_after_ms <= 60_000);
                if !result.admitted {
                    let at = now + result.reset_after_ms;
                    prop_assert!(!window.take(&policy, 1, at - 1).0.admitted);
                    prop_assert!(window.take(&policy, 1, at).0.admitted);
                }
            }
        }

        #[test]
        fn arbitrary_bits_do_not_panic(
            bits: u64, limit in 1..=MAX_LIMIT, window_ms in 1_000..=MAX_WINDOW_MS, cost in 1u32..=1000, sliding: bool,
        ) {
            let algorithm = if sliding { Algorithm::Sliding } else { Algorithm::Fixed };
            let policy = Policy { limit, window_ms, algorithm };
            let (result, _) = Window(bits).take(&policy, cost, START);
            prop_assert!(result.used <= limit);
        }

        #[test]
        fn results_survive_packing_and_unpacking(
            admitted: bool, used in 0..=MAX_LIMIT, reset_after_ms in 0..=MAX_WINDOW_MS,
        ) {
            let result = LimitResult { admitted, used, reset_after_ms };
            prop_assert_eq!(LimitResult::unpack(result.pack()), Some(result));
        }

        #[test]
        fn unpacking_an_arbitrary_number_does_not_panic(number in any::<f64>()) {
            let _ = LimitResult::unpack(number);
        }
    }
}

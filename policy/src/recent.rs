//! What an isolate of the edge remembers of the verdicts that it was given, so that it can answer a blocked address
//! by itself and remind a counter that has lost its memory.

use std::collections::BTreeMap;

use crate::address::AddressKey;
use crate::window::{Seen, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remembered {
    seen: Seen,
    blocked: bool,
}

/// The latest verdicts on a bounded number of addresses. To forget one costs a call of the counter, nothing else.
#[derive(Clone, Debug)]
pub struct RecentVerdicts {
    capacity: usize,
    verdicts: BTreeMap<AddressKey, Remembered>,
    prune_at: u64,
}

impl RecentVerdicts {
    /// None yet; at most `capacity`.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            verdicts: BTreeMap::new(),
            prune_at: 0,
        }
    }

    /// The denial of an address that is known to be blocked at `now_ms` (milliseconds since the Unix epoch).
    pub fn denial(&self, key: AddressKey, now_ms: u64) -> Option<Verdict> {
        let Remembered { seen, blocked } = self.verdicts.get(&key)?;
        (*blocked && seen.reset_at_ms > now_ms).then(|| Verdict {
            admitted: false,
            used: seen.used,
            reset_after_ms: seen.reset_at_ms - now_ms,
        })
    }

    /// What was last seen of an address whose window is not over at `now_ms`.
    pub fn seen(&self, key: AddressKey, now_ms: u64) -> Option<Seen> {
        self.verdicts
            .get(&key)
            .map(|remembered| remembered.seen)
            .filter(|seen| seen.reset_at_ms > now_ms)
    }

    /// Remembers a verdict given at `now_ms` under a limit. An admission that has used up the limit blocks like a
    /// denial: there is nothing more until then. Verdicts may arrive in another order than they were given in; of one
    /// window, the highest count stays.
    pub fn remember(&mut self, key: AddressKey, verdict: &Verdict, limit: u32, now_ms: u64) {
        let fresh = Remembered {
            seen: Seen {
                used: verdict.used,
                reset_at_ms: now_ms.saturating_add(verdict.reset_after_ms),
            },
            blocked: !verdict.admitted || verdict.remaining(limit) == 0,
        };
        if let Some(known) = self.verdicts.get_mut(&key) {
            let newer = known.seen.reset_at_ms <= now_ms || fresh.seen.used >= known.seen.used;
            if newer && (fresh.blocked || !known.blocked || known.seen.reset_at_ms <= now_ms) {
                *known = fresh;
            }
            return;
        }
        if self.verdicts.len() >= self.capacity {
            self.make_room(now_ms);
        }
        if self.verdicts.len() < self.capacity {
            self.verdicts.insert(key, fresh);
        }
    }

    fn make_room(&mut self, now_ms: u64) {
        if now_ms < self.prune_at {
            // All are live. One of them goes; it will be asked for again when it matters.
            self.verdicts.pop_first();
            return;
        }
        self.verdicts
            .retain(|_, remembered| remembered.seen.reset_at_ms > now_ms);
        self.prune_at = self
            .verdicts
            .values()
            .map(|remembered| remembered.seen.reset_at_ms)
            .min()
            .unwrap_or(0);
        if self.verdicts.len() >= self.capacity {
            self.verdicts.pop_first();
        }
    }

    /// How many are remembered.
    pub fn len(&self) -> usize {
        self.verdicts.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.verdicts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Algorithm, Counters, Policy};
    use proptest::prelude::*;

    const ANNE: AddressKey = AddressKey::V4(1);
    fn admitted(used: u32, reset_after_ms: u64) -> Verdict {
        Verdict {
            admitted: true,
            used,
            reset_after_ms,
        }
    }

    const DENIED: Verdict = Verdict {
        admitted: false,
        used: 10,
        reset_after_ms: 5_000,
    };

    #[test]
    fn a_blocked_address_is_denied_until_its_window_ends() {
        let mut recent = RecentVerdicts::new(10);
        recent.remember(ANNE, &DENIED, 10, 1_000);
        assert_eq!(
            recent.denial(ANNE, 2_000),
            Some(Verdict {
                reset_after_ms: 4_000,
                ..DENIED
            })
        );
        assert_eq!(recent.denial(ANNE, 6_000), None);
        assert_eq!(recent.denial(AddressKey::V4(2), 2_000), None);
    }

    #[test]
    fn an_admission_that_arrives_late_unblocks_nobody() {
        let mut recent = RecentVerdicts::new(10);
        recent.remember(ANNE, &DENIED, 10, 1_000);
        recent.remember(ANNE, &admitted(10, 4_999), 11, 1_001);
        assert!(recent.denial(ANNE, 2_000).is_some());
    }

    #[test]
    fn a_new_window_replaces_the_old_one() {
        let mut recent = RecentVerdicts::new(10);
        recent.remember(ANNE, &DENIED, 10, 1_000);
        recent.remember(ANNE, &admitted(1, 60_000), 10, 6_000);
        assert_eq!(recent.denial(ANNE, 6_001), None);
        assert_eq!(
            recent.seen(ANNE, 6_001),
            Some(Seen {
                used: 1,
                reset_at_ms: 66_000
            })
        );
    }

    #[test]
    fn the_last_admitted_request_blocks_the_address() {
        let mut recent = RecentVerdicts::new(10);
        recent.remember(ANNE, &admitted(10, 5_000), 10, 1_000);
        assert_eq!(
            recent.denial(ANNE, 2_000),
            Some(Verdict {
                reset_after_ms: 4_000,
                ..DENIED
            })
        );
    }

    proptest! {
        #[test]
        fn memory_stays_bounded(addresses in proptest::collection::vec((any::<u32>(), 0u64..100), 0..300)) {
            let mut recent = RecentVerdicts::new(16);
            let mut now = 0;
            for (address, gap) in addresses {
                now += gap;
                recent.remember(AddressKey::V4(address), &DENIED, 10, now);
                prop_assert!(recent.len() <= 16);
                prop_assert!(recent.denial(AddressKey::V4(address), now).is_some(), "the latest is remembered");
            }
        }

        #[test]
        fn nobody_is_denied_whom_the_counter_would_admit(
            requests in proptest::collection::vec((0u32..4, 0u64..300), 1..200), sliding: bool,
        ) {
            let algorithm = if sliding { Algorithm::Sliding } else { Algorithm::Fixed };
            let mut counters = Counters::new(Policy { limit: 3, window_ms: 1_000, algorithm });
            let mut recent = RecentVerdicts::new(3);
            let mut now = 0;
            for (address, gap) in requests {
                now += gap;
                let key = AddressKey::V4(address);
                match recent.denial(key, now) {
                    Some(denial) => prop_assert_eq!(counters.take(key, None, now), denial),
                    None => {
                        let verdict = counters.take(key, recent.seen(key, now), now);
                        recent.remember(key, &verdict, 3, now);
                    }
                }
            }
        }
    }
}

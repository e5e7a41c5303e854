//! A cache of counting results in an isolate of the edge. With it, the isolate itself denies a blocked address, and
//! restores the counts of a counting object that has lost its memory.

use std::collections::BTreeMap;

use crate::address::AddressKey;
use crate::window::{KnownUsage, LimitResult};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    usage: KnownUsage,
    blocked: bool,
}

/// The latest results for a bounded number of addresses. An evicted entry costs one call of the counting object.
#[derive(Clone, Debug)]
pub struct LimitCache<K = AddressKey> {
    capacity: usize,
    entries: BTreeMap<K, Entry>,
    prune_at: u64,
}

impl<K: Ord> LimitCache<K> {
    /// An empty cache for at most `capacity` addresses.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            entries: BTreeMap::new(),
            prune_at: 0,
        }
    }

    /// The denial of an address that is known to be over its limit at `now_ms` (milliseconds since the Unix epoch).
    pub fn denial(&self, key: K, now_ms: u64) -> Option<LimitResult> {
        let Entry { usage, blocked } = self.entries.get(&key)?;
        (*blocked && usage.reset_at_ms > now_ms).then(|| LimitResult {
            admitted: false,
            used: usage.used,
            reset_after_ms: usage.reset_at_ms - now_ms,
        })
    }

    /// The usage of an address in its window, if it has not ended at `now_ms`.
    pub fn known_usage(&self, key: K, now_ms: u64) -> Option<KnownUsage> {
        self.entries
            .get(&key)
            .map(|entry| entry.usage)
            .filter(|usage| usage.reset_at_ms > now_ms)
    }

    /// Stores a result of `now_ms` under `limit`. An admission that uses up the limit blocks the address as a denial
    /// does. Results may arrive out of order: within one window, the highest count wins.
    pub fn remember(&mut self, key: K, result: &LimitResult, limit: u32, now_ms: u64) {
        let fresh = Entry {
            usage: KnownUsage {
                used: result.used,
                reset_at_ms: now_ms.saturating_add(result.reset_after_ms),
            },
            blocked: !result.admitted || result.remaining(limit) == 0,
        };
        if let Some(known) = self.entries.get_mut(&key) {
            let newer = known.usage.reset_at_ms <= now_ms || fresh.usage.used >= known.usage.used;
            if newer && (fresh.blocked || !known.blocked || known.usage.reset_at_ms <= now_ms) {
                *known = fresh;
            }
            return;
        }
        if self.entries.len() >= self.capacity {
            self.make_room(now_ms);
        }
        if self.entries.len() < self.capacity {
            self.entries.insert(key, fresh);
        }
    }

    fn make_room(&mut self, now_ms: u64) {
        if now_ms < self.prune_at {
            // No window has ended. One entry is evicted; the next request of its address asks the object again.
            self.entries.pop_first();
            return;
        }
        self.entries.retain(|_, entry| entry.usage.reset_at_ms > now_ms);
        self.prune_at = self
            .entries
            .values()
            .map(|entry| entry.usage.reset_at_ms)
            .min()
            .unwrap_or(0);
        if self.entries.len() >= self.capacity {
            self.entries.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{Algorithm, Counters, Policy};
    use proptest::prelude::*;

    const ANNE: AddressKey = AddressKey::V4(1);
    fn admitted(used: u32, reset_after_ms: u64) -> LimitResult {
        LimitResult {
            admitted: true,
            used,
            reset_after_ms,
        }
    }

    const DENIED: LimitResult = LimitResult {
        admitted: false,
        used: 10,
        reset_after_ms: 5_000,
    };

    #[test]
    fn a_blocked_address_is_denied_until_its_window_ends() {
        let mut cache = LimitCache::new(10);
        cache.remember(ANNE, &DENIED, 10, 1_000);
        assert_eq!(
            cache.denial(ANNE, 2_000),
            Some(LimitResult {
                reset_after_ms: 4_000,
                ..DENIED
            })
        );
        assert_eq!(cache.denial(ANNE, 6_000), None);
        assert_eq!(cache.denial(AddressKey::V4(2), 2_000), None);
    }

    #[test]
    fn a_late_admission_does_not_unblock_an_address() {
        let mut cache = LimitCache::new(10);
        cache.remember(ANNE, &DENIED, 10, 1_000);
        cache.remember(ANNE, &admitted(10, 4_999), 11, 1_001);
        assert!(cache.denial(ANNE, 2_000).is_some());
    }

    #[test]
    fn a_new_window_replaces_the_old_one() {
        let mut cache = LimitCache::new(10);
        cache.remember(ANNE, &DENIED, 10, 1_000);
        cache.remember(ANNE, &admitted(1, 60_000), 10, 6_000);
        assert_eq!(cache.denial(ANNE, 6_001), None);
        assert_eq!(
            cache.known_usage(ANNE, 6_001),
            Some(KnownUsage {
                used: 1,
                reset_at_ms: 66_000
            })
        );
    }

    #[test]
    fn an_address_is_blocked_after_its_last_admitted_request() {
        let mut cache = LimitCache::new(10);
        cache.remember(ANNE, &admitted(10, 5_000), 10, 1_000);
        assert_eq!(
            cache.denial(ANNE, 2_000),
            Some(LimitResult {
                reset_after_ms: 4_000,
                ..DENIED
            })
        );
    }

    fn key(n: u32) -> AddressKey {
        AddressKey::V4(n)
    }

    #[test]
    fn a_denial_ends_when_its_window_ends() {
        let mut cache = LimitCache::new(10);
        cache.remember(ANNE, &DENIED, 10, 1_000);
        assert_eq!(
            cache.denial(ANNE, 5_999).map(|denial| denial.reset_after_ms),
            Some(1)
        );
        assert_eq!(cache.denial(ANNE, 6_000), None);
        assert_eq!(cache.known_usage(ANNE, 5_999).map(|known| known.used), Some(10));
        assert_eq!(cache.known_usage(ANNE, 6_000), None);
    }

    #[test]
    fn an_address_with_requests_left_is_admitted_with_its_known_usage() {
        let mut cache = LimitCache::new(10);
        cache.remember(ANNE, &admitted(9, 5_000), 10, 1_000);
        assert_eq!(cache.denial(ANNE, 1_001), None);
        let known = KnownUsage {
            used: 9,
            reset_at_ms: 6_000,
        };
        assert_eq!(cache.known_usage(ANNE, 1_001), Some(known));
    }

    #[test]
    fn the_highest_count_in_a_window_wins_in_any_order() {
        for order in [[3, 4], [4, 3]] {
            let mut cache = LimitCache::new(10);
            for used in order {
                cache.remember(ANNE, &admitted(used, 5_000), 10, 1_000);
            }
            assert_eq!(
                cache.known_usage(ANNE, 1_001).map(|known| known.used),
                Some(4),
                "{order:?}"
            );
        }
        // An equal count is treated as newer, because its window may have been extended.
        let mut cache = LimitCache::new(10);
        cache.remember(ANNE, &admitted(4, 5_000), 10, 1_000);
        cache.remember(ANNE, &admitted(4, 6_000), 10, 1_000);
        assert_eq!(
            cache.known_usage(ANNE, 1_001).map(|known| known.reset_at_ms),
            Some(7_000)
        );
    }

    #[test]
    fn a_higher_count_blocks_and_an_equal_count_does_not_unblock() {
        let mut cache = LimitCache::new(10);
        cache.remember(ANNE, &admitted(9, 5_000), 10, 1_000);
        cache.remember(ANNE, &DENIED, 10, 1_001);
        assert!(cache.denial(ANNE, 1_002).is_some());
        // Under a higher limit, this alone would not block.
        cache.remember(ANNE, &admitted(10, 5_000), 20, 1_002);
        cache.remember(ANNE, &admitted(11, 5_000), 20, 1_002);
        assert!(cache.denial(ANNE, 1_003).is_some());
    }

    #[test]
    fn an_entry_is_replaced_only_after_its_window_ends() {
        for (now, used) in [(5_999, 10), (6_000, 1)] {
            let mut cache = LimitCache::new(10);
            cache.remember(ANNE, &DENIED, 10, 1_000);
            cache.remember(ANNE, &admitted(1, 60_000), 10, now);
            let known = cache.entries[&ANNE].usage.used;
            assert_eq!(known, used, "at {now}");
        }
    }

    #[test]
    fn a_full_cache_evicts_ended_windows_first_and_one_entry_otherwise() {
        let mut cache = LimitCache::new(3);
        for (n, reset_after_ms) in [(1, 100), (2, 200), (3, 300)] {
            cache.remember(key(n), &admitted(10, reset_after_ms), 10, 1_000);
        }
        assert_eq!(cache.entries.len(), 3);
        // One window has ended.
        cache.remember(key(4), &admitted(10, 400), 10, 1_100);
        let known: Vec<_> = (1..=4)
            .filter(|n| cache.known_usage(key(*n), 1_100).is_some())
            .collect();
        assert_eq!((known, cache.prune_at), (vec![2, 3, 4], 1_200));
        // None has ended, so one entry goes and the others stay.
        for now in [1_101, 1_199] {
            cache.remember(key(now as u32), &admitted(10, 400), 10, now);
            assert_eq!(cache.entries.len(), 3);
            assert!(cache.denial(key(now as u32), now).is_some());
        }
        assert_eq!(cache.prune_at, 1_200, "without another pass over all entries");
        cache.remember(key(5), &admitted(10, 400), 10, 1_200);
        assert_eq!(
            (cache.entries.len(), cache.prune_at),
            (3, 1_500),
            "with another pass"
        );
        // All have ended.
        cache.remember(key(9), &admitted(10, 400), 10, 9_000);
        assert_eq!(cache.entries.len(), 1);
    }

    #[test]
    fn a_cache_without_capacity_does_not_store() {
        let mut cache = LimitCache::new(0);
        cache.remember(ANNE, &DENIED, 10, 1_000);
        assert!(cache.entries.is_empty());
    }

    proptest! {
        #[test]
        fn memory_stays_bounded(addresses in proptest::collection::vec((any::<u32>(), 0u64..100), 0..300)) {
            let mut cache = LimitCache::new(16);
            let mut now = 0;
            for (address, gap) in addresses {
                now += gap;
                cache.remember(AddressKey::V4(address), &DENIED, 10, now);
                prop_assert!(cache.entries.len() <= 16);
                prop_assert!(cache.denial(AddressKey::V4(address), now).is_some(), "the latest result is stored");
            }
        }

        #[test]
        fn the_cache_never_denies_a_request_that_the_counter_would_admit(
            requests in proptest::collection::vec((0u32..4, 0u64..300), 1..200), sliding: bool,
        ) {
            let algorithm = if sliding { Algorithm::Sliding } else { Algorithm::Fixed };
            let mut counters = Counters::with_capacity(Policy { limit: 3, window_ms: 1_000, algorithm }, 10);
            let mut cache = LimitCache::new(3);
            let mut now = 0;
            for (address, gap) in requests {
                now += gap;
                let key = AddressKey::V4(address);
                match cache.denial(key, now) {
                    Some(denial) => prop_assert_eq!(counters.take(key, None, now), denial),
                    None => {
                        let result = counters.take(key, cache.known_usage(key, now), now);
                        cache.remember(key, &result, 3, now);
                    }
                }
            }
        }
    }
}

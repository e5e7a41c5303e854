//! A cache of denials in an isolate of the edge. With it, the isolate itself denies a blocked address.

use std::collections::BTreeMap;

use crate::address::AddressKey;
use crate::window::LimitResult;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Denial {
    used: u32,
    until: u64,
    /// When it is forgotten, at the latest.
    known_until: u64,
}

/// The denials of a bounded number of addresses. An evicted entry costs one call of the counting object.
#[derive(Clone, Debug)]
pub struct LimitCache<K = AddressKey> {
    capacity: usize,
    max_age_ms: u64,
    denials: BTreeMap<K, Denial>,
    prune_at: u64,
}

impl<K: Ord> LimitCache<K> {
    /// An empty cache for at most `capacity` addresses.
    pub fn new(capacity: usize) -> Self {
        Self::with_max_age(capacity, u64::MAX)
    }

    /// The same, for counts that may also go down: a denial is forgotten after `max_age_ms`.
    pub fn with_max_age(capacity: usize, max_age_ms: u64) -> Self {
        Self {
            capacity,
            max_age_ms,
            denials: BTreeMap::new(),
            prune_at: 0,
        }
    }

    /// The denial of an address that is known to be over its limit at `now_ms` (milliseconds since the Unix epoch).
    pub fn denial(&self, key: K, now_ms: u64) -> Option<LimitResult> {
        let Denial {
            used,
            until,
            known_until,
        } = *self.denials.get(&key)?;
        (known_until > now_ms).then(|| LimitResult {
            admitted: false,
            used,
            reset_after_ms: until - now_ms,
        })
    }

    /// Stores a result of `now_ms` under `limit`, if it denies the next request: an admission that uses up the limit does
    /// too. Results may arrive out of order, so an admission does not end a denial before its time.
    pub fn remember(&mut self, key: K, result: &LimitResult, limit: u32, now_ms: u64) {
        if result.admitted && result.remaining(limit) > 0 {
            return;
        }
        let until = now_ms.saturating_add(result.reset_after_ms);
        let denial = Denial {
            used: result.used,
            until,
            known_until: until.min(now_ms.saturating_add(self.max_age_ms)),
        };
        if let Some(known) = self.denials.get_mut(&key) {
            *known = denial;
            return;
        }
        if self.denials.len() >= self.capacity {
            self.make_room(now_ms);
        }
        if self.denials.len() < self.capacity {
            self.denials.insert(key, denial);
        }
    }

    /// Forgets an address.
    pub fn forget(&mut self, key: &K) {
        self.denials.remove(key);
    }

    fn make_room(&mut self, now_ms: u64) {
        if now_ms >= self.prune_at {
            self.denials.retain(|_, denial| denial.known_until > now_ms);
            // Until the first denial ends, another pass would remove nothing.
            self.prune_at = self
                .denials
                .values()
                .map(|denial| denial.known_until)
                .min()
                .unwrap_or(0);
        }
        if self.denials.len() >= self.capacity {
            self.denials.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit_set::{Counts, Limits};
    use crate::window::Algorithm;
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
        let denial = LimitResult {
            reset_after_ms: 1,
            ..DENIED
        };
        assert_eq!(cache.denial(ANNE, 5_999), Some(denial));
        assert_eq!(cache.denial(ANNE, 6_000), None);
        assert_eq!(cache.denial(AddressKey::V4(2), 2_000), None);
    }

    #[test]
    fn a_denial_is_forgotten_after_its_maximum_age_or_on_demand() {
        let mut cache = LimitCache::with_max_age(10, 1_000);
        cache.remember(ANNE, &DENIED, 10, 1_000);
        let denial = LimitResult {
            reset_after_ms: 4_001,
            ..DENIED
        };
        assert_eq!(
            cache.denial(ANNE, 1_999),
            Some(denial),
            "with the end of its window"
        );
        assert_eq!(cache.denial(ANNE, 2_000), None);
        cache.remember(ANNE, &DENIED, 10, 2_000);
        cache.forget(&ANNE);
        assert_eq!(cache.denial(ANNE, 2_000), None);
    }

    #[test]
    fn a_late_admission_does_not_unblock_an_address() {
        let mut cache = LimitCache::new(10);
        cache.remember(ANNE, &DENIED, 10, 1_000);
        cache.remember(ANNE, &admitted(9, 4_999), 10, 1_001);
        assert!(cache.denial(ANNE, 2_000).is_some());
    }

    #[test]
    fn an_address_is_blocked_after_its_last_admitted_request() {
        let mut cache = LimitCache::new(10);
        cache.remember(ANNE, &admitted(9, 5_000), 10, 1_000);
        assert_eq!(cache.denial(ANNE, 1_001), None);
        cache.remember(ANNE, &admitted(10, 5_000), 10, 1_000);
        assert!(cache.denial(ANNE, 1_001).is_some());
    }

    #[test]
    fn a_full_cache_evicts_ended_windows_first_and_one_entry_otherwise() {
        let mut cache = LimitCache::new(3);
        for (n, reset_after_ms) in [(1, 100), (2, 200), (3, 300)] {
            cache.remember(AddressKey::V4(n), &admitted(10, reset_after_ms), 10, 1_000);
        }
        // One window has ended.
        cache.remember(AddressKey::V4(4), &admitted(10, 400), 10, 1_100);
        let blocked: Vec<_> = (1..=4)
            .filter(|n| cache.denial(AddressKey::V4(*n), 1_100).is_some())
            .collect();
        assert_eq!(blocked, [2, 3, 4]);
        // None has ended, so one entry goes and the others stay.
        cache.remember(AddressKey::V4(5), &admitted(10, 400), 10, 1_101);
        assert_eq!(cache.denials.len(), 3);
        assert!(cache.denial(AddressKey::V4(5), 1_102).is_some());
        // All have ended.
        cache.remember(AddressKey::V4(9), &admitted(10, 400), 10, 9_000);
        assert_eq!(cache.denials.len(), 1);
    }

    #[test]
    fn a_cache_without_capacity_does_not_store() {
        let mut cache = LimitCache::new(0);
        cache.remember(ANNE, &DENIED, 10, 1_000);
        assert!(cache.denials.is_empty());
    }

    proptest! {
        #[test]
        fn memory_stays_bounded(addresses in proptest::collection::vec((any::<u32>(), 0u64..100), 0..300)) {
            let mut cache = LimitCache::new(16);
            let mut now = 0;
            for (address, gap) in addresses {
                now += gap;
                cache.remember(AddressKey::V4(address), &DENIED, 10, now);
                prop_assert!(cache.denials.len() <= 16);
                prop_assert!(cache.denial(AddressKey::V4(address), now).is_some(), "the latest result is stored");
            }
        }

        #[test]
        fn the_cache_never_denies_a_request_that_the_counter_would_admit(
            requests in proptest::collection::vec((0u32..4, 0u64..300), 1..200), sliding: bool,
        ) {
            let algorithm = if sliding { Algorithm::Sliding } else { Algorithm::Fixed };
            let limits = [Limits { address: 3, prefix: 3, window_ms: 1_000, algorithm }];
            let (mut counts, mut cache, mut now) = (Counts::default(), LimitCache::new(3), 0);
            for (address, gap) in requests {
                now += gap;
                let key = AddressKey::V4(address);
                match cache.denial(key, now) {
                    Some(denial) => {
                        let counted = counts.denial(&limits, key, now).unwrap().result;
                        prop_assert_eq!(counted, denial);
                    }
                    None => {
                        let result = counts.take(&limits, key, 1, 10, now).unwrap().result;
                        cache.remember(key, &result, 3, now);
                    }
                }
            }
        }
    }
}

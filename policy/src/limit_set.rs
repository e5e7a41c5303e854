//! Counts requests against several limits, such as ten a minute and two hundred a day:
//!
//! - A request is admitted if all limits admit it, and counts in all of them.
//! - A denied request counts in none.

use crate::address::AddressKey;
use crate::prefix_counters::{Limits, PrefixCounters, ScopedResult};
use crate::window::{KnownUsage, SnapshotError};

/// The maximum number of limits in a set. A packed result has no room for more, and all counts share the 2 MB of a
/// stored value.
pub const MAX_LIMITS: usize = 4;

/// The counts of many addresses or users against the same limits.
#[derive(Clone, Debug)]
pub struct LimitSet(Vec<(Limits, PrefixCounters)>);

/// The result for the limit that decides: on a denial, the one that denies longest; on an admission, the one with the
/// fewest requests left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetResult {
    /// The index of the limit in the set.
    pub index: usize,
    /// Its result.
    pub scoped: ScopedResult,
    /// Whether the counters are full. The addresses that they have no room for share counts.
    pub full: bool,
}

/// The bit of a packed result that is set if the counters are full: above the bits of the index.
const FULL_BIT: u64 = 1 << 51;

/// The factor of the limit's index in a packed result: above the bits of [`ScopedResult::pack`].
const INDEX_FACTOR: u64 = 1 << 49;

impl SetResult {
    /// The result as one number that a double represents exactly; see [`ScopedResult::pack`].
    pub fn pack(&self) -> f64 {
        let full = u64::from(self.full) * FULL_BIT;
        self.scoped.pack() + (self.index.min(MAX_LIMITS - 1) as u64 * INDEX_FACTOR + full) as f64
    }

    /// Decodes a number that [`SetResult::pack`] returned. Returns `None` for any other number.
    pub fn unpack(packed: f64) -> Option<Self> {
        let full = packed >= FULL_BIT as f64;
        let packed = if full { packed - FULL_BIT as f64 } else { packed };
        let index = (packed / INDEX_FACTOR as f64).floor();
        if !(0.0..MAX_LIMITS as f64).contains(&index) {
            return None;
        }
        let scoped = ScopedResult::unpack(packed - index * INDEX_FACTOR as f64)?;
        Some(Self {
            index: index as usize,
            scoped,
            full,
        })
    }
}

impl LimitSet {
    /// Empty counters for as many addresses as a snapshot has room for. Limits after [`MAX_LIMITS`] are ignored.
    pub fn new(limits: &[Limits]) -> Self {
        let limits = &limits[..limits.len().min(MAX_LIMITS)];
        let counters = |each: &Limits| (*each, PrefixCounters::for_one_of(limits.len(), *each));
        Self(limits.iter().map(counters).collect())
    }

    /// Counts one request of `key` at `now_ms` (milliseconds since the Unix epoch) if it is within all limits. `known`
    /// is the usage that the caller remembers, if there is only one limit. Returns `None` without any limit.
    pub fn take(&mut self, key: AddressKey, known: Option<KnownUsage>, now_ms: u64) -> Option<SetResult> {
        let full = self.is_full();
        let at = |(index, scoped)| SetResult { index, scoped, full };
        if let [(_, only)] = &mut self.0[..] {
            return Some(at((0, only.take(key, known, now_ms))));
        }
        let seen = self.0.iter_mut().map(|(_, counters)| counters.peek(key, now_ms));
        let denial = seen
            .enumerate()
            .filter(|(_, scoped)| !scoped.result.admitted)
            .max_by_key(|(_, scoped)| scoped.result.reset_after_ms);
        if denial.is_some() {
            return denial.map(at);
        }
        let taken = self.0.iter_mut().map(|(limits, counters)| {
            let scoped = counters.take(key, None, now_ms);
            (scoped.result.remaining(limits.policy(scoped.scope).limit), scoped)
        });
        let least = taken.enumerate().min_by_key(|(_, (left, _))| *left);
        least.map(|(index, (_, scoped))| at((index, scoped)))
    }

    /// Counts `cost` requests of `key` if all of them are within all limits, and none of them otherwise. The key has no
    /// prefix. Returns `None` without any limit.
    pub fn take_many(&mut self, key: AddressKey, cost: u32, now_ms: u64) -> Option<SetResult> {
        let full = self.is_full();
        let seen = self.0.iter_mut().enumerate().map(|(index, (limits, counters))| {
            let mut scoped = counters.peek(key, now_ms);
            let limit = limits.policy(scoped.scope).limit;
            // An admitted result counts the request itself.
            let used = scoped.result.used - u32::from(scoped.result.admitted);
            if cost > limit.saturating_sub(used) {
                scoped.result.used = used;
                scoped.result.admitted = false;
            }
            SetResult { index, scoped, full }
        });
        let denial = seen
            .filter(|seen| !seen.scoped.result.admitted)
            .max_by_key(|seen| seen.scoped.result.reset_after_ms);
        if denial.is_some() {
            return denial;
        }
        (0..cost).fold(None, |_, _| self.take(key, None, now_ms))
    }

    /// Removes the windows that have ended.
    pub fn prune(&mut self, now_ms: u64) {
        self.0.iter_mut().for_each(|(_, counters)| counters.prune(now_ms));
    }

    /// Whether new addresses have no room for separate counts.
    fn is_full(&self) -> bool {
        self.0.iter().any(|(_, counters)| counters.is_full())
    }

    /// The number of addresses with counts.
    pub fn addresses(&self) -> usize {
        self.0
            .iter()
            .map(|(_, counters)| counters.addresses())
            .max()
            .unwrap_or(0)
    }

    /// The end of the last window, in milliseconds since the Unix epoch; `None` without any.
    pub fn last_end(&self) -> Option<u64> {
        self.0
            .iter()
            .filter_map(|(_, counters)| counters.last_end())
            .max()
    }

    /// Encodes all counts as a snapshot. With one limit, it is the snapshot of its [`PrefixCounters`].
    pub fn encode(&self) -> Vec<u8> {
        if let [(_, only)] = &self.0[..] {
            return only.encode();
        }
        let mut bytes = vec![SNAPSHOT_VERSION];
        for (limits, counters) in &self.0 {
            let counts = counters.encode();
            bytes.extend(limits.window_ms.to_le_bytes());
            bytes.extend((counts.len() as u32).to_le_bytes());
            bytes.extend(counts);
        }
        bytes
    }

    /// Replaces the counts with those of a snapshot, without windows that have ended at `now_ms`. Counts belong to the
    /// first limit with a window of the same length. Counts without such a limit are dropped.
    ///
    /// # Errors
    /// When the bytes are not a snapshot.
    pub fn restore(&mut self, bytes: &[u8], now_ms: u64) -> Result<(), SnapshotError> {
        let Some((&SNAPSHOT_VERSION, mut rest)) = bytes.split_first() else {
            return match self.0.first_mut() {
                Some((_, first)) => first.restore(bytes, now_ms),
                None => Ok(()),
            };
        };
        let mut restored = self.clone();
        let mut free: Vec<_> = restored.0.iter_mut().collect();
        while !rest.is_empty() {
            let (window_ms, more) = rest.split_first_chunk().ok_or(SnapshotError)?;
            let (length, more) = more.split_first_chunk().ok_or(SnapshotError)?;
            let length = u32::from_le_bytes(*length) as usize;
            let (counts, more) = more.split_at_checked(length).ok_or(SnapshotError)?;
            rest = more;
            let window_ms = u64::from_le_bytes(*window_ms);
            if let Some(index) = free.iter().position(|(limits, _)| limits.window_ms == window_ms) {
                free.remove(index).1.restore(counts, now_ms)?;
            }
        }
        *self = restored;
        Ok(())
    }
}

/// Higher than the versions of [`PrefixCounters`].
const SNAPSHOT_VERSION: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Algorithm;
    use proptest::prelude::*;

    const START: u64 = 1_800_000_000_000;

    fn limits(address: u32, window_ms: u64) -> Limits {
        Limits {
            address,
            prefix: address * 2,
            window_ms,
            algorithm: Algorithm::Fixed,
        }
    }

    fn both() -> LimitSet {
        LimitSet::new(&[limits(3, 60_000), limits(5, 86_400_000)])
    }

    const ANNE: AddressKey = AddressKey::V4(7);

    #[test]
    fn a_request_needs_room_in_all_limits() {
        let mut set = both();
        let mut take = |now| {
            let decided = set.take(ANNE, None, now).unwrap();
            (decided.scoped.result.admitted, decided.index)
        };
        assert_eq!([take(START), take(START), take(START)], [(true, 0); 3]);
        assert_eq!(take(START), (false, 0));
        assert_eq!([take(START + 60_000), take(START + 60_000)], [(true, 1); 2]);
        assert_eq!(
            take(START + 60_000),
            (false, 1),
            "the denied request did not count"
        );
        assert_eq!(take(START + 120_000), (false, 1));
        assert_eq!(take(START + 86_400_000), (true, 0));
    }

    #[test]
    fn counts_are_restored_to_limits_with_the_same_window_length() {
        let mut set = both();
        for _ in 0..3 {
            set.take(ANNE, None, START);
        }
        let snapshot = set.encode();
        let mut swapped = LimitSet::new(&[limits(4, 86_400_000), limits(9, 3_600_000)]);
        swapped.restore(&snapshot, START).unwrap();
        let decided = swapped.take(ANNE, None, START + 60_000).unwrap();
        assert_eq!((decided.index, decided.scoped.result.used), (0, 4));
        assert!(
            !swapped
                .take(ANNE, None, START + 60_000)
                .unwrap()
                .scoped
                .result
                .admitted
        );
        let mut one = LimitSet::new(&[limits(3, 60_000)]);
        one.take(ANNE, None, START);
        let mut again = LimitSet::new(&[limits(3, 60_000)]);
        again.restore(&one.encode(), START).unwrap();
        assert_eq!(again.take(ANNE, None, START).unwrap().scoped.result.used, 2);
    }

    proptest! {
        /// Several requests at once count as many times as one by one, or not at all.
        #[test]
        fn a_batch_of_requests_counts_as_a_whole_or_not_at_all(
            costs in proptest::collection::vec((1..6_u32, 0..20_000_u64), 1..40),
        ) {
            let (mut now, mut set) = (START, LimitSet::new(&[limits(7, 30_000), limits(12, 90_000)]));
            let user = AddressKey::User(1);
            for (cost, pause) in costs {
                now += pause;
                let mut each = set.clone();
                let fits = (0..cost).all(|_| each.take(user, None, now).unwrap().scoped.result.admitted);
                let before = set.encode();
                let decided = set.take_many(user, cost, now).unwrap();
                prop_assert_eq!(decided.scoped.result.admitted, fits);
                prop_assert_eq!(set.encode(), if fits { each.encode() } else { before });
            }
        }
    }

    proptest! {
        #[test]
        fn limits_are_not_exceeded_and_denials_are_not_counted(
            requests in proptest::collection::vec((0..6_u64, 0..40_000_u64), 1..200),
        ) {
            let all = [limits(3, 60_000), limits(5, 300_000), limits(8, 600_000)];
            let mut set = LimitSet::new(&all);
            let mut alone: Vec<_> = all.iter().map(|each| PrefixCounters::new(*each)).collect();
            let mut now = START;
            for (subnet, gap) in requests {
                now += gap;
                let key = AddressKey::V6(0x2001_0db8_0000_0000 | subnet);
                let decided = set.take(key, None, now).unwrap();
                prop_assert_eq!(SetResult::unpack(decided.pack()), Some(decided));
                let all_admit = alone.iter_mut().all(|counters| counters.peek(key, now).result.admitted);
                prop_assert_eq!(decided.scoped.result.admitted, all_admit);
                if all_admit {
                    for counters in &mut alone {
                        prop_assert!(counters.take(key, None, now).result.admitted);
                    }
                }
                let mut restored = LimitSet::new(&all);
                restored.restore(&set.encode(), now).unwrap();
                set = restored;
            }
        }

        #[test]
        fn arbitrary_bytes_and_numbers_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60), packed: f64) {
            let _ = both().restore(&bytes, START);
            let mut versioned = vec![SNAPSHOT_VERSION];
            versioned.extend(bytes);
            let _ = both().restore(&versioned, START);
            SetResult::unpack(packed);
        }
    }
}

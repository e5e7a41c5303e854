//! Counting requests against one or several limits, such as ten a minute and two hundred a day, per address and per IPv6
//! /48.
//!
//! - A request is admitted if all limits admit it, and counts in all of them.
//! - A denied request counts in none.
//! - A subscriber with a /48 has 65,536 /64s, each with its own count (see [`crate::address`]). So all /64s of a /48 share
//!   a second, higher limit over windows of the same length: the prefix limit. Other keys have none.

use std::collections::BTreeMap;

use crate::address::AddressKey;
use crate::window::{Algorithm, LimitResult, MAX_WINDOW_MS, Policy, Window};

/// The maximum number of limits that are counted together. A packed result has no room for more.
pub const MAX_LIMITS: usize = 4;

/// The limits of an address and of its prefix, over windows of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit of an address: an IPv4 address or an IPv6 /64.
    pub address: u32,
    /// The limit of an IPv6 /48.
    pub prefix: u32,
    /// The length of the windows, in milliseconds.
    pub window_ms: u64,
    /// How requests are counted.
    pub algorithm: Algorithm,
}

impl Limits {
    /// The policy for `scope`.
    pub fn policy(&self, scope: Scope) -> Policy {
        Policy {
            limit: match scope {
                Scope::Address => self.address,
                Scope::Prefix => self.prefix,
            },
            window_ms: self.window_ms,
            algorithm: self.algorithm,
        }
    }
}

/// Which of the two limits a result refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The limit of the address.
    Address,
    /// The limit of the address's prefix.
    Prefix,
}

/// The result for the limit that decides: on a denial, the one that denies longest; on an admission, the one with the
/// fewest requests left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetResult {
    /// The index of the limit among those that are counted together.
    pub index: usize,
    /// Whether it is that of the address or of its prefix.
    pub scope: Scope,
    /// Its result.
    pub result: LimitResult,
}

/// The bit of a packed result for the prefix limit: above the bits of [`LimitResult::pack`].
const PREFIX_BIT: u64 = 1 << 48;

/// The factor of the limit's index in a packed result.
const INDEX_FACTOR: u64 = 1 << 49;

/// The packed result of counts without room for another key.
const FULL: f64 = -1.0;

impl SetResult {
    /// The result as one number that a double represents exactly. `None` stands for [`Counts::take`]'s `None`.
    pub fn pack(result: Option<Self>) -> f64 {
        let Some(Self { index, scope, result }) = result else {
            return FULL;
        };
        let scope = match scope {
            Scope::Address => 0,
            Scope::Prefix => PREFIX_BIT,
        };
        result.pack() + (scope + index.min(MAX_LIMITS - 1) as u64 * INDEX_FACTOR) as f64
    }

    /// Decodes a number that [`SetResult::pack`] returned. Returns `None` for any other number.
    pub fn unpack(packed: f64) -> Option<Option<Self>> {
        if packed == FULL {
            return Some(None);
        }
        let index = (packed / INDEX_FACTOR as f64).floor();
        if !(0.0..MAX_LIMITS as f64).contains(&index) {
            return None;
        }
        let packed = packed - index * INDEX_FACTOR as f64;
        let (scope, packed) = if packed >= PREFIX_BIT as f64 {
            (Scope::Prefix, packed - PREFIX_BIT as f64)
        } else {
            (Scope::Address, packed)
        };
        let result = LimitResult::unpack(packed)?;
        Some(Some(Self {
            index: index as usize,
            scope,
            result,
        }))
    }
}

/// The kind of an entry's key, its scope, its algorithm, and the length of its window in seconds. Limits
/// with another window or algorithm have separate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Head(u32);

impl Head {
    fn new(kind: u32, scope: Scope, limits: &Limits) -> Self {
        let sliding = u32::from(limits.algorithm == Algorithm::Sliding);
        let prefix = u32::from(scope == Scope::Prefix);
        let seconds = limits.window_ms.min(MAX_WINDOW_MS).div_ceil(1000) as u32;
        Self(kind << 24 | prefix << 23 | sliding << 22 | seconds)
    }

    fn algorithm(self) -> Algorithm {
        if self.0 >> 22 & 1 == 1 {
            Algorithm::Sliding
        } else {
            Algorithm::Fixed
        }
    }

    fn is_of_prefix(self) -> bool {
        self.0 >> 23 & 1 == 1
    }
}

/// The bytes of an entry.
const ENTRY: usize = 20;

/// The counts of many addresses or users. Not a hash table: clients choose the keys, and wasm has no random seed against
/// hash collisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<(Head, u64), Window>);

impl Counts {
    /// The counts in bytes that [`Self::encode`] returned, without those of windows that have ended at `now_ms`
    /// (milliseconds since the Unix epoch). Any bytes are some counts.
    pub fn decode(bytes: &[u8], now_ms: u64) -> Self {
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |sum, byte| (sum << 8) + u64::from(*byte))
        };
        let entries = bytes.chunks_exact(ENTRY).map(|entry| {
            let (head, rest) = entry.split_at(4);
            let (key, window) = rest.split_at(8);
            ((Head(number(head) as u32), number(key)), Window(number(window)))
        });
        Self(
            entries
                .filter(|((head, _), window)| window.ends_at(head.algorithm()) > now_ms)
                .collect(),
        )
    }

    /// All counts, in 20 bytes each.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() * ENTRY);
        for ((head, key), window) in &self.0 {
            bytes.extend(head.0.to_le_bytes());
            bytes.extend(key.to_le_bytes());
            bytes.extend(window.0.to_le_bytes());
        }
        bytes
    }

    /// Counts `cost` requests of `key` at `now_ms` if all of them are within all limits, and none of them otherwise.
    /// Returns `None` if there are already `capacity` counts and the key has none, so that nothing is counted.
    pub fn take(
        &mut self,
        limits: &[Limits],
        key: AddressKey,
        cost: u32,
        capacity: usize,
        now_ms: u64,
    ) -> Option<SetResult> {
        let seen: Vec<_> = self.seen(limits, key, cost, now_ms).collect();
        let denial = seen
            .iter()
            .map(|(_, _, result)| *result)
            .filter(|seen| !seen.result.admitted)
            .max_by_key(|seen| seen.result.reset_after_ms);
        if denial.is_some() {
            return denial;
        }
        let new = seen.iter().filter(|(at, ..)| !self.0.contains_key(at)).count();
        if new > 0 && self.0.len() + new > capacity {
            self.prune(now_ms);
            if self.0.len() + new > capacity {
                return None;
            }
        }
        for (at, window, _) in &seen {
            self.0.insert(*at, *window);
        }
        seen.into_iter()
            .map(|(_, _, result)| result)
            .min_by_key(|seen| remaining(limits, seen))
    }

    /// Takes back `cost` requests of `key` from all limits, or as many as are counted. Returns the result for the limit with
    /// the fewest requests left.
    pub fn refund(
        &mut self,
        limits: &[Limits],
        key: AddressKey,
        cost: u32,
        now_ms: u64,
    ) -> Option<SetResult> {
        let seen: Vec<_> = self.seen(limits, key, 0, now_ms).collect();
        for (at, window, SetResult { index, scope, .. }) in seen {
            let policy = limits.get(index)?.policy(scope);
            match window.refund(&policy, cost, now_ms) {
                empty if empty == Window::default() => self.0.remove(&at),
                window => self.0.insert(at, window),
            };
        }
        self.peek(limits, key, now_ms)
    }

    /// The result for the limit with the fewest requests left, without counting a request.
    pub fn peek(&self, limits: &[Limits], key: AddressKey, now_ms: u64) -> Option<SetResult> {
        let seen = self.seen(limits, key, 0, now_ms).map(|(_, _, result)| result);
        seen.min_by_key(|seen| remaining(limits, seen))
    }

    /// The denial that [`Self::take`] would return, without counting a request.
    pub fn denial(&self, limits: &[Limits], key: AddressKey, now_ms: u64) -> Option<SetResult> {
        self.seen(limits, key, 1, now_ms)
            .map(|(_, _, result)| result)
            .filter(|seen| !seen.result.admitted)
            .max_by_key(|seen| seen.result.reset_after_ms)
    }

    /// The place, the count and the result of each limit, if the requests counted.
    fn seen(
        &self,
        limits: &[Limits],
        key: AddressKey,
        cost: u32,
        now_ms: u64,
    ) -> impl Iterator<Item = ((Head, u64), Window, SetResult)> {
        let scopes = [
            Some((Scope::Address, key)),
            key.prefix().map(|key| (Scope::Prefix, key)),
        ];
        let each = limits.iter().take(MAX_LIMITS).enumerate();
        each.flat_map(move |(index, limits)| {
            scopes.into_iter().flatten().map(move |(scope, key)| {
                let (kind, upper, lower) = key.to_parts();
                let at = (
                    Head::new(kind, scope, limits),
                    (u64::from(upper) << 32) + u64::from(lower),
                );
                let window = self.0.get(&at).copied().unwrap_or_default();
                let (result, window) = window.take(&limits.policy(scope), cost, now_ms);
                (at, window, SetResult { index, scope, result })
            })
        })
    }

    /// Removes the windows that have ended.
    pub fn prune(&mut self, now_ms: u64) {
        self.0
            .retain(|(head, _), window| window.ends_at(head.algorithm()) > now_ms);
    }

    /// The number of addresses or users with counts.
    pub fn addresses(&self) -> usize {
        let mut keys: Vec<_> = self
            .0
            .keys()
            .filter(|(head, _)| !head.is_of_prefix())
            .map(|(head, key)| (head.0 >> 24, *key))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys.len()
    }

    /// The end of the last window, in milliseconds since the Unix epoch; `None` without any.
    pub fn last_end(&self) -> Option<u64> {
        let ends = self
            .0
            .iter()
            .map(|((head, _), window)| window.ends_at(head.algorithm()));
        ends.max()
    }
}

/// The requests left under the limit that a result refers to.
fn remaining(limits: &[Limits], seen: &SetResult) -> u32 {
    let policy = limits.get(seen.index).map(|limits| limits.policy(seen.scope));
    seen.result.remaining(policy.map_or(0, |policy| policy.limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 1_800_000_000_000;
    const ANNE: AddressKey = AddressKey::V4(7);

    fn limits(address: u32, window_ms: u64) -> Limits {
        Limits {
            address,
            prefix: address * 2 + 1,
            window_ms,
            algorithm: Algorithm::Fixed,
        }
    }

    fn both() -> [Limits; 2] {
        [limits(3, 60_000), limits(5, 86_400_000)]
    }

    fn take(counts: &mut Counts, limits: &[Limits], key: AddressKey, now: u64) -> SetResult {
        counts.take(limits, key, 1, 1000, now).unwrap()
    }

    fn subnet(site: u64, subnet: u64) -> AddressKey {
        AddressKey::V6(0x2001_0db8_0000_0000 | site << 16 | subnet)
    }

    fn admitted(counts: &mut Counts, key: AddressKey, times: usize, now: u64) -> usize {
        (0..times)
            .filter(|_| take(counts, &[limits(3, 60_000)], key, now).result.admitted)
            .count()
    }

    #[test]
    fn a_request_needs_room_in_all_limits() {
        let mut counts = Counts::default();
        let mut take = |now| {
            let decided = take(&mut counts, &both(), ANNE, now);
            (decided.result.admitted, decided.index)
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
    fn all_64s_of_a_48_share_its_limit() {
        let mut counts = Counts::default();
        let admissions: Vec<_> = (0..4)
            .map(|n| admitted(&mut counts, subnet(1, n), 5, START))
            .collect();
        assert_eq!(admissions, [3, 3, 1, 0]);
        assert_eq!(admitted(&mut counts, subnet(2, 0), 5, START), 3, "another /48");
    }

    #[test]
    fn keys_without_a_prefix_have_no_prefix_limit() {
        let mut counts = Counts::default();
        for key in (0..20).map(AddressKey::V4).chain([
            AddressKey::Unknown,
            AddressKey::Worker(1),
            AddressKey::User(1),
        ]) {
            assert_eq!(admitted(&mut counts, key, 5, START), 3, "{key}");
        }
    }

    #[test]
    fn denied_requests_do_not_count_in_either_limit() {
        let mut counts = Counts::default();
        assert_eq!(admitted(&mut counts, subnet(1, 0), 100, START), 3);
        assert_eq!(admitted(&mut counts, subnet(1, 1), 100, START), 3);
        assert_eq!(admitted(&mut counts, subnet(1, 2), 100, START), 1);
        // The window of the /48 has ended, and all /64s start again.
        assert_eq!(admitted(&mut counts, subnet(1, 2), 100, START + 60_000), 3);
    }

    #[test]
    fn the_result_reports_the_tightest_limit() {
        let mut counts = Counts::default();
        let limits = [limits(3, 60_000)];
        let mut take = |key, now| take(&mut counts, &limits, key, now);
        assert_eq!(
            take(subnet(1, 0), START).scope,
            Scope::Address,
            "2 left against 6"
        );
        for _ in 0..2 {
            take(subnet(1, 0), START);
        }
        let denied = take(subnet(1, 0), START + 10);
        assert_eq!((denied.scope, denied.result.admitted), (Scope::Address, false));
        for _ in 0..3 {
            assert_eq!(take(subnet(1, 1), START + 20).scope, Scope::Address);
        }
        let last = take(subnet(1, 2), START + 30);
        assert_eq!(
            (last.scope, last.result.used),
            (Scope::Prefix, 7),
            "0 left against 2"
        );
        let denied = take(subnet(1, 3), START + 40);
        assert_eq!(
            (denied.scope, denied.result.reset_after_ms),
            (Scope::Prefix, 59_960)
        );
    }

    #[test]
    fn counts_without_room_count_nothing_but_keep_their_keys() {
        let mut counts = Counts::default();
        let limits = [limits(3, 60_000)];
        let mut take = |key, now| counts.take(&limits, AddressKey::V4(key), 1, 10, now);
        for key in 0..10 {
            assert!(take(key, START).is_some());
        }
        assert_eq!(take(10, START), None);
        assert_eq!(take(3, START).unwrap().result.used, 2);
        assert!(take(10, START + 60_000).is_some(), "the windows have ended");
    }

    #[test]
    fn a_million_addresses_have_their_own_counts() {
        let limits = [limits(2, 86_400_000)];
        // As in a counting object: the counts are in rows.
        let mut rows = vec![Counts::default(); 1024];
        let mut take = |n: u32| {
            let key = AddressKey::V4(n.wrapping_mul(2_654_435_761));
            let row = &mut rows[(key.spread() >> 32) as usize % 1024];
            row.take(&limits, key, 1, 16_384, START).unwrap().result
        };
        assert!((0..1_000_000).all(|n| take(n).used == 1));
        assert!((0..1_000_000).step_by(1000).all(|n| take(n).used == 2));
        assert!((0..1_000_000).step_by(1000).all(|n| !take(n).admitted));
        let bytes: usize = rows.iter().map(|row| row.encode().len()).sum();
        assert!(bytes < 24_000_000, "{bytes}");
        let longest = rows.iter().map(|row| row.encode().len()).max();
        assert!(longest < Some(32_000), "{longest:?}");
    }

    #[test]
    fn a_refund_and_a_peek_leave_the_rest_as_it_is() {
        let mut counts = Counts::default();
        let limits = [limits(10, 60_000)];
        let used = |seen: Option<SetResult>| seen.unwrap().result.used;
        let empty = counts.clone();
        assert_eq!(used(counts.peek(&limits, ANNE, START)), 0);
        assert_eq!(
            used(counts.refund(&limits, ANNE, 3, START)),
            0,
            "nothing is counted"
        );
        assert_eq!(counts, empty);
        assert_eq!(used(counts.take(&limits, ANNE, 7, 1000, START)), 7);
        assert_eq!(used(counts.refund(&limits, ANNE, 3, START + 10)), 4);
        let before = counts.clone();
        let seen = counts.peek(&limits, ANNE, START + 20).unwrap().result;
        assert_eq!((seen.used, seen.reset_after_ms), (4, 59_980));
        assert_eq!(counts, before);
        assert_eq!(used(counts.refund(&limits, ANNE, u32::MAX, START + 30)), 0);
        assert_eq!(counts, empty, "nothing is left to store");
        counts.take(&limits, ANNE, 7, 1000, START);
        assert_eq!(
            used(counts.refund(&limits, ANNE, 1, START + 60_000)),
            0,
            "the window has ended"
        );
    }

    proptest! {
        /// Several requests at once count as many times as one by one, or not at all.
        #[test]
        fn a_batch_of_requests_counts_as_a_whole_or_not_at_all(
            costs in proptest::collection::vec((1..6_u32, 0..20_000_u64), 1..40),
        ) {
            let (mut now, mut counts) = (START, Counts::default());
            let all = [limits(7, 30_000), limits(12, 90_000)];
            for (cost, pause) in costs {
                now += pause;
                let mut each = counts.clone();
                let fits = (0..cost).all(|_| take(&mut each, &all, ANNE, now).result.admitted);
                let before = counts.clone();
                let decided = counts.take(&all, ANNE, cost, 1000, now).unwrap();
                prop_assert_eq!(decided.result.admitted, fits);
                prop_assert_eq!(&counts, if fits { &each } else { &before });
            }
        }

        #[test]
        fn limits_are_not_exceeded_and_counts_survive_encoding(
            requests in proptest::collection::vec((0..6_u64, 0..40_000_u64), 1..200),
        ) {
            let all = [limits(3, 60_000), limits(5, 300_000), limits(8, 600_000)];
            let (mut counts, mut alone) = (Counts::default(), vec![Counts::default(); 3]);
            let mut now = START;
            for (subnet, gap) in requests {
                now += gap;
                let key = AddressKey::V6(0x2001_0db8_0000_0000 | subnet);
                let all_admit = (0..3).all(|n| alone[n].denial(&all[n..=n], key, now).is_none());
                let denial = counts.denial(&all, key, now);
                let decided = take(&mut counts, &all, key, now);
                prop_assert_eq!(SetResult::unpack(SetResult::pack(Some(decided))), Some(Some(decided)));
                prop_assert_eq!(decided.result.admitted, all_admit);
                prop_assert_eq!(denial, (!all_admit).then_some(decided));
                if all_admit {
                    for n in 0..3 {
                        prop_assert!(take(&mut alone[n], &all[n..=n], key, now).result.admitted);
                    }
                }
                let decoded = Counts::decode(&counts.encode(), now);
                counts.prune(now);
                prop_assert_eq!(&decoded, &counts);
            }
        }

        #[test]
        fn arbitrary_bytes_and_numbers_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), packed: f64) {
            let mut counts = Counts::decode(&bytes, START);
            take(&mut counts, &both(), ANNE, START);
            let _ = counts.last_end();
            SetResult::unpack(packed);
        }
    }

    #[test]
    fn full_counts_are_a_packed_result_too() {
        assert_eq!(SetResult::unpack(SetResult::pack(None)), Some(None));
    }
}

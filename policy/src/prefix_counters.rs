//! Counting requests per address and per IPv6 /48.
//!
//! A subscriber with a /48 has 65,536 /64s, each with its own count (see [`crate::address`]). So all /64s of a /48
//! share a second, higher limit over the same window: the prefix limit. Exactly:
//!
//! - A request of an IPv6 address is admitted if its /64 and its /48 are both below their limits, and counts in both.
//! - A denied request counts in neither.
//! - Each window starts with its own first request, so the windows of a /64 and of its /48 end at different times.
//! - Requests of other keys (IPv4, Workers, unknown addresses) have no prefix limit.
//! - A restarted counter restores the prefix count from its snapshot only, because [`KnownUsage`] is that of the /64.

use crate::address::AddressKey;
use crate::window::{Algorithm, Counters, KnownUsage, LimitResult, Policy, SnapshotError};

/// The maximum size of the address counts in a snapshot, in bytes.
const ADDRESS_BYTES: usize = 1_100_000;

/// The maximum size of the prefix counts in a snapshot, in bytes. Both together stay below the 2 MB limit of a stored
/// value.
const PREFIX_BYTES: usize = 700_000;

/// The maximum number of addresses with their own counts.
const MAX_ADDRESSES: usize = 50_000;

/// The maximum number of prefixes with their own counts.
const MAX_PREFIXES: usize = 25_000;

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

/// The result for the limit that decides. On a denial: the limit that denies, or the one that denies longer. On an
/// admission: the limit with fewer requests left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopedResult {
    /// Which limit decides.
    pub scope: Scope,
    /// Its result.
    pub result: LimitResult,
}

/// The bit of a packed result that is set if the prefix limit decides: above the bits of [`LimitResult::pack`].
const PREFIX_BIT: u64 = 1 << 48;

impl ScopedResult {
    /// The result as one number that a double represents exactly; see [`LimitResult::pack`].
    pub fn pack(&self) -> f64 {
        let scope = match self.scope {
            Scope::Address => 0,
            Scope::Prefix => PREFIX_BIT,
        };
        self.result.pack() + scope as f64
    }

    /// Decodes a number that [`ScopedResult::pack`] returned. Returns `None` for any other number.
    pub fn unpack(packed: f64) -> Option<Self> {
        let prefix = packed >= PREFIX_BIT as f64;
        let (scope, packed) = if prefix {
            (Scope::Prefix, packed - PREFIX_BIT as f64)
        } else {
            (Scope::Address, packed)
        };
        LimitResult::unpack(packed).map(|result| Self { scope, result })
    }
}

/// The counts of many addresses and their prefixes.
#[derive(Clone, Debug)]
pub struct PrefixCounters {
    limits: Limits,
    addresses: Counters,
    prefixes: Counters,
    latest: u64,
}

impl PrefixCounters {
    /// Empty counters for as many addresses and prefixes as a snapshot has room for.
    pub fn new(limits: Limits) -> Self {
        Self::for_one_of(1, limits)
    }

    /// Like [`Self::new`], for counters that share a snapshot with others; `sharing` is the number of all of them.
    pub fn for_one_of(sharing: usize, limits: Limits) -> Self {
        let counters = |scope, bytes, capacity| {
            Counters::for_snapshot(limits.policy(scope), bytes / sharing, capacity / sharing)
        };
        Self {
            limits,
            addresses: counters(Scope::Address, ADDRESS_BYTES, MAX_ADDRESSES),
            prefixes: counters(Scope::Prefix, PREFIX_BYTES, MAX_PREFIXES),
            latest: 0,
        }
    }

    /// Empty counters with separate counts for at most `capacity` addresses and as many prefixes.
    pub fn with_capacity(limits: Limits, capacity: usize) -> Self {
        Self {
            limits,
            addresses: Counters::with_capacity(limits.policy(Scope::Address), capacity),
            prefixes: Counters::with_capacity(limits.policy(Scope::Prefix), capacity),
            latest: 0,
        }
    }

    /// Counts one request of `key` at `now_ms` (milliseconds since the Unix epoch) if it is within both limits. `known`
    /// is the usage that the caller remembers of the address.
    pub fn take(&mut self, key: AddressKey, known: Option<KnownUsage>, now_ms: u64) -> ScopedResult {
        let now = now_ms.max(self.latest);
        self.latest = now;
        let of_address = |result| ScopedResult {
            scope: Scope::Address,
            result,
        };
        let of_prefix = |result| ScopedResult {
            scope: Scope::Prefix,
            result,
        };
        let Some(prefix) = key.prefix() else {
            return of_address(self.addresses.take(key, known, now));
        };
        if !self.prefixes.peek(prefix, now).admitted {
            return self.peek(key, now);
        }
        let result = self.addresses.take(key, known, now);
        if !result.admitted {
            return of_address(result);
        }
        let prefix_result = self.prefixes.take(prefix, None, now);
        if prefix_result.remaining(self.limits.prefix) < result.remaining(self.limits.address) {
            of_prefix(prefix_result)
        } else {
            of_address(result)
        }
    }

    /// The result that [`Self::take`] would return, without counting the request. On an admission, the result may be
    /// that of the other limit.
    pub fn peek(&mut self, key: AddressKey, now_ms: u64) -> ScopedResult {
        let now = now_ms.max(self.latest);
        let own = ScopedResult {
            scope: Scope::Address,
            result: self.addresses.peek(key, now),
        };
        let Some(prefix) = key.prefix() else { return own };
        let of_prefix = ScopedResult {
            scope: Scope::Prefix,
            result: self.prefixes.peek(prefix, now),
        };
        let is_shorter = own.result.admitted || own.result.reset_after_ms <= of_prefix.result.reset_after_ms;
        if !of_prefix.result.admitted && is_shorter {
            of_prefix
        } else {
            own
        }
    }

    /// Removes the windows that have ended.
    pub fn prune(&mut self, now_ms: u64) {
        self.addresses.prune(now_ms);
        self.prefixes.prune(now_ms);
    }

    /// Whether new addresses or prefixes have no room for separate counts.
    pub fn is_full(&self) -> bool {
        self.addresses.is_full() || self.prefixes.is_full()
    }

    /// The number of addresses with counts.
    pub fn addresses(&self) -> usize {
        self.addresses.len()
    }

    /// The end of the last window, in milliseconds since the Unix epoch; `None` without any.
    pub fn last_end(&self) -> Option<u64> {
        self.addresses.last_end().max(self.prefixes.last_end())
    }

    /// Encodes all counts as a snapshot.
    pub fn encode(&self) -> Vec<u8> {
        let addresses = self.addresses.encode();
        let mut bytes = vec![SNAPSHOT_VERSION];
        bytes.extend((addresses.len() as u32).to_le_bytes());
        bytes.extend(addresses);
        bytes.extend(self.prefixes.encode());
        bytes
    }

    /// Replaces the counts with those of a snapshot, without windows that have ended at `now_ms`.
    ///
    /// # Errors
    /// When the bytes are not a snapshot.
    pub fn restore(&mut self, bytes: &[u8], now_ms: u64) -> Result<(), SnapshotError> {
        let (&version, rest) = bytes.split_first().ok_or(SnapshotError)?;
        if version != SNAPSHOT_VERSION {
            // Older snapshots have only the counts of addresses.
            return self.addresses.restore(bytes, now_ms);
        }
        let (length, rest) = rest.split_first_chunk().ok_or(SnapshotError)?;
        let (addresses, prefixes) = rest
            .split_at_checked(u32::from_le_bytes(*length) as usize)
            .ok_or(SnapshotError)?;
        let mut restored = self.clone();
        restored.addresses.restore(addresses, now_ms)?;
        restored.prefixes.restore(prefixes, now_ms)?;
        *self = restored;
        Ok(())
    }
}

const SNAPSHOT_VERSION: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const START: u64 = 1_800_000_000_000;

    fn limits(algorithm: Algorithm) -> Limits {
        Limits {
            address: 3,
            prefix: 7,
            window_ms: 60_000,
            algorithm,
        }
    }

    fn fixed() -> PrefixCounters {
        PrefixCounters::new(limits(Algorithm::Fixed))
    }

    fn subnet(site: u64, subnet: u64) -> AddressKey {
        AddressKey::V6(0x2001_0db8_0000_0000 | site << 16 | subnet)
    }

    fn admitted(counters: &mut PrefixCounters, key: AddressKey, times: usize, now: u64) -> usize {
        (0..times)
            .filter(|_| counters.take(key, None, now).result.admitted)
            .count()
    }

    #[test]
    fn all_64s_of_a_48_share_its_limit() {
        let mut counters = fixed();
        let admissions: Vec<_> = (0..4)
            .map(|n| admitted(&mut counters, subnet(1, n), 5, START))
            .collect();
        assert_eq!(admissions, [3, 3, 1, 0]);
        assert_eq!(admitted(&mut counters, subnet(2, 0), 5, START), 3, "another /48");
    }

    #[test]
    fn keys_without_a_prefix_have_no_prefix_limit() {
        let mut counters = fixed();
        for key in (0..20)
            .map(AddressKey::V4)
            .chain([AddressKey::Unknown, AddressKey::Worker(1)])
        {
            assert_eq!(admitted(&mut counters, key, 5, START), 3, "{key}");
        }
    }

    #[test]
    fn denied_requests_do_not_count_in_either_limit() {
        let mut counters = fixed();
        assert_eq!(admitted(&mut counters, subnet(1, 0), 100, START), 3);
        assert_eq!(admitted(&mut counters, subnet(1, 1), 100, START), 3);
        assert_eq!(
            admitted(&mut counters, subnet(1, 2), 100, START),
            1,
            "97 denials left the /48 as it was"
        );
        // The window of the /48 has ended. That of the last /64, which was always denied, has two left.
        assert_eq!(admitted(&mut counters, subnet(1, 2), 100, START + 60_000), 3);
    }

    #[test]
    fn the_result_reports_the_tightest_limit() {
        let mut counters = fixed();
        let mut take = |key, now| counters.take(key, None, now);
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
        let expected = LimitResult {
            admitted: false,
            used: 7,
            reset_after_ms: 59_960,
        };
        assert_eq!((denied.scope, denied.result), (Scope::Prefix, expected));
        // Both limits deny. The address's limit denies longer.
        let denied = take(subnet(1, 1), START + 40);
        assert_eq!(
            (denied.scope, denied.result.reset_after_ms),
            (Scope::Address, 59_980)
        );
        for n in [0, 0, 0, 1] {
            take(subnet(2, n), START);
        }
        assert_eq!(
            take(subnet(2, 2), START).scope,
            Scope::Address,
            "2 left against 2"
        );
        // Both limits deny for the same time.
        assert_eq!(take(subnet(1, 0), START + 40).scope, Scope::Prefix);
    }

    #[test]
    fn invalid_numbers_are_not_unpacked() {
        let result = LimitResult {
            admitted: true,
            used: 1,
            reset_after_ms: 1,
        };
        let [address, prefix] = [Scope::Address, Scope::Prefix].map(|scope| ScopedResult { scope, result });
        assert_eq!(ScopedResult::unpack(address.pack()), Some(address));
        assert_eq!(ScopedResult::unpack(prefix.pack()), Some(prefix));
        // An older isolate, without prefixes, can read the result of an address but not that of a prefix.
        assert_eq!(LimitResult::unpack(address.pack()), Some(result));
        assert_eq!(LimitResult::unpack(prefix.pack()), None);
        for number in [
            -1.0,
            0.5,
            f64::NAN,
            PREFIX_BIT as f64 * 2.0,
            PREFIX_BIT as f64 - 1.0,
        ] {
            assert_eq!(ScopedResult::unpack(number), None, "{number}");
        }
    }

    #[test]
    fn clock_jumps_back_do_not_admit_more_requests_of_a_48() {
        let mut counters = fixed();
        for n in 0..10 {
            admitted(&mut counters, subnet(1, n), 3, START);
        }
        admitted(&mut counters, AddressKey::V4(1), 1, START + 30_000);
        assert_eq!(admitted(&mut counters, subnet(1, 20), 3, START - 3_600_000), 0);
        assert_eq!(
            counters.take(subnet(1, 20), None, START).result.reset_after_ms,
            30_000
        );
    }

    #[test]
    fn snapshots_restore_address_counts_with_or_without_prefix_counts() {
        let mut counters = fixed();
        for n in 0..2 {
            admitted(&mut counters, subnet(1, n), 3, START);
        }
        let mut restored = fixed();
        assert_eq!(restored.restore(&counters.encode(), START + 1), Ok(()));
        assert_eq!(admitted(&mut restored, subnet(1, 5), 3, START + 1), 1);
        assert_eq!(restored.last_end(), Some(START + 60_001));

        let mut without_prefixes = fixed();
        assert_eq!(
            without_prefixes.restore(&counters.addresses.encode(), START + 1),
            Ok(())
        );
        assert_eq!(without_prefixes.addresses(), 2);
        assert_eq!(admitted(&mut without_prefixes, subnet(1, 0), 3, START + 1), 0);
    }

    #[test]
    fn a_damaged_snapshot_is_ignored() {
        let mut counters = fixed();
        admitted(&mut counters, subnet(1, 0), 3, START);
        let snapshot = counters.encode();
        for length in 0..snapshot.len() {
            let mut other = fixed();
            admitted(&mut other, subnet(9, 9), 1, START);
            // If the cut is between two entries, the rest is a snapshot of fewer prefixes.
            if other.restore(&snapshot[..length], START).is_err() {
                assert_eq!(other.addresses(), 1, "{length}");
            }
        }
        assert_eq!(fixed().restore(&[], START), Err(SnapshotError));
    }

    #[test]
    fn all_counts_are_pruned_after_the_last_window() {
        let mut counters = fixed();
        admitted(&mut counters, subnet(1, 0), 1, START);
        admitted(&mut counters, subnet(1, 1), 1, START + 5);
        assert_eq!(counters.last_end(), Some(START + 60_005));
        counters.prune(START + 60_000);
        assert_eq!(counters.last_end(), Some(START + 60_005));
        counters.prune(START + 60_005);
        assert_eq!(counters.last_end(), None);
    }

    #[test]
    fn a_full_snapshot_fits_in_one_stored_value() {
        let mut counters = fixed();
        for site in 0..50_000 {
            counters.take(subnet(site, 0), None, START);
            counters.take(subnet(site, 1), None, START);
        }
        for address in 0..20_000 {
            counters.take(AddressKey::V4(address), None, START);
        }
        assert_eq!(
            counters.addresses.len(),
            MAX_ADDRESSES + 1024,
            "with the shared counts"
        );
        assert_eq!(counters.prefixes.len(), MAX_PREFIXES + 1024);
        assert!(counters.encode().len() < ADDRESS_BYTES + PREFIX_BYTES);
        const { assert!(ADDRESS_BYTES + PREFIX_BYTES + 5 < 2_000_000) };
    }

    proptest! {
        #[test]
        fn neither_limit_is_exceeded_in_any_order_of_requests(
            sliding: bool, address in 1u32..4, prefix in 1u32..8, capacity in 1usize..6,
            requests in proptest::collection::vec((0u64..3, 0u64..4, 0u64..400), 1..300),
        ) {
            let algorithm = if sliding { Algorithm::Sliding } else { Algorithm::Fixed };
            let mut counters =
                PrefixCounters::with_capacity(Limits { address, prefix, window_ms: 1_000, algorithm }, capacity);
            let mut now = START;
            let mut admissions: BTreeMap<(u64, Option<u64>), Vec<u64>> = BTreeMap::new();
            for (site, net, gap) in requests {
                now += gap;
                let before = counters.clone();
                let scoped = counters.take(subnet(site, net), None, now);
                if scoped.result.admitted {
                    admissions.entry((site, None)).or_default().push(now);
                    admissions.entry((site, Some(net))).or_default().push(now);
                } else {
                    // A denial states exactly when the request is admitted again.
                    let again = |after_ms| {
                        let mut counters = before.clone();
                        counters.take(subnet(site, net), None, now + after_ms).result.admitted
                    };
                    prop_assert!(!again(scoped.result.reset_after_ms - 1));
                    prop_assert!(again(scoped.result.reset_after_ms));
                }
                prop_assert_eq!(ScopedResult::unpack(scoped.pack()), Some(scoped));
            }
            for ((_, net), times) in admissions {
                let limit = if net.is_some() { address } else { prefix } as usize;
                if sliding {
                    for times in times.windows(limit + 1) {
                        prop_assert!(times[limit] - times[0] >= 1_000);
                    }
                } else {
                    let (mut start, mut used) = (0, 0);
                    for time in times {
                        if time - start >= 1_000 { (start, used) = (time, 0); }
                        used += 1;
                        prop_assert!(used <= limit);
                    }
                }
            }
        }

        #[test]
        fn restoring_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut counters = fixed();
            let _ = counters.restore(&bytes, START);
            let versioned: Vec<u8> = [SNAPSHOT_VERSION].into_iter().chain(bytes).collect();
            let _ = counters.restore(&versioned, START);
            counters.take(subnet(1, 1), None, START);
        }
    }
}

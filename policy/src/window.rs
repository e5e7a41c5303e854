//! Counting requests per client address and window of time (web ADR-21).
//!
//! The fixed window begins with an address's first request and ends a window's length later, so the windows of
//! different addresses do not end together. The sliding window admits at most the limit in any stretch of its
//! length. Both are exact. Times are milliseconds since the Unix epoch and come in as arguments; a clock that jumps
//! back stands still until it has caught up.
//!
//! Memory is bounded whatever is sent: beyond the capacity, new addresses share counts with others. They may be
//! denied early then, never admitted beyond the limit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::address::AddressKey;

/// The largest limit that can be configured: what [`Verdict::pack`] has room for.
pub const MAX_LIMIT: u32 = (1 << 20) - 1;

/// The longest window that can be configured, in milliseconds: a day.
pub const MAX_WINDOW_MS: u64 = 24 * 60 * 60 * 1000;

/// The most addresses that are counted each by themselves.
const MAX_ADDRESSES: usize = 50_000;

/// The most bytes that an encoded snapshot may take: below the 2 MB that one stored value can have.
const MAX_SNAPSHOT_BYTES: usize = 1_800_000;

/// How many counts addresses beyond the capacity share, at most.
const SHARED_COUNTS: usize = 1024;

/// The largest limit of a sliding window, which remembers the time of each request.
pub const MAX_SLIDING_LIMIT: u32 = 1000;

/// How requests are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// A window from an address's first request on; the count starts anew after it.
    #[default]
    Fixed,
    /// The limit holds in every stretch of a window's length. Remembers each admitted request's time.
    Sliding,
}

/// How many requests an address may make in which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many, 1 to [`MAX_LIMIT`].
    pub limit: u32,
    /// In which time, in milliseconds, up to [`MAX_WINDOW_MS`].
    pub window_ms: u64,
    /// How they are counted.
    pub algorithm: Algorithm,
}

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it may pass.
    pub admitted: bool,
    /// How many of the limit are used now, this one included.
    pub used: u32,
    /// In how many milliseconds there will be more.
    pub reset_after_ms: u64,
}

impl Verdict {
    /// How many more requests there are until then.
    pub fn remaining(&self, limit: u32) -> u32 {
        limit.saturating_sub(self.used)
    }

    /// The verdict as one number that a double holds exactly: the cheapest thing to send back from an object.
    pub fn pack(&self) -> f64 {
        let used = u64::from(self.used.min(MAX_LIMIT));
        let reset = self.reset_after_ms.min(MAX_WINDOW_MS);
        (reset << 21 | used << 1 | u64::from(self.admitted)) as f64
    }

    /// The verdict that [`Verdict::pack`] made a number of; `None` for a number that it cannot have made.
    pub fn unpack(packed: f64) -> Option<Self> {
        let whole =
            packed.fract() == 0.0 && (0.0..=((MAX_WINDOW_MS << 21 | 0x1f_ffff) as f64)).contains(&packed);
        let bits = packed as u64;
        whole.then_some(Self {
            admitted: bits & 1 == 1,
            used: (bits >> 1) as u32 & MAX_LIMIT,
            reset_after_ms: bits >> 21,
        })
    }
}

/// What somebody else has seen of an address in its present window: brought along with a request, it makes up for
/// what a counter that was restarted has forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How many were used.
    pub used: u32,
    /// When the window ends, in milliseconds since the Unix epoch.
    pub reset_at_ms: u64,
}

/// Why a snapshot could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the snapshot is not one, or of a version that is not known")]
pub struct SnapshotError;

/// The admitted requests of one address (or of several that share a count).
#[derive(Clone, Debug, PartialEq, Eq)]
enum Window {
    Fixed {
        start: u64,
        used: u32,
    },
    /// The times of the last admitted requests, oldest first; at most the limit.
    Sliding(Vec<u64>),
}

impl Window {
    fn new(algorithm: Algorithm, now: u64) -> Self {
        match algorithm {
            Algorithm::Fixed => Self::Fixed { start: now, used: 0 },
            Algorithm::Sliding => Self::Sliding(Vec::new()),
        }
    }

    /// When nothing of it counts any more.
    fn over_at(&self, window_ms: u64) -> u64 {
        match self {
            Self::Fixed { start, .. } => start + window_ms,
            Self::Sliding(times) => times.last().map_or(0, |last| last + window_ms),
        }
    }

    fn take(&mut self, policy: &Policy, now: u64) -> Verdict {
        match self {
            Self::Fixed { start, used } => {
                if now >= *start + policy.window_ms {
                    (*start, *used) = (now, 0);
                }
                let admitted = *used < policy.limit;
                *used = if admitted { *used + 1 } else { policy.limit };
                Verdict {
                    admitted,
                    used: *used,
                    reset_after_ms: *start + policy.window_ms - now,
                }
            }
            Self::Sliding(times) => {
                times.retain(|time| now < time + policy.window_ms);
                let admitted = times.len() < policy.limit as usize;
                if admitted {
                    times.push(now);
                }
                let oldest = times.first().copied().unwrap_or(now);
                Verdict {
                    admitted,
                    used: times.len() as u32,
                    reset_after_ms: oldest + policy.window_ms - now,
                }
            }
        }
    }

    /// Takes over what somebody else has seen. Only counts of a fixed window can be taken over; nobody else knows
    /// the times of a sliding one.
    fn catch_up(&mut self, seen: Seen, policy: &Policy, now: u64) {
        let Self::Fixed { start, used } = self else { return };
        let live = seen.reset_at_ms > now && seen.reset_at_ms <= now + policy.window_ms;
        if !live || seen.used <= *used {
            return;
        }
        if *used == 0 {
            *start = seen.reset_at_ms.saturating_sub(policy.window_ms);
        }
        *used = seen.used;
    }
}

/// The counts of many addresses under one policy.
#[derive(Clone, Debug)]
pub struct Counters {
    policy: Policy,
    capacity: usize,
    shared_capacity: usize,
    /// A tree rather than a hash table: an attacker chooses the keys, and wasm has no random seed for a hash.
    windows: BTreeMap<AddressKey, Window>,
    shared: BTreeMap<u64, Window>,
    latest: u64,
    prune_at: u64,
}

impl Counters {
    /// Counts under `policy`, none taken yet, for as many addresses as a snapshot has room for.
    pub fn new(policy: Policy) -> Self {
        let times = if policy.algorithm == Algorithm::Sliding {
            policy.limit as usize
        } else {
            0
        };
        let room = MAX_SNAPSHOT_BYTES / (ENTRY_BYTES + 4 * times);
        let mut counters = Self::with_capacity(policy, MAX_ADDRESSES.min(room - room / 4));
        counters.shared_capacity = SHARED_COUNTS.min(room / 4).max(1);
        counters
    }

    /// Counts for at most `capacity` addresses each by themselves.
    pub fn with_capacity(policy: Policy, capacity: usize) -> Self {
        let (windows, shared) = Default::default();
        let shared_capacity = SHARED_COUNTS;
        Self {
            policy,
            capacity,
            shared_capacity,
            windows,
            shared,
            latest: 0,
            prune_at: 0,
        }
    }

    /// The policy that they are counted under.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Counts one request of `key` at `now_ms` and says whether it may pass. A denied one is not counted.
    /// `seen` is what the caller remembers of the address, if anything.
    pub fn take(&mut self, key: AddressKey, seen: Option<Seen>, now_ms: u64) -> Verdict {
        let now = now_ms.max(self.latest);
        self.latest = now;
        let policy = self.policy;
        if let Some(slot) = self.shared_slot(key, now) {
            let window = self
                .shared
                .entry(slot)
                .or_insert_with(|| Window::new(policy.algorithm, now));
            let verdict = window.take(&policy, now);
            if let (Window::Fixed { start, .. }, true) = (window, verdict.admitted) {
                // Begun by one address, the window is shared by others: each must find it whole after its last request.
                *start = now;
            }
            return verdict;
        }
        let window = self
            .windows
            .entry(key)
            .or_insert_with(|| Window::new(policy.algorithm, now));
        if let Some(seen) = seen {
            window.catch_up(seen, &policy, now);
        }
        window.take(&policy, now)
    }

    /// Which shared count an address falls under, if it has none of its own: when there is no room, and for as long as
    /// its requests of that time may still count.
    fn shared_slot(&mut self, key: AddressKey, now: u64) -> Option<u64> {
        let full = self.windows.len() >= self.capacity;
        if (!full && self.shared.is_empty()) || self.windows.contains_key(&key) {
            return None;
        }
        if full && now >= self.prune_at {
            self.prune(now);
        }
        let slot = key.spread() % self.shared_capacity as u64;
        let live = self
            .shared
            .get(&slot)
            .is_some_and(|window| window.over_at(self.policy.window_ms) > now);
        (live || self.windows.len() >= self.capacity).then_some(slot)
    }

    /// Forgets what does not count any more.
    pub fn prune(&mut self, now_ms: u64) {
        let now = now_ms.max(self.latest);
        let window_ms = self.policy.window_ms;
        self.windows.retain(|_, window| window.over_at(window_ms) > now);
        self.shared.retain(|_, window| window.over_at(window_ms) > now);
        // While all are live, looking at each of them again for every newcomer would be an attack of its own.
        self.prune_at = self
            .windows
            .values()
            .map(|window| window.over_at(window_ms))
            .min()
            .unwrap_or(0);
    }

    /// How many counts are kept.
    pub fn len(&self) -> usize {
        self.windows.len() + self.shared.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When the last of them will not count any more, in milliseconds since the Unix epoch; `None` when none is kept.
    pub fn over_at(&self) -> Option<u64> {
        let windows = self.windows.values().chain(self.shared.values());
        windows.map(|window| window.over_at(self.policy.window_ms)).max()
    }

    /// All counts as bytes, to be stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![SNAPSHOT_VERSION, self.policy.algorithm as u8];
        for (key, window) in &self.windows {
            let (kind, upper, lower) = key.to_parts();
            encode_entry(&mut bytes, kind as u8, upper, lower, window);
        }
        for (slot, window) in &self.shared {
            encode_entry(&mut bytes, SHARED_KIND, 0, *slot as u32, window);
        }
        bytes
    }

    /// Takes over the counts of a snapshot, except those that do not count any more at `now_ms`.
    ///
    /// # Errors
    /// When the bytes are no snapshot. Then nothing was taken over. A snapshot of the other algorithm is one, but has
    /// nothing to take over.
    pub fn restore(&mut self, bytes: &[u8], now_ms: u64) -> Result<(), SnapshotError> {
        let mut rest = Reader(bytes);
        let (version, algorithm) = (rest.u8()?, rest.u8()?);
        if version != SNAPSHOT_VERSION || algorithm > Algorithm::Sliding as u8 {
            return Err(SnapshotError);
        }
        let (mut windows, mut shared) = (BTreeMap::new(), BTreeMap::new());
        while !rest.0.is_empty() {
            let (kind, upper, lower) = (rest.u8()?, rest.u32()?, rest.u32()?);
            let start = rest.u64()?;
            let window = if algorithm == Algorithm::Fixed as u8 {
                Window::Fixed {
                    start,
                    used: rest.u32()?,
                }
            } else {
                let count = rest.u32()?;
                let times =
                    (0..count).map(|_| rest.u32().map(|offset| start.saturating_add(u64::from(offset))));
                Window::Sliding(times.collect::<Result<_, _>>()?)
            };
            if start > u64::MAX / 4 {
                return Err(SnapshotError);
            }
            if kind == SHARED_KIND {
                shared.insert(u64::from(lower) % self.shared_capacity as u64, window);
            } else {
                windows.insert(AddressKey::from_parts(u32::from(kind), upper, lower), window);
            }
        }
        if algorithm == self.policy.algorithm as u8 {
            (self.windows, self.shared) = (windows, shared);
            self.prune(now_ms);
        }
        Ok(())
    }
}

const SNAPSHOT_VERSION: u8 = 1;
/// Of an address and its window, without a sliding window's times.
const ENTRY_BYTES: usize = 21;
const SHARED_KIND: u8 = 255;

fn encode_entry(bytes: &mut Vec<u8>, kind: u8, upper: u32, lower: u32, window: &Window) {
    bytes.push(kind);
    bytes.extend(upper.to_le_bytes());
    bytes.extend(lower.to_le_bytes());
    match window {
        Window::Fixed { start, used } => {
            bytes.extend(start.to_le_bytes());
            bytes.extend(used.to_le_bytes());
        }
        Window::Sliding(times) => {
            let start = times.first().copied().unwrap_or(0);
            bytes.extend(start.to_le_bytes());
            bytes.extend((times.len() as u32).to_le_bytes());
            for time in times {
                bytes.extend(((time - start) as u32).to_le_bytes());
            }
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(SnapshotError)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, SnapshotError> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, SnapshotError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, SnapshotError> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANNE: AddressKey = AddressKey::V4(1);
    const BOB: AddressKey = AddressKey::V4(2);
    const START: u64 = 1_800_000_000_000;

    fn policy(algorithm: Algorithm) -> Policy {
        Policy {
            limit: 10,
            window_ms: 60_000,
            algorithm,
        }
    }

    fn fixed() -> Counters {
        Counters::new(policy(Algorithm::Fixed))
    }

    fn admitted(counters: &mut Counters, key: AddressKey, times: usize, now: u64) -> usize {
        (0..times)
            .filter(|_| counters.take(key, None, now).admitted)
            .count()
    }

    #[test]
    fn ten_requests_pass_and_the_eleventh_does_not() {
        let mut counters = fixed();
        assert_eq!(admitted(&mut counters, ANNE, 1000, START), 10);
        assert_eq!(
            admitted(&mut counters, BOB, 10, START),
            10,
            "each address has its own count"
        );
    }

    #[test]
    fn the_window_begins_with_the_first_request_and_denials_do_not_move_it() {
        let mut counters = fixed();
        let first = counters.take(ANNE, None, START);
        assert_eq!(
            first,
            Verdict {
                admitted: true,
                used: 1,
                reset_after_ms: 60_000
            }
        );
        assert_eq!(admitted(&mut counters, ANNE, 20, START + 45_000), 9);
        let denied = counters.take(ANNE, None, START + 59_999);
        assert_eq!(
            denied,
            Verdict {
                admitted: false,
                used: 10,
                reset_after_ms: 1
            }
        );
        assert_eq!(admitted(&mut counters, ANNE, 20, START + 60_000), 10);
    }

    #[test]
    fn a_sliding_window_admits_no_burst_at_its_edge() {
        let mut counters = Counters::new(policy(Algorithm::Sliding));
        assert_eq!(admitted(&mut counters, ANNE, 1, START), 1);
        assert_eq!(admitted(&mut counters, ANNE, 20, START + 59_000), 9);
        let again = counters.take(ANNE, None, START + 60_000);
        assert!(again.admitted, "the first has left the window");
        assert_eq!(counters.take(ANNE, None, START + 60_001).reset_after_ms, 58_999);
        assert_eq!(admitted(&mut counters, ANNE, 20, START + 119_000), 9);
    }

    #[test]
    fn a_clock_that_jumps_back_admits_nothing_more() {
        for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
            let mut counters = Counters::new(policy(algorithm));
            assert_eq!(admitted(&mut counters, ANNE, 10, START), 10);
            assert_eq!(admitted(&mut counters, ANNE, 10, START - 3_600_000), 0);
            assert_eq!(admitted(&mut counters, ANNE, 10, START + 59_999), 0);
        }
    }

    #[test]
    fn beyond_the_capacity_newcomers_share_counts_and_nobody_is_forgotten() {
        let mut counters = Counters::with_capacity(policy(Algorithm::Fixed), 100);
        assert_eq!(admitted(&mut counters, ANNE, 10, START), 10);
        for other in 100..100_000 {
            counters.take(AddressKey::V4(other), None, START + 1);
        }
        assert!(counters.len() <= 100 + SHARED_COUNTS);
        assert_eq!(admitted(&mut counters, ANNE, 10, START + 2), 0);
        assert_eq!(
            admitted(&mut counters, AddressKey::V4(100_001), 20, START + 60_002),
            10,
            "old ones make room"
        );
    }

    #[test]
    fn a_snapshot_at_full_capacity_fits_one_stored_value() {
        for (algorithm, limit) in [
            (Algorithm::Fixed, 10),
            (Algorithm::Sliding, 10),
            (Algorithm::Sliding, 1000),
        ] {
            let mut counters = Counters::new(Policy {
                limit,
                ..policy(algorithm)
            });
            for address in 0..60_000 {
                for _ in 0..if algorithm == Algorithm::Sliding {
                    limit.min(20)
                } else {
                    1
                } {
                    counters.take(AddressKey::V6(address), None, START);
                }
            }
            assert!(counters.encode().len() < 2_000_000);
        }
    }

    #[test]
    fn what_another_has_seen_makes_up_for_what_was_forgotten() {
        let mut counters = fixed();
        let seen = Seen {
            used: 7,
            reset_at_ms: START + 20_000,
        };
        let verdict = counters.take(ANNE, Some(seen), START);
        assert_eq!(
            verdict,
            Verdict {
                admitted: true,
                used: 8,
                reset_after_ms: 20_000
            }
        );
        assert_eq!(admitted(&mut counters, ANNE, 10, START), 2);
    }

    #[test]
    fn what_was_seen_in_an_earlier_or_impossible_window_does_not_count() {
        let mut counters = fixed();
        for seen in [
            Seen {
                used: 10,
                reset_at_ms: START,
            },
            Seen {
                used: 10,
                reset_at_ms: START + 60_001,
            },
        ] {
            assert!(counters.take(ANNE, Some(seen), START).admitted);
        }
    }

    #[test]
    fn nothing_is_kept_after_the_last_window() {
        let mut counters = fixed();
        counters.take(ANNE, None, START);
        counters.take(BOB, None, START + 5);
        assert_eq!(counters.over_at(), Some(START + 60_005));
        counters.prune(START + 60_005);
        assert!(counters.is_empty());
        assert_eq!(counters.over_at(), None);
    }

    #[test]
    fn a_snapshot_of_the_other_algorithm_has_nothing_to_take_over() {
        let mut sliding = Counters::new(policy(Algorithm::Sliding));
        sliding.take(ANNE, None, START);
        let mut counters = fixed();
        assert_eq!(counters.restore(&sliding.encode(), START), Ok(()));
        assert!(counters.is_empty());
    }

    fn algorithms() -> impl Strategy<Value = Algorithm> {
        prop_oneof![Just(Algorithm::Fixed), Just(Algorithm::Sliding)]
    }

    /// Requests of five addresses, each at a time that differs from the one before: mostly forwards, now and then
    /// back, by anything up to four windows.
    fn requests() -> impl Strategy<Value = Vec<(u32, i64)>> {
        proptest::collection::vec(
            (0u32..5, prop_oneof![3 => 0i64..700, 1 => -2_000i64..4_000]),
            1..400,
        )
    }

    proptest! {
        #[test]
        fn never_more_than_the_limit_per_window_whatever_the_order_and_the_clock(
            algorithm in algorithms(), limit in 1u32..6, capacity in 1usize..6, requests in requests(),
            lose_memory_at in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let policy = Policy { limit, window_ms: 1_000, algorithm };
            let mut counters = Counters::with_capacity(policy, capacity);
            let losses: Vec<_> = lose_memory_at.iter().map(|index| index.index(requests.len())).collect();
            let mut clock = START as i64;
            let mut highest = i64::MIN;
            // For each address, the highest time that the clock had shown at each admitted request.
            let mut admissions: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
            for (at, (address, step)) in requests.into_iter().enumerate() {
                clock += step;
                if losses.contains(&at) {
                    // Evicted after its snapshot, and made again. A new object knows no earlier time than its own.
                    clock = clock.max(highest);
                    let snapshot = counters.encode();
                    counters = Counters::with_capacity(policy, capacity);
                    prop_assert_eq!(counters.restore(&snapshot, clock as u64), Ok(()));
                }
                highest = highest.max(clock);
                if counters.take(AddressKey::V4(address), None, clock as u64).admitted {
                    admissions.entry(address).or_default().push(highest);
                }
            }
            for times in admissions.values() {
                match algorithm {
                    // No stretch of a window's length holds more than the limit.
                    Algorithm::Sliding => for pair in times.windows(limit as usize + 1) {
                        prop_assert!(pair[limit as usize] - pair[0] >= 1_000);
                    },
                    // Counted anew from each window's first request, no window holds more than the limit.
                    Algorithm::Fixed => {
                        let (mut start, mut used) = (i64::MIN / 2, 0);
                        for time in times {
                            if *time - start >= 1_000 { (start, used) = (*time, 0); }
                            used += 1;
                            prop_assert!(used <= limit);
                        }
                    }
                }
            }
        }

        #[test]
        fn a_denial_names_the_moment_from_which_on_a_request_passes(
            algorithm in algorithms(), gaps in proptest::collection::vec(0u64..20_000, 10..40),
        ) {
            let mut counters = Counters::new(policy(algorithm));
            let mut now = START;
            for gap in gaps {
                now += gap;
                let verdict = counters.take(ANNE, None, now);
                if !verdict.admitted {
                    prop_assert!(verdict.reset_after_ms > 0 && verdict.reset_after_ms <= 60_000);
                    prop_assert!(!counters.clone().take(ANNE, None, now + verdict.reset_after_ms - 1).admitted);
                    prop_assert!(counters.clone().take(ANNE, None, now + verdict.reset_after_ms).admitted);
                }
            }
        }

        #[test]
        fn counts_come_back_from_a_snapshot(
            algorithm in algorithms(), hits in proptest::collection::vec((any::<u64>(), 0u64..50_000), 0..60),
        ) {
            let mut counters = Counters::with_capacity(policy(algorithm), 20);
            let mut now = START;
            for (address, gap) in hits {
                now += gap / 20;
                counters.take(AddressKey::V6(address % 40), None, now);
            }
            let mut restored = Counters::with_capacity(policy(algorithm), 20);
            prop_assert_eq!(restored.restore(&counters.encode(), now), Ok(()));
            counters.prune(now);
            prop_assert_eq!(&restored.windows, &counters.windows);
            prop_assert_eq!(&restored.shared, &counters.shared);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), now in any::<u64>()) {
            let mut counters = fixed();
            let _ = counters.restore(&bytes, now / 4);
            counters.take(ANNE, None, now / 4);
        }

        #[test]
        fn a_verdict_comes_back_from_its_number(admitted: bool, used in 0..=MAX_LIMIT, reset_after_ms in 0..=MAX_WINDOW_MS) {
            let verdict = Verdict { admitted, used, reset_after_ms };
            prop_assert_eq!(Verdict::unpack(verdict.pack()), Some(verdict));
        }

        #[test]
        fn any_number_is_unpacked_without_a_panic(number in any::<f64>()) {
            let _ = Verdict::unpack(number);
        }
    }
}

//! Counting requests per client address and window of time (web ADR-21).
//!
//! The fixed window of an address starts with its first request, so the windows of different addresses do not end
//! together. The sliding window admits at most the limit in any interval of its length. Both are exact. Times are
//! milliseconds since the Unix epoch. If the clock jumps back, time stands still until the clock has caught up.
//!
//! Memory is bounded: beyond the capacity, new addresses share counts with others. They may then be denied early, but
//! never admitted beyond the limit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::address::AddressKey;

/// The largest limit that can be configured: the maximum that fits into [`LimitResult::pack`].
pub const MAX_LIMIT: u32 = (1 << 20) - 1;

/// The longest window that can be configured, in milliseconds: a day.
pub const MAX_WINDOW_MS: u64 = 24 * 60 * 60 * 1000;

/// The maximum number of counts that addresses beyond the capacity share.
const MAX_SHARED_COUNTS: usize = 1024;

/// The largest limit of a sliding window, which stores the time of each request.
pub const MAX_SLIDING_LIMIT: u32 = 1000;

/// How requests are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// The window starts with an address's first request. After its end, the next request starts a new one.
    #[default]
    Fixed,
    /// The limit holds in every interval of a window's length. Stores the time of each admitted request.
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

/// The usage of an address in its current window, as a caller remembers it. Sent with a request, it restores counts
/// that a restarted counter has lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownUsage {
    /// The requests counted.
    pub used: u32,
    /// The end of the window, in milliseconds since the Unix epoch.
    pub reset_at_ms: u64,
}

/// A snapshot cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the snapshot is malformed or of an unknown version")]
pub struct SnapshotError;

/// The admitted requests of one address, or of several that share a count.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Window {
    Fixed {
        start: u64,
        used: u32,
    },
    /// The times of the admitted requests, oldest first; at most the limit.
    Sliding(Vec<u64>),
}

impl Window {
    fn new(algorithm: Algorithm, now: u64) -> Self {
        match algorithm {
            Algorithm::Fixed => Self::Fixed { start: now, used: 0 },
            Algorithm::Sliding => Self::Sliding(Vec::new()),
        }
    }

    /// The time after which none of its requests counts.
    fn ends_at(&self, window_ms: u64) -> u64 {
        match self {
            Self::Fixed { start, .. } => start + window_ms,
            Self::Sliding(times) => times.last().map_or(0, |last| last + window_ms),
        }
    }

    fn take(&mut self, policy: &Policy, now: u64) -> LimitResult {
        match self {
            Self::Fixed { start, used } => {
                if now >= *start + policy.window_ms {
                    (*start, *used) = (now, 0);
                }
                let admitted = *used < policy.limit;
                *used = if admitted { *used + 1 } else { policy.limit };
                LimitResult {
                    admitted,
                    used: *used,
                    reset_after_ms: *start + policy.window_ms - now,
                }
            }
            Self::Sliding(times) => {
                times.retain(|time| now < time + policy.window_ms);
                let admitted = times.len() < policy.limit as usize;
                if admitted {
                    // In order: the list may have later times, from a clock that was slightly ahead.
                    times.insert(times.partition_point(|time| *time <= now), now);
                }
                let oldest = times.first().copied().unwrap_or(now);
                LimitResult {
                    admitted,
                    used: times.len() as u32,
                    reset_after_ms: oldest + policy.window_ms - now,
                }
            }
        }
    }

    /// Raises the count to the usage that the caller remembers. A sliding window stays unchanged, because the caller
    /// does not know the times of its requests.
    fn catch_up(&mut self, known: KnownUsage, policy: &Policy, now: u64) {
        let Self::Fixed { start, used } = self else { return };
        let current = known.reset_at_ms > now && known.reset_at_ms <= now + policy.window_ms;
        if !current || known.used <= *used {
            return;
        }
        if *used == 0 {
            *start = known.reset_at_ms.saturating_sub(policy.window_ms);
        }
        *used = known.used;
    }
}

/// The counts of many addresses under one policy.
#[derive(Clone, Debug)]
pub struct Counters {
    policy: Policy,
    capacity: usize,
    shared_capacity: usize,
    /// Not a hash table: clients choose the keys, and wasm has no random seed against hash collisions.
    windows: BTreeMap<AddressKey, Window>,
    shared: BTreeMap<u64, Window>,
    latest: u64,
    prune_at: u64,
}

impl Counters {
    /// Empty counters under `policy` with separate counts for at most `capacity` addresses, or fewer if a snapshot of
    /// them would be larger than `max_bytes`.
    pub fn for_snapshot(policy: Policy, max_bytes: usize, capacity: usize) -> Self {
        let times = if policy.algorithm == Algorithm::Sliding {
            policy.limit as usize
        } else {
            0
        };
        let room = max_bytes / (ENTRY_BYTES + 4 * times);
        let shared_capacity = MAX_SHARED_COUNTS.min(room / 4).max(1);
        Self {
            shared_capacity,
            ..Self::with_capacity(policy, capacity.min(room - shared_capacity))
        }
    }

    /// Empty counters under `policy` with separate counts for at most `capacity` addresses.
    pub fn with_capacity(policy: Policy, capacity: usize) -> Self {
        let (windows, shared) = Default::default();
        let shared_capacity = MAX_SHARED_COUNTS;
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

    /// Counts one request of `key` at `now_ms` if it is within the limit. A denied request is not counted. `known` is
    /// the usage that the caller remembers of the address.
    pub fn take(&mut self, key: AddressKey, known: Option<KnownUsage>, now_ms: u64) -> LimitResult {
        let now = now_ms.max(self.latest);
        self.latest = now;
        let policy = self.policy;
        if let Some(slot) = self.shared_slot(key, now) {
            let window = self
                .shared
                .entry(slot)
                .or_insert_with(|| Window::new(policy.algorithm, now));
            let result = window.take(&policy, now);
            if let (Window::Fixed { start, .. }, true) = (window, result.admitted) {
                // Several addresses share the window, so it must last its full length after each request in it.
                *start = now;
            }
            return result;
        }
        let window = self
            .windows
            .entry(key)
            .or_insert_with(|| Window::new(policy.algorithm, now));
        if let Some(known) = known {
            window.catch_up(known, &policy, now);
        }
        window.take(&policy, now)
    }

    /// The result that [`Self::take`] would return, without counting the request.
    pub fn peek(&mut self, key: AddressKey, now_ms: u64) -> LimitResult {
        let now = now_ms.max(self.latest);
        let window = match self.shared_slot(key, now) {
            Some(slot) => self.shared.get(&slot),
            None => self.windows.get(&key),
        };
        window
            .cloned()
            .unwrap_or_else(|| Window::new(self.policy.algorithm, now))
            .take(&self.policy, now)
    }

    /// The shared count of an address without its own count. An address uses it while there is no room for a separate
    /// count, and until its own requests in the shared count have expired.
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
            .is_some_and(|window| window.ends_at(self.policy.window_ms) > now);
        (live || self.windows.len() >= self.capacity).then_some(slot)
    }

    /// Removes the windows that have ended.
    pub fn prune(&mut self, now_ms: u64) {
        let now = now_ms.max(self.latest);
        let window_ms = self.policy.window_ms;
        self.windows.retain(|_, window| window.ends_at(window_ms) > now);
        self.shared.retain(|_, window| window.ends_at(window_ms) > now);
        // Until the first window ends, another pass would remove nothing, but each new address would cause one.
        self.prune_at = self
            .windows
            .values()
            .map(|window| window.ends_at(window_ms))
            .min()
            .unwrap_or(0);
    }

    /// Whether new addresses have no room for separate counts.
    pub(crate) fn is_full(&self) -> bool {
        self.windows.len() >= self.capacity
    }

    /// The number of counts.
    pub(crate) fn len(&self) -> usize {
        self.windows.len() + self.shared.len()
    }

    /// The end of the last window, in milliseconds since the Unix epoch; `None` without any.
    pub fn last_end(&self) -> Option<u64> {
        let windows = self.windows.values().chain(self.shared.values());
        windows.map(|window| window.ends_at(self.policy.window_ms)).max()
    }

    /// Encodes all counts as a snapshot.
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

    /// Replaces the counts with those of a snapshot, without windows that have ended at `now_ms` and those that end
    /// more than two windows later. A snapshot of the other algorithm changes nothing.
    ///
    /// # Errors
    /// When the bytes are not a snapshot. Nothing is changed then.
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
            // Windows that end later come from a clock that was ahead. Without this, their addresses would stay denied
            // until the clock is right.
            let latest = now_ms.saturating_add(2 * self.policy.window_ms);
            windows.retain(|_, window| window.ends_at(self.policy.window_ms) <= latest);
            shared.retain(|_, window| window.ends_at(self.policy.window_ms) <= latest);
            (self.windows, self.shared) = (windows, shared);
            self.prune(now_ms);
        }
        Ok(())
    }
}

const SNAPSHOT_VERSION: u8 = 1;
/// The bytes of an address and its window, without the times of a sliding window.
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

    fn counters(algorithm: Algorithm) -> Counters {
        Counters::with_capacity(policy(algorithm), 1_000)
    }

    fn fixed() -> Counters {
        counters(Algorithm::Fixed)
    }

    fn admitted(counters: &mut Counters, key: AddressKey, times: usize, now: u64) -> usize {
        (0..times)
            .filter(|_| counters.take(key, None, now).admitted)
            .count()
    }

    #[test]
    fn sliding_counts_survive_a_small_clock_correction() {
        let mut ahead = counters(Algorithm::Sliding);
        assert_eq!(admitted(&mut ahead, ANNE, 5, START + 500), 5);
        let mut behind = counters(Algorithm::Sliding);
        behind.restore(&ahead.encode(), START).unwrap();
        assert_eq!(behind.take(ANNE, None, START).used, 6);
        let mut after = counters(Algorithm::Sliding);
        after.restore(&behind.encode(), START + 10).unwrap();
        assert_eq!(after.take(ANNE, None, START + 10).used, 7);
    }

    #[test]
    fn ten_requests_are_admitted_and_the_eleventh_is_denied() {
        let mut counters = fixed();
        assert_eq!(admitted(&mut counters, ANNE, 1000, START), 10);
        assert_eq!(
            admitted(&mut counters, BOB, 10, START),
            10,
            "each address has its own count"
        );
    }

    #[test]
    fn the_window_starts_with_the_first_request_and_denials_do_not_extend_it() {
        let mut counters = fixed();
        let first = counters.take(ANNE, None, START);
        assert_eq!(
            first,
            LimitResult {
                admitted: true,
                used: 1,
                reset_after_ms: 60_000
            }
        );
        assert_eq!(admitted(&mut counters, ANNE, 20, START + 45_000), 9);
        let denied = counters.take(ANNE, None, START + 59_999);
        assert_eq!(
            denied,
            LimitResult {
                admitted: false,
                used: 10,
                reset_after_ms: 1
            }
        );
        assert_eq!(admitted(&mut counters, ANNE, 20, START + 60_000), 10);
    }

    #[test]
    fn sliding_windows_do_not_admit_bursts_at_their_boundaries() {
        let mut counters = counters(Algorithm::Sliding);
        assert_eq!(admitted(&mut counters, ANNE, 1, START), 1);
        assert_eq!(admitted(&mut counters, ANNE, 20, START + 59_000), 9);
        let again = counters.take(ANNE, None, START + 60_000);
        assert!(again.admitted, "the first has left the window");
        assert_eq!(counters.take(ANNE, None, START + 60_001).reset_after_ms, 58_999);
        assert_eq!(admitted(&mut counters, ANNE, 20, START + 119_000), 9);
    }

    #[test]
    fn requests_leave_a_sliding_window_after_exactly_its_length() {
        let mut counters = counters(Algorithm::Sliding);
        for offset in [0, 10, 10, 30] {
            counters.take(ANNE, None, START + offset);
        }
        for (after, used, reset_after_ms) in [
            (59_999, 4, 1),
            (60_000, 3, 10),
            (60_009, 3, 1),
            (60_010, 1, 20),
            (60_029, 1, 1),
            (60_030, 0, 60_000),
        ] {
            let peeked = counters.clone().peek(ANNE, START + after);
            let expected = LimitResult {
                admitted: true,
                used: used + 1,
                reset_after_ms,
            };
            assert_eq!(peeked, expected, "{after}");
        }
    }

    #[test]
    fn windows_are_pruned_exactly_at_their_end() {
        for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
            // The second address has a shared count.
            let mut counters = Counters::with_capacity(policy(algorithm), 1);
            counters.take(ANNE, None, START);
            counters.take(BOB, None, START + 10);
            assert_eq!((counters.windows.len(), counters.shared.len()), (1, 1));
            for (after, left) in [
                (59_999, (1, 1)),
                (60_000, (0, 1)),
                (60_009, (0, 1)),
                (60_010, (0, 0)),
            ] {
                counters.prune(START + after);
                assert_eq!(
                    (counters.windows.len(), counters.shared.len()),
                    left,
                    "{algorithm:?} {after}"
                );
            }
        }
    }

    #[test]
    fn a_new_address_gets_its_own_count_as_soon_as_a_window_ends() {
        let mut counters = Counters::with_capacity(policy(Algorithm::Fixed), 1);
        counters.take(ANNE, None, START);
        counters.prune(START);
        let others: Vec<_> = (100..200).map(AddressKey::V4).collect();
        for key in &others {
            counters.take(*key, None, START + 59_999);
        }
        assert_eq!((counters.windows.len(), counters.prune_at), (1, START + 60_000));
        // The shared window of a new address may contain its own requests, so it stays in use until it ends.
        counters.take(others[0], None, START + 60_000);
        assert!(!counters.windows.contains_key(&others[0]));
        counters.take(others[0], None, START + 120_000);
        assert!(counters.windows.contains_key(&others[0]));
    }

    #[test]
    fn an_address_leaves_a_shared_count_when_its_window_ends() {
        for (at, own) in [(60_009, false), (60_010, true)] {
            let mut counters = Counters::with_capacity(policy(Algorithm::Fixed), 2);
            counters.shared_capacity = 1;
            for n in 0..2 {
                counters.take(AddressKey::V4(100 + n), None, START);
            }
            counters.take(ANNE, None, START + 10);
            // Prunes the first two.
            counters.take(BOB, None, START + 60_005);
            assert_eq!((counters.windows.len(), counters.shared.len()), (0, 1));
            counters.shared.values_mut().for_each(|window| {
                *window = Window::Fixed {
                    start: START + 10,
                    used: 2,
                };
            });
            counters.take(ANNE, None, START + at);
            assert_eq!(counters.windows.contains_key(&ANNE), own, "{at}");
        }
    }

    #[test]
    fn a_peek_predicts_the_result_without_counting() {
        for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
            for capacity in [1, 10] {
                let mut counters = Counters::with_capacity(policy(algorithm), capacity);
                counters.take(BOB, None, START);
                for offset in (0..30).chain([60_000, 60_050]) {
                    let peeked = counters.peek(ANNE, START + offset);
                    assert_eq!(counters.peek(ANNE, START + offset), peeked);
                    assert_eq!(
                        counters.take(ANNE, None, START + offset),
                        peeked,
                        "{algorithm:?} {offset}"
                    );
                }
            }
        }
    }

    #[test]
    fn capacity_for_a_snapshot_size_always_fits_it() {
        for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
            for limit in 1..=MAX_SLIDING_LIMIT {
                for (max_bytes, capacity) in [(1_100_000, 50_000), (50_000, 50_000), (1_100_000, 10)] {
                    let policy = Policy {
                        limit,
                        ..policy(algorithm)
                    };
                    let counters = Counters::for_snapshot(policy, max_bytes, capacity);
                    let times = if algorithm == Algorithm::Sliding {
                        4 * limit as usize
                    } else {
                        0
                    };
                    let bytes = (counters.capacity + counters.shared_capacity) * (ENTRY_BYTES + times);
                    assert!(bytes <= max_bytes && counters.capacity <= capacity);
                    assert!((1..=MAX_SHARED_COUNTS).contains(&counters.shared_capacity));
                    // At most a quarter is used for shared counts.
                    let room = max_bytes / (ENTRY_BYTES + times);
                    assert!(counters.capacity >= capacity.min(room - room / 4 - 1));
                }
            }
        }
    }

    #[test]
    fn snapshot_entries_have_the_size_used_to_compute_capacity() {
        for (algorithm, bytes) in [(Algorithm::Fixed, 21), (Algorithm::Sliding, 21 + 4 * 3)] {
            let mut counters = counters(algorithm);
            admitted(&mut counters, ANNE, 3, START);
            assert_eq!(counters.encode().len(), 2 + bytes);
        }
    }

    #[test]
    fn snapshots_of_other_versions_or_with_invalid_times_are_refused() {
        let mut one = fixed();
        one.take(ANNE, None, START);
        let snapshot = one.encode();
        let restored = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = snapshot.clone();
            change(&mut bytes);
            let mut counters = fixed();
            counters.restore(&bytes, START).map(|()| counters.len())
        };
        assert_eq!(restored(&|_| {}), Ok(1));
        assert_eq!(
            restored(&|bytes| bytes[0] = SNAPSHOT_VERSION + 1),
            Err(SnapshotError)
        );
        assert_eq!(restored(&|bytes| bytes[1] = 2), Err(SnapshotError));
        let with_start = |start: u64| restored(&|bytes| bytes[11..19].copy_from_slice(&start.to_le_bytes()));
        assert_eq!(with_start(u64::MAX / 4), Ok(0), "too far ahead to count");
        assert_eq!(with_start(u64::MAX / 4 + 1), Err(SnapshotError));
        assert_eq!(with_start(u64::MAX), Err(SnapshotError));
        assert_ne!(one.len(), 0);
    }

    #[test]
    fn known_usage_never_lowers_a_count() {
        let mut counters = fixed();
        admitted(&mut counters, ANNE, 5, START);
        for used in [0, 4, 5] {
            let known = KnownUsage {
                used,
                reset_at_ms: START + 1_000,
            };
            let before = counters.peek(ANNE, START);
            assert_eq!(counters.clone().take(ANNE, Some(known), START), before, "{used}");
        }
        // A higher known count raises the count, but does not move the window that has started here.
        let known = KnownUsage {
            used: 9,
            reset_at_ms: START + 1_000,
        };
        let expected = LimitResult {
            admitted: true,
            used: 10,
            reset_after_ms: 60_000,
        };
        assert_eq!(counters.take(ANNE, Some(known), START), expected);
    }

    #[test]
    fn invalid_numbers_are_not_unpacked() {
        let largest = LimitResult {
            admitted: true,
            used: MAX_LIMIT,
            reset_after_ms: MAX_WINDOW_MS,
        };
        assert_eq!(MAX_WINDOW_MS, 86_400_000);
        assert_eq!(LimitResult::unpack(largest.pack()), Some(largest));
        assert_eq!(
            LimitResult::unpack(0.0).map(|result| result.admitted),
            Some(false)
        );
        for number in [
            largest.pack() + 1.0,
            largest.pack() * 2.0,
            -1.0,
            0.5,
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
        ] {
            assert_eq!(LimitResult::unpack(number), None, "{number}");
        }
        // Each field has its own bits.
        let bits = |admitted, used, reset_after_ms| {
            LimitResult {
                admitted,
                used,
                reset_after_ms,
            }
            .pack()
        };
        assert_eq!(
            [bits(true, 0, 0), bits(false, 1, 0), bits(false, 0, 1)],
            [1.0, 2.0, 2_097_152.0]
        );
        // Values that do not fit are cut to the largest one that does.
        assert_eq!(bits(true, u32::MAX, u64::MAX), largest.pack());
    }

    #[test]
    fn clock_jumps_back_do_not_admit_more_requests() {
        for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
            let mut counters = counters(algorithm);
            assert_eq!(admitted(&mut counters, ANNE, 10, START), 10);
            assert_eq!(admitted(&mut counters, ANNE, 10, START - 3_600_000), 0);
            assert_eq!(admitted(&mut counters, ANNE, 10, START + 59_999), 0);
        }
    }

    #[test]
    fn addresses_over_the_capacity_share_counts() {
        let mut counters = Counters::with_capacity(policy(Algorithm::Fixed), 100);
        assert_eq!(admitted(&mut counters, ANNE, 10, START), 10);
        for other in 100..100_000 {
            counters.take(AddressKey::V4(other), None, START + 1);
        }
        assert!(counters.len() <= 100 + MAX_SHARED_COUNTS);
        assert_eq!(admitted(&mut counters, ANNE, 10, START + 2), 0);
        assert_eq!(
            admitted(&mut counters, AddressKey::V4(100_001), 20, START + 60_002),
            10,
            "old ones make room"
        );
    }

    #[test]
    fn known_usage_restores_lost_counts() {
        let mut counters = fixed();
        let known = KnownUsage {
            used: 7,
            reset_at_ms: START + 20_000,
        };
        let result = counters.take(ANNE, Some(known), START);
        assert_eq!(
            result,
            LimitResult {
                admitted: true,
                used: 8,
                reset_after_ms: 20_000
            }
        );
        assert_eq!(admitted(&mut counters, ANNE, 10, START), 2);
    }

    #[test]
    fn known_usage_of_earlier_or_invalid_windows_is_ignored() {
        let mut counters = fixed();
        // Start a window first, because an unstarted one would start again.
        counters.take(ANNE, None, START);
        for known in [
            KnownUsage {
                used: 10,
                reset_at_ms: START,
            },
            KnownUsage {
                used: 10,
                reset_at_ms: START + 60_001,
            },
        ] {
            assert!(counters.take(ANNE, Some(known), START).admitted);
        }
    }

    #[test]
    fn all_counts_are_pruned_after_the_last_window() {
        let mut counters = fixed();
        counters.take(ANNE, None, START);
        counters.take(BOB, None, START + 5);
        assert_eq!(counters.last_end(), Some(START + 60_005));
        counters.prune(START + 60_005);
        assert_eq!(counters.len(), 0);
        assert_eq!(counters.last_end(), None);
    }

    #[test]
    fn snapshots_of_the_other_algorithm_are_ignored() {
        let mut sliding = counters(Algorithm::Sliding);
        sliding.take(ANNE, None, START);
        let mut counters = fixed();
        assert_eq!(counters.restore(&sliding.encode(), START), Ok(()));
        assert_eq!(counters.len(), 0);
    }

    #[test]
    fn snapshots_from_a_fast_clock_do_not_block_addresses() {
        const HOUR: u64 = 60 * 60 * 1000;
        for algorithm in [Algorithm::Fixed, Algorithm::Sliding] {
            let mut ahead = counters(algorithm);
            assert_eq!(admitted(&mut ahead, ANNE, 20, START + HOUR), 10);
            let mut restored = counters(algorithm);
            restored.restore(&ahead.encode(), START).unwrap();
            assert!(restored.take(ANNE, None, START).admitted, "{algorithm:?}");
            // Clocks of two machines differ by less than a window, so such windows are kept.
            let mut restored = counters(algorithm);
            restored.restore(&ahead.encode(), START + HOUR - 30_000).unwrap();
            assert!(
                !restored.take(ANNE, None, START + HOUR - 30_000).admitted,
                "{algorithm:?}"
            );
        }
    }

    fn algorithms() -> impl Strategy<Value = Algorithm> {
        prop_oneof![Just(Algorithm::Fixed), Just(Algorithm::Sliding)]
    }

    /// Requests of five addresses, each with the time since the previous one: mostly forward, sometimes back, by up to
    /// four windows.
    fn requests() -> impl Strategy<Value = Vec<(u32, i64)>> {
        proptest::collection::vec(
            (0u32..5, prop_oneof![3 => 0i64..700, 1 => -2_000i64..4_000]),
            1..400,
        )
    }

    proptest! {
        #[test]
        fn windows_do_not_exceed_the_limit_with_any_clock(
            algorithm in algorithms(), limit in 1u32..6, capacity in 1usize..6, requests in requests(),
            lose_memory_at in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
        ) {
            let policy = Policy { limit, window_ms: 1_000, algorithm };
            let mut counters = Counters::with_capacity(policy, capacity);
            let losses: Vec<_> = lose_memory_at.iter().map(|index| index.index(requests.len())).collect();
            let mut clock = START as i64;
            let mut highest = i64::MIN;
            // For each address, the highest clock time at each admitted request.
            let mut admissions: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
            for (at, (address, step)) in requests.into_iter().enumerate() {
                clock += step;
                if losses.contains(&at) {
                    // The object is evicted after its snapshot and constructed again. It does not know earlier times.
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
                    // No interval of a window's length contains more than the limit.
                    Algorithm::Sliding => for pair in times.windows(limit as usize + 1) {
                        prop_assert!(pair[limit as usize] - pair[0] >= 1_000);
                    },
                    // No window contains more than the limit when each starts with its first request.
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
        fn denials_report_exactly_when_the_next_request_is_admitted(
            algorithm in algorithms(), gaps in proptest::collection::vec(0u64..20_000, 10..40),
        ) {
            let mut counters = counters(algorithm);
            let mut now = START;
            for gap in gaps {
                now += gap;
                let result = counters.take(ANNE, None, now);
                if !result.admitted {
                    prop_assert!(result.reset_after_ms > 0 && result.reset_after_ms <= 60_000);
                    prop_assert!(!counters.clone().take(ANNE, None, now + result.reset_after_ms - 1).admitted);
                    prop_assert!(counters.clone().take(ANNE, None, now + result.reset_after_ms).admitted);
                }
            }
        }

        #[test]
        fn a_snapshot_restores_the_counts(
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
        fn restoring_arbitrary_bytes_does_not_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200), now in any::<u64>(),
        ) {
            let mut counters = fixed();
            let _ = counters.restore(&bytes, now / 4);
            counters.take(ANNE, None, now / 4);
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

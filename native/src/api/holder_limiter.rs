//! Limits on consumers of resources, such as event streams: a number for the process, and a number for
//! each holder.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

/// The permits for one kind of consumer.
pub(super) struct HolderLimiter(Arc<Limits>);

struct Limits {
    in_all: usize,
    of_holder: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    in_all: usize,
    of_holder: HashMap<Uuid, usize>,
}

/// Taken permits. Dropping this releases them.
pub(super) struct Permit {
    room: Arc<Limits>,
    holder: Uuid,
    permits: usize,
}

impl Limits {
    fn take(&self, holder: Uuid, permits: usize) -> bool {
        let mut taken = self.taken.lock();
        let of_holder = taken.of_holder.get(&holder).copied().unwrap_or_default() + permits;
        let has_room = taken.in_all + permits <= self.in_all && of_holder <= self.of_holder;
        if has_room {
            taken.in_all += permits;
            taken.of_holder.insert(holder, of_holder);
        }
        has_room
    }
}

impl HolderLimiter {
    /// Creates a number of permits in total, and a number for each holder.
    pub(super) fn new(in_all: usize, of_holder: usize) -> Self {
        Self(Arc::new(Limits {
            in_all,
            of_holder,
            taken: Mutex::default(),
        }))
    }

    /// Takes a permit for this holder; `None` if all are taken.
    pub(super) fn take(&self, holder: Uuid) -> Option<Permit> {
        self.take_many(holder, 1)
    }

    /// Takes several permits for one consumer, at most as many as a holder may have. `None` if too few are free.
    pub(super) fn take_many(&self, holder: Uuid, permits: usize) -> Option<Permit> {
        let permits = permits.min(self.0.of_holder);
        self.0.take(holder, permits).then(|| Permit {
            room: Arc::clone(&self.0),
            holder,
            permits,
        })
    }
}

impl Permit {
    /// Changes the number of permits to what the consumer needs now, as [`HolderLimiter::take_many`] does. Changes nothing if
    /// too few are free.
    #[must_use]
    pub(super) fn grow_to(&mut self, permits: usize) -> bool {
        let permits = permits.min(self.room.of_holder);
        let more = permits.saturating_sub(self.permits);
        let has_room = more == 0 || self.room.take(self.holder, more);
        if has_room {
            self.permits += more;
        }
        has_room
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.room.taken.lock();
        taken.in_all -= self.permits;
        if let Some(of_holder) = taken.of_holder.get_mut(&self.holder) {
            *of_holder -= self.permits;
            if *of_holder == 0 {
                taken.of_holder.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_per_holder_and_in_total() {
        let permits = HolderLimiter::new(10, 3);
        let take = |holder| permits.take(Uuid::from_u128(holder));
        let of_one: Vec<_> = (0..3).map(|_| take(0).unwrap()).collect();
        assert!(take(0).is_none());
        let others: Vec<_> = (1..=7).map(|holder| take(holder).unwrap()).collect();
        assert!(take(8).is_none());
        drop(of_one);
        assert!(take(8).is_some());
        drop(others);
        let taken = permits.0.taken.lock();
        assert_eq!(taken.in_all, 0);
        assert!(taken.of_holder.is_empty());
    }

    #[test]
    fn a_request_over_the_holders_share_waits_for_the_whole_share() {
        let permits = HolderLimiter::new(10, 4);
        let take = |holder, many| permits.take_many(Uuid::from_u128(holder), many);
        let small = take(0, 1).unwrap();
        assert!(take(0, 7).is_none());
        drop(small);
        let large = take(0, 7).unwrap();
        assert!(take(0, 1).is_none());
        let others = [take(1, 4).unwrap(), take(2, 2).unwrap()];
        assert!(take(3, 1).is_none(), "ten are taken");
        drop(large);
        assert!(take(3, 4).is_some());
        drop(others);
    }

    #[test]
    fn growing_takes_more_places_and_dropping_releases_all() {
        let permits = HolderLimiter::new(10, 4);
        let [one, other] = [0, 1].map(Uuid::from_u128);
        let mut growing = permits.take(one).unwrap();
        assert!(growing.grow_to(3));
        assert!(growing.grow_to(2), "it has as many");
        let mut second = permits.take(one).unwrap();
        assert!(!second.grow_to(2));
        assert!(!growing.grow_to(9), "the holder has four, of which one is taken");
        drop(second);
        assert!(growing.grow_to(9), "all that a holder may have");
        assert!(permits.take(one).is_none());
        assert!(permits.take_many(other, 4).is_some());
        drop(growing);
        assert_eq!(permits.0.taken.lock().in_all, 0);
    }
}

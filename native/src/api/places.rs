//! Limits on consumers of resources, such as event streams: a number for the process, and a number for
//! each holder.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

/// The places for one kind of consumer.
pub(super) struct Places(Arc<Room>);

struct Room {
    in_all: usize,
    of_holder: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    in_all: usize,
    of_holder: HashMap<Uuid, usize>,
}

/// Taken places. Dropping this releases them.
pub(super) struct Place {
    room: Arc<Room>,
    holder: Uuid,
    places: usize,
}

impl Room {
    fn take(&self, holder: Uuid, places: usize) -> bool {
        let mut taken = self.taken.lock();
        let of_holder = taken.of_holder.get(&holder).copied().unwrap_or_default() + places;
        let has_room = taken.in_all + places <= self.in_all && of_holder <= self.of_holder;
        if has_room {
            taken.in_all += places;
            taken.of_holder.insert(holder, of_holder);
        }
        has_room
    }
}

impl Places {
    /// Creates a number of places in total, and a number for each holder.
    pub(super) fn new(in_all: usize, of_holder: usize) -> Self {
        Self(Arc::new(Room {
            in_all,
            of_holder,
            taken: Mutex::default(),
        }))
    }

    /// Takes a place for this holder; `None` if all are taken.
    pub(super) fn take(&self, holder: Uuid) -> Option<Place> {
        self.take_many(holder, 1)
    }

    /// Takes several places for one consumer, at most as many as a holder may have. `None` if too few are free.
    pub(super) fn take_many(&self, holder: Uuid, places: usize) -> Option<Place> {
        let places = places.min(self.0.of_holder);
        self.0.take(holder, places).then(|| Place {
            room: Arc::clone(&self.0),
            holder,
            places,
        })
    }
}

impl Place {
    /// Changes the number of places to what the consumer needs now, as [`Places::take_many`] does. Changes nothing if
    /// too few are free.
    #[must_use]
    pub(super) fn grow_to(&mut self, places: usize) -> bool {
        let places = places.min(self.room.of_holder);
        let more = places.saturating_sub(self.places);
        let has_room = more == 0 || self.room.take(self.holder, more);
        if has_room {
            self.places += more;
        }
        has_room
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.room.taken.lock();
        taken.in_all -= self.places;
        if let Some(of_holder) = taken.of_holder.get_mut(&self.holder) {
            *of_holder -= self.places;
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
        let places = Places::new(10, 3);
        let take = |holder| places.take(Uuid::from_u128(holder));
        let of_one: Vec<_> = (0..3).map(|_| take(0).unwrap()).collect();
        assert!(take(0).is_none());
        let others: Vec<_> = (1..=7).map(|holder| take(holder).unwrap()).collect();
        assert!(take(8).is_none());
        drop(of_one);
        assert!(take(8).is_some());
        drop(others);
        let taken = places.0.taken.lock();
        assert_eq!(taken.in_all, 0);
        assert!(taken.of_holder.is_empty());
    }

    #[test]
    fn a_request_over_the_holders_share_waits_for_the_whole_share() {
        let places = Places::new(10, 4);
        let take = |holder, many| places.take_many(Uuid::from_u128(holder), many);
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
        let places = Places::new(10, 4);
        let [one, other] = [0, 1].map(Uuid::from_u128);
        let mut growing = places.take(one).unwrap();
        assert!(growing.grow_to(3));
        assert!(growing.grow_to(2), "it has as many");
        let mut second = places.take(one).unwrap();
        assert!(!second.grow_to(2));
        assert!(!growing.grow_to(9), "the holder has four, of which one is taken");
        drop(second);
        assert!(growing.grow_to(9), "all that a holder may have");
        assert!(places.take(one).is_none());
        assert!(places.take_many(other, 4).is_some());
        drop(growing);
        assert_eq!(places.0.taken.lock().in_all, 0);
    }
}

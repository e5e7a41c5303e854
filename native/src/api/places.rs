//! Places for event streams: so many in a process, and so many of them for one holder.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

/// The places for streams of one kind.
pub(super) struct Places {
    in_all: usize,
    of_holder: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    in_all: usize,
    of_holder: HashMap<Uuid, usize>,
}

/// A stream's place, until it is dropped.
pub(super) struct Place {
    taken: Arc<Mutex<Taken>>,
    holder: Uuid,
}

impl Places {
    /// Places for so many streams in all, and for so many of each holder.
    pub(super) fn new(in_all: usize, of_holder: usize) -> Self {
        Self {
            in_all,
            of_holder,
            taken: Arc::default(),
        }
    }

    /// A place for one more stream of this holder; `None` when there are too many.
    pub(super) fn take(&self, holder: Uuid) -> Option<Place> {
        let mut taken = self.taken.lock();
        let of_holder = taken.of_holder.get(&holder).copied().unwrap_or_default();
        if taken.in_all >= self.in_all || of_holder >= self.of_holder {
            return None;
        }
        taken.in_all += 1;
        taken.of_holder.insert(holder, of_holder + 1);
        Some(Place {
            taken: Arc::clone(&self.taken),
            holder,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.in_all -= 1;
        if let Some(of_holder) = taken.of_holder.get_mut(&self.holder) {
            *of_holder -= 1;
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
    fn a_holder_has_a_few_places_and_all_together_have_a_limit() {
        let places = Places::new(10, 3);
        let take = |holder| places.take(Uuid::from_u128(holder));
        let of_one: Vec<_> = (0..3).map(|_| take(0).unwrap()).collect();
        assert!(take(0).is_none());
        let others: Vec<_> = (1..=7).map(|holder| take(holder).unwrap()).collect();
        assert!(take(8).is_none());
        drop(of_one);
        assert!(take(8).is_some());
        drop(others);
        let taken = places.taken.lock();
        assert_eq!(taken.in_all, 0);
        assert!(taken.of_holder.is_empty());
    }
}

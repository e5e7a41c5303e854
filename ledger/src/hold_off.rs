//! Holders to avoid for a while.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use uuid::Uuid;

/// The time that ended entries are kept, so that [`HoldOff::may_try`] lets a single caller retry.
const ENDED_RETENTION: Duration = Duration::from_secs(5);

/// Remembers holders for which a wait failed: another transaction has their lock, or PostgreSQL refuses their
/// statements. Callers avoid them for a while, so that they delay no one else.
#[derive(Debug)]
pub struct HoldOff<K = Uuid> {
    duration: Duration,
    until: HashMap<K, Instant>,
    pruned: Instant,
}

impl<K: Copy + Eq + Hash> HoldOff<K> {
    /// An empty instance that avoids each holder for this long.
    #[must_use]
    pub fn new(duration: Duration) -> Self {
        Self {
            duration,
            until: HashMap::new(),
            pruned: Instant::now(),
        }
    }

    /// Starts to avoid this holder.
    pub fn start(&mut self, holder: K) {
        let now = Instant::now();
        if now.duration_since(self.pruned) > ENDED_RETENTION {
            self.pruned = now;
            self.until.retain(|_, until| *until + ENDED_RETENTION > now);
        }
        self.until.insert(holder, now + self.duration);
    }

    /// Stops avoiding this holder.
    pub fn end(&mut self, holder: &K) {
        self.until.remove(holder);
    }

    /// Whether to avoid this holder.
    #[must_use]
    pub fn applies_to(&self, holder: &K) -> bool {
        self.until
            .get(holder)
            .is_some_and(|until| *until > Instant::now())
    }

    /// Whether this caller may try. After the time is over, one caller may. The others avoid the holder until that
    /// caller calls [`Self::end`], or for the same time again.
    pub fn may_try(&mut self, holder: &K) -> bool {
        let now = Instant::now();
        let Some(until) = self.until.get_mut(holder) else {
            return true;
        };
        let is_over = *until <= now;
        if is_over {
            *until = now + self.duration;
        }
        is_over
    }

    /// The holders to avoid.
    pub fn holders(&self) -> impl Iterator<Item = K> {
        let now = Instant::now();
        let held = self.until.iter().filter(move |(_, until)| **until > now);
        held.map(|(holder, _)| *holder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_avoided_until_its_time_is_over_or_it_is_released() {
        let (anne, bob) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut hold_off = HoldOff::new(Duration::from_mins(1));
        assert!(hold_off.may_try(&anne));
        hold_off.start(anne);
        assert!(hold_off.applies_to(&anne) && !hold_off.applies_to(&bob));
        assert!(!hold_off.may_try(&anne));
        assert_eq!(hold_off.holders().collect::<Vec<_>>(), [anne]);
        hold_off.end(&anne);
        assert!(!hold_off.applies_to(&anne) && hold_off.may_try(&anne));
    }

    #[test]
    fn one_caller_retries_when_the_time_is_over() {
        let anne = Uuid::from_u128(1);
        let mut hold_off = HoldOff::new(Duration::from_millis(20));
        hold_off.start(anne);
        std::thread::sleep(Duration::from_millis(25));
        assert!(!hold_off.applies_to(&anne));
        assert!(hold_off.may_try(&anne), "one");
        assert!(!hold_off.may_try(&anne), "and no other");
    }
}

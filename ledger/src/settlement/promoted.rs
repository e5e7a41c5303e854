//! Recent promotions by this process. A worker of this process that claims such a job knows that it has a slot, and
//! skips the look-up.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::holder::Holder;

/// Most promoted jobs are claimed within milliseconds. A job that waits longer for a worker is looked up.
const REMEMBERED: Duration = Duration::from_secs(2);

/// A job and its number of attempts. After an attempt elsewhere, the job may have lost its slot, and the key no longer
/// matches.
type Key = (i64, i16);

/// The promotions by this process within the last two seconds. Cheap to clone.
#[derive(Clone, Default)]
pub struct Promoted(Arc<Mutex<Memory>>);

#[derive(Default)]
struct Memory {
    jobs: HashMap<Key, (Holder, Instant)>,
    order: VecDeque<(Key, Instant)>,
}

impl Promoted {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock()
    }

    /// Adds jobs with a committed slot.
    pub(super) fn remember(&self, jobs: impl IntoIterator<Item = (i64, i16, Holder)>, now: Instant) {
        let mut memory = self.memory();
        while let Some((key, since)) = memory.order.front().copied()
            && now.duration_since(since) > REMEMBERED
        {
            memory.order.pop_front();
            memory.jobs.remove(&key);
        }
        for (job_id, attempts, holder) in jobs {
            memory.jobs.insert((job_id, attempts), (holder, now));
            memory.order.push_back(((job_id, attempts), now));
        }
    }

    /// The holder of a job that was promoted here recently, if this is the first attempt since then.
    pub(crate) fn take(&self, job_id: i64, attempt: i16, now: Instant) -> Option<Holder> {
        let (holder, since) = self.memory().jobs.remove(&(job_id, attempt - 1))?;
        (now.duration_since(since) <= REMEMBERED).then_some(holder)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::holder::Holders;

    #[test]
    fn a_promotion_is_remembered_briefly_for_one_attempt() {
        let (promoted, now) = (Promoted::default(), Instant::now());
        let anne = Holders::user(Uuid::from_u128(1));
        let promote = |at| promoted.remember([(7, 0, anne), (8, 1, anne)], at);
        promote(now);
        assert_eq!(promoted.take(7, 1, now), Some(anne));
        assert_eq!(promoted.take(7, 1, now), None, "once");
        assert_eq!(promoted.take(8, 1, now), None, "the job had another attempt");
        assert_eq!(
            promoted.take(8, 3, now),
            None,
            "another process ran the next attempt"
        );
        assert_eq!(promoted.take(8, 2, now), Some(anne));
        promote(now);
        let later = now + REMEMBERED + Duration::from_millis(1);
        assert_eq!(promoted.take(7, 1, later), None);
        promote(later + REMEMBERED);
        assert_eq!(promoted.memory().order.len(), 2, "old promotions are removed");
    }
}

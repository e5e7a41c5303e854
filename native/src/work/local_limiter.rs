//! ADR-10's PerUserLimiter, exactly as specified there: in memory, for one process.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use uuid::Uuid;

type Running = Arc<Mutex<HashMap<Uuid, HashSet<i64>>>>;

/// The running jobs of each user in this process.
#[derive(Default)]
pub(super) struct LocalLimiter {
    running: Running,
}

/// A slot, released when it goes out of scope: on success, error, panic and cancellation alike.
pub(super) struct Held {
    running: Running,
    user: Uuid,
    job_id: i64,
}

impl LocalLimiter {
    /// A slot for the job, unless the user already has `limit` slots. The same job uses only one slot.
    pub(super) fn try_acquire(&self, user: Uuid, limit: u32, job_id: i64) -> Option<Held> {
        let mut running = self.running.lock();
        let jobs = running.entry(user).or_default();
        if !jobs.contains(&job_id) && jobs.len() >= limit as usize {
            return None;
        }
        jobs.insert(job_id);
        Some(Held {
            running: Arc::clone(&self.running),
            user,
            job_id,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        if let Some(jobs) = running.get_mut(&self.user) {
            jobs.remove(&self.job_id);
            if jobs.is_empty() {
                running.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANNE: Uuid = Uuid::from_u128(1);
    const BEN: Uuid = Uuid::from_u128(2);

    #[test]
    fn a_user_gets_the_limit_and_others_are_not_affected() {
        let limiter = LocalLimiter::default();
        let first = limiter.try_acquire(ANNE, 1, 1);
        assert!(first.is_some());
        assert!(limiter.try_acquire(ANNE, 1, 2).is_none());
        assert!(limiter.try_acquire(BEN, 1, 3).is_some());
        drop(first);
        assert!(limiter.try_acquire(ANNE, 1, 2).is_some());
    }

    #[test]
    fn the_same_job_twice_counts_once() {
        let limiter = LocalLimiter::default();
        let _one = limiter.try_acquire(ANNE, 2, 1).unwrap();
        let _same = limiter.try_acquire(ANNE, 2, 1).unwrap();
        assert!(limiter.try_acquire(ANNE, 2, 2).is_some());
    }

    #[test]
    fn a_panic_releases_the_slot() {
        let limiter = Arc::new(LocalLimiter::default());
        let inner = Arc::clone(&limiter);
        let _ = std::thread::spawn(move || {
            let _held = inner.try_acquire(ANNE, 1, 1);
            panic!("a handler panics");
        })
        .join();
        assert!(limiter.try_acquire(ANNE, 1, 2).is_some());
    }
}

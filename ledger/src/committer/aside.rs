//! Those who are served apart, each holder over a transaction of its own.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::group;
use super::item::{Rejection, Transact, Waiting, key};
use crate::database::session::Session;
use crate::database::{Database, DatabaseError};

/// How long a transaction of those set aside waits for a lock. Nobody else waits for it.
const ASIDE_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// How many blocked holders are served at once, each over a connection of its own.
const ASIDE_SESSIONS: usize = 4;

/// A holder that is blocked keeps at most this part of a queue's room.
const ASIDE_SHARE: usize = 8;

/// For how long a holder is served apart when PostgreSQL has refused something of it.
const SUSPECTED_FOR: Duration = Duration::from_secs(30);

/// Why a holder is served apart.
#[derive(Clone, Copy)]
pub(super) enum Why {
    /// Somebody else has its lock.
    Blocked,
    /// PostgreSQL has refused something of it.
    Suspect,
}

/// Those who are served apart, by holder: somebody else has their lock, or PostgreSQL refuses what they want. Each
/// holder has a task while anything of it waits.
pub(super) struct Aside<T: Transact> {
    database: Database,
    waiting: Mutex<HashMap<Uuid, VecDeque<Waiting<T>>>>,
    /// When PostgreSQL last refused something of a holder.
    suspects: Mutex<HashMap<Uuid, Instant>>,
    /// Those that nobody uses now, at most as many as there are permits.
    sessions: Mutex<Vec<Session<T::Statements>>>,
    permits: Semaphore,
    pub(super) transact: Arc<T>,
}

impl<T: Transact> Aside<T> {
    pub(super) fn new(database: Database, transact: Arc<T>) -> Arc<Self> {
        Arc::new(Self {
            database,
            waiting: Mutex::default(),
            suspects: Mutex::default(),
            sessions: Mutex::default(),
            permits: Semaphore::new(ASIDE_SESSIONS),
            transact,
        })
    }

    pub(super) fn holders(&self) -> HashSet<Uuid> {
        self.waiting.lock().keys().copied().collect()
    }

    /// Serves these holders apart for a while.
    pub(super) fn suspect(&self, refused: Vec<Uuid>) {
        let now = Instant::now();
        self.suspects
            .lock()
            .extend(refused.into_iter().map(|holder| (holder, now)));
    }

    /// Holders that PostgreSQL has refused something of lately.
    fn suspects(&self) -> HashSet<Uuid> {
        let mut suspects = self.suspects.lock();
        suspects.retain(|_, refused| refused.elapsed() < SUSPECTED_FOR);
        suspects.keys().copied().collect()
    }

    /// Takes the items of holders that are served apart out of a group, and returns the rest.
    pub(super) fn take_known(aside: &Arc<Self>, mut group: Vec<Waiting<T>>) -> Vec<Waiting<T>> {
        let mut apart = aside.holders();
        apart.extend(aside.suspects());
        if apart.is_empty() {
            return group;
        }
        let is_apart = |one: &mut Waiting<T>| apart.contains(&key::<T>(&one.item));
        let known: Vec<_> = group.extract_if(.., is_apart).collect();
        for one in known {
            Self::push(aside, key::<T>(&one.item), one, Why::Suspect);
        }
        group
    }

    /// Puts an item into the line of its holder. A line that is too long is not joined: it would take the room of those
    /// whose holder is not blocked.
    fn line_up(queue: &mut VecDeque<Waiting<T>>, one: Waiting<T>) {
        let bytes: usize = queue.iter().map(|one| one.bytes).sum();
        let is_full = queue.len() >= T::LONGEST_QUEUE / ASIDE_SHARE
            || bytes + one.bytes > T::LONGEST_QUEUE_BYTES / ASIDE_SHARE;
        if is_full && !queue.is_empty() {
            one.answer(Err(Rejection::Unavailable(DatabaseError::Locked)));
        } else {
            queue.push_back(one);
        }
    }

    pub(super) fn push(aside: &Arc<Self>, holder: Uuid, one: Waiting<T>, why: Why) {
        let mut waiting = aside.waiting.lock();
        match waiting.get_mut(&holder) {
            Some(queue) => Self::line_up(queue, one),
            None => {
                if matches!(why, Why::Blocked) {
                    metrics::counter!("weir_blocked_holders_total").increment(1);
                    tracing::warn!(%holder, "another transaction holds a lock of this holder; others go on without it");
                }
                waiting.insert(holder, VecDeque::from([one]));
                let serving = Self::serve(Arc::clone(aside), holder);
                let aside = Arc::clone(aside);
                tokio::spawn(async move {
                    if AssertUnwindSafe(serving).catch_unwind().await.is_err() {
                        tracing::error!(%holder, "serving a blocked holder panicked");
                        aside.waiting.lock().remove(&holder);
                    }
                });
            }
        }
    }

    /// The next items of this holder. When there are none, the holder is served with everybody else again.
    fn next(&self, holder: Uuid) -> Option<Vec<Waiting<T>>> {
        let mut waiting = self.waiting.lock();
        let queue = waiting.get_mut(&holder)?;
        if queue.is_empty() {
            waiting.remove(&holder);
            return None;
        }
        let (mut count, mut bytes) = (0, 0);
        for one in queue.iter().take(T::LARGEST_GROUP) {
            bytes += one.bytes;
            if count > 0 && bytes > T::LARGEST_GROUP_BYTES {
                break;
            }
            count += 1;
        }
        Some(queue.drain(..count).collect())
    }

    async fn serve(aside: Arc<Self>, holder: Uuid) {
        while let Some(group) = aside.next(holder) {
            let (group, late): (Vec<_>, Vec<_>) = group
                .into_iter()
                .partition(|one| one.since.elapsed() < T::BLOCKED_TIMEOUT);
            for one in late {
                one.answer(Err(Rejection::Unavailable(DatabaseError::Locked)));
            }
            if group.is_empty() {
                continue;
            }
            let Ok(permit) = tokio::time::timeout(T::BLOCKED_TIMEOUT, aside.permits.acquire()).await else {
                for one in group {
                    one.answer(Err(Rejection::Unavailable(DatabaseError::Locked)));
                }
                continue;
            };
            let session = aside.sessions.lock().pop();
            let mut session =
                session.unwrap_or_else(|| Session::new(aside.database.clone(), ASIDE_LOCK_TIMEOUT));
            let served = group::serve(&mut session, &*aside.transact, group, HashSet::new).await;
            aside.suspect(served.refused);
            aside.sessions.lock().push(session);
            drop(permit);
            if let Some(queue) = aside.waiting.lock().get_mut(&holder) {
                for (_, one) in served.blocked.into_iter().rev() {
                    queue.push_front(one);
                }
            }
        }
        // The connections go when nobody is served apart any more.
        if aside.waiting.lock().is_empty() && aside.suspects().is_empty() {
            aside.sessions.lock().clear();
        }
    }
}

//! Holders in quarantine: another transaction has their lock, or PostgreSQL refused one of their items recently. Each
//! holder has its own transactions, and the two kinds do not wait for each other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::group::{self, Members};
use super::item::{Rejection, Transact, Waiting, key};
use crate::database::session::Session;
use crate::database::{Database, DatabaseError};
use crate::hold_off::HoldOff;

/// The lock timeout for a blocked holder. Then the next blocked holder is served.
const BLOCKED_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// The maximum number of blocked holders served at once, each over a separate connection.
const BLOCKED_SESSIONS: usize = 4;

/// The lock timeout for a refused holder. Then the holder counts as blocked.
const REFUSED_LOCK_TIMEOUT: Duration = Duration::from_millis(25);

/// The maximum number of refused holders served at once.
const REFUSED_SESSIONS: usize = 2;

/// The maximum number of a refused holder's items in one group: PostgreSQL may refuse each of them in turn.
const MAX_REFUSED_GROUP: usize = 8;

/// The pause between two groups of a refused holder. Each of its transactions flushes the WAL, and other transactions
/// wait for that. The pause bounds this cost, and items that arrive during it form one group.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// The duration of a quarantine after PostgreSQL refused an item.
const REFUSED_HOLD_OFF: Duration = Duration::from_secs(30);

/// The duration of a quarantine after a lock timeout, unless the lock is acquired earlier. During this time, the
/// holder's later items do not make a group wait for that lock again.
const BLOCKED_HOLD_OFF: Duration = Duration::from_secs(5);

/// A holder in quarantine uses at most this fraction, one eighth, of a queue's room.
const MAX_SHARE: usize = 8;

/// Why a holder is in quarantine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Another transaction has its lock.
    Blocked,
    /// PostgreSQL refused one of its items.
    Refused,
}

/// The connections of one kind.
struct Sessions<T: Transact> {
    permits: Semaphore,
    /// Unused connections, at most as many as permits.
    idle: Mutex<Vec<Session<T::Statements>>>,
    lock_timeout: Duration,
}

impl<T: Transact> Sessions<T> {
    fn new(count: usize, lock_timeout: Duration) -> Self {
        Self {
            permits: Semaphore::new(count),
            idle: Mutex::default(),
            lock_timeout,
        }
    }
}

/// The waiting items of one holder.
struct Queue<T: Transact> {
    reason: Reason,
    items: VecDeque<Waiting<T>>,
}

impl<T: Transact> Queue<T> {
    fn block_if(&mut self, blocked: bool) {
        if blocked {
            self.reason = Reason::Blocked;
        }
    }
}

/// The holders in quarantine, including those without waiting items.
struct QuarantinedHolders {
    blocked: HoldOff,
    refused: HoldOff,
}

impl QuarantinedHolders {
    fn contains(&self, holder: Uuid) -> bool {
        self.blocked.applies_to(&holder) || self.refused.applies_to(&holder)
    }

    fn is_empty(&self) -> bool {
        self.blocked
            .holders()
            .chain(self.refused.holders())
            .next()
            .is_none()
    }
}

/// The waiting items of holders in quarantine. Each holder with items has a task.
pub(super) struct Quarantine<T: Transact> {
    database: Database,
    queues: Mutex<HashMap<Uuid, Queue<T>>>,
    known: Mutex<QuarantinedHolders>,
    for_blocked: Sessions<T>,
    for_refused: Sessions<T>,
    pub(super) transact: Arc<T>,
}

impl<T: Transact> Quarantine<T> {
    pub(super) fn new(database: Database, transact: Arc<T>) -> Arc<Self> {
        Arc::new(Self {
            database,
            queues: Mutex::default(),
            known: Mutex::new(QuarantinedHolders {
                blocked: HoldOff::new(BLOCKED_HOLD_OFF),
                refused: HoldOff::new(REFUSED_HOLD_OFF),
            }),
            for_blocked: Sessions::new(BLOCKED_SESSIONS, BLOCKED_LOCK_TIMEOUT),
            for_refused: Sessions::new(REFUSED_SESSIONS, REFUSED_LOCK_TIMEOUT),
            transact,
        })
    }

    /// The holders with waiting items.
    pub(super) fn holders(&self) -> HashSet<Uuid> {
        self.queues.lock().keys().copied().collect()
    }

    /// Puts holders into quarantine for a while.
    pub(super) fn start(&self, reason: Reason, holders: impl IntoIterator<Item = Uuid>) {
        let mut known = self.known.lock();
        for holder in holders {
            match reason {
                Reason::Blocked => known.blocked.start(holder),
                Reason::Refused => known.refused.start(holder),
            }
        }
    }

    /// Ends the quarantine of a holder after its lock was taken, unless PostgreSQL refused one of its items recently.
    fn unblock(&self, holder: Uuid) {
        self.known.lock().blocked.end(&holder);
    }

    /// Whether PostgreSQL refused an item of this holder recently.
    fn is_refused(&self, holder: Uuid) -> bool {
        self.known.lock().refused.applies_to(&holder)
    }

    /// Moves the items of holders in quarantine out of a group, and returns the rest.
    pub(super) fn take_quarantined(quarantine: &Arc<Self>, mut group: Vec<Waiting<T>>) -> Vec<Waiting<T>> {
        let known: Vec<_> = {
            let queues = quarantine.queues.lock();
            let known = quarantine.known.lock();
            if queues.is_empty() && known.is_empty() {
                // No holder needs the connections any longer.
                quarantine.for_blocked.idle.lock().clear();
                quarantine.for_refused.idle.lock().clear();
                return group;
            }
            let is_known = |one: &mut Waiting<T>| {
                let key = key::<T>(&one.item);
                // A queue with a free lock is served until it is empty, but gets no more items.
                known.contains(key)
            };
            group.extract_if(.., is_known).collect()
        };
        for one in known {
            Self::push(quarantine, key::<T>(&one.item), one, Reason::Refused);
        }
        group
    }

    /// Queues an item of its holder. Refuses it when the holder's queue is full, so that other holders keep their room.
    fn enqueue(queue: &mut Queue<T>, one: Waiting<T>) {
        let bytes: usize = queue.items.iter().map(|one| one.bytes).sum();
        let is_full = queue.items.len() >= T::MAX_QUEUE / MAX_SHARE
            || bytes + one.bytes > T::MAX_QUEUE_BYTES / MAX_SHARE;
        if is_full && !queue.items.is_empty() {
            one.answer(Err(Rejection::Unavailable(queue.reason.error())));
        } else {
            queue.items.push_back(one);
        }
    }

    /// Queues an item in quarantine. A blocked holder stays blocked.
    pub(super) fn push(quarantine: &Arc<Self>, holder: Uuid, one: Waiting<T>, reason: Reason) {
        let mut queues = quarantine.queues.lock();
        if reason == Reason::Blocked {
            quarantine.start(Reason::Blocked, [holder]);
        }
        if let Some(queue) = queues.get_mut(&holder) {
            Self::enqueue(queue, one);
            queue.block_if(reason == Reason::Blocked);
            return;
        }
        let items = VecDeque::from([one]);
        queues.insert(holder, Queue { reason, items });
        let serving = Self::serve(Arc::clone(quarantine), holder);
        let quarantine = Arc::clone(quarantine);
        tokio::spawn(async move {
            if AssertUnwindSafe(serving).catch_unwind().await.is_err() {
                tracing::error!(%holder, "a panic occurred while serving a holder in quarantine");
                quarantine.queues.lock().remove(&holder);
            }
        });
    }

    /// Why the holder is in quarantine. Removes its queue when it is empty.
    fn reason(&self, holder: Uuid) -> Option<Reason> {
        let mut queues = self.queues.lock();
        let queue = queues.get(&holder)?;
        if queue.items.is_empty() {
            queues.remove(&holder);
            return None;
        }
        Some(queue.reason)
    }

    /// The next items of this holder.
    fn next(&self, holder: Uuid) -> Vec<Waiting<T>> {
        let most = match self.is_refused(holder) {
            true => MAX_REFUSED_GROUP,
            false => T::MAX_GROUP,
        };
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&holder) else {
            return Vec::new();
        };
        let (mut count, mut bytes) = (0, 0);
        for one in queue.items.iter().take(most) {
            bytes += one.bytes;
            if count > 0 && bytes > T::MAX_GROUP_BYTES {
                break;
            }
            count += 1;
        }
        queue.items.drain(..count).collect()
    }

    async fn serve(quarantine: Arc<Self>, holder: Uuid) {
        let mut is_reported = false;
        while let Some(reason) = quarantine.reason(holder) {
            let started = Instant::now();
            let sessions = match reason {
                Reason::Blocked => &quarantine.for_blocked,
                Reason::Refused => &quarantine.for_refused,
            };
            let permit = tokio::time::timeout(T::BLOCKED_TIMEOUT, sessions.permits.acquire()).await;
            let (group, late): (Vec<_>, Vec<_>) = quarantine
                .next(holder)
                .into_iter()
                .partition(|one| permit.is_ok() && one.since.elapsed() < T::BLOCKED_TIMEOUT);
            for one in late {
                one.answer(Err(Rejection::Unavailable(reason.error())));
            }
            if group.is_empty() {
                continue;
            }
            let idle = sessions.idle.lock().pop();
            let mut session =
                idle.unwrap_or_else(|| Session::new(quarantine.database.clone(), sessions.lock_timeout));
            let unanswered = group::serve(
                &mut session,
                &*quarantine.transact,
                group,
                HashSet::new,
                Members::OneHolder,
            )
            .await;
            sessions.idle.lock().push(session);
            drop(permit);
            quarantine.start(Reason::Refused, unanswered.refused);
            let is_blocked = !unanswered.blocked.is_empty();
            if is_blocked {
                count_wait(started.elapsed());
                if !std::mem::replace(&mut is_reported, true) {
                    report_blocked(holder);
                }
                quarantine.start(
                    Reason::Blocked,
                    unanswered.blocked.iter().map(|(blocked, _)| *blocked),
                );
            } else {
                quarantine.unblock(holder);
            }
            if let Some(queue) = quarantine.queues.lock().get_mut(&holder) {
                queue.block_if(is_blocked);
                for (_, one) in unanswered.blocked.into_iter().rev() {
                    queue.items.push_front(one);
                }
            }
            if !is_blocked && quarantine.is_refused(holder) {
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }
}

fn report_blocked(holder: Uuid) {
    metrics::counter!("weir_blocked_holders_total").increment(1);
    tracing::warn!(%holder, "another transaction has locked this holder; other holders continue");
}

/// Counts the time that one holder waited for a lock. A counter holds whole numbers, so the fraction of a second is
/// carried over.
fn count_wait(waited: Duration) {
    static MICROSECONDS: AtomicU64 = AtomicU64::new(0);
    const SECOND: u64 = 1_000_000;
    let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
    let before = MICROSECONDS.fetch_add(waited, Ordering::Relaxed);
    let seconds = before.wrapping_add(waited) / SECOND - before / SECOND;
    metrics::counter!("weir_blocked_seconds_total").increment(seconds);
}

impl Reason {
    /// The error of an item that waited too long.
    fn error(self) -> DatabaseError {
        match self {
            Self::Blocked => DatabaseError::Locked,
            Self::Refused => DatabaseError::TooManyInQuarantine,
        }
    }
}

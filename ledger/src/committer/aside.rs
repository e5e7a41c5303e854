//! Those who are served apart, each holder over transactions of its own: somebody else has their lock, or PostgreSQL
//! has refused something of theirs lately. The two kinds do not wait for each other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::group::{self, Company};
use super::item::{Rejection, Transact, Waiting, key};
use crate::database::session::Session;
use crate::database::{Database, DatabaseError};
use crate::hold_off::HoldOff;

/// How long a transaction of a blocked holder waits for its lock, before the next blocked holder has its turn.
const BLOCKED_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// How many blocked holders are served at once, each over a connection of its own.
const BLOCKED_SESSIONS: usize = 4;

/// How long a transaction of a suspect waits for a lock, before its holder counts as blocked.
const SUSPECT_LOCK_TIMEOUT: Duration = Duration::from_millis(25);

/// How many suspects are served at once.
const SUSPECT_SESSIONS: usize = 2;

/// How many items of a suspect have their turn at once: all of them may be refused, one after the other.
const SUSPECT_TURN: usize = 8;

/// How long a suspect rests after its turn. Each of its transactions writes to the disk for it alone, which everybody
/// else's next one waits for: what it costs them has a bound, and what comes for it meanwhile goes together.
const SUSPECT_REST: Duration = Duration::from_millis(100);

/// For how long a holder is a suspect when PostgreSQL has refused something of it.
const SUSPECTED_FOR: Duration = Duration::from_secs(30);

/// For how long a holder is served apart when it was last found blocked, unless its lock is got before: while the lock
/// stays, what comes later for it does not make everybody wait for it again.
const BLOCKED_FOR: Duration = Duration::from_secs(5);

/// A holder that is served apart keeps at most this part of a queue's room.
const ASIDE_SHARE: usize = 8;

/// Why a holder is served apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Somebody else has its lock.
    Blocked,
    /// PostgreSQL has refused something of it.
    Suspect,
}

/// The connections of one kind.
struct Sessions<T: Transact> {
    permits: Semaphore,
    /// Those that nobody uses now, at most as many as there are permits.
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

/// What waits of one holder.
struct Line<T: Transact> {
    why: Why,
    items: VecDeque<Waiting<T>>,
}

impl<T: Transact> Line<T> {
    fn block_if(&mut self, holder: Uuid, blocked: bool) {
        if blocked && self.why == Why::Suspect {
            self.why = Why::Blocked;
            is_blocked(holder);
        }
    }
}

/// The holders that are served apart, also while none of their items wait.
struct Known {
    blocked: HoldOff,
    suspects: HoldOff,
}

impl Known {
    fn contains(&self, holder: Uuid) -> bool {
        self.blocked.applies_to(&holder) || self.suspects.applies_to(&holder)
    }

    fn is_empty(&self) -> bool {
        self.blocked
            .holders()
            .chain(self.suspects.holders())
            .next()
            .is_none()
    }
}

/// Those who are served apart, by holder. Each holder has a task while anything of it waits.
pub(super) struct Aside<T: Transact> {
    database: Database,
    lines: Mutex<HashMap<Uuid, Line<T>>>,
    known: Mutex<Known>,
    for_blocked: Sessions<T>,
    for_suspects: Sessions<T>,
    pub(super) transact: Arc<T>,
}

impl<T: Transact> Aside<T> {
    pub(super) fn new(database: Database, transact: Arc<T>) -> Arc<Self> {
        Arc::new(Self {
            database,
            lines: Mutex::default(),
            known: Mutex::new(Known {
                blocked: HoldOff::new(BLOCKED_FOR),
                suspects: HoldOff::new(SUSPECTED_FOR),
            }),
            for_blocked: Sessions::new(BLOCKED_SESSIONS, BLOCKED_LOCK_TIMEOUT),
            for_suspects: Sessions::new(SUSPECT_SESSIONS, SUSPECT_LOCK_TIMEOUT),
            transact,
        })
    }

    /// The holders of which something waits here.
    pub(super) fn holders(&self) -> HashSet<Uuid> {
        self.lines.lock().keys().copied().collect()
    }

    /// Serves holders apart for a while.
    pub(super) fn suspect(&self, why: Why, holders: impl IntoIterator<Item = Uuid>) {
        let mut known = self.known.lock();
        for holder in holders {
            match why {
                Why::Blocked => known.blocked.start(holder),
                Why::Suspect => known.suspects.start(holder),
            }
        }
    }

    /// Its lock was got: unless something of it was refused lately, the holder is served with everybody else again.
    fn unblock(&self, holder: Uuid) {
        self.known.lock().blocked.end(&holder);
    }

    /// Whether PostgreSQL has refused something of this holder lately.
    fn is_suspect(&self, holder: Uuid) -> bool {
        self.known.lock().suspects.applies_to(&holder)
    }

    /// Takes the items of holders that are served apart out of a group, and returns the rest.
    pub(super) fn take_known(aside: &Arc<Self>, mut group: Vec<Waiting<T>>) -> Vec<Waiting<T>> {
        let known: Vec<_> = {
            let lines = aside.lines.lock();
            let known = aside.known.lock();
            if lines.is_empty() && known.is_empty() {
                // The connections go when nobody needs them any more.
                aside.for_blocked.idle.lock().clear();
                aside.for_suspects.idle.lock().clear();
                return group;
            }
            let is_apart = |one: &mut Waiting<T>| {
                let key = key::<T>(&one.item);
                // A line whose lock is free is served to its end, but nobody joins it any more.
                known.contains(key)
            };
            group.extract_if(.., is_apart).collect()
        };
        for one in known {
            Self::push(aside, key::<T>(&one.item), one, Why::Suspect);
        }
        group
    }

    /// Puts an item into the line of its holder. A line that is too long is not joined: it would take the room of those
    /// who are not served apart.
    fn line_up(line: &mut Line<T>, one: Waiting<T>) {
        let bytes: usize = line.items.iter().map(|one| one.bytes).sum();
        let is_full = line.items.len() >= T::MAX_QUEUE / ASIDE_SHARE
            || bytes + one.bytes > T::MAX_QUEUE_BYTES / ASIDE_SHARE;
        if is_full && !line.items.is_empty() {
            one.answer(Err(Rejection::Unavailable(line.why.error())));
        } else {
            line.items.push_back(one);
        }
    }

    /// Serves an item apart. A holder that is blocked already stays so.
    pub(super) fn push(aside: &Arc<Self>, holder: Uuid, one: Waiting<T>, why: Why) {
        let mut lines = aside.lines.lock();
        if why == Why::Blocked {
            aside.suspect(Why::Blocked, [holder]);
        }
        if let Some(line) = lines.get_mut(&holder) {
            Self::line_up(line, one);
            line.block_if(holder, why == Why::Blocked);
            return;
        }
        if why == Why::Blocked {
            is_blocked(holder);
        }
        let items = VecDeque::from([one]);
        lines.insert(holder, Line { why, items });
        let serving = Self::serve(Arc::clone(aside), holder);
        let aside = Arc::clone(aside);
        tokio::spawn(async move {
            if AssertUnwindSafe(serving).catch_unwind().await.is_err() {
                tracing::error!(%holder, "serving a holder apart panicked");
                aside.lines.lock().remove(&holder);
            }
        });
    }

    /// Why the holder is served apart. When nothing of it waits, it is served with everybody else again.
    fn turn(&self, holder: Uuid) -> Option<Why> {
        let mut lines = self.lines.lock();
        let line = lines.get(&holder)?;
        if line.items.is_empty() {
            lines.remove(&holder);
            return None;
        }
        Some(line.why)
    }

    /// The next items of this holder.
    fn next(&self, holder: Uuid) -> Vec<Waiting<T>> {
        let most = match self.is_suspect(holder) {
            true => SUSPECT_TURN,
            false => T::MAX_GROUP,
        };
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(&holder) else {
            return Vec::new();
        };
        let (mut count, mut bytes) = (0, 0);
        for one in line.items.iter().take(most) {
            bytes += one.bytes;
            if count > 0 && bytes > T::MAX_GROUP_BYTES {
                break;
            }
            count += 1;
        }
        line.items.drain(..count).collect()
    }

    async fn serve(aside: Arc<Self>, holder: Uuid) {
        while let Some(why) = aside.turn(holder) {
            let sessions = match why {
                Why::Blocked => &aside.for_blocked,
                Why::Suspect => &aside.for_suspects,
            };
            let permit = tokio::time::timeout(T::BLOCKED_TIMEOUT, sessions.permits.acquire()).await;
            let (group, late): (Vec<_>, Vec<_>) = aside
                .next(holder)
                .into_iter()
                .partition(|one| permit.is_ok() && one.since.elapsed() < T::BLOCKED_TIMEOUT);
            for one in late {
                one.answer(Err(Rejection::Unavailable(why.error())));
            }
            if group.is_empty() {
                continue;
            }
            let idle = sessions.idle.lock().pop();
            let mut session =
                idle.unwrap_or_else(|| Session::new(aside.database.clone(), sessions.lock_timeout));
            let served =
                group::serve(&mut session, &*aside.transact, group, HashSet::new, Company::Own).await;
            sessions.idle.lock().push(session);
            drop(permit);
            aside.suspect(Why::Suspect, served.refused);
            let is_blocked = !served.blocked.is_empty();
            if is_blocked {
                aside.suspect(Why::Blocked, served.blocked.iter().map(|(blocked, _)| *blocked));
            } else {
                aside.unblock(holder);
            }
            if let Some(line) = aside.lines.lock().get_mut(&holder) {
                line.block_if(holder, is_blocked);
                for (_, one) in served.blocked.into_iter().rev() {
                    line.items.push_front(one);
                }
            }
            if !is_blocked && aside.is_suspect(holder) {
                tokio::time::sleep(SUSPECT_REST).await;
            }
        }
    }
}

fn is_blocked(holder: Uuid) {
    metrics::counter!("weir_blocked_holders_total").increment(1);
    tracing::warn!(%holder, "another transaction holds a lock of this holder; others go on without it");
}

impl Why {
    /// What an item is told that has waited too long.
    fn error(self) -> DatabaseError {
        match self {
            Self::Blocked => DatabaseError::Locked,
            Self::Suspect => DatabaseError::Crowded,
        }
    }
}

//! The group committer: many callers, one transaction.
//!
//! Whatever waits when a transaction ends goes into the next one; a lone caller never waits for company. A group is a
//! speed-up and never a fate:
//!
//! - What PostgreSQL refuses is narrowed down, by halves, to the member that it refuses; the others commit without it.
//!   Its holder is a suspect for a while and is served apart, so that the others pay for that once.
//! - A member whose holder is locked by somebody else is set aside after milliseconds. It is served apart, with all
//!   that comes for the same holder, until the lock is gone.
//! - A group of which nobody knows whether it committed is not run again. Its callers are told so.
//!
//! The queue is bounded in items and in bytes, and so is a group.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use uuid::Uuid;

use crate::database::session::{Connection, Session, Statements, with_deadline};
use crate::database::{Database, DatabaseError, Failure};

/// How often the other tasks of the runtime get their turn before a group is closed.
const YIELDS: usize = 4;

/// How long a group waits for a row lock before it goes on without the blocked member.
const LOCK_TIMEOUT: Duration = Duration::from_millis(25);

/// How long a transaction of those set aside waits for a lock. Nobody else waits for it.
const ASIDE_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// How many blocked holders are served at once, each over a connection of its own.
const ASIDE_SESSIONS: usize = 4;

/// A holder that is blocked keeps at most this part of a queue's room.
const ASIDE_SHARE: usize = 8;

/// For how long a holder is served apart when PostgreSQL has refused something of it.
const SUSPECTED_FOR: Duration = Duration::from_secs(30);

/// How often a group that lost against another transaction is run in all.
const TRIES: usize = 4;

/// Bytes are counted in units of this many, as the permits of a semaphore.
const BYTES_PER_PERMIT: usize = 1024;

/// What the transactions of a committer do.
pub(crate) trait Transact: Send + Sync + 'static {
    /// What one caller wants.
    type Item: Send + Sync + 'static;
    /// What one caller gets.
    type Output: Send + 'static;
    /// What the transactions are made of.
    type Statements: Statements;

    /// The most items of one transaction.
    const LARGEST_GROUP: usize;
    /// The most bytes of one transaction; a larger item goes alone.
    const LARGEST_GROUP_BYTES: usize = 8 * 1024 * 1024;
    /// The most items that wait.
    const LONGEST_QUEUE: usize;
    /// The most bytes that wait.
    const LONGEST_QUEUE_BYTES: usize;
    /// How long an item that is set aside waits for its lock.
    const BLOCKED_TIMEOUT: Duration;

    /// The holder whose row the item locks, if that is known before the row is read.
    fn holder(item: &Self::Item) -> Option<Uuid>;

    /// Another name for the item, where the holder is not known.
    fn id(item: &Self::Item) -> Uuid;

    /// Roughly how many bytes the item keeps in memory.
    fn bytes(item: &Self::Item) -> usize;

    /// Runs one transaction over these items and returns an output for each, in their order.
    ///
    /// `locking` says what to do about holders that are locked by others.
    fn run(
        &self,
        connection: &Connection<Self::Statements>,
        items: &[&Self::Item],
        locking: &Locking,
    ) -> impl Future<Output = Result<Vec<Self::Output>, GroupFailure>> + Send;

    /// Names the members whose rows are locked by others, besides their holder's.
    fn blocked(
        &self,
        _connection: &Connection<Self::Statements>,
        _items: &[&Self::Item],
    ) -> impl Future<Output = Result<Vec<(usize, Uuid)>, Failure>> + Send {
        async { Ok(Vec::new()) }
    }

    /// Called when PostgreSQL refuses a single item, before its caller is told. Returns whether to run it again.
    fn repair(
        &self,
        _connection: &Connection<Self::Statements>,
        _item: &Self::Item,
        _error: &DatabaseError,
    ) -> impl Future<Output = Result<bool, Failure>> + Send {
        async { Ok(false) }
    }
}

/// What a transaction does about holders that are locked by others.
pub(crate) enum Locking {
    /// Waits for them, up to the session's `lock_timeout`; but not for these, which are known to be blocked.
    Wait(HashSet<Uuid>),
    /// Leaves them out, and fails naming them.
    Skip,
}

/// Why a group did not commit.
pub(crate) enum GroupFailure {
    /// These members' holders are locked by others, or are among those not to wait for. Nothing is committed.
    NotLocked(Vec<(usize, Uuid)>),
    /// Any other failure.
    Failed(Failure),
}

impl From<Failure> for GroupFailure {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Why a caller gets no output.
#[derive(Clone, Debug)]
pub(crate) enum Rejection {
    /// Too many items or bytes wait already.
    Full,
    /// PostgreSQL refuses this item.
    Refused(DatabaseError),
    /// The database could not be used, the item's holder stayed locked, or the outcome is unknown.
    Unavailable(DatabaseError),
}

type Answer<O> = Result<O, Rejection>;

/// A caller's place in the queue.
struct Waiting<T: Transact> {
    item: T::Item,
    answer: Option<oneshot::Sender<Answer<T::Output>>>,
    since: Instant,
    /// [`Transact::bytes`] of the item, which walks all of it and is asked once.
    bytes: usize,
    /// The queue's room, given back when the item is answered.
    _room: OwnedSemaphorePermit,
}

impl<T: Transact> Waiting<T> {
    fn answer(self, answer: Answer<T::Output>) {
        // A caller that has gone away is answered just as well.
        if let Some(caller) = self.answer {
            let _ = caller.send(answer);
        }
    }
}

/// The callers' end. Cheap to clone.
pub(crate) struct Committer<T: Transact> {
    queue: mpsc::Sender<Waiting<T>>,
    bytes: Arc<Semaphore>,
}

impl<T: Transact> Clone for Committer<T> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            bytes: Arc::clone(&self.bytes),
        }
    }
}

impl<T: Transact> Committer<T> {
    /// Starts the task that commits. It ends when the last clone is dropped and all that waits is answered.
    pub(crate) fn start(database: &Database, transact: Arc<T>) -> Self {
        let (queue, mut waiting) = mpsc::channel(T::LONGEST_QUEUE);
        let mut lane = Lane {
            session: Session::new(database.clone(), LOCK_TIMEOUT),
            aside: Arc::new(Aside {
                database: database.clone(),
                waiting: Mutex::default(),
                suspects: Mutex::default(),
                sessions: Mutex::default(),
                permits: Semaphore::new(ASIDE_SESSIONS),
                transact,
            }),
        };
        tokio::spawn(async move {
            let mut group = Vec::new();
            while gather::<T>(&mut waiting, &mut group).await {
                let served = lane.serve(std::mem::take(&mut group));
                // A panic is the fault of one group, whose callers are told; the next group is served.
                if AssertUnwindSafe(served).catch_unwind().await.is_err() {
                    tracing::error!("a group panicked; its outcome is unknown");
                    lane.session.close();
                }
            }
        });
        Self {
            queue,
            bytes: Arc::new(Semaphore::new(permits(T::LONGEST_QUEUE_BYTES) as usize)),
        }
    }

    /// How many items wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    /// Commits an item, or refuses it at once when too much waits.
    pub(crate) async fn try_commit(&self, item: T::Item) -> Answer<T::Output> {
        let (answer, answered) = oneshot::channel();
        if !self.try_queue(item, Some(answer)) {
            return Err(Rejection::Full);
        }
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Commits an item, and waits for room when too much waits.
    pub(crate) async fn commit(&self, item: T::Item) -> Answer<T::Output> {
        let bytes = T::bytes(&item);
        // An item that is larger than the whole queue has the queue for itself.
        let wanted = permits(bytes).min(permits(T::LONGEST_QUEUE_BYTES));
        let Ok(room) = Arc::clone(&self.bytes).acquire_many_owned(wanted).await else {
            return Err(stopped());
        };
        let (answer, answered) = oneshot::channel();
        self.queue
            .send(waiting(item, Some(answer), bytes, room))
            .await
            .map_err(|_| stopped())?;
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Commits an item for which nobody waits. Returns false when there is no room for it.
    pub(crate) fn notice(&self, item: T::Item) -> bool {
        self.try_queue(item, None)
    }

    /// Puts an item into the queue. Returns false when there is no room for it.
    fn try_queue(&self, item: T::Item, answer: Option<oneshot::Sender<Answer<T::Output>>>) -> bool {
        let bytes = T::bytes(&item);
        Arc::clone(&self.bytes)
            .try_acquire_many_owned(permits(bytes))
            .is_ok_and(|room| self.queue.try_send(waiting(item, answer, bytes, room)).is_ok())
    }
}

fn waiting<T: Transact>(
    item: T::Item,
    answer: Option<oneshot::Sender<Answer<T::Output>>>,
    bytes: usize,
    room: OwnedSemaphorePermit,
) -> Waiting<T> {
    Waiting {
        item,
        answer,
        since: Instant::now(),
        bytes,
        _room: room,
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_PERMIT)).unwrap_or(u32::MAX)
}

fn stopped() -> Rejection {
    Rejection::Unavailable(DatabaseError::Stopped)
}

/// Waits for the next item and takes along everything that waits, as far as a group may grow. Returns false when
/// nothing waits and nothing ever will.
///
/// Those who are just about to come are let in: callers who were answered together come back together, and jobs that
/// were claimed together end together. The first of them would otherwise go alone while the others wait for a whole
/// transaction. Nobody is waited for: the group goes as soon as the scheduler has nobody else who is about to come.
async fn gather<T: Transact>(waiting: &mut mpsc::Receiver<Waiting<T>>, group: &mut Vec<Waiting<T>>) -> bool {
    let Some(first) = waiting.recv().await else {
        return false;
    };
    let mut bytes = first.bytes;
    group.push(first);
    let has_room = |group: &Vec<Waiting<T>>, bytes: usize| {
        group.len() < T::LARGEST_GROUP && bytes < T::LARGEST_GROUP_BYTES
    };
    let take = |waiting: &mut mpsc::Receiver<Waiting<T>>, group: &mut Vec<Waiting<T>>, bytes: &mut usize| {
        while has_room(group, *bytes)
            && let Ok(one) = waiting.try_recv()
        {
            *bytes += one.bytes;
            group.push(one);
        }
    };
    take(waiting, group, &mut bytes);
    loop {
        let before = group.len();
        for _ in 0..YIELDS {
            tokio::task::yield_now().await;
        }
        take(waiting, group, &mut bytes);
        if group.len() == before || !has_room(group, bytes) {
            return true;
        }
    }
}

/// The bytes that a JSON value takes in memory, roughly; never less than its text has.
pub(crate) fn json_bytes(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(json_bytes).sum(),
            Value::Object(members) => members
                .iter()
                .map(|(name, value)| size_of::<String>() + name.len() + json_bytes(value))
                .sum(),
        }
}

/// Serves groups one after the other over one session.
struct Lane<T: Transact> {
    session: Session<T::Statements>,
    aside: Arc<Aside<T>>,
}

impl<T: Transact> Lane<T> {
    async fn serve(&mut self, group: Vec<Waiting<T>>) {
        let group = Aside::take_known(&self.aside, group);
        let blocked_holders = || self.aside.holders();
        for (holder, blocked) in serve(&mut self.session, &self.aside, group, blocked_holders).await {
            Aside::push(&self.aside, holder, blocked, Why::Blocked);
        }
    }
}

/// Runs a group to its end: answers every member, except those whose holder is locked, which it returns with their
/// holder.
async fn serve<T: Transact>(
    session: &mut Session<T::Statements>,
    aside: &Aside<T>,
    group: Vec<Waiting<T>>,
    blocked_holders: impl Fn() -> HashSet<Uuid>,
) -> Vec<(Uuid, Waiting<T>)> {
    let transact = &*aside.transact;
    let mut blocked = Vec::new();
    let mut parts = vec![group];
    while let Some(mut part) = parts.pop() {
        // A caller that has gone away before anything was sent leaves no trace.
        part.retain(|one| !one.answer.as_ref().is_some_and(oneshot::Sender::is_closed));
        if part.is_empty() {
            continue;
        }
        let mut locking = Locking::Wait(blocked_holders());
        let (mut tries, mut asked, mut repaired) = (0, false, false);
        loop {
            tries += 1;
            let failure = match run(session, transact, &part, &locking).await {
                Ok(outputs) => {
                    for (one, output) in part.into_iter().zip(outputs) {
                        one.answer(Ok(output));
                    }
                    break;
                }
                Err(failure) => failure,
            };
            match failure {
                GroupFailure::NotLocked(members) => {
                    parts.push(set_aside(part, members, &mut blocked));
                    break;
                }
                // Some row is locked: first whose, as far as holders go.
                GroupFailure::Failed(Failure::Blocked) if matches!(locking, Locking::Wait(_)) => {
                    locking = Locking::Skip;
                }
                // No holder is, but another row: a job's, a balance.
                GroupFailure::Failed(Failure::Blocked) if part.len() > 1 && !asked => {
                    asked = true;
                    let members = blocked_members(session, transact, &part).await;
                    if !members.is_empty() {
                        parts.push(set_aside(part, members, &mut blocked));
                        break;
                    }
                }
                GroupFailure::Failed(Failure::Blocked) => match halves(part) {
                    Ok(halves) => {
                        parts.extend(halves);
                        break;
                    }
                    Err(one) => {
                        blocked.push((key::<T>(&one.item), one));
                        break;
                    }
                },
                GroupFailure::Failed(Failure::Conflict(_)) if tries < TRIES => {}
                // The kept connection was of no use; a new one may be.
                GroupFailure::Failed(Failure::Unavailable(_)) if tries < 2 => {}
                GroupFailure::Failed(Failure::Conflict(error) | Failure::Refused(error)) => {
                    match halves(part) {
                        Ok(halves) => {
                            parts.extend(halves);
                            break;
                        }
                        Err(one) if !repaired && repair(session, transact, &one, &error).await => {
                            aside.suspect(&one.item);
                            (repaired, tries) = (true, 0);
                            part = vec![one];
                        }
                        Err(one) => {
                            aside.suspect(&one.item);
                            tracing::warn!(%error, "the database refuses an item");
                            one.answer(Err(if error.is_transient() {
                                Rejection::Unavailable(error)
                            } else {
                                Rejection::Refused(error)
                            }));
                            break;
                        }
                    }
                }
                GroupFailure::Failed(failure) => {
                    let error = failure.into_error();
                    tracing::warn!(%error, items = part.len(), "a group failed");
                    for one in part {
                        one.answer(Err(Rejection::Unavailable(error.clone())));
                    }
                    break;
                }
            }
        }
    }
    blocked
}

/// Takes these members out of a group, and returns the rest.
fn set_aside<T: Transact>(
    part: Vec<Waiting<T>>,
    members: Vec<(usize, Uuid)>,
    blocked: &mut Vec<(Uuid, Waiting<T>)>,
) -> Vec<Waiting<T>> {
    let members: HashMap<usize, Uuid> = members.into_iter().collect();
    let mut rest = Vec::with_capacity(part.len());
    for (index, one) in part.into_iter().enumerate() {
        match members.get(&index) {
            Some(holder) => blocked.push((*holder, one)),
            None => rest.push(one),
        }
    }
    rest
}

async fn blocked_members<T: Transact>(
    session: &mut Session<T::Statements>,
    transact: &T,
    part: &[Waiting<T>],
) -> Vec<(usize, Uuid)> {
    let items: Vec<&T::Item> = part.iter().map(|one| &one.item).collect();
    let asked = match session.connection().await {
        Ok(connection) => with_deadline(transact.blocked(connection, &items)).await,
        Err(failure) => Err(failure),
    };
    match asked {
        Ok(members) => members,
        Err(failure) => {
            session.recover(&failure).await;
            Vec::new()
        }
    }
}

async fn run<T: Transact>(
    session: &mut Session<T::Statements>,
    transact: &T,
    part: &[Waiting<T>],
    locking: &Locking,
) -> Result<Vec<T::Output>, GroupFailure> {
    let items: Vec<&T::Item> = part.iter().map(|one| &one.item).collect();
    let connection = session.connection().await?;
    let done = with_deadline(transact.run(connection, &items, locking)).await;
    match &done {
        Ok(_) => {}
        Err(GroupFailure::NotLocked(_)) => session.recover(&Failure::Blocked).await,
        Err(GroupFailure::Failed(failure)) => session.recover(failure).await,
    }
    done
}

async fn repair<T: Transact>(
    session: &mut Session<T::Statements>,
    transact: &T,
    one: &Waiting<T>,
    error: &DatabaseError,
) -> bool {
    let repaired = match session.connection().await {
        Ok(connection) => with_deadline(transact.repair(connection, &one.item, error)).await,
        Err(failure) => Err(failure),
    };
    match repaired {
        Ok(again) => again,
        Err(failure) => {
            session.recover(&failure).await;
            false
        }
    }
}

/// The two halves of a group, the first on top; or its only member.
fn halves<T: Transact>(mut part: Vec<Waiting<T>>) -> Result<[Vec<Waiting<T>>; 2], Waiting<T>> {
    if part.len() == 1
        && let Some(one) = part.pop()
    {
        return Err(one);
    }
    let second = part.split_off(part.len() / 2);
    Ok([second, part])
}

/// Why a holder is served apart.
#[derive(Clone, Copy)]
enum Why {
    /// Somebody else has its lock.
    Blocked,
    /// PostgreSQL has refused something of it.
    Suspect,
}

/// Those who are served apart, by holder: somebody else has their lock, or PostgreSQL refuses what they want. Each
/// holder has a task while anything of it waits.
struct Aside<T: Transact> {
    database: Database,
    waiting: Mutex<HashMap<Uuid, VecDeque<Waiting<T>>>>,
    /// When PostgreSQL last refused something of a holder.
    suspects: Mutex<HashMap<Uuid, Instant>>,
    /// Those that nobody uses now, at most as many as there are permits.
    sessions: Mutex<Vec<Session<T::Statements>>>,
    permits: Semaphore,
    transact: Arc<T>,
}

impl<T: Transact> Aside<T> {
    fn holders(&self) -> HashSet<Uuid> {
        self.waiting.lock().keys().copied().collect()
    }

    /// Serves the holder of this item apart for a while. What has no known holder is never in company by its holder.
    fn suspect(&self, item: &T::Item) {
        if let Some(holder) = T::holder(item) {
            self.suspects.lock().insert(holder, Instant::now());
        }
    }

    /// Holders that PostgreSQL has refused something of lately.
    fn suspects(&self) -> HashSet<Uuid> {
        let mut suspects = self.suspects.lock();
        suspects.retain(|_, refused| refused.elapsed() < SUSPECTED_FOR);
        suspects.keys().copied().collect()
    }

    /// Takes the items of holders that are served apart out of a group, and returns the rest.
    fn take_known(aside: &Arc<Self>, mut group: Vec<Waiting<T>>) -> Vec<Waiting<T>> {
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

    fn push(aside: &Arc<Self>, holder: Uuid, one: Waiting<T>, why: Why) {
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
            let left = serve(&mut session, &aside, group, HashSet::new).await;
            aside.sessions.lock().push(session);
            drop(permit);
            if let Some(queue) = aside.waiting.lock().get_mut(&holder) {
                for (_, one) in left.into_iter().rev() {
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

/// Whose line an item stands in: its holder's, or one of its own where the holder is not known.
fn key<T: Transact>(item: &T::Item) -> Uuid {
    T::holder(item).unwrap_or_else(|| T::id(item))
}

//! The group committer: many callers, one transaction.
//!
//! All items that wait when a transaction ends form the next group; a lone caller never waits for others. Members of a
//! group do not affect each other:
//!
//! - When PostgreSQL refuses a group, it is split in halves until the refused member is alone; the others commit. The
//!   holder of that member goes into quarantine for a while, so that others pay for the search once.
//! - When another transaction locks a member's holder, that holder goes into quarantine within milliseconds, with all
//!   of its items, until the lock is free.
//! - When it is unknown whether a group committed, it does not run again, and its callers get that error.
//!
//! The queue is bounded in items and in bytes, and so is a group.

mod group;
mod item;
mod quarantine;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::database::session::Session;
use crate::database::{Database, DatabaseError};
use group::Members;
use item::{Answer, Waiting, key, waiting};
use quarantine::{Quarantine, Reason};

pub(crate) use item::{GroupFailure, Locking, Rejection, Transact};

/// The number of times that a group yields to the runtime before it closes.
const YIELDS: usize = 4;

/// The lock timeout of a group. Then it continues without the blocked member.
const LOCK_TIMEOUT: Duration = Duration::from_millis(25);

/// The number of bytes that one permit of the semaphore stands for.
const BYTES_PER_PERMIT: usize = 1024;

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
    /// Starts the task that commits. It ends when the last clone is dropped and all waiting items are answered.
    pub(crate) fn start(database: &Database, transact: Arc<T>) -> Self {
        let (queue, mut waiting) = mpsc::channel(T::MAX_QUEUE);
        let mut lane = Lane {
            session: Session::new(database.clone(), LOCK_TIMEOUT),
            quarantine: Quarantine::new(database.clone(), transact),
        };
        tokio::spawn(async move {
            let mut group = Vec::new();
            while gather::<T>(&mut waiting, &mut group).await {
                let serving = lane.serve(std::mem::take(&mut group));
                // A panic fails one group, and its callers get an error. The next group runs as usual.
                if AssertUnwindSafe(serving).catch_unwind().await.is_err() {
                    tracing::error!("a group panicked; its outcome is unknown");
                    lane.session.close();
                }
            }
        });
        Self {
            queue,
            bytes: Arc::new(Semaphore::new(permits(T::MAX_QUEUE_BYTES) as usize)),
        }
    }

    /// The number of waiting items.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }

    /// Commits an item, or refuses it immediately when too many wait.
    pub(crate) async fn try_commit(&self, item: T::Item) -> Answer<T::Output> {
        let (answer, answered) = oneshot::channel();
        if !self.try_queue(item, Some(answer)) {
            return Err(Rejection::Full);
        }
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Commits an item. Waits for room when too many wait.
    pub(crate) async fn commit(&self, item: T::Item) -> Answer<T::Output> {
        let bytes = T::bytes(&item);
        // An item that is larger than the whole queue waits until it is alone in it.
        let wanted = permits(bytes).min(permits(T::MAX_QUEUE_BYTES));
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

    /// Commits an item without waiting for the result. Returns false when there is no room for it.
    pub(crate) fn commit_later(&self, item: T::Item) -> bool {
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

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(BYTES_PER_PERMIT)).unwrap_or(u32::MAX)
}

fn stopped() -> Rejection {
    Rejection::Unavailable(DatabaseError::Stopped)
}

/// Waits for the next item and adds all waiting items, up to the maximum of a group. Returns false when nothing waits
/// and the queue is closed.
///
/// Callers that were answered together return together, and jobs that were claimed together end together. Without a
/// pause, the first of them would go alone while the others wait for a whole transaction. So the group closes only when
/// the scheduler has run all ready tasks and none of them added an item. This waits for no timer.
async fn gather<T: Transact>(waiting: &mut mpsc::Receiver<Waiting<T>>, group: &mut Vec<Waiting<T>>) -> bool {
    let Some(first) = waiting.recv().await else {
        return false;
    };
    let mut bytes = first.bytes;
    group.push(first);
    let has_room =
        |group: &Vec<Waiting<T>>, bytes: usize| group.len() < T::MAX_GROUP && bytes < T::MAX_GROUP_BYTES;
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

/// Serves groups one at a time over one session.
struct Lane<T: Transact> {
    session: Session<T::Statements>,
    quarantine: Arc<Quarantine<T>>,
}

impl<T: Transact> Lane<T> {
    async fn serve(&mut self, group: Vec<Waiting<T>>) {
        let group = Quarantine::take_quarantined(&self.quarantine, group);
        let blocked_holders = || self.quarantine.holders();
        let transact = &*self.quarantine.transact;
        let unanswered = group::serve(
            &mut self.session,
            transact,
            group,
            blocked_holders,
            Members::ManyHolders,
        )
        .await;
        self.quarantine.start(Reason::Refused, unanswered.refused);
        for one in unanswered.postponed {
            Quarantine::push(&self.quarantine, key::<T>(&one.item), one, Reason::Refused);
        }
        for (holder, blocked) in unanswered.blocked {
            Quarantine::push(&self.quarantine, holder, blocked, Reason::Blocked);
        }
    }
}

//! The items of callers, and the trait that turns them into transactions.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use uuid::Uuid;

use crate::database::session::{Connection, Statements};
use crate::database::{DatabaseError, Failure};

/// How a committer runs its transactions.
pub(crate) trait Transact: Send + Sync + 'static {
    /// One caller's request.
    type Item: Send + Sync + 'static;
    /// One caller's result.
    type Output: Send + 'static;
    /// The prepared statements of the transactions.
    type Statements: Statements;

    /// The maximum number of items in one transaction.
    const MAX_GROUP: usize;
    /// The maximum size of one transaction, in bytes. A larger item is sent alone.
    const MAX_GROUP_BYTES: usize = 8 * 1024 * 1024;
    /// The maximum number of waiting items.
    const MAX_QUEUE: usize;
    /// The maximum size of all waiting items, in bytes.
    const MAX_QUEUE_BYTES: usize;
    /// The maximum time that an item in quarantine waits for its lock.
    const BLOCKED_TIMEOUT: Duration;

    /// The holder of the row that the item locks, if it is known before the row is read.
    fn holder(item: &Self::Item) -> Option<Uuid>;

    /// A substitute key for items without a known holder.
    fn id(item: &Self::Item) -> Uuid;

    /// The approximate size of the item in memory, in bytes.
    fn bytes(item: &Self::Item) -> usize;

    /// Runs one transaction over these items and returns an output for each, in their order.
    ///
    /// `locking` determines how to handle holders that others have locked.
    fn run(
        &self,
        connection: &Connection<Self::Statements>,
        items: &[&Self::Item],
        locking: &Locking,
    ) -> impl Future<Output = Result<Vec<Self::Output>, GroupFailure>> + Send;

    /// The members with locked rows other than their holder's.
    fn blocked(
        &self,
        _connection: &Connection<Self::Statements>,
        _items: &[&Self::Item],
    ) -> impl Future<Output = Result<Vec<(usize, Uuid)>, Failure>> + Send {
        async { Ok(Vec::new()) }
    }

    /// Called when PostgreSQL refuses a single item, before its caller gets the error. Returns whether to run it again.
    fn repair(
        &self,
        _connection: &Connection<Self::Statements>,
        _item: &Self::Item,
        _error: &DatabaseError,
    ) -> impl Future<Output = Result<bool, Failure>> + Send {
        async { Ok(false) }
    }
}

/// How a transaction handles holders that others have locked.
pub(crate) enum Locking {
    /// Waits up to the session's `lock_timeout`. Skips the holders in this set, which are known to be blocked.
    Wait(HashSet<Uuid>),
    /// Skips them, and fails with their names.
    Skip,
}

/// Why a group did not commit.
pub(crate) enum GroupFailure {
    /// The holders of these members are locked by others, or are among those not to wait for. Nothing is committed.
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
    /// Too many items or bytes are waiting.
    Full,
    /// PostgreSQL refuses this item.
    Refused(DatabaseError),
    /// The database could not be used, the item's holder stayed locked, or the outcome is unknown.
    Unavailable(DatabaseError),
}

pub(super) type Answer<O> = Result<O, Rejection>;

/// A caller's place in the queue.
pub(super) struct Waiting<T: Transact> {
    pub(super) item: T::Item,
    pub(super) answer: Option<oneshot::Sender<Answer<T::Output>>>,
    pub(super) since: Instant,
    /// The result of [`Transact::bytes`], which walks the whole item and is called once.
    pub(super) bytes: usize,
    /// The queue's room, released when the item is answered.
    _room: OwnedSemaphorePermit,
}

impl<T: Transact> Waiting<T> {
    pub(super) fn answer(self, answer: Answer<T::Output>) {
        // If the caller has left, the answer is dropped.
        if let Some(caller) = self.answer {
            let _ = caller.send(answer);
        }
    }
}

pub(super) fn waiting<T: Transact>(
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

/// The key of an item's queue: its holder, or its own id if the holder is not known.
pub(super) fn key<T: Transact>(item: &T::Item) -> Uuid {
    T::holder(item).unwrap_or_else(|| T::id(item))
}

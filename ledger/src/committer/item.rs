//! The items of callers, and the trait that turns them into transactions.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use uuid::Uuid;

use crate::database::session::{Connection, Statements};
use crate::database::{DatabaseError, Failure};

/// What the transactions of a committer do.
pub(crate) trait Transact: Send + Sync + 'static {
    /// What one caller wants.
    type Item: Send + Sync + 'static;
    /// What one caller gets.
    type Output: Send + 'static;
    /// What the transactions are made of.
    type Statements: Statements;

    /// The most items of one transaction.
    const MAX_GROUP: usize;
    /// The most bytes of one transaction; a larger item goes alone.
    const MAX_GROUP_BYTES: usize = 8 * 1024 * 1024;
    /// The most items that wait.
    const MAX_QUEUE: usize;
    /// The most bytes that wait.
    const MAX_QUEUE_BYTES: usize;
    /// How long an item in quarantine waits for its lock.
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

    /// The members whose other rows, not their holder's, are locked by others.
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

pub(super) type Answer<O> = Result<O, Rejection>;

/// A caller's place in the queue.
pub(super) struct Waiting<T: Transact> {
    pub(super) item: T::Item,
    pub(super) answer: Option<oneshot::Sender<Answer<T::Output>>>,
    pub(super) since: Instant,
    /// [`Transact::bytes`] of the item, which walks all of it and is asked once.
    pub(super) bytes: usize,
    /// The queue's room, given back when the item is answered.
    _room: OwnedSemaphorePermit,
}

impl<T: Transact> Waiting<T> {
    pub(super) fn answer(self, answer: Answer<T::Output>) {
        // A caller that has gone away is answered just as well.
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

/// The key of an item's queue: its holder, or its own id where the holder is not known.
pub(super) fn key<T: Transact>(item: &T::Item) -> Uuid {
    T::holder(item).unwrap_or_else(|| T::id(item))
}

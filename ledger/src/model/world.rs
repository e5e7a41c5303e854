//! The actors and their progress.

use super::rows::{Answer, Rows};

/// A client's request. A client without an answer in time sends its request again, with the same key.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Request {
    NotSent,
    Sent,
    /// Has read without the lock, in some broken variants.
    Read(Box<Rows>),
    /// Has the holder's lock; and the rows that it read before, in some broken variants.
    Locked(Option<Box<Rows>>),
    /// Committed and answered, or cut off before. After a lost answer, the client retries.
    Ended(Option<Answer>),
}

/// The stage of a worker's attempt.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Working,
    /// In the transaction that asks for more quota.
    Extending,
    Settling,
    /// In the transaction of the settlement.
    Locked,
    /// Between the two transactions of a broken variant.
    BetweenTransactions,
    /// The attempt failed, which is about to be written.
    Failing,
    Dead,
}

/// A worker process of Weir, with one worker.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct Worker {
    pub(super) stage: Stage,
    pub(super) job: usize,
    pub(super) attempt: u8,
    pub(super) is_frozen: bool,
    pub(super) was_frozen: bool,
}

/// The next write of the process that runs maintenance.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Maintenance {
    None,
    /// Settles a job that ended elsewhere, or releases the slot of a job before its retry.
    Settle(usize),
    /// A retry is due.
    Due(usize),
    /// Promotes parked jobs; in some broken variants by rows read before the lock.
    Promote(Option<Box<Rows>>),
}

/// The owner of the lock on the holder's row.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Locker {
    Request(usize, usize),
    Worker(usize),
    Maintenance,
}

/// The remaining number of each fault or request.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) timeouts: u8,
    pub(super) disconnects: u8,
    pub(super) crashes: u8,
    pub(super) freezes: u8,
    pub(super) failures: u8,
    pub(super) cancels: u8,
    pub(super) plans: u8,
    pub(super) foreign: u8,
    pub(super) extensions: u8,
    pub(super) lends: u8,
}

/// A forbidden effect of a step.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Violation {
    /// More was admitted than the limit allows.
    OverLimit,
    /// More slots were given than the plan has.
    OverSlotLimit,
    /// A worker was lent over the plan's burst.
    OverBurst,
    /// An attempt was fenced out without a reason.
    FencedOutWithoutReason,
}

/// The whole state.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct World {
    pub(super) rows: Rows,
    pub(super) lock: Option<Locker>,
    pub(super) clients: Vec<[Request; 2]>,
    pub(super) workers: Vec<Worker>,
    pub(super) maintenance: Maintenance,
    pub(super) budget: Budget,
    pub(super) violation: Option<Violation>,
}

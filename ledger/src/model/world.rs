//! Who acts, and how far each of them is.

use super::rows::{Answer, Rows};

/// A request of a client's. A client that is not answered in time sends its request again, with the same key.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Request {
    NotSent,
    Sent,
    /// Has read without the lock, in some broken variants.
    Read(Box<Rows>),
    /// Has the holder's lock; and what it read before, in some broken variants.
    Locked(Option<Box<Rows>>),
    /// Committed and answered, or cut off before. An answer that is lost is one after which the client asks again.
    Over(Option<Answer>),
}

/// How far a worker's attempt is.
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
    Halfway,
    /// The attempt is settled, and River writes what it thinks.
    Returning,
    /// It failed and was the job's when it looked; River writes that.
    Failing,
    Dead,
}

/// A worker process of Weir's, with one worker.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct Worker {
    pub(super) stage: Stage,
    pub(super) job: usize,
    pub(super) attempt: u8,
    /// Jobs that it was fenced out of, of which River must not write yet.
    pub(super) fenced: Vec<usize>,
    pub(super) is_frozen: bool,
    pub(super) was_frozen: bool,
}

/// What the process that runs maintenance is about to write.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) enum Maintenance {
    None,
    /// Settles what ended elsewhere, or takes the slot of what waits for a retry.
    Settle(usize),
    /// A retry is due.
    Due(usize),
    /// Gives free slots away; by what was read before the lock, in some broken variants.
    Promote(Option<Box<Rows>>),
}

/// Who has the holder's row locked.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Locker {
    Request(usize, usize),
    Worker(usize),
    Maintenance,
}

/// How often each thing may yet go wrong or be asked for.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) timeouts: u8,
    pub(super) cuts: u8,
    pub(super) crashes: u8,
    pub(super) freezes: u8,
    pub(super) failures: u8,
    pub(super) cancels: u8,
    pub(super) plans: u8,
    pub(super) foreign: u8,
    pub(super) extensions: u8,
}

/// What a transition did that must never be done.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Wrong {
    /// More was admitted than the limit allows.
    OverLimit,
    /// More slots were given than the plan has.
    OverSlots,
    /// An attempt that nobody had reason to take away was fenced out.
    Stolen,
}

/// Everything.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub(super) struct World {
    pub(super) rows: Rows,
    pub(super) lock: Option<Locker>,
    pub(super) clients: Vec<[Request; 2]>,
    pub(super) workers: Vec<Worker>,
    pub(super) maintenance: Maintenance,
    pub(super) budget: Budget,
    pub(super) wrong: Option<Wrong>,
}

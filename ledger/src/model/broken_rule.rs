//! Variants of the model that each break one rule, to test that the properties detect it.

/// The broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BrokenRule {
    /// A submission reads the account before it locks it.
    LockAfterRead,
    /// A submission looks up its key before it has the lock.
    ReadKeyBeforeLock,
    /// A client is answered before the commit.
    AnswerBeforeCommit,
    /// A settlement completes any running attempt.
    SettleAnyAttempt,
    /// A settled reservation stays in the table.
    ReleaseTwice,
    /// The quota is released in one transaction, and the slot in the next.
    ReleaseInTwoTransactions,
    /// Promotion counts before it locks.
    PromoteWithoutRecount,
    /// Promotion uses the previous plan.
    PromoteByPreviousPlan,
    /// A retry starts without asking for a slot.
    RetryWithoutSlot,
    /// More quota is given without a check for room.
    ExtendWithoutRoom,
    /// The jobs of a process with a heartbeat are taken over.
    TakeOverFromLiveProcess,
    /// The sweep for jobs that ended without a settlement is missing.
    NoSweep,
    /// The failure of any running attempt is written.
    FailAnyAttempt,
    /// A worker is lent without a look at the burst.
    LendOverBurst,
    /// A settlement above the slots promotes a job all the same.
    PromoteAboveSlots,
}

impl BrokenRule {
    pub(super) const ALL: [Self; 15] = [
        Self::LockAfterRead,
        Self::ReadKeyBeforeLock,
        Self::AnswerBeforeCommit,
        Self::SettleAnyAttempt,
        Self::ReleaseTwice,
        Self::ReleaseInTwoTransactions,
        Self::PromoteWithoutRecount,
        Self::PromoteByPreviousPlan,
        Self::RetryWithoutSlot,
        Self::ExtendWithoutRoom,
        Self::TakeOverFromLiveProcess,
        Self::NoSweep,
        Self::FailAnyAttempt,
        Self::LendOverBurst,
        Self::PromoteAboveSlots,
    ];
}

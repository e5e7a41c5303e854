//! Rules that a variant of the model breaks, one each, to see that the properties notice.

/// The rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// A submission reads the account and locks it afterwards.
    LockAfterRead,
    /// A submission looks for its key before it has the lock.
    KeyBeforeLock,
    /// A client is answered before the commit.
    AnswerBeforeCommit,
    /// A settlement completes whatever attempt is under way.
    SettleAnyAttempt,
    /// What a settlement released stays in the table.
    ReleaseTwice,
    /// The quota is released in one transaction, and the slot in the next.
    ReleaseInTwo,
    /// An attempt that was fenced out returns to River at once, which compares no attempts.
    ReturnWhenFenced,
    /// Promotion counts before it locks.
    PromoteWithoutRecount,
    /// Promotion goes by the plan of before.
    PromoteByOldPlan,
    /// A retry starts without asking for a slot.
    RetryWithoutSlot,
    /// More quota is given without a look for room.
    ExtendWithoutRoom,
    /// The jobs of a process that beats are taken back.
    TakeBackTheLiving,
    /// Nobody looks for what ended without a settlement.
    NoSweep,
    /// A process freezes between its look at the job and River's write of its failure. River leaves no other order: this
    /// is what the end of processes that wake too late is for.
    FrozenBeforeRiverWrites,
}

impl Broken {
    pub(super) const ALL: [Self; 14] = [
        Self::LockAfterRead,
        Self::KeyBeforeLock,
        Self::AnswerBeforeCommit,
        Self::SettleAnyAttempt,
        Self::ReleaseTwice,
        Self::ReleaseInTwo,
        Self::ReturnWhenFenced,
        Self::PromoteWithoutRecount,
        Self::PromoteByOldPlan,
        Self::RetryWithoutSlot,
        Self::ExtendWithoutRoom,
        Self::TakeBackTheLiving,
        Self::NoSweep,
        Self::FrozenBeforeRiverWrites,
    ];
}

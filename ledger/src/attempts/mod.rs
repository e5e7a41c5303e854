//! Attempts: how they start, how they are protected while they run, and how they end.
//!
//! Running attempts are protected from a River leader that does not know them. River's rescuer considers a job stuck by
//! its `attempted_at` alone. The leader of another program does not know Weir's kinds or their timeouts. It would discard
//! their jobs, or run them twice at the same time.

mod claims;
mod outstanding;

pub use claims::{
    Claimed, ClaimedJob, End, EndedAttempt, Found, Holds, QueueClaim, check, claim, end, touch_queues,
};
pub use outstanding::{
    AttemptEnd, AttemptError, AwaitOutcome, Claim, Extended, ExtraQuota, Failure, Progress, SilentAttempt,
    await_answer, complete, extend, fail, fail_silent_attempts, record_progress,
};

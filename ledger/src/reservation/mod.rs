//! Reserving (ADR-21): check the quota, reserve, and enqueue the job, in one transaction.
//!
//! A [`Reserver`] admits the submissions of many callers in groups. [`reserve`] admits one submission inside the
//! caller's transaction. [`admit_late`] admits or parks an existing job without quota and slot. All of them decide by
//! [`weir_policy::admission::Account::decide`], under the same lock.

mod decide;
mod late_admission;
mod queue;
mod read;
mod statements;
mod submission;
mod transaction;
mod write;

pub use late_admission::{LateAdmission, LateJob, admit_late};
pub use queue::Reserver;
pub(crate) use statements::PROVISION;
pub use submission::{
    Answer, FIRST_PRIORITY, Idempotency, LAST_PRIORITY, NewJob, Quota, Quotas, ReserveError, Submission,
    Window,
};
pub use transaction::{reserve, reserve_all, submit_all};

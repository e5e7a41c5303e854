//! Reserving (ADR-21): check the quota, reserve, and enqueue the job, in one transaction.
//!
//! A [`Reserver`] admits the submissions of many callers in groups. [`reserve`] admits one submission inside the
//! caller's transaction. The database function `submit_many()` decides for both, and for callers in other languages.
//! [`admit_late`] admits or parks an existing job without quota and slot. [`retry()`] runs an ended one again.

mod late_admission;
mod queue;
mod retry;
mod submission;
mod transaction;

pub use late_admission::{LateAdmission, LateJob, admit_late};
pub use queue::Reserver;
pub use retry::{Retried, retry};
pub use submission::{
    Answer, FIRST_PRIORITY, Idempotency, LAST_PRIORITY, NewJob, Quota, Quotas, ReserveError, Submission,
    Window,
};
pub use transaction::{reserve, reserve_all, submit_all};

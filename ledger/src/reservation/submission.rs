//! What is submitted, and how it is answered.

use jiff::Timestamp;
use serde_json::Value;
use weir_policy::admission::Account;
use weir_policy::tier::Tier;

use crate::database::DatabaseError;
use crate::event_type::EventType;
use crate::holder::Holder;

/// A request to accept one job.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Whom it is counted against.
    pub holder: Holder,
    /// The service's name, which is the stem of its queues.
    pub service: String,
    /// What it is counted as.
    pub event_type: EventType,
    /// River's job kind.
    pub kind: String,
    /// How often the job is tried.
    pub max_attempts: i16,
    /// The job's arguments, a JSON object.
    pub args: Value,
    /// What River keeps beside the arguments, a JSON object.
    pub metadata: Value,
    /// What it may use at most, in the event type's unit; never negative.
    pub amount: i32,
    /// The caller's `Idempotency-Key`.
    pub idempotency: Option<Idempotency>,
    /// River's unique key: a live job of the same holder with the same key is the answer instead of a new one.
    pub unique_key: Option<Vec<u8>>,
}

/// An `Idempotency-Key`, and what it was sent with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// As the caller wrote it.
    pub key: String,
    /// SHA-256 over the service and the body.
    pub request_hash: Vec<u8>,
}

/// What a plan allows in the current billing period and what of it is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Charged in this period.
    pub used: i64,
    /// Held by unfinished jobs.
    pub reserved: i64,
    /// The plan's limit; `None` is unlimited.
    pub limit: Option<i64>,
    /// What is left; `None` is unlimited.
    pub remaining: Option<i64>,
    /// When the next period starts.
    pub reset_at: Timestamp,
}

impl Quota {
    /// The quota of an account whose period ends at `reset_at`.
    #[must_use]
    pub fn of(account: &Account, reset_at: Timestamp) -> Self {
        Self {
            used: account.used,
            reserved: account.reserved,
            limit: account.limit,
            remaining: account.remaining(),
            reset_at,
        }
    }
}

/// A job as it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// River's job id.
    pub id: i64,
    /// The queue it is in.
    pub queue: String,
    /// The holder's tier; `None` for a client address.
    pub tier: Option<Tier>,
    /// Whether it has a slot. Without one it waits for one of its holder's.
    pub has_slot: bool,
    /// What of the quota it holds.
    pub reserved: i32,
    /// When it was accepted.
    pub created_at: Timestamp,
}

/// The answer to a submission. The quota is that of the account right after it; an anonymous caller has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A new job.
    Accepted {
        /// The job as it was committed.
        job: NewJob,
        /// The quota with this reservation in it.
        quota: Option<Quota>,
    },
    /// The job that the same `Idempotency-Key` made before.
    Repeated {
        /// River's job id.
        job_id: i64,
        /// The quota as it is.
        quota: Option<Quota>,
    },
    /// A live job of the same holder that River's uniqueness takes for the same. Nothing was reserved.
    Folded {
        /// River's job id.
        job_id: i64,
        /// The quota as it is.
        quota: Option<Quota>,
    },
    /// The `Idempotency-Key` was used with another request.
    KeyReused,
    /// `used + reserved + requested` would be over the limit. Nothing was written.
    OverQuota {
        /// The quota as it is.
        quota: Quota,
    },
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReserveError {
    /// The database cannot be used right now. After [`DatabaseError::OutcomeUnknown`] the job may have been made; the
    /// same `Idempotency-Key` finds it.
    #[error("the reservation could not be made: {0}")]
    Database(#[from] DatabaseError),
    /// More submissions wait than the process has room for.
    #[error("too many submissions wait already")]
    Overloaded,
    /// PostgreSQL cannot store these arguments, such as text with a NUL character.
    #[error("the arguments cannot be stored: {0}")]
    Unstorable(String),
}

impl From<tokio_postgres::Error> for ReserveError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

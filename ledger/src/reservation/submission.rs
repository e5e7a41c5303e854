//! What is submitted, and how it is answered.

use jiff::Timestamp;
use serde_json::Value;
use weir_policy::admission::Allowance;
use weir_policy::span::Span;
use weir_policy::subject::Subject;

use crate::database::DatabaseError;
use crate::holder::Holder;
use crate::meter::Meter;

/// A request to accept one job.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Whom it is counted against.
    pub holder: Holder,
    /// The subject that the holder is made from. It is kept with the user, so that the user can be found by it; `None`
    /// for an address.
    pub subject: Option<Subject>,
    /// The service's name, which is the stem of its queues.
    pub service: String,
    /// What it is counted as.
    pub meter: Meter,
    /// River's job kind.
    pub kind: String,
    /// How often the job is tried.
    pub max_attempts: i16,
    /// The job's arguments, a JSON object.
    pub args: Value,
    /// What River keeps beside the arguments, a JSON object.
    pub metadata: Value,
    /// What it may use at most, in the meter's unit; never negative.
    pub amount: i64,
    /// The caller's `Idempotency-Key`.
    pub idempotency: Option<Idempotency>,
    /// The key of [`crate::unique_key::key`]: a live job with the same key is the answer instead of a new one.
    pub unique_key: Option<Vec<u8>>,
    /// When the job is to start. Until then it holds its quota and no slot. `None` is at once.
    pub run_at: Option<Timestamp>,
    /// River's priority within a queue, from 1, the first, to 4.
    pub priority: i16,
}

/// River's priority of what says none.
pub const FIRST_PRIORITY: i16 = 1;

/// An `Idempotency-Key`, and what it was sent with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// As the caller wrote it.
    pub key: String,
    /// SHA-256 over all that makes the request: the service, the arguments, the time and the priority.
    pub request_hash: Vec<u8>,
}

/// A window in which a meter is counted, from `start` up to but not including `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// What kind of window it is.
    pub span: Span,
    /// Its first moment.
    pub start: Timestamp,
    /// The first moment of the next one.
    pub end: Timestamp,
}

impl Window {
    /// The window around a moment; `None` for a month, which is a subscription's own.
    #[must_use]
    pub fn around(span: Span, at: Timestamp) -> Option<Self> {
        let start = span.start(at.as_second())?;
        Some(Self {
            span,
            start: Timestamp::from_second(start).ok()?,
            end: Timestamp::from_second(start.saturating_add(span.seconds()?)).ok()?,
        })
    }
}

/// What a plan allows in a window and what of it is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Of which window.
    pub window: Window,
    /// Charged in it.
    pub used: i64,
    /// Held by unfinished jobs.
    pub reserved: i64,
    /// The plan's limit; `None` is unlimited.
    pub limit: Option<i64>,
    /// Up to where more is accepted, of a soft limit; `None` is a hard one, or none.
    pub ceiling: Option<i64>,
    /// How much of what is taken is beyond a soft limit.
    pub overage: i64,
    /// What would still be accepted; `None` is unlimited.
    pub remaining: Option<i64>,
    /// What of that grants would pay for.
    pub granted: i64,
}

impl Quota {
    /// The quota of a window.
    #[must_use]
    pub fn of(allowance: &Allowance, window: Window) -> Self {
        Self {
            window,
            used: allowance.used,
            reserved: allowance.reserved,
            limit: allowance.limit,
            ceiling: allowance.most().filter(|most| Some(*most) > allowance.limit),
            overage: allowance.overage(),
            remaining: allowance.remaining(),
            granted: allowance.granted,
        }
    }
}

/// The quotas of a meter, window by window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Of the billing period.
    pub month: Quota,
    /// Of the shorter windows in which the plan has a limit.
    pub shorter: Vec<Quota>,
}

impl Quotas {
    /// `None` without a plan. The windows are those of the allowances, the month first.
    pub(crate) fn of(allowances: &[Allowance], windows: &[Window]) -> Option<Self> {
        let mut all = allowances.iter().zip(windows);
        let (allowance, window) = all.next()?;
        Some(Self {
            month: Quota::of(allowance, *window),
            shorter: all
                .filter(|(allowance, _)| allowance.limit.is_some())
                .map(|(allowance, window)| Quota::of(allowance, *window))
                .collect(),
        })
    }

    /// All of them, the month first.
    pub fn iter(&self) -> impl Iterator<Item = &Quota> {
        std::iter::once(&self.month).chain(&self.shorter)
    }
}

/// A job as it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// River's job id.
    pub id: i64,
    /// The queue it is in.
    pub queue: String,
    /// The name of the holder's plan; `None` for a client address.
    pub tier: Option<&'static str>,
    /// Whether it has a slot. Without one it waits for one of its holder's.
    pub has_slot: bool,
    /// When it asks for a slot; `None` when it has, or waits for one.
    pub run_at: Option<Timestamp>,
    /// What of the quota it holds.
    pub reserved: i64,
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
        quota: Option<Quotas>,
    },
    /// The job that the same `Idempotency-Key` made before.
    Repeated {
        /// River's job id.
        job_id: i64,
        /// The quota as it is.
        quota: Option<Quotas>,
    },
    /// A live job of the same holder that River's uniqueness takes for the same. Nothing was reserved.
    Folded {
        /// River's job id.
        job_id: i64,
        /// The quota as it is.
        quota: Option<Quotas>,
    },
    /// The `Idempotency-Key` was used with another request.
    KeyReused,
    /// `used + reserved + requested` would be over the limit of a window. Nothing was written.
    OverQuota {
        /// The quota as it is.
        quota: Quotas,
        /// The windows without room for what was requested.
        full: Vec<Quota>,
    },
    /// `used + reserved + requested` would be more than a 64-bit integer holds. Nothing was written.
    TooLarge {
        /// The quota as it is.
        quota: Option<Quotas>,
    },
    /// As many jobs of the holder wait as its plan allows. Nothing was written.
    TooManyWaiting {
        /// How many that is.
        most: u32,
        /// The quota as it is.
        quota: Option<Quotas>,
    },
}

impl Answer {
    /// Whether there is no job for the submission.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Accepted { .. } | Self::Repeated { .. } | Self::Folded { .. } => false,
            Self::KeyReused
            | Self::OverQuota { .. }
            | Self::TooLarge { .. }
            | Self::TooManyWaiting { .. } => true,
        }
    }
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

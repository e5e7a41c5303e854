//! Submissions and their answers.

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::Row;
use weir_policy::admission::Allowance;
use weir_policy::span::Span;
use weir_policy::subject::Subject;

use crate::database::DatabaseError;
use crate::holder::Holder;
use crate::meter::Meter;

/// A request to accept one job.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The account that it counts against.
    pub holder: Holder,
    /// The subject of the holder. It is stored with the user, so that the user can be found by it; `None` for an
    /// address.
    pub subject: Option<Subject>,
    /// The service's name, which is the stem of its queues.
    pub service: String,
    /// The meter.
    pub meter: Meter,
    /// River's job kind.
    pub kind: String,
    /// The maximum number of attempts.
    pub max_attempts: i16,
    /// The job's arguments, a JSON object.
    pub args: Value,
    /// River's metadata, a JSON object.
    pub metadata: Value,
    /// The maximum amount that it may use, in the meter's unit; never negative.
    pub amount: i64,
    /// The caller's `Idempotency-Key`.
    pub idempotency: Option<Idempotency>,
    /// The key of [`crate::unique_key::key`]. An unfinished job with the same key is the answer instead of a new one.
    pub unique_key: Option<Vec<u8>>,
    /// When the job should start. Until then, it holds its quota and no slot. `None` means immediately.
    pub run_at: Option<Timestamp>,
    /// River's priority within a queue, from [`FIRST_PRIORITY`] to [`LAST_PRIORITY`].
    pub priority: i16,
}

/// River's priority for jobs without an explicit one.
pub const FIRST_PRIORITY: i16 = 1;

/// River's lowest priority.
pub const LAST_PRIORITY: i16 = 4;

/// An `Idempotency-Key`, and the hash of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// As the caller wrote it.
    pub key: String,
    /// SHA-256 over the parts of the request: the service, the arguments, the time and the priority.
    pub request_hash: Vec<u8>,
}

/// A window in which a meter is counted, from `start` up to but not including `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The kind of window.
    pub span: Span,
    /// Its first moment.
    pub start: Timestamp,
    /// The first moment of the next one.
    pub end: Timestamp,
}

/// A plan's limit in a window, and its usage and reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The window.
    pub window: Window,
    /// The amount charged in it.
    pub used: i64,
    /// The amount reserved by unfinished jobs.
    pub reserved: i64,
    /// The plan's limit; `None` is unlimited.
    pub limit: Option<i64>,
    /// The ceiling of a soft limit; `None` for a hard limit or no limit.
    pub ceiling: Option<i64>,
    /// The usage and reservations above a soft limit.
    pub overage: i64,
    /// The amount that is still accepted; `None` is unlimited.
    pub remaining: Option<i64>,
    /// The part of it that grants would pay for.
    pub granted: i64,
}

impl Quota {
    /// The quota of a window. SQL: `quota_json`.
    #[must_use]
    pub fn of(allowance: &Allowance, window: Window) -> Self {
        Self {
            window,
            used: allowance.used,
            reserved: allowance.reserved,
            limit: allowance.limit,
            ceiling: allowance
                .max_accepted()
                .filter(|most| Some(*most) > allowance.limit),
            overage: allowance.overage(),
            remaining: allowance.remaining(),
            granted: allowance.granted,
        }
    }
}

/// The quotas of a meter, window by window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// The quota of the billing period.
    pub month: Quota,
    /// The quotas of the shorter windows with a limit.
    pub shorter: Vec<Quota>,
}

impl Quotas {
    /// `None` without a plan. `windows` match the allowances, the month first.
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

    /// The quotas of a row with the columns `spans` to `granted` of `account_of()`; `None` without a plan. `added` was
    /// reserved since, of which grants pay for `drawn`.
    pub(crate) fn from_row(row: &Row, added: i64, drawn: i64) -> Option<Self> {
        let spans: Vec<&str> = row.get::<_, Option<_>>("spans")?;
        let (starts, ends): (Vec<Timestamp>, Vec<Timestamp>) = (row.get("starts"), row.get("ends"));
        let (limits, ceilings): (Vec<Option<i64>>, Vec<Option<i64>>) =
            (row.get("limits"), row.get("ceilings"));
        let (used, reserved): (Vec<i64>, Vec<i64>) = (row.get("used_in"), row.get("reserved_in"));
        let (mut windows, mut allowances) = (Vec::new(), Vec::new());
        for (index, span) in spans.into_iter().enumerate() {
            windows.push(Window {
                span: Span::parse(span)?,
                start: starts[index],
                end: ends[index],
            });
            // Grants pay only in the month.
            let is_month = index == 0;
            let of_month = |amount: i64| if is_month { amount } else { 0 };
            allowances.push(Allowance {
                limit: limits[index],
                ceiling: ceilings[index],
                used: used[index],
                reserved: reserved[index].saturating_add(added),
                from_grants: of_month(row.get::<_, i64>("from_grants") + drawn),
                granted: of_month(row.get::<_, i64>("granted") - drawn),
            });
        }
        Self::of(&allowances, &windows)
    }

    /// Those of these windows.
    pub(super) fn full(&self, spans: &[&str]) -> Vec<Quota> {
        let is_full = |one: &&Quota| spans.contains(&one.window.span.as_str());
        self.iter().filter(is_full).copied().collect()
    }

    /// All quotas, the month first.
    pub fn iter(&self) -> impl Iterator<Item = &Quota> {
        std::iter::once(&self.month).chain(&self.shorter)
    }
}

/// A committed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// River's job id.
    pub id: i64,
    /// Its queue.
    pub queue: String,
    /// The name of the holder's plan; `None` for a client address.
    pub plan: Option<&'static str>,
    /// Whether it has a slot. Otherwise, it waits for one of its holder's slots.
    pub has_slot: bool,
    /// Whether it may start without a slot, on a worker that would be idle.
    pub is_lendable: bool,
    /// When it asks for a slot; `None` if it has a slot or is parked.
    pub run_at: Option<Timestamp>,
    /// The amount that it reserves.
    pub reserved: i64,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it is cancelled if it still waits; `None`: never.
    pub expires_at: Option<Timestamp>,
}

/// The answer to a submission. The quota is that of the account right after it; an anonymous caller has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A new job.
    Accepted {
        /// The job as it was committed.
        job: NewJob,
        /// The quota including this reservation.
        quota: Option<Quotas>,
    },
    /// An earlier job with the same `Idempotency-Key`.
    Repeated {
        /// River's job id.
        job_id: i64,
        /// The current quota.
        quota: Option<Quotas>,
    },
    /// An unfinished job of the same holder that River's uniqueness considers equal. Nothing was reserved.
    Folded {
        /// River's job id.
        job_id: i64,
        /// The current quota.
        quota: Option<Quotas>,
    },
    /// The `Idempotency-Key` was used with another request.
    KeyReused,
    /// `used + reserved + requested` would be over the limit of a window. Nothing was written.
    OverQuota {
        /// The current quota.
        quota: Quotas,
        /// The windows without room for what was requested.
        full: Vec<Quota>,
    },
    /// `used + reserved + requested` would be more than a 64-bit integer holds. Nothing was written.
    TooLarge {
        /// The current quota.
        quota: Option<Quotas>,
    },
    /// The holder has as many waiting jobs as its plan allows. Nothing was written.
    TooManyWaiting {
        /// The maximum.
        most: u32,
        /// The current quota.
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

    /// The queue in which workers can claim a new job now.
    #[must_use]
    pub fn claimable_in(&self) -> Option<String> {
        match self {
            Self::Accepted { job, .. } if job.has_slot || job.is_lendable => Some(job.queue.clone()),
            _ => None,
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReserveError {
    /// The database cannot be used right now. After [`DatabaseError::OutcomeUnknown`], the job may exist. The same
    /// `Idempotency-Key` finds it.
    #[error("the reservation failed: {0}")]
    Database(#[from] DatabaseError),
    /// More submissions are waiting than the process has room for.
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

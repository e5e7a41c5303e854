//! Runs an ended job again. It reserves quota as a new submission would.

use tokio_postgres::GenericClient;

use super::submission::{Quota, Quotas};
use crate::database::DatabaseError;

/// The answer to a retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retried {
    /// The job waits for a worker, or for a slot. With its quota after it; an anonymous caller has none.
    Accepted(Option<Quotas>),
    /// The job is unknown, its row was deleted, or its user was.
    NotFound,
    /// The job is unfinished, or it was charged.
    NotFailed,
    /// An equal job is unfinished.
    Folded,
    /// The quota has no room for the amount.
    OverQuota {
        /// The quota before.
        quota: Quotas,
        /// The windows without room.
        full: Vec<Quota>,
        /// The amount.
        amount: i64,
    },
    /// The amount would overflow the account's sums.
    TooLarge,
    /// The holder has this many waiting jobs, the most that the plan allows.
    TooManyWaiting(u32),
}

impl Retried {
    /// A word for it, as `weir_retry` in SQL has them.
    #[must_use]
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::Accepted(_) => "retried",
            Self::NotFound => "not_found",
            Self::NotFailed => "not_failed",
            Self::Folded => "folded",
            Self::OverQuota { .. } => "over_quota",
            Self::TooLarge => "too_large",
            Self::TooManyWaiting(_) => "too_many_waiting",
        }
    }
}

/// Runs a failed, expired or cancelled job again, by one statement: in the client's transaction, or in its own.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn retry<C: GenericClient>(client: &C, job_id: i64) -> Result<Retried, DatabaseError> {
    let row = client
        .query_one("SELECT * FROM retry_job($1)", &[&job_id])
        .await?;
    let outcome: &str = row.get("outcome");
    if outcome == "not_found" {
        return Ok(Retried::NotFound);
    } else if outcome == "not_failed" {
        return Ok(Retried::NotFailed);
    }
    let quota = Quotas::from_row(&row, row.get("added"), row.get("drawn"));
    Ok(match (outcome, quota) {
        ("admitted" | "parked", quota) => Retried::Accepted(quota),
        ("folded", _) => Retried::Folded,
        ("over_quota", Some(quota)) => Retried::OverQuota {
            full: quota.full(&row.get::<_, Vec<&str>>("full_spans")),
            quota,
            amount: row.get("reserved"),
        },
        ("too_many_waiting", _) => Retried::TooManyWaiting(row.get::<_, i32>("max_waiting").unsigned_abs()),
        _ => Retried::TooLarge,
    })
}

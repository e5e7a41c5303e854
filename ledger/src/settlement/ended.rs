//! Ended attempts, and the results of their settlement.

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::GenericClient;
use uuid::Uuid;

use crate::database::DatabaseError;

/// An ended attempt.
#[derive(Clone, Debug)]
pub struct Ended {
    /// River's job id.
    pub job_id: i64,
    /// The holder, if the caller knows it. If PostgreSQL refuses one of its items, other holders are then not affected.
    pub holder: Option<Uuid>,
    /// Set if the attempt succeeded and the job is not completed yet. Otherwise, River has recorded the outcome, or
    /// will.
    pub success: Option<Success>,
}

/// The results of a successful attempt.
#[derive(Clone, Debug)]
pub struct Success {
    /// The attempt that did the work.
    pub attempt: i16,
    /// When the attempt's job was created. After a failover, its id may belong to another job. `None` skips the check.
    pub job_created_at: Option<Timestamp>,
    /// The job's output.
    pub output: Value,
    /// The usage, in the meter's unit; `None` charges everything that was reserved.
    pub used: Option<i64>,
}

/// The result of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The job has ended, or released its slot until its retry.
    Done {
        /// The user's charge.
        charged: i64,
    },
    /// This attempt is no longer the current one, because the job was taken over. None of its results were stored.
    FencedOut,
}

/// Why nothing was settled.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SettleError {
    /// The database cannot be used right now. A repeated settlement is safe, because it is fenced by attempt.
    #[error("the settlement failed: {0}")]
    Database(#[from] DatabaseError),
    /// The output cannot be stored, such as text with a NUL character.
    #[error("the output cannot be stored: {0}")]
    Unstorable(String),
    /// PostgreSQL refuses this settlement, and will refuse it again.
    #[error("PostgreSQL rejected the settlement: {0}")]
    Refused(DatabaseError),
}

impl From<tokio_postgres::Error> for SettleError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

/// The charge of an attempt that completed its job; `None` if it did not. It shows the result of a settlement with an
/// unknown outcome.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn charged_by<C: GenericClient + Sync>(
    client: &C,
    job_id: i64,
    attempt: i16,
    job_created_at: Option<Timestamp>,
) -> Result<Option<i64>, tokio_postgres::Error> {
    let row = client
        .query_opt(
            include_str!("sql/charged_by.sql"),
            &[&job_id, &attempt, &job_created_at],
        )
        .await?;
    Ok(row.map(|row| row.get("charged")))
}

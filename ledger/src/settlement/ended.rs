//! An attempt that is over, and what settling it did.

use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::GenericClient;
use uuid::Uuid;

use crate::database::DatabaseError;

/// An attempt that is over.
#[derive(Clone, Debug)]
pub struct Ended {
    /// River's job id.
    pub job_id: i64,
    /// Whose it is, where the caller knows: what PostgreSQL refuses of this holder is then nobody else's trouble.
    pub holder: Option<Uuid>,
    /// Set when the attempt succeeded and the job is still to be completed. Otherwise River has recorded, or will
    /// record, how it ended.
    pub success: Option<Success>,
}

/// What a successful attempt leaves behind.
#[derive(Clone, Debug)]
pub struct Success {
    /// The attempt that did the work.
    pub attempt: i16,
    /// When the job was created that the attempt was at. After a failover, its id may belong to another job. `None`
    /// leaves that unchecked.
    pub job_created_at: Option<Timestamp>,
    /// The job's output.
    pub output: Value,
    /// What it used, in the meter's unit; `None` charges all that was reserved.
    pub used: Option<i64>,
}

/// What settlement did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The job is at its end, or gave up its slot until it is tried again.
    Done {
        /// What the user was charged.
        charged: i64,
    },
    /// Somebody else has the job: this attempt was taken back. Nothing of its result was kept.
    FencedOut,
}

/// Why nothing was settled.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SettleError {
    /// The database cannot be used right now. Settling again does no harm: it is fenced by attempt.
    #[error("the settlement could not be made: {0}")]
    Database(#[from] DatabaseError),
    /// The output cannot be stored, such as text with a NUL character.
    #[error("the output cannot be stored: {0}")]
    Unstorable(String),
    /// PostgreSQL refuses this settlement, and will refuse it again.
    #[error("the settlement is refused: {0}")]
    Refused(DatabaseError),
}

impl From<tokio_postgres::Error> for SettleError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

/// What an attempt that completed its job was charged; `None` when the job was not completed by this attempt. It tells
/// what became of a settlement whose outcome was unknown.
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
            "SELECT coalesce(u.quota_amount, 0)::bigint AS charged \
             FROM river_job j LEFT JOIN usage_events u ON u.job_id = j.id \
             WHERE j.id = $1 AND j.attempt = $2 AND j.state = 'completed' \
               AND ($3::timestamptz IS NULL OR j.created_at = $3)",
            &[&job_id, &attempt, &job_created_at],
        )
        .await?;
    Ok(row.map(|row| row.get("charged")))
}

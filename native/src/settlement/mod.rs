//! Settlement: what happens to a reservation when its job's attempt is over.
//!
//! One transaction completes the job (fenced by attempt), charges what was used, gives the rest back, and passes
//! the freed slot to the same holder's oldest parked job. Jobs that finish together are settled together.

mod books;
mod group;
mod promoted;
mod transaction;

use serde_json::Value;

use crate::database::DatabaseError;

pub use group::Settler;
pub(crate) use promoted::Promoted;

/// The member of a job's metadata in which its handler's usage is kept, so that whoever settles can charge it.
pub const USED: &str = "weir:used";

/// An attempt that is over.
#[derive(Clone, Debug)]
pub struct Ended {
    /// River's job id.
    pub job_id: i64,
    /// Set when the attempt succeeded and the job is still to be completed. Otherwise River has recorded, or will
    /// record, how it ended.
    pub success: Option<Success>,
}

/// What a successful attempt leaves behind.
#[derive(Clone, Debug)]
pub struct Success {
    /// The attempt that did the work.
    pub attempt: i16,
    /// The job's output.
    pub output: Value,
    /// What it used, in the event type's unit; `None` charges all that was reserved.
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
    /// The database cannot be used right now.
    #[error("the settlement could not be made: {0}")]
    Database(#[from] DatabaseError),
    /// The output cannot be stored, such as text with a NUL character.
    #[error("the output cannot be stored: {0}")]
    Unstorable(String),
    /// The process is stopping.
    #[error("the settler has stopped")]
    Stopped,
}

impl From<tokio_postgres::Error> for SettleError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

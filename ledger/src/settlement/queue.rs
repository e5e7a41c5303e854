//! A queue for ended attempts from any task, which settles them in groups. When very many wait, a second transaction
//! runs concurrently, so that one is planned while the other waits for the disk.

use std::sync::Arc;

use uuid::Uuid;

use super::ended::{Ended, SettleError, Settled};
use super::promotion::Promoter;
use super::transaction::Settle;
use crate::committer::{Committer, Rejection};
use crate::database::{Database, DatabaseError};

/// The number of waiting attempts from which a second transaction pays off: much of a transaction's cost does not
/// depend on its number of jobs.
const MANY: usize = 128;

/// Accepts ended attempts from any task and settles them over its own connections. Cheap to clone.
#[derive(Clone)]
pub struct Settler {
    first: Committer<Settle>,
    second: Committer<Settle>,
    database: Database,
}

impl Settler {
    /// Starts the tasks that settle. They end when the last clone is dropped and all waiting attempts are settled.
    #[must_use]
    pub fn start(database: &Database) -> Self {
        let settle = Arc::new(Settle {
            notifier: database.notifier(),
        });
        Self {
            first: Committer::start(database, Arc::clone(&settle)),
            second: Committer::start(database, settle),
            database: database.clone(),
        }
    }

    /// Promotes parked jobs although none of their holder's jobs ended.
    #[must_use]
    pub fn promoter(&self) -> Promoter {
        Promoter::new(&self.database)
    }

    fn committer(&self) -> &Committer<Settle> {
        if self.first.waiting() < MANY {
            &self.first
        } else {
            &self.second
        }
    }

    /// Settles one attempt and waits for the commit.
    ///
    /// # Errors
    ///
    /// When the database cannot be used or refuses the settlement. The job stays unchanged, and may be settled again.
    pub async fn settle(&self, ended: Ended) -> Result<Settled, SettleError> {
        let settled = self.committer().commit(ended).await;
        settled.map_err(|rejection| match rejection {
            Rejection::Refused(error) => match error.unstorable() {
                Some(reason) => SettleError::Unstorable(reason),
                None => SettleError::Refused(error),
            },
            Rejection::Unavailable(error) => error.into(),
            Rejection::Full => DatabaseError::Stopped.into(),
        })
    }

    /// Settles a job that River has ended, without waiting. If it fails, reconciliation settles the job.
    pub fn notice(&self, job_id: i64, holder: Option<Uuid>) {
        let ended = Ended {
            job_id,
            holder,
            success: None,
        };
        if !self.committer().commit_later(ended) {
            tracing::debug!(job = job_id, "could not settle now; reconciliation will");
        }
    }
}

//! Submissions from any task, admitted in groups.

use std::sync::Arc;

use super::submission::{Answer, ReserveError, Submission};
use super::transaction::{Admit, refusal};
use crate::committer::{Committer, Rejection};
use crate::database::Database;
use crate::rules::Rules;

/// Takes submissions from any task and admits them in groups over one connection. Cheap to clone.
#[derive(Clone)]
pub struct Reserver {
    committer: Committer<Admit>,
}

impl Reserver {
    /// Starts the task that admits. It ends when the last clone is dropped and what waits is answered.
    #[must_use]
    pub fn start(database: &Database, rules: Arc<Rules>) -> Self {
        Self {
            committer: Committer::start(database, Arc::new(Admit { rules })),
        }
    }

    /// Submits one job and waits for the committed answer.
    ///
    /// # Errors
    ///
    /// When the database cannot be used, too many wait, or the arguments cannot be stored.
    pub async fn submit(&self, submission: Submission) -> Result<Answer, ReserveError> {
        self.committer
            .try_commit(submission)
            .await
            .map_err(|rejection| match rejection {
                Rejection::Full => ReserveError::Overloaded,
                Rejection::Refused(error) => refusal(error),
                Rejection::Unavailable(error) => error.into(),
            })
    }
}

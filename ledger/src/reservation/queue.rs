//! Submissions from any task, admitted in groups.

use std::sync::Arc;

use super::submission::{Answer, ReserveError, Submission};
use super::transaction::{Admit, refusal};
use crate::committer::{Committer, Rejection};
use crate::database::Database;
use crate::rules::Rules;

/// How many transactions go on at once. A holder's submissions are all in the same line: its row is locked by one of
/// them at a time anyway, and what it sends goes together. While one line waits for the database, the other's callers
/// are answered; one line alone kept the server idle for half of the time.
const LINES: usize = 2;

/// Takes submissions from any task and admits them in groups over connections of its own. Cheap to clone.
#[derive(Clone)]
pub struct Reserver {
    lines: [Committer<Admit>; LINES],
}

impl Reserver {
    /// Starts the tasks that admit. They end when the last clone is dropped and what waits is answered.
    #[must_use]
    pub fn start(database: &Database, rules: Arc<Rules>) -> Self {
        let admit = Arc::new(Admit { rules });
        Self {
            lines: std::array::from_fn(|_| Committer::start(database, Arc::clone(&admit))),
        }
    }

    /// Submits one job and waits for the committed answer.
    ///
    /// # Errors
    ///
    /// When the database cannot be used, too many wait, or the arguments cannot be stored.
    pub async fn submit(&self, submission: Submission) -> Result<Answer, ReserveError> {
        // An address's id is a hash and a user's may be anything, so its last bits alone would not do.
        let (high, low) = submission.holder.id.as_u64_pair();
        let line = (high ^ low).count_ones() as usize % LINES;
        self.lines[line]
            .try_commit(submission)
            .await
            .map_err(|rejection| match rejection {
                Rejection::Full => ReserveError::Overloaded,
                Rejection::Refused(error) => refusal(error),
                Rejection::Unavailable(error) => error.into(),
            })
    }
}

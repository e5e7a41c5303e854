//! A queue for submissions from any task, which admits them in groups.

use std::sync::Arc;

use super::submission::{Answer, ReserveError, Submission};
use super::transaction::{Admit, refusal};
use crate::committer::{Committer, Rejection};
use crate::database::Database;

/// The number of concurrent transactions. All submissions of a holder use the same queue. Only one of them can lock its
/// row at a time, and they are committed together. While one line waits for the database, callers of the other get
/// their answers. With one line, the server was idle for half of the time.
const LINES: usize = 2;

/// Accepts submissions from any task and admits them in groups over its own connections. Cheap to clone.
#[derive(Clone)]
pub struct Reserver {
    lines: [Committer<Admit>; LINES],
}

impl Reserver {
    /// Starts the tasks that admit. They end when the last clone is dropped and all waiting submissions are answered.
    #[must_use]
    pub fn start(database: &Database) -> Self {
        let notifier = database.notifier();
        let admit = Arc::new(Admit { notifier });
        Self {
            lines: std::array::from_fn(|_| Committer::start(database, Arc::clone(&admit))),
        }
    }

    /// Submits one job and waits for the committed answer.
    ///
    /// # Errors
    ///
    /// When the database cannot be used, too many submissions wait, or the arguments cannot be stored.
    pub async fn submit(&self, submission: Submission) -> Result<Answer, ReserveError> {
        // Uses both halves of the id: an address's id is a hash, but the last bits of a user's id may be anything.
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

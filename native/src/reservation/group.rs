//! Group admission: whatever waits when a transaction is finished goes into the next one.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::transaction::{Desk, Rules};
use super::{Answer, ReserveError, Submission};
use crate::batch::gather;
use crate::database::Database;

/// The most submissions that one transaction takes.
const LARGEST_GROUP: usize = 256;

/// The most that may wait; the next one is told to come back.
const LONGEST_QUEUE: usize = 20_000;

pub(super) struct Waiting {
    pub(super) submission: Submission,
    pub(super) answer: oneshot::Sender<Result<Answer, ReserveError>>,
}

/// Takes submissions from any task and admits them in groups over one connection. Cheap to clone.
#[derive(Clone)]
pub struct Reserver {
    queue: mpsc::Sender<Waiting>,
}

impl Reserver {
    /// Starts the task that admits. It ends when the last clone is dropped and what waits is answered.
    #[must_use]
    pub fn start(database: Database, rules: Arc<Rules>) -> Self {
        let (queue, mut waiting) = mpsc::channel(LONGEST_QUEUE);
        tokio::spawn(async move {
            let mut desk = Desk::new(database, rules);
            let mut group = Vec::with_capacity(LARGEST_GROUP);
            while gather(&mut waiting, &mut group, LARGEST_GROUP).await {
                // Whoever has gone away in the meantime leaves no trace.
                group.retain(|one: &Waiting| !one.answer.is_closed());
                if group.is_empty() {
                    continue;
                }
                metrics::histogram!("weir_admission_group_size")
                    .record(u32::try_from(group.len()).unwrap_or(u32::MAX));
                desk.serve(std::mem::take(&mut group)).await;
            }
        });
        Self { queue }
    }

    /// Submits one job and waits for the committed answer.
    ///
    /// # Errors
    ///
    /// When the database cannot be used, too many wait, or the arguments cannot be stored.
    pub async fn submit(&self, submission: Submission) -> Result<Answer, ReserveError> {
        let (answer, answered) = oneshot::channel();
        self.queue
            .try_send(Waiting { submission, answer })
            .map_err(|_| ReserveError::Overloaded)?;
        answered.await.unwrap_or(Err(ReserveError::Overloaded))
    }
}

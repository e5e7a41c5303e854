//! Settles in groups: whatever ended while a transaction was under way goes into the next one. When very many wait, a
//! second transaction goes on beside the first, so that one is worked out while the other waits for the disk.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::transaction::Desk;
use super::{Ended, Promoted, SettleError, Settled};
use crate::batch::gather;
use crate::database::Database;
use crate::reservation::Rules;

/// So many wait before the second transaction is worth its while: much of what one costs does not depend on how many jobs
/// are in it.
const MANY: usize = 128;

const LARGEST_GROUP: usize = 512;
const LONGEST_QUEUE: usize = 20_000;

pub(super) struct Waiting {
    pub(super) ended: Ended,
    pub(super) answer: Option<oneshot::Sender<Result<Settled, SettleError>>>,
}

enum Message {
    Ended(Waiting),
    PromoteWaiting(oneshot::Sender<Result<usize, SettleError>>),
}

/// Takes ended attempts from any task and settles them over connections of its own. Cheap to clone.
#[derive(Clone)]
pub struct Settler {
    first: mpsc::Sender<Message>,
    second: mpsc::Sender<Message>,
    promoted: Promoted,
}

impl Settler {
    /// Starts the tasks that settle. They end when the last clone is dropped and what waits is done.
    #[must_use]
    pub fn start(database: &Database, rules: &Arc<Rules>) -> Self {
        let promoted = Promoted::default();
        let open = || open(Desk::new(database.clone(), Arc::clone(rules), promoted.clone()));
        Self {
            first: open(),
            second: open(),
            promoted,
        }
    }

    /// What was promoted here just now.
    pub(crate) fn promoted(&self) -> &Promoted {
        &self.promoted
    }

    fn desk(&self) -> &mpsc::Sender<Message> {
        let waiting = self.first.max_capacity() - self.first.capacity();
        if waiting < MANY { &self.first } else { &self.second }
    }

    /// Settles one attempt and waits until that is committed.
    ///
    /// # Errors
    ///
    /// When the database cannot be used; the job then stays as it is, and may be settled again.
    pub async fn settle(&self, ended: Ended) -> Result<Settled, SettleError> {
        let (answer, answered) = oneshot::channel();
        self.desk()
            .send(Message::Ended(Waiting {
                ended,
                answer: Some(answer),
            }))
            .await
            .map_err(|_| SettleError::Stopped)?;
        answered.await.unwrap_or(Err(SettleError::Stopped))
    }

    /// Settles a job that River has ended, without waiting. When it fails, reconciliation does it.
    pub fn notice(&self, job_id: i64) {
        let ended = Ended {
            job_id,
            success: None,
        };
        if self
            .desk()
            .try_send(Message::Ended(Waiting { ended, answer: None }))
            .is_err()
        {
            tracing::debug!(job = job_id, "left to reconciliation");
        }
    }

    /// Gives free slots to whoever waits for one although nothing of theirs ended: after an upgrade, or when limits
    /// were raised. Returns how many jobs became available.
    ///
    /// # Errors
    ///
    /// When the database cannot be used.
    pub async fn promote_waiting(&self) -> Result<usize, SettleError> {
        let (answer, answered) = oneshot::channel();
        self.first
            .send(Message::PromoteWaiting(answer))
            .await
            .map_err(|_| SettleError::Stopped)?;
        answered.await.unwrap_or(Err(SettleError::Stopped))
    }
}

fn open(mut desk: Desk) -> mpsc::Sender<Message> {
    let (queue, mut waiting) = mpsc::channel(LONGEST_QUEUE);
    tokio::spawn(async move {
        let mut group = Vec::with_capacity(LARGEST_GROUP);
        while gather(&mut waiting, &mut group, LARGEST_GROUP).await {
            let mut ended = Vec::with_capacity(group.len());
            for message in group.drain(..) {
                match message {
                    Message::Ended(waiting) => ended.push(waiting),
                    Message::PromoteWaiting(answer) => {
                        let _ = answer.send(desk.promote_waiting().await);
                    }
                }
            }
            if !ended.is_empty() {
                desk.serve(ended).await;
            }
        }
    });
    queue
}

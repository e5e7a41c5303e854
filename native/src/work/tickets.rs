//! Looks up the reservations of jobs that were claimed, unless they were promoted here just now; many in one query:
//! whatever is asked for while a query is under way goes into the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use deadpool_postgres::Pool;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::database::DatabaseError;
use crate::holder::Holder;
use crate::settlement::Promoted;

/// A job's reservation, as far as an attempt has to know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    pub(super) holder: Holder,
    pub(super) admitted: bool,
}

type Answer = Result<Option<Ticket>, DatabaseError>;

/// Cheap to clone.
#[derive(Clone)]
pub(super) struct Tickets {
    queue: mpsc::Sender<(i64, oneshot::Sender<Answer>)>,
    promoted: Promoted,
    /// What the guard has seen, for the worker that runs inside of it.
    seen: Arc<Mutex<HashMap<i64, Holder>>>,
}

const MOST_AT_ONCE: usize = 1000;

impl Tickets {
    pub(super) fn start(pool: Pool, promoted: Promoted) -> Self {
        let (queue, mut asked) = mpsc::channel::<(i64, oneshot::Sender<Answer>)>(MOST_AT_ONCE);
        tokio::spawn(async move {
            let mut group = Vec::new();
            while asked.recv_many(&mut group, MOST_AT_ONCE).await > 0 {
                let (ids, answers): (Vec<i64>, Vec<_>) = group.drain(..).unzip();
                match look_up(&pool, &ids).await {
                    Ok(found) => {
                        for (id, answer) in ids.iter().zip(answers) {
                            let _ = answer.send(Ok(found.get(id).copied()));
                        }
                    }
                    Err(error) => {
                        for answer in answers {
                            let _ = answer.send(Err(error.clone()));
                        }
                    }
                }
            }
        });
        Self {
            queue,
            promoted,
            seen: Arc::default(),
        }
    }

    /// The job's reservation, if it has one.
    pub(super) async fn of(&self, job_id: i64, attempt: i16) -> Answer {
        if let Some(holder) = self.promoted.take(job_id, attempt, Instant::now()) {
            return Ok(Some(Ticket {
                holder,
                admitted: true,
            }));
        }
        let (answer, answered) = oneshot::channel();
        if self.queue.send((job_id, answer)).await.is_err() {
            return Err(DatabaseError::Stopped);
        }
        answered.await.unwrap_or(Err(DatabaseError::Stopped))
    }

    /// Remembers whose job is being worked on, until the guard is dropped.
    pub(super) fn remember(&self, job_id: i64, holder: Holder) -> Remembered<'_> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(job_id, holder);
        Remembered {
            tickets: self,
            job_id,
        }
    }

    /// Whose job it is that is being worked on.
    pub(super) fn holder(&self, job_id: i64) -> Option<Holder> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&job_id)
            .copied()
    }
}

pub(super) struct Remembered<'a> {
    tickets: &'a Tickets,
    job_id: i64,
}

impl Drop for Remembered<'_> {
    fn drop(&mut self) {
        self.tickets
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.job_id);
    }
}

async fn look_up(pool: &Pool, ids: &[i64]) -> Result<HashMap<i64, Ticket>, DatabaseError> {
    let client = pool.get().await?;
    let statement = client
        .prepare_cached(
            "SELECT r.job_id, r.holder, r.user_id, r.admitted_at IS NOT NULL \
             FROM unnest($1::bigint[]) AS a (job_id) \
             CROSS JOIN LATERAL (SELECT * FROM quota_reservations r WHERE r.job_id = a.job_id OFFSET 0) r",
        )
        .await?;
    let rows = client.query(&statement, &[&ids]).await?;
    Ok(rows
        .iter()
        .map(|row| {
            let holder = Holder {
                id: row.get::<_, Uuid>(1),
                user_id: row.get(2),
            };
            (
                row.get(0),
                Ticket {
                    holder,
                    admitted: row.get(3),
                },
            )
        })
        .collect())
}

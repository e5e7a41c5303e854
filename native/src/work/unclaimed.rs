//! Notifies workers of available jobs whose transactions did not notify them. These are jobs that other programs
//! submitted or promoted by SQL, deliveries of events, and jobs that were taken over. Also of parked jobs that lent
//! workers could start.
//!
//! The process that runs maintenance looks for all processes.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use weir_ledger::database::{DatabaseError, PreparedClient};
use weir_ledger::reconciliation::{self, MAX_UNCLAIMED_WAIT, UnclaimedQueue};

use crate::context::Context;

/// After a look that found jobs. Workers claim them in the meantime.
const PAUSE: Duration = Duration::from_millis(50);

/// Before the next notification of a queue with the same mark: its workers cannot claim it, or are not running.
const REPEAT_PAUSE: Duration = Duration::from_secs(1);

/// After an error of the database.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Maximum duration of a look, with time for a slow server.
const TIMEOUT: Duration = MAX_UNCLAIMED_WAIT.saturating_mul(5);

/// Looks while `is_elected`, until the process stops.
pub(super) async fn run(context: Context, mut is_elected: watch::Receiver<bool>, stopped: CancellationToken) {
    let looking = async {
        while is_elected.wait_for(|is_elected| *is_elected).await.is_ok() {
            if let Err(error) = look_while_elected(&context, &is_elected).await {
                tracing::debug!(%error, "could not look for unclaimed jobs");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    };
    stopped.run_until_cancelled(looking).await;
}

async fn look_while_elected(
    context: &Context,
    is_elected: &watch::Receiver<bool>,
) -> Result<(), DatabaseError> {
    let client = context.database.connect_prepared(TIMEOUT).await?;
    let mut notified = Notified::default();
    while *is_elected.borrow() {
        let unclaimed = look(&client).await?;
        let is_empty = unclaimed.is_empty();
        context
            .database
            .notify(notified.select(unclaimed, Instant::now()));
        if !is_empty {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

async fn look(client: &PreparedClient) -> Result<Vec<UnclaimedQueue>, DatabaseError> {
    let looked = tokio::time::timeout(TIMEOUT, reconciliation::await_unclaimed(client)).await;
    Ok(looked.map_err(|_| DatabaseError::Timeout(TIMEOUT))??)
}

/// The recent notifications: by queue, its mark then, and when.
#[derive(Default)]
struct Notified(HashMap<String, (i64, Instant)>);

impl Notified {
    /// The queues to notify. Each is notified once for the same mark within [`REPEAT_PAUSE`].
    fn select(&mut self, unclaimed: Vec<UnclaimedQueue>, now: Instant) -> Vec<String> {
        self.0.retain(|_, (_, at)| now < *at + REPEAT_PAUSE);
        let marks: BTreeMap<String, i64> = unclaimed.into_iter().map(|one| (one.queue, one.mark)).collect();
        let is_new = |(queue, mark): &(String, i64)| self.0.get(queue).is_none_or(|(known, _)| known != mark);
        let new: Vec<_> = marks.into_iter().filter(is_new).collect();
        self.0
            .extend(new.iter().map(|(queue, mark)| (queue.clone(), (*mark, now))));
        new.into_iter().map(|(queue, _)| queue).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_notified_once_a_second_for_the_same_job() {
        let (mut notified, start) = (Notified::default(), Instant::now());
        let mut select = |mark, after| {
            let queue = "analysis_default".to_owned();
            let found = vec![UnclaimedQueue { queue, mark }];
            notified.select(found, start + Duration::from_millis(after)).len()
        };
        assert_eq!(select(7, 0), 1);
        assert_eq!(select(7, 50), 0);
        assert_eq!(select(8, 100), 1, "its workers have claimed the first one");
        assert_eq!(select(8, 1050), 0);
        assert_eq!(select(8, 1100), 1);
    }
}

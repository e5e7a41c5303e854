//! Notifies workers of claimable jobs, after the transactions that made them claimable.
//!
//! A transaction that calls `pg_notify` takes a lock of the whole cluster at COMMIT, and keeps it until its WAL is
//! flushed, on a synchronous standby too. All other commits with a notification wait for that. So no transaction that
//! writes also notifies. A transaction that only notifies is not flushed.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;

use super::error::DatabaseError;
use super::prepared::PreparedClient;

/// The number of groups of queues that may wait while a notification is under way.
const MAX_WAITING: usize = 1024;

/// The maximum time to connect and notify.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends one notification at a time, for all queues that wait. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Notifier(mpsc::Sender<BTreeSet<String>>);

impl Notifier {
    /// Starts the task that notifies, on a connection from `connect`. It ends when the last clone is dropped.
    pub(super) fn start<C>(connect: impl Fn(Duration) -> C + Send + Sync + 'static) -> Self
    where
        C: Future<Output = Result<PreparedClient, DatabaseError>> + Send + 'static,
    {
        let (queues, waiting) = mpsc::channel(MAX_WAITING);
        tokio::spawn(run(connect, waiting));
        Self(queues)
    }

    /// Notifies the workers of these queues, without waiting. A lost notification delays a job by the interval at which
    /// maintenance looks for unclaimed jobs.
    pub(crate) fn notify(&self, queues: BTreeSet<String>) {
        if !queues.is_empty() && self.0.try_send(queues).is_err() {
            tracing::debug!("dropped a notification of new jobs");
        }
    }
}

async fn run<C>(connect: impl Fn(Duration) -> C, mut waiting: mpsc::Receiver<BTreeSet<String>>)
where
    C: Future<Output = Result<PreparedClient, DatabaseError>>,
{
    let mut client: Option<PreparedClient> = None;
    let mut groups = Vec::new();
    while waiting.recv_many(&mut groups, MAX_WAITING).await > 0 {
        let queues: Vec<String> = groups
            .drain(..)
            .flatten()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let notified = tokio::time::timeout(TIMEOUT, async {
            let connected = match client.take().filter(|client| !client.is_closed()) {
                Some(connected) => connected,
                None => connect(TIMEOUT).await?,
            };
            let notify = "SELECT wake_queue(queue) FROM unnest($1::text[]) AS queue";
            connected.query(notify, &[&queues]).await?;
            Ok::<_, DatabaseError>(connected)
        });
        match notified.await {
            Ok(Ok(connected)) => client = Some(connected),
            Ok(Err(error)) => tracing::debug!(%error, "could not notify workers of new jobs"),
            Err(_) => tracing::debug!("notifying workers of new jobs took too long"),
        }
    }
}

//! Heartbeats: they show other processes that this one is alive, and show this one when it must stop.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use weir_ledger::database::{Database, DatabaseError};
use weir_ledger::processes::{self, DEAD_AFTER};

use crate::context::Context;

/// Interval between a process's heartbeats.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Time limit of one heartbeat.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);

/// A process ends itself this long after the last heartbeat that the database accepted. That is before other processes
/// take over its jobs at [`DEAD_AFTER`], and leaves time for the remaining writes.
const FENCE_AFTER: Duration = Duration::from_secs(8);

/// Interval at which the process checks whether it has to end, with or without heartbeats.
const FENCE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

const _: () = assert!(
    FENCE_AFTER.as_millis() + FENCE_CHECK_INTERVAL.as_millis() < DEAD_AFTER.as_millis(),
    "a process exits before others take over its jobs"
);

/// The exit status of a process that ended itself (`EX_SOFTWARE`): the supervisor should restart it.
const FENCED_STATUS: i32 = 70;

/// The time without heartbeats after which other processes take over this one's jobs. Cheap to clone.
#[derive(Clone)]
struct Lease {
    /// When the last accepted heartbeat was sent.
    last: Arc<Mutex<Instant>>,
}

impl Lease {
    fn new(sent: Instant) -> Self {
        Self {
            last: Arc::new(Mutex::new(sent)),
        }
    }

    fn age(&self) -> Duration {
        self.last.lock().elapsed()
    }

    fn renew(&self, sent: Instant) {
        *self.last.lock() = sent;
    }

    /// Ends the process when the lease has expired, because the process was frozen or lost the database.
    fn check(&self) {
        let age = self.age();
        if age > FENCE_AFTER {
            end(&format!("no heartbeat for {} s", age.as_secs()));
        }
    }
}

/// Ends the process. Its handlers would still work on jobs that other processes have taken over, and only the end of the
/// process reliably prevents that. The jobs of this process run again.
pub(super) fn end(reason: &str) -> ! {
    tracing::error!(
        "{reason}: other processes may have taken over its jobs, so this process exits; restart it"
    );
    crate::handler::kill_programs();
    std::process::exit(FENCED_STATUS);
}

/// Registers the process with its workers by queue, and those that may be lent. Sends heartbeats until it is stopped.
pub(super) async fn start(
    context: &Context,
    client_id: String,
    (pools, lends): (Value, Value),
    stopped: CancellationToken,
) -> Result<JoinHandle<()>, DatabaseError> {
    let mut heart = Heart {
        database: context.database.clone(),
        client_id,
        client: None,
    };
    let sent = Instant::now();
    let id = heart.client_id.clone();
    let timeline = processes::register(heart.client().await?, &id, &pools, &lends).await?;
    let lease = Lease::new(sent);
    tokio::spawn(fence(lease.clone(), stopped.clone()));
    Ok(tokio::spawn(async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(HEARTBEAT_INTERVAL) => {}
                () = stopped.cancelled() => {
                    heart.sign_off().await;
                    return;
                }
            }
            let sent = Instant::now();
            let taken = heart.beat().await;
            // The database may have accepted a late heartbeat after other processes took over the jobs.
            lease.check();
            match taken {
                // Counted from when it was sent: the database may have accepted it immediately and replied late.
                Ok(Some(now)) if now.is_none() || timeline.is_none() || now == timeline => lease.renew(sent),
                // The ids of its jobs may belong to other jobs now.
                Ok(Some(_)) => end("the database has failed over, perhaps without its last commits"),
                // By the database's clock, because this process may have been suspended.
                Ok(None) => end("this process was marked as dead"),
                Err(error) => tracing::warn!(%error, "a heartbeat failed"),
            }
        }
    }))
}

/// Checks the lease, including while a heartbeat is in flight.
async fn fence(lease: Lease, stopped: CancellationToken) {
    loop {
        lease.check();
        tokio::select! {
            () = tokio::time::sleep(FENCE_CHECK_INTERVAL) => {}
            () = stopped.cancelled() => return,
        }
    }
}

/// Sends heartbeats over a persistent connection, so that a database without a free connection does not end a healthy
/// process.
struct Heart {
    database: Database,
    client_id: String,
    client: Option<Client>,
}

impl Heart {
    async fn client(&mut self) -> Result<&Client, DatabaseError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.database.connect().await?,
        };
        Ok(self.client.insert(client))
    }

    /// See [`processes::beat`]. A failed connection is closed.
    async fn beat(&mut self) -> Result<Option<Option<i32>>, DatabaseError> {
        let client_id = self.client_id.clone();
        let beaten = async {
            let client = self.client().await?;
            Ok(processes::beat(client, &client_id).await?)
        };
        let beaten = tokio::time::timeout(HEARTBEAT_TIMEOUT, beaten)
            .await
            .unwrap_or(Err(DatabaseError::Timeout(HEARTBEAT_TIMEOUT)));
        if beaten.is_err() {
            self.client = None;
        }
        beaten
    }

    async fn sign_off(&mut self) {
        let client_id = self.client_id.clone();
        let signed_off = async {
            let client = self.client().await?;
            Ok::<_, DatabaseError>(processes::sign_off(client, &client_id).await?)
        };
        match tokio::time::timeout(HEARTBEAT_TIMEOUT, signed_off).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => tracing::warn!(
                "a job still belongs to this process; another process takes it over after the last heartbeat has \
                 expired"
            ),
            Ok(Err(error)) => tracing::debug!(%error, "could not deregister"),
            Err(_) => tracing::debug!("could not deregister in time"),
        }
    }
}

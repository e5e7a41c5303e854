//! Heartbeats: how the others know that this process lives, and how it knows that it must not go on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::database::{Database, DatabaseError};

/// How often a process says that it lives.
pub const BEAT: Duration = Duration::from_secs(2);

/// After this long without a beat its jobs are taken back.
pub const DEAD_AFTER: Duration = Duration::from_secs(10);

/// After this long without a beat that the database took, the process ends itself: before the others take its jobs,
/// with room for what River has still to write.
const FENCE_AFTER: Duration = Duration::from_secs(8);

/// How long the others leave this process's jobs alone. Cheap to clone.
#[derive(Clone)]
pub(super) struct Lease {
    /// When the last beat was sent that the database took.
    last: Arc<Mutex<Instant>>,
}

impl Lease {
    pub(super) fn new() -> Self {
        Self {
            last: Arc::new(Mutex::new(Instant::now())),
        }
    }

    fn age(&self) -> Duration {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    fn renew(&self, sent: Instant) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = sent;
    }

    /// Ends the process when it has run out: it was frozen, or lost the database.
    fn check(&self) {
        let age = self.age();
        if age > FENCE_AFTER {
            end(&format!("no heartbeat for {} s", age.as_secs()));
        }
    }

    /// Checks once more when an attempt is over, whichever way it went (dropped, it panicked or was aborted), and
    /// before River can write that down.
    pub(super) fn until_over(&self) -> UntilOver<'_> {
        UntilOver(self)
    }
}

pub(super) struct UntilOver<'a>(&'a Lease);

impl Drop for UntilOver<'_> {
    fn drop(&mut self) {
        self.0.check();
    }
}

/// River would still write results of attempts that are somebody else's by then. Ending is the one way to be sure that
/// it does not; what this process ran is run again.
pub(super) fn end(reason: &str) -> ! {
    tracing::error!("{reason}: others may have this process's jobs, so it ends here");
    std::process::exit(70);
}

/// Registers the process and keeps beating until it is stopped.
pub(super) async fn start(
    context: &Context,
    client_id: String,
    pools: Value,
    lease: Lease,
    stopped: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, DatabaseError> {
    let database = context.database.clone();
    let sent = Instant::now();
    register(&database, &client_id, &pools).await?;
    lease.renew(sent);
    Ok(tokio::spawn(async move {
        loop {
            tokio::select! {
                () = tokio::time::sleep(BEAT) => {}
                () = stopped.cancelled() => {
                    forget(&database, &client_id).await;
                    return;
                }
            }
            // Before a late beat says that all is well.
            lease.check();
            let sent = Instant::now();
            let taken = tokio::time::timeout(BEAT * 2, beat(&database, &client_id)).await;
            // One that was taken so late may have come after the jobs were.
            lease.check();
            match taken {
                // From when it was sent: the database may have taken it at once and answered late.
                Ok(Ok(true)) => lease.renew(sent),
                // By the database's clock: this one may have stood still.
                Ok(Ok(false)) => end("taken for dead"),
                Ok(Err(error)) => tracing::warn!(%error, "a heartbeat failed"),
                Err(_) => tracing::warn!("a heartbeat took too long"),
            }
        }
    }))
}

async fn register(database: &Database, client_id: &str, pools: &Value) -> Result<(), DatabaseError> {
    let client = database.connect().await?;
    client
        .execute(
            "INSERT INTO processes (client_id, pools) VALUES ($1, $2)",
            &[&client_id, pools],
        )
        .await?;
    Ok(())
}

/// Whether the process still counts as living.
async fn beat(database: &Database, client_id: &str) -> Result<bool, DatabaseError> {
    let client = database.connect().await?;
    let beaten = client
        .execute(
            "UPDATE processes SET beat_at = clock_timestamp() \
             WHERE client_id = $1 AND beat_at > clock_timestamp() - make_interval(secs => $2)",
            &[&client_id, &DEAD_AFTER.as_secs_f64()],
        )
        .await?;
    Ok(beaten > 0)
}

async fn forget(database: &Database, client_id: &str) {
    let forgotten = async {
        let client = database.connect().await?;
        client
            .execute("DELETE FROM processes WHERE client_id = $1", &[&client_id])
            .await?;
        Ok::<_, DatabaseError>(())
    }
    .await;
    if let Err(error) = forgotten {
        tracing::debug!(%error, "could not sign off");
    }
}

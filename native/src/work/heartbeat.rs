//! Heartbeats: how the others know that this process lives, and how it knows that it must not go on.

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
/// with room for the time that a statement may be under way.
const FENCE_AFTER: Duration = Duration::from_secs(8);

/// Registers the process and keeps beating until it is stopped.
pub(super) async fn start(
    context: &Context,
    client_id: String,
    pools: Value,
    stopped: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, DatabaseError> {
    let database = context.database.clone();
    beat(&database, &client_id, &pools).await?;
    Ok(tokio::spawn(async move {
        let mut last = Instant::now();
        loop {
            tokio::select! {
                () = tokio::time::sleep(BEAT) => {}
                () = stopped.cancelled() => {
                    forget(&database, &client_id).await;
                    return;
                }
            }
            let sent = Instant::now();
            match tokio::time::timeout(BEAT * 2, beat(&database, &client_id, &pools)).await {
                // From when it was sent: the database may have taken it at once and answered late.
                Ok(Ok(())) => last = sent,
                Ok(Err(error)) => tracing::warn!(%error, "a heartbeat failed"),
                Err(_) => tracing::warn!("a heartbeat took too long"),
            }
            if last.elapsed() > FENCE_AFTER {
                tracing::error!(
                    "no heartbeat for {} s: others may take this process's jobs, so it ends here",
                    last.elapsed().as_secs()
                );
                // River would still write results of attempts that are somebody else's by then. Ending is the one way
                // to be sure that it does not; what this process ran is run again.
                std::process::exit(70);
            }
        }
    }))
}

async fn beat(database: &Database, client_id: &str, pools: &Value) -> Result<(), DatabaseError> {
    let client = database.connect().await?;
    client
        .execute(
            "INSERT INTO processes AS p (client_id, pools) VALUES ($1, $2) \
             ON CONFLICT (client_id) DO UPDATE SET beat_at = clock_timestamp()",
            &[&client_id, pools],
        )
        .await?;
    Ok(())
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

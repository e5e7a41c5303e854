//! Tells a job's owner how far its attempt is, as its handler says.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch;
use weir_ledger::attempts::{self, Claim, Progress};
use weir_ledger::database::ConnectionPool;

/// Between two words of an attempt that are written down; of those in between, the last is.
const PAUSE: Duration = Duration::from_millis(500);

/// Writes down what the handler says, for as long as this is polled.
pub(super) async fn tell(
    pool: &ConnectionPool,
    claim: Claim<'_>,
    mut said: watch::Receiver<Option<Progress>>,
) -> Infallible {
    while said.changed().await.is_ok() {
        let progress = said.borrow_and_update().clone();
        let told = pool.with(async |client| attempts::hear(client, claim, progress.as_ref()).await);
        // Whoever works on goes on: the next word may be told, and the end is settled in any case.
        if let Err(error) = told.await {
            tracing::debug!(job = claim.job_id, %error, "the progress could not be told");
        }
        tokio::time::sleep(PAUSE).await;
    }
    // Nobody can say anything any more.
    std::future::pending().await
}

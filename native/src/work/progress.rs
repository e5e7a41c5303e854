//! Records the progress that a handler reports, for the job's owner.

use std::convert::Infallible;
use std::time::Duration;

use tokio::sync::watch;
use weir_ledger::attempts::{self, Claim, Progress};
use weir_ledger::database::ConnectionPool;

/// The minimum interval between two writes. Only the last report within it is written.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);

/// Records reports while it is polled.
pub(super) async fn record(
    pool: &ConnectionPool,
    claim: Claim<'_>,
    mut reports: watch::Receiver<Option<Progress>>,
) -> Infallible {
    while reports.changed().await.is_ok() {
        let progress = reports.borrow_and_update().clone();
        let recorded =
            pool.with(async |client| attempts::record_progress(client, claim, progress.as_ref()).await);
        // The handler continues: the next report may succeed, and the settlement does not depend on it.
        if let Err(error) = recorded.await {
            tracing::debug!(job = claim.job_id, %error, "could not record the progress");
        }
        tokio::time::sleep(WRITE_INTERVAL).await;
    }
    // The handler has dropped its reporter.
    std::future::pending().await
}

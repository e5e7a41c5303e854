//! Attempts that no longer own their job. River's completer does not compare attempts: the result of such an attempt
//! would overwrite the newer one's. So the attempt may return only when it cannot overwrite anything.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::heartbeat;
use weir_ledger::database::ConnectionPool;
use weir_ledger::read::attempts;

/// The maximum time that an attempt keeps waiting after its cancellation. River aborts it some time later and records
/// that.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// Whether the job still belongs to this attempt. Also true when the database is unavailable, because no other process
/// can have taken over the job then.
pub(super) async fn still_owns(
    pool: &ConnectionPool,
    job_id: i64,
    attempt: i16,
    created_at: Timestamp,
) -> bool {
    match attempts::is_current(pool, job_id, attempt, created_at).await {
        Ok(is_current) => is_current,
        Err(error) => {
            tracing::warn!(job = job_id, %error, "could not check which process runs the job");
            true
        }
    }
}

/// Waits until no process runs the job or is about to.
pub(super) async fn wait_out(pool: &ConnectionPool, job_id: i64, cancelled: &CancellationToken) {
    metrics::counter!("weir_fenced_attempts_total").increment(1);
    tracing::warn!(
        job = job_id,
        "the job was taken over; the result of this attempt is dropped"
    );
    wait_until_over(pool, job_id, cancelled).await;
}

/// The same for an attempt that another client has ended.
pub(super) async fn wait_until_over(pool: &ConnectionPool, job_id: i64, cancelled: &CancellationToken) {
    let over = async {
        loop {
            match attempts::may_run(pool, job_id).await {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => {
                    tracing::warn!(job = job_id, %error, "could not check whether the job may still run")
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let must_return = async {
        cancelled.cancelled().await;
        tokio::time::sleep(CANCEL_GRACE).await;
    };
    tokio::select! {
        () = over => {}
        () = must_return => heartbeat::end("an attempt did not stop after another process took over its job"),
    }
}

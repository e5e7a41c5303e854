//! A step of a round: each on its own, so that one that fails keeps no other from going on.

use std::time::Duration;

use weir_ledger::database::DatabaseError;

/// No step of a round takes longer. A step that does is broken off, with its connection.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a step on the leader's connection. Returns whether that is still of use: one on which a step was broken off is
/// not, nor is one that cannot write.
pub(super) async fn within(
    name: &'static str,
    step: impl Future<Output = Result<(), DatabaseError>>,
) -> bool {
    tried(name, step)
        .await
        .is_none_or(|failure| failure.keeps_connection())
}

/// Runs a step on another connection than the leader's.
pub(super) fn separately(
    name: &'static str,
    step: impl Future<Output = Result<(), DatabaseError>>,
) -> impl Future<Output = ()> {
    // Such a step takes tens of kilobytes, which everything that waits for it would have on its stack.
    let step = Box::pin(step);
    async move {
        tried(name, step).await;
    }
}

/// Runs a step, counts its failure and returns it.
async fn tried(
    name: &'static str,
    step: impl Future<Output = Result<(), DatabaseError>>,
) -> Option<DatabaseError> {
    let done = tokio::time::timeout(STEP_TIMEOUT, step).await;
    let failure = done.unwrap_or(Err(DatabaseError::Timeout(STEP_TIMEOUT))).err()?;
    metrics::counter!("weir_reconciliation_failures_total", "step" => name).increment(1);
    tracing::warn!(error = %failure, step = name, "a step of reconciliation failed; the others go on");
    Some(failure)
}

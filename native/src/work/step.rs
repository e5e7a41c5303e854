//! A step of a round: each on its own, so that one that fails keeps no other from going on.

use std::time::Duration;

use weir_ledger::database::DatabaseError;

/// No step of a round takes longer. A step that does is broken off, with its connection.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a step. Returns whether its connection is still of use: one on which a step was broken off is not, nor is one
/// that cannot write.
pub(super) async fn within(
    name: &'static str,
    step: impl Future<Output = Result<(), DatabaseError>>,
) -> bool {
    let done = tokio::time::timeout(STEP_TIMEOUT, step).await;
    let failure = match &done {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error,
        Err(_) => &DatabaseError::Timeout(STEP_TIMEOUT),
    };
    metrics::counter!("weir_reconciliation_failures_total", "step" => name).increment(1);
    tracing::warn!(error = %failure, step = name, "a step of reconciliation failed; the others go on");
    failure.keeps_connection()
}

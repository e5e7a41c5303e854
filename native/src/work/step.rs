//! A step of a round. Steps are independent: a failed step does not stop the others.

use std::time::{Duration, Instant};

use weir_ledger::database::DatabaseError;

/// Time limit of a step. A step that exceeds it is aborted, along with its connection.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum pause after a slow query. Other clients' jobs and the slots of their retries wait for as long.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// A pause takes this many times as long as the query before it. While another session holds an old snapshot, the query
/// may read the dead entries of all jobs since then.
const PAUSES: u32 = 50;

/// The pause after a repeated query that can wait.
pub(super) struct Pause(Instant);

impl Pause {
    pub(super) fn none() -> Self {
        Self(Instant::now())
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }

    /// Starts the pause after a query that took this long.
    pub(super) fn after(&mut self, took: Duration) {
        self.0 = Instant::now() + after(took);
    }
}

fn after(took: Duration) -> Duration {
    (took * PAUSES).min(MAX_PAUSE)
}

/// Runs a step on the leader's connection. Returns whether that connection is still usable. It is not after an aborted
/// step or when it cannot write.
pub(super) async fn within(
    name: &'static str,
    step: impl Future<Output = Result<(), DatabaseError>>,
) -> bool {
    run_step(name, step)
        .await
        .is_none_or(|failure| failure.keeps_connection())
}

/// Runs a step on a separate connection.
pub(super) fn on_separate_connection(
    name: &'static str,
    step: impl Future<Output = Result<(), DatabaseError>>,
) -> impl Future<Output = ()> {
    // Such a step takes tens of kilobytes, which every waiting future would otherwise hold on its stack.
    let step = Box::pin(step);
    async move {
        run_step(name, step).await;
    }
}

/// Runs a step, counts its failure and returns it.
async fn run_step(
    name: &'static str,
    step: impl Future<Output = Result<(), DatabaseError>>,
) -> Option<DatabaseError> {
    let done = tokio::time::timeout(STEP_TIMEOUT, step).await;
    let failure = done.unwrap_or(Err(DatabaseError::Timeout(STEP_TIMEOUT))).err()?;
    metrics::counter!("weir_reconciliation_failures_total", "step" => name).increment(1);
    tracing::warn!(error = %failure, step = name, "a step of reconciliation failed; the other steps continue");
    Some(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_with_the_query_up_to_a_limit() {
        assert_eq!(after(Duration::from_millis(20)), Duration::from_secs(1));
        assert_eq!(after(Duration::from_secs(10)), MAX_PAUSE);
    }
}

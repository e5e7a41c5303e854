//! Wrong service keys are answered slowly.

use std::time::Duration;

use tokio::sync::Semaphore;

use super::problem::ApiError;

/// How long the answer to a wrong key takes.
const DELAY: Duration = Duration::from_secs(1);

/// How many of these answers wait at once. Whoever sends more has them at once: nobody guesses 256 bits, and what waits
/// costs memory.
const MAX_DELAYED: usize = 64;

/// Slows down who tries keys, and counts it. Nobody else waits for it: it holds no connection and no lock.
pub(super) struct WrongKeys(Semaphore);

impl Default for WrongKeys {
    fn default() -> Self {
        Self(Semaphore::new(MAX_DELAYED))
    }
}

impl WrongKeys {
    /// The answer to a wrong key, after a while.
    pub(super) async fn refuse(&self, reason: &'static str) -> ApiError {
        metrics::counter!("weir_service_key_refusals_total", "reason" => reason).increment(1);
        if let Ok(_permit) = self.0.try_acquire() {
            tokio::time::sleep(DELAY).await;
        }
        ApiError::BadKey(reason)
    }
}

//! Delays the answers to wrong service keys.

use std::time::Duration;

use tokio::sync::Semaphore;

use super::problem::ApiError;

/// The delay of the answer to a wrong key.
const DELAY: Duration = Duration::from_secs(1);

/// The maximum number of delayed answers. More are answered without delay: 256 bits cannot be guessed, and a waiting
/// answer costs memory.
const MAX_DELAYED: usize = 64;

/// Slows down repeated attempts, and counts them. No other request waits for it, because it holds no connection and no
/// lock.
pub(super) struct WrongKeys(Semaphore);

impl Default for WrongKeys {
    fn default() -> Self {
        Self(Semaphore::new(MAX_DELAYED))
    }
}

impl WrongKeys {
    /// Answers a wrong key after the delay.
    pub(super) async fn refuse(&self, reason: &'static str) -> ApiError {
        metrics::counter!("weir_service_key_refusals_total", "reason" => reason).increment(1);
        if let Ok(_permit) = self.0.try_acquire() {
            tokio::time::sleep(DELAY).await;
        }
        ApiError::BadKey(reason)
    }
}

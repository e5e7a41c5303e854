//! Waiting for a promise with a timeout.

use js_sys::Promise;
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::JsFuture;
pub(crate) use weir_limiter::error::message;

use crate::glue;

/// Why a promise has no value.
#[derive(Debug)]
pub(crate) enum WaitError {
    /// The timeout has passed.
    TimedOut,
    /// The promise was rejected.
    Failed(JsValue),
}

impl WaitError {
    /// The reason as text, for logs.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::TimedOut => glue::TIMED_OUT.to_owned(),
            Self::Failed(error) => message(error),
        }
    }
}

/// The value of `promise`.
///
/// # Errors
/// When the promise is rejected, or has no value after `timeout_ms` milliseconds.
pub(crate) async fn with_timeout(promise: Promise, timeout_ms: u32) -> Result<JsValue, WaitError> {
    JsFuture::from(glue::with_timeout(&promise, timeout_ms))
        .await
        .map_err(|error| {
            if error == JsValue::from_str(glue::TIMED_OUT) {
                WaitError::TimedOut
            } else {
                WaitError::Failed(error)
            }
        })
}

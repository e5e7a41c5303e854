//! Waiting for a promise, but not for ever.

use js_sys::Promise;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;

use crate::glue;

/// Why there is no value.
#[derive(Debug)]
pub(crate) enum NoValue {
    /// It took too long.
    TimedOut,
    /// It failed.
    Failed(JsValue),
}

impl NoValue {
    /// In a word, for logs.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::TimedOut => glue::TIMED_OUT.to_owned(),
            Self::Failed(error) => message(error),
        }
    }
}

/// The value of `promise`, if it comes within `timeout_ms` milliseconds.
pub(crate) async fn within(promise: Promise, timeout_ms: u32) -> Result<JsValue, NoValue> {
    JsFuture::from(glue::within(&promise, timeout_ms))
        .await
        .map_err(|error| {
            if error == JsValue::from_str(glue::TIMED_OUT) {
                NoValue::TimedOut
            } else {
                NoValue::Failed(error)
            }
        })
}

/// What a JavaScript error says.
pub(crate) fn message(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => error.as_string().unwrap_or_else(|| format!("{error:?}")),
    }
}

//! Waiting for a promise, but not for ever.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use js_sys::Promise;
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::JsFuture;
use worker::Delay;

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
            Self::TimedOut => "timed out".to_owned(),
            Self::Failed(error) => message(error),
        }
    }
}

/// The value of `promise`, if it comes within `timeout_ms` milliseconds.
pub(crate) async fn within(promise: Promise, timeout_ms: u32) -> Result<JsValue, NoValue> {
    let delay = Delay::from(Duration::from_millis(u64::from(timeout_ms)));
    match select(JsFuture::from(promise), pin!(delay)).await {
        Either::Left((value, _)) => value.map_err(NoValue::Failed),
        Either::Right(((), _)) => Err(NoValue::TimedOut),
    }
}

/// What a JavaScript error says.
pub(crate) fn message(error: &JsValue) -> String {
    use wasm_bindgen::JsCast;
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => error.as_string().unwrap_or_else(|| format!("{error:?}")),
    }
}

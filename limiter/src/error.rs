//! Errors of JavaScript.

use wasm_bindgen::{JsCast, JsValue};

/// The message of a JavaScript error.
pub fn message(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => error.as_string().unwrap_or_else(|| format!("{error:?}")),
    }
}

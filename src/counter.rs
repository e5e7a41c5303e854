//! The limits that a counting object counts for the edge. The object is `limiter/src/counter.rs`.

use wasm_bindgen::{JsCast, JsValue};
use weir_policy::limit_set::Limits;

use crate::bindings::Bindings;
use crate::config::Config;
use crate::own;
use crate::settings;
use crate::shard::{counts_users, group};

/// The limits of the object of this name.
pub(crate) fn limits(name: Option<&str>, env: &JsValue) -> Vec<Limits> {
    let mut variables = settings::variables(env.unchecked_ref::<Bindings>());
    // The object may live in another isolate than the handler, and must find the same routes.
    if !variables.contains_key("ORIGIN_URL") {
        own::complete(&mut variables);
    }
    if let Some(limits) = group(name).and_then(|group| Config::limits(&variables, group)) {
        return limits;
    }
    let users = counts_users(name).then(|| Config::users(&variables)).flatten();
    // If users or routes are no longer limited, their last requests may be counted by any limit.
    vec![users.unwrap_or_else(|| Config::submissions(&variables))]
}

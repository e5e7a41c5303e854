//! The edge Worker of Weir.
//!
//! It stands in front of the origin, finds out who is calling, counts anonymous requests per client address (web
//! ADR-21) and forwards what may pass, with a signed assertion of who it is. See `policy/` for the rules; here is what
//! connects them with the runtime.

mod access;
mod answer;
mod bindings;
mod call;
mod caller;
mod clock;
mod config;
mod cors;
mod counter;
mod counts;
mod edge;
mod events;
mod fields;
mod forward;
mod glue;
mod jwks;
mod limiter;
mod panics;
mod shard;
mod target;
mod trace;
mod wait;

use std::cell::OnceCell;
use std::rc::Rc;

use wasm_bindgen::JsCast;
use worker::{Context, Env, event};

use crate::bindings::Bindings;
use crate::config::{Config, ConfigError};
use crate::events::{Event, report};
use crate::glue::Changes;

thread_local! {
    /// The configuration cannot change under a running isolate: a deployment starts new ones.
    static CONFIG: OnceCell<Result<Rc<Config>, ConfigError>> = const { OnceCell::new() };
}

/// Answers a request.
#[event(fetch)]
async fn fetch(request: web_sys::Request, env: Env, _context: Context) -> worker::Result<web_sys::Response> {
    let bindings: Bindings = env.unchecked_into();
    let config = CONFIG.with(|config| {
        let read = || Config::read(|name| bindings.text(name)).map(Rc::new);
        config.get_or_init(read).clone()
    });
    let answered = match config {
        Ok(config) => edge::answer(&bindings, &config, request).await,
        Err(error) => {
            report(&bindings, Event::Internal, None, &error.to_string());
            answer::problem(&answer::misconfigured(&error.0), &Changes::default())
        }
    };
    answered.map_err(worker::Error::from)
}

//! The edge Worker of Weir.
//!
//! It runs in front of the origin. It authenticates the caller, rate limits anonymous requests per client address (web
//! ADR-21), and forwards accepted requests with a signed assertion of the caller. The rules are in `policy/`; this
//! crate connects them to the Workers runtime.
//!
//! The modules below are ordered: each one imports only from modules above it.

mod access_log;
mod bindings;
mod clock;
mod cors;
mod credential_headers;
mod glue;
mod rate_limit_fields;
mod settings;
mod shard;
mod target;
mod trace;
mod url;

mod issuer;
mod origin;

mod config;
mod panics;
mod response;
mod timeout;

mod counter;
mod tally;

mod events;

mod context;
mod reports;

mod forward;
mod jwks;
mod limiter;

mod caller;

mod edge;

use std::cell::OnceCell;
use std::rc::Rc;

use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::wasm_bindgen;
use worker::{Context, Env, event};

use crate::bindings::{Bindings, random_uuid};
use crate::config::{Config, ConfigError};
use crate::events::{Event, report};

thread_local! {
    /// The configuration of a running isolate cannot change: a deployment starts new isolates.
    static CONFIG: OnceCell<Result<Rc<Config>, ConfigError>> = const { OnceCell::new() };
}

/// Runs once, when the module is instantiated.
#[wasm_bindgen(start)]
pub(crate) fn start() {
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // This comes first, because the tally is part of the preserved state.
        tally::count_panic();
        panics::preserve_state(&info.to_string());
        next(info);
    }));
}

/// Handles a request.
#[event(fetch)]
async fn fetch(request: web_sys::Request, env: Env, _context: Context) -> worker::Result<web_sys::Response> {
    let bindings: Bindings = env.unchecked_into();
    let response = match configuration(&bindings).await {
        Ok(config) => edge::handle(&bindings, &config, request).await,
        Err(error) => {
            let id = random_uuid();
            report(&bindings, Event::Internal, Some(&id), &error.to_string());
            let mut fields = response::base_fields(request.url().starts_with("https:"));
            fields.set("x-request-id", &id).set("vary", "Origin");
            response::problem(&response::misconfigured(), &fields)
        }
    };
    response.map_err(worker::Error::from)
}

/// The configuration, read by the isolate's first request.
async fn configuration(bindings: &Bindings) -> Result<Rc<Config>, ConfigError> {
    if let Some(config) = CONFIG.with(|config| config.get().cloned()) {
        return config;
    }
    let mut variables = settings::variables(bindings);
    // An error of the Secrets Store is not cached, so the next request reads the secrets again.
    settings::read_secrets(bindings, &mut variables)
        .await
        .map_err(ConfigError)?;
    let config = Config::read(&variables).map(Rc::new);
    CONFIG.with(|kept| kept.get_or_init(|| config).clone())
}

//! The edge of Weir, for Cloudflare Workers in Rust.
//!
//! It authenticates callers, and limits anonymous requests per client address (web ADR-21). Accepted requests go to the
//! Worker's own handler, or to an origin, with a signed assertion of the caller. The rules are in `policy/`; this crate
//! connects them to the Workers runtime.
//!
//! ```no_run
//! use weir_edge::{Caller, Weir};
//! use worker::{Context, Env, Request, Response, Result, event};
//!
//! #[event(fetch)]
//! async fn fetch(request: Request, env: Env, _context: Context) -> Result<Response> {
//!     Weir::new(&env).handle(request, hello).await
//! }
//!
//! async fn hello(_request: Request, caller: Caller) -> Result<Response> {
//!     Response::ok(format!("hello {}", caller.user.as_deref().unwrap_or("you")))
//! }
//! # fn main() {}
//! ```
//!
//! The settings are variables and secrets of `wrangler.toml`, such as `ANON_LIMIT`. `docs/reference/settings.md` in the
//! repository lists them. The class [`AddressCounter`] of the counting objects is exported to JavaScript by this crate:
//!
//! ```toml
//! [[durable_objects.bindings]]
//! name = "ADDRESS_COUNTERS"
//! class_name = "AddressCounter"
//!
//! [[migrations]]
//! tag = "v1"
//! new_sqlite_classes = ["AddressCounter"]
//! ```
//!
//! `examples/rust-worker` is a complete Worker.
//!
//! The modules below are ordered: each one imports only from modules above it.

mod access_log;
mod bindings;
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
mod own;
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
mod verified_tokens;

mod caller;

mod edge;

mod weir;

use wasm_bindgen::prelude::wasm_bindgen;
use weir_limiter::clock;
pub use weir_limiter::counter::AddressCounter;
pub use weir_limiter::own::{Counted, Limit};

pub use crate::weir::{Caller, Weir};

/// Runs once, when the module is instantiated. Private, so that the Worker may have another start function.
#[wasm_bindgen(start, private)]
fn start() {
    weir_limiter::counter::set_limits(counter::limits);
    let next = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // This comes first, because the tally is part of the preserved state.
        tally::count_panic();
        panics::preserve_state(&info.to_string());
        next(info);
    }));
}

//! The entry point of the edge Worker. `src/weir.mjs` calls it.

use weir_edge::Weir;
use worker::web_sys::{Request, Response};
use worker::{Context, Env, event};

/// Handles a request.
#[event(fetch)]
async fn fetch(request: Request, env: Env, _context: Context) -> worker::Result<Response> {
    Weir::with_callable_counters(&env).forward(request).await
}

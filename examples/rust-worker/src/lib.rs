//! A Worker in Rust that contains the edge.

use std::time::Duration;

use weir_edge::{Caller, Limit, Weir};
use worker::{Context, Env, Method, Request, Response, Result, event};

#[event(fetch)]
async fn fetch(request: Request, env: Env, _context: Context) -> Result<Response> {
    let weir = Weir::new(&env);
    weir.handle(request, move |request, caller| app(request, env, caller))
        .await
}

async fn app(request: Request, env: Env, caller: Caller) -> Result<Response> {
    match (request.path().as_str(), caller.user) {
        ("/export", Some(user)) => export(&Weir::new(&env), &user, request.method()).await,
        ("/export", None) => Response::error("Please sign in", 401),
        (_, user) => Response::ok(format!("hello {}", user.as_deref().unwrap_or("you"))),
    }
}

/// Five exports an hour. A cancelled one does not count.
async fn export(weir: &Weir, user: &str, method: Method) -> Result<Response> {
    let key = format!("export:{user}");
    let limit = Limit {
        limit: 5,
        window: Duration::from_secs(3600),
        cost: 1,
    };
    let counted = match method {
        Method::Post => weir.limit(&key, limit).await?,
        Method::Delete => weir.refund(&key, limit).await?,
        Method::Put => weir.reset(&key, limit).await?,
        _ => weir.peek(&key, limit).await?,
    };
    if !counted.allowed {
        return Response::error("Too many exports", 429);
    }
    Response::ok(format!("{} exports left", counted.remaining))
}

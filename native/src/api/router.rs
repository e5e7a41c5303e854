//! The routes and their middleware.

use super::problem::ApiError;
use super::receiving::MAX_BODY;
use super::state::Api;
use super::{
    access, admin, attempts, batch, check, description, edge, events, jobs, shared_queue, system, usage,
};
use crate::config::Environment;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use std::time::Duration;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::timeout::RequestBodyTimeoutLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// A body is abandoned when nothing of it arrives for this long.
const BODY_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A body is abandoned after this long, however steadily it arrives. No other step before the answer takes as long.
const BODY_TIMEOUT: Duration = Duration::from_secs(120);

async fn in_time(State(limit): State<Duration>, request: Request, next: Next) -> Response {
    tokio::time::timeout(limit, next.run(request))
        .await
        .unwrap_or_else(|_| ApiError::TooSlow.into_response())
}

/// All routes, and their description at `/api/openapi.json`.
pub(super) fn router(api: Arc<Api>) -> Router {
    let mut described = OpenApiRouter::with_openapi(description::Document::openapi())
        .routes(routes!(jobs::list))
        // OpenAPI treats paths that differ only in a parameter's name as the same path.
        .routes(routes!(jobs::submit, jobs::get, jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(batch::submit))
        .routes(routes!(events::jobs))
        .routes(routes!(events::job))
        .routes(routes!(usage::usage))
        .routes(routes!(check::check))
        .routes(routes!(system::lanes))
        .routes(routes!(events::lanes));
    // Other environments do not have this route and do not mention it.
    if api.settings.environment == Environment::Development && api.settings.jwt_secret.is_some() {
        described = described
            .routes(routes!(system::development_token))
            .routes(routes!(shared_queue::submit, shared_queue::list));
    }
    let described = described
        .merge(attempts::routes())
        .layer(axum::middleware::from_fn_with_state(BODY_TIMEOUT, in_time))
        .merge(admin::routes());
    let (router, mut document) = described.split_for_parts();
    description::complete(&mut document, &api.settings.catalogue);
    let document = document.to_pretty_json().unwrap_or_default();
    let json = [(header::CONTENT_TYPE, "application/json")];
    router
        .route(
            "/api/openapi.json",
            axum::routing::get(async move || (json, document).into_response()),
        )
        .fallback(async || ApiError::NoRoute)
        .method_not_allowed_fallback(async || ApiError::NoMethod)
        // A single layer, the first outermost: each call of `layer` boxes the service and its future again for every
        // request.
        .layer((
            // Outside the panic handler, so that panics are also logged.
            axum::middleware::from_fn(access::log),
            // Answers are for one caller, so no cache may store them.
            SetResponseHeaderLayer::overriding(header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            tower_http::catch_panic::CatchPanicLayer::custom(|_| ApiError::Internal.into_response()),
            DefaultBodyLimit::max(MAX_BODY),
            RequestBodyTimeoutLayer::new(BODY_IDLE_TIMEOUT),
        ))
        // The edge's reports and the probes arrive every few seconds, so they are not logged.
        .route(
            weir_policy::counts::PATH,
            axum::routing::post(edge::counts).layer(DefaultBodyLimit::max(weir_policy::counts::MAX_BYTES)),
        )
        .with_state(api)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, Bytes};
    use futures_util::stream;
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_slow_endless_body_is_abandoned() {
        let limit = Duration::from_millis(100);
        let router = Router::new()
            .route("/", axum::routing::post(async |_: Bytes| ()))
            .layer(axum::middleware::from_fn_with_state(limit, in_time))
            .layer(RequestBodyTimeoutLayer::new(BODY_IDLE_TIMEOUT));
        let steady = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Some((Ok::<_, std::io::Error>("x"), ()))
        });
        let request = Request::post("/").body(Body::from_stream(steady)).unwrap();
        let answered = tokio::time::timeout(Duration::from_secs(30), router.oneshot(request)).await;
        let answer = answered.expect("reading the body does not end").unwrap();
        assert_eq!(answer.status(), 408);
        assert_eq!(answer.headers()["connection"], "close");
    }
}

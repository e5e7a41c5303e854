//! `/console`: pages for operators, on this machine only.

mod failures;
mod find;
mod guard;
mod holder;
mod holders;
mod job;
mod overview;
mod page;

use std::sync::Arc;

use axum::extract::Request;
use axum::http::header;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};

use super::problem::ApiError;
use super::state::Api;

/// The console's routes.
pub(super) fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route("/console", routing::get(overview::show))
        .route("/console/style.css", routing::get(style))
        .route("/console/holders", routing::get(holders::show))
        .route("/console/holders/{id}", routing::get(holder::show))
        .route("/console/jobs/{id}", routing::get(job::show))
        .route("/console/jobs/{id}/cancel", routing::post(job::cancel))
        .route("/console/failures", routing::get(failures::show))
        .route("/console/find", routing::get(find::show))
        .route("/console/{*path}", routing::any(nothing))
        .layer(middleware::from_fn(with_headers))
        .layer(middleware::from_fn(guard::guard))
        .layer(tower_http::catch_panic::CatchPanicLayer::custom(|_| {
            ApiError::Internal.into_response()
        }))
        .with_state(api)
}

async fn style() -> Response {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], page::STYLE).into_response()
}

async fn nothing() -> page::ConsoleError {
    page::ConsoleError::Missing("Page not found.".to_owned())
}

async fn with_headers(request: Request, next: Next) -> Response {
    (page::HEADERS, next.run(request).await).into_response()
}

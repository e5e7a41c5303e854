//! `/console`: pages for operators, on this machine, or signed in with a service key.

mod act;
mod change;
mod charts;
mod failures;
mod find;
mod guard;
mod holder;
mod holders;
mod job;
mod jobs;
mod overview;
mod page;
mod session;
mod user;

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
        .route("/console/holders/{id}/plan", routing::post(user::plan))
        .route("/console/holders/{id}/grants", routing::post(user::grant))
        .route(
            "/console/holders/{id}/overrides",
            routing::post(user::set_override),
        )
        .route("/console/jobs/{id}", routing::get(job::show))
        .route("/console/jobs", routing::get(jobs::show))
        .route("/console/jobs/{id}/cancel", routing::post(act::cancel))
        .route(
            "/console/jobs/change",
            routing::get(change::preview).post(change::run),
        )
        .route("/console/failures", routing::get(failures::show))
        .route("/console/lanes/{queue}/pause", routing::post(act::pause))
        .route("/console/lanes/{queue}/resume", routing::post(act::resume))
        .route(
            session::SIGN_IN,
            routing::get(session::form).post(session::sign_in),
        )
        .route("/console/sign-out", routing::post(session::sign_out))
        .route("/console/find", routing::get(find::show))
        .route("/console/{*path}", routing::any(nothing))
        .layer(middleware::from_fn(with_headers))
        .layer(middleware::from_fn_with_state(Arc::clone(&api), guard::guard))
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

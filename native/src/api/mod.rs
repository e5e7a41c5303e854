//! The origin's HTTP API.

mod access;
mod answers;
mod caller;
pub(crate) mod edge;
mod events;
mod feed;
mod job;
mod jobs;
mod problem;
mod system;
mod usage;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::IntoResponse;
use deadpool_postgres::Pool;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use weir_policy::assertion::AssertionKey;

use crate::config::{Environment, Settings};
use crate::handler::Handler;
use crate::holder::Holders;
use crate::probes::{self, Probes};
use crate::reservation::Reserver;
use crate::settlement::Settler;

pub use feed::Feed;
pub use job::Job;
pub use problem::ApiError;
use problem::ProblemDetails;

/// The most that a request's body may have: 256 KiB.
pub const LARGEST_BODY: usize = 256 * 1024;

/// What the routes share.
pub struct Api {
    /// The settings the process was started with.
    pub settings: Arc<Settings>,
    /// Connections for reading.
    pub pool: Pool,
    /// Admits submissions.
    pub reserver: Reserver,
    /// Settles what is cancelled.
    pub settler: Settler,
    /// Check submissions' arguments, by River's job kind.
    pub handlers: HashMap<String, Arc<dyn Handler>>,
    /// The keys that assertions may be signed with.
    pub keys: Vec<AssertionKey>,
    /// The edge's reports that were counted.
    pub heard: edge::Heard,
    /// Makes holders out of addresses.
    pub holders: Holders,
    /// River's client, which works nothing here.
    pub river: riverqueue::Client,
    /// Tells event streams which jobs have changed.
    pub feed: Feed,
    /// Renders the metrics.
    pub metrics: PrometheusHandle,
    /// Cancelled when the process is to stop.
    pub stopping: CancellationToken,
}

#[derive(OpenApi)]
#[openapi(info(
    title = "Weir",
    description = "Submit jobs under a plan's quota and follow them. Errors are problem details (RFC 9457)."
))]
struct Document;

/// All routes, with their description at `/api/openapi.json`.
pub fn router(api: Arc<Api>) -> Router {
    let probes = Arc::new(Probes::new(
        api.pool.clone(),
        &api.settings.services,
        api.metrics.clone(),
        api.stopping.clone(),
    ));
    let mut described = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(jobs::list))
        // One path: OpenAPI takes two that differ only in a parameter's name for the same.
        .routes(routes!(jobs::submit, jobs::get, jobs::cancel))
        .routes(routes!(events::jobs))
        .routes(routes!(events::job))
        .routes(routes!(usage::usage))
        .routes(routes!(system::lanes))
        .routes(routes!(events::lanes));
    // Nowhere else is there such a route, nor a word of it. The probes are not in the description either: it is of what goes
    // through the edge, and they are for those who can reach this port.
    if api.settings.environment == Environment::Development && api.settings.jwt_secret.is_some() {
        described = described.routes(routes!(system::development_token));
    }
    let (router, mut document) = described.split_for_parts();
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let document = document.to_json().unwrap_or_default();
    let json = [(axum::http::header::CONTENT_TYPE, "application/json")];
    router
        .route(
            "/api/openapi.json",
            axum::routing::get(async move || (json, document).into_response()),
        )
        .fallback(async || ApiError::NoRoute)
        .method_not_allowed_fallback(async || ApiError::NoMethod)
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(tower_http::catch_panic::CatchPanicLayer::custom(|_| {
            ApiError::Internal.into_response()
        }))
        // Outside of the net under panics, so that they get their line too.
        .layer(axum::middleware::from_fn(access::log))
        // The edge's reports and probes come every few seconds and have no line.
        .route(
            weir_policy::counts::PATH,
            axum::routing::post(edge::counts).layer(DefaultBodyLimit::max(weir_policy::counts::MAX_BYTES)),
        )
        .with_state(api)
        .merge(probes::router(probes))
}

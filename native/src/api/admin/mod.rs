//! The control plane over HTTP: for backends and billing with a service key. The edge does not forward it.

mod booking;
mod change;
mod check;
mod holder;
mod jobs;
mod log;
mod request;
mod usage_by_period;
mod usage_events;
mod webhook;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::state::Api;

pub(super) use holder::MeterView;
pub use holder::{HolderView, holder_view};
pub use usage_events::CloudEvent;

/// Its routes.
pub(super) fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new()
        .routes(routes!(holder::show))
        .routes(routes!(check::check))
        .routes(routes!(change::plan))
        .routes(routes!(change::put_override, change::delete_override))
        .routes(routes!(booking::adjustment))
        .routes(routes!(booking::grant))
        .routes(routes!(booking::lower))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::pause))
        .routes(routes!(jobs::resume))
        .routes(routes!(usage_by_period::list))
        .routes(routes!(usage_events::list))
        .routes(routes!(log::list))
        .routes(routes!(webhook::list, webhook::add))
        .routes(routes!(webhook::remove))
        .routes(routes!(webhook::rotate))
        .routes(routes!(webhook::enable))
        .routes(routes!(webhook::test))
        .routes(routes!(webhook::replay))
}

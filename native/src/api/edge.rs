//! Receives the edge's reports, and adds their counts to the metrics. The edge cannot be scraped.
//!
//! This is not a route for clients. The edge forwards no request to it, and it accepts only reports that the edge has
//! signed for itself. It is not in the API's description. Its requests are not logged or counted, because each isolate
//! reports every ten seconds.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use weir_policy::assertion;
use weir_policy::counts::Counts;

use super::caller::Asserted;
use super::problem::ApiError;
use super::state::Api;
use crate::telemetry::metrics::add_edge_counts;

/// The id of a report that the edge signed. Verified before the body is read.
pub(super) struct ReportId(String);

impl FromRequestParts<Arc<Api>> for ReportId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let Asserted {
            token,
            method,
            path,
            now,
        } = Asserted::of(parts);
        let id = assertion::verify_own(&api.keys, token, method, path, now).map_err(|error| {
            tracing::warn!(%error, "refused a report of the edge's counts");
            ApiError::Unauthorized(error.to_string())
        })?;
        Ok(Self(id))
    }
}

/// Receives a report.
pub(super) async fn counts(
    State(api): State<Arc<Api>>,
    ReportId(id): ReportId,
    body: String,
) -> Result<StatusCode, ApiError> {
    let counts: Counts =
        serde_json::from_str(&body).map_err(|error| ApiError::Malformed(error.to_string()))?;
    if api.reports.is_first(&id) {
        add_edge_counts(&counts);
    }
    Ok(StatusCode::NO_CONTENT)
}

//! The lanes, health, metrics, and what exists in development only.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;
use weir_policy::tier::Tier;

use super::caller::Caller;
use super::{Api, ApiError};
use crate::config::Environment;
use crate::status::{self, Lanes};

pub(super) async fn look(api: &Api) -> Result<Lanes, ApiError> {
    let client = api.pool.get().await?;
    Ok(status::lanes(&client, &api.settings.services).await?)
}

/// What waits and what runs, in all lanes. It names nobody.
#[utoipa::path(
    get,
    path = "/api/lanes",
    responses(
        (status = 200, body = Lanes),
        (status = 401, description = "The request did not come through the edge", content_type = "application/problem+json"),
        (status = 503, description = "The database cannot be reached", content_type = "application/problem+json"),
    )
)]
pub(super) async fn lanes(State(api): State<Arc<Api>>, _caller: Caller) -> Result<Json<Lanes>, ApiError> {
    look(&api).await.map(Json)
}

/// The process is alive.
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// The process can serve: the database answers, its migrations are applied, and the process is not stopping.
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Response {
    let database = async {
        let client = api.pool.get().await?;
        crate::migrate::is_current(&client).await
    };
    let database = tokio::time::timeout(Duration::from_secs(3), database).await;
    let reason = match database {
        _ if api.stopping.is_cancelled() => "the process is stopping",
        Ok(Ok(true)) => return "ready\n".into_response(),
        Ok(Ok(false)) => "the database lacks migrations; run `weir migrate`",
        Ok(Err(_)) | Err(_) => "the database cannot be reached",
    };
    (
        StatusCode::SERVICE_UNAVAILABLE,
        [(header::RETRY_AFTER, "2")],
        format!("{reason}\n"),
    )
        .into_response()
}

/// Everything in Prometheus' text form.
pub(super) async fn metrics(State(api): State<Arc<Api>>) -> Response {
    if let Ok(lanes) = look(&api).await {
        for (name, service) in &lanes.services {
            for (lane, state) in [
                ("priority", service.priority),
                ("default", service.default),
                ("scheduled", service.scheduled),
            ] {
                let labels = [("service", name.clone()), ("lane", lane.to_owned())];
                let with = |what: &str| [labels[0].clone(), labels[1].clone(), ("state", what.to_owned())];
                metrics::gauge!("weir_lane_jobs", &with("queued")).set(state.queued as f64);
                metrics::gauge!("weir_lane_jobs", &with("running")).set(state.running as f64);
                metrics::gauge!("weir_oldest_wait_seconds", &labels)
                    .set(state.oldest_wait_ms as f64 / 1000.0);
            }
            metrics::gauge!("weir_parked_jobs", "service" => name.clone()).set(service.parked as f64);
            metrics::gauge!("weir_slots_in_use", "service" => name.clone()).set(service.slots_in_use as f64);
        }
    }
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4")],
        api.metrics.render(),
    )
        .into_response()
}

#[derive(Deserialize)]
pub(super) struct Wanted {
    tier: Tier,
    user: Option<Uuid>,
}

/// A token for the asking. In development only: in production this route does not exist.
pub(super) async fn development_token(
    State(api): State<Arc<Api>>,
    _caller: Caller,
    wanted: Result<Json<Wanted>, JsonRejection>,
) -> Result<Response, ApiError> {
    let (Environment::Development, Some(secret)) = (api.settings.environment, &api.settings.jwt_secret)
    else {
        return Err(ApiError::NoRoute);
    };
    let Ok(Json(Wanted { tier, user })) = wanted else {
        return Err(ApiError::Unprocessable(
            "tier must be free, pro, pro_plus or enterprise; user, if there is one, a UUID".to_owned(),
        ));
    };
    let user = user.unwrap_or_else(Uuid::new_v4);
    let client = api.pool.get().await?;
    let token = crate::token::issue(&client, secret, user, tier, Duration::from_secs(3600))
        .await
        .map_err(|error| ApiError::Unavailable(error.to_string()))?;
    Ok(Json(json!({ "token": token, "user": user, "tier": tier })).into_response())
}

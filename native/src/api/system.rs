//! The lanes, and what exists in development only.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;
use weir_policy::tier::Tier;

use super::caller::Caller;
use super::{Api, ApiError, ProblemDetails};
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
        (status = 401, body = ProblemDetails, description = "The request did not come through the edge", content_type = "application/problem+json"),
        (status = 503, body = ProblemDetails, description = "The database cannot be reached", content_type = "application/problem+json"),
    )
)]
pub(super) async fn lanes(State(api): State<Arc<Api>>, _caller: Caller) -> Result<Json<Lanes>, ApiError> {
    look(&api).await.map(Json)
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

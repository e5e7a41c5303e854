//! The lanes, and routes for development mode.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;
use weir_ledger::catalogue;
use weir_ledger::control::{self, Override, User};
use weir_policy::span::Span;

use super::answers::{LacksScope, NoSubject, Unauthenticated, Unavailable};
use super::caller::Caller;
use super::problem::{ApiError, ProblemDetails};
use super::state::Api;
use crate::status::Lanes;
use crate::token::TokenError;

pub(super) async fn live_view(api: &Api) -> Result<Lanes, ApiError> {
    let lanes = api.live_view.lanes(&api.pool, &api.settings.services).await?;
    Ok(lanes)
}

/// Shows queued and running jobs of all lanes.
///
/// The answer contains no user data.
#[utoipa::path(
    get,
    path = "/api/lanes",
    operation_id = "getLanes",
    tag = "Lanes",
    responses(
        (status = 200, body = Lanes, description = "The lanes"),
        Unauthenticated, LacksScope, NoSubject, Unavailable,
    )
)]
pub(super) async fn lanes(State(api): State<Arc<Api>>, _caller: Caller) -> Result<Json<Lanes>, ApiError> {
    live_view(&api).await.map(Json)
}

/// The user and the plan of a token.
#[derive(Deserialize, ToSchema)]
pub(super) struct WantedToken {
    /// The plan.
    #[schema(example = "pro")]
    #[serde(alias = "tier")]
    plan: String,
    /// The user. Default: a new one.
    user: Option<Uuid>,
    /// The number of the user's jobs at once on workers that would be idle, for every meter. The month is then unlimited,
    /// so that the user can flood. Default: the plan's burst and limits.
    #[schema(minimum = 1, maximum = 1_000_000)]
    burst: Option<u32>,
}

/// A bearer token.
#[derive(Serialize, ToSchema)]
pub(super) struct Given {
    token: String,
    user: Uuid,
    /// The plan.
    #[schema(example = "pro")]
    plan: String,
}

/// Issues a bearer token that is valid for an hour.
///
/// Only a server in development mode has this route.
#[utoipa::path(
    post,
    path = "/api/dev/token",
    operation_id = "createDevelopmentToken",
    tag = "Development",
    request_body = WantedToken,
    responses(
        (status = 200, body = Given, description = "The token"),
        Unauthenticated, LacksScope,
        (status = 422, body = ProblemDetails, description = "The plan is unknown, the user is not a UUID, or the burst is not a number from 1", content_type = "application/problem+json"),
        Unavailable,
    )
)]
pub(super) async fn development_token(
    State(api): State<Arc<Api>>,
    _caller: Caller,
    body: Bytes,
) -> Result<Json<Given>, ApiError> {
    // Without a secret, this route does not exist.
    if api.settings.jwt_secret.is_none() {
        return Err(ApiError::NoRoute);
    }
    // As with submissions, the content type does not matter.
    let Ok(WantedToken { plan, user, burst }) = serde_json::from_slice(&body) else {
        return Err(ApiError::Unprocessable(
            "plan must be the name of a plan; user, if present, must be a UUID; burst, if present, must be a number \
             from 1"
                .to_owned(),
        ));
    };
    let user = user.unwrap_or_else(Uuid::new_v4);
    let token = api
        .pool
        .with(async |client| {
            let token = crate::token::issue(
                client,
                &api.settings,
                &user.into(),
                &plan,
                Duration::from_secs(3600),
            )
            .await
            .map_err(|error| match error {
                TokenError::NoPlan(..) => ApiError::Unprocessable(error.to_string()),
                TokenError::Database(error) => error.into(),
                error => ApiError::Unavailable(error.to_string()),
            })?;
            if burst.is_some() {
                let user = User::of(api.holders, user.into());
                let wanted = Override {
                    burst,
                    limits: [(Span::Month, None)].into(),
                    ..Override::default()
                };
                for meter in catalogue::load(&**client).await?.meters.keys() {
                    control::set_override(client, "weir", &user, meter, &wanted).await?;
                }
            }
            Ok::<_, ApiError>(token)
        })
        .await?;
    Ok(Json(Given { token, user, plan }))
}

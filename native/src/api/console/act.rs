//! Changes from the console's forms. Each is in the audit log, with the operator.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::response::Redirect;
use serde_json::json;
use weir_ledger::control;

use super::super::jobs;
use super::super::state::Api;
use super::guard::Operator;
use super::job;
use super::page::ConsoleError;
use crate::river_control::{self, PauseError};

/// Cancels as the owner's `DELETE /api/jobs/{id}` does.
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    Extension(Operator(actor)): Extension<Operator>,
    id: Result<Path<i64>, PathRejection>,
) -> Result<Redirect, ConsoleError> {
    let Ok(Path(id)) = id else {
        return Err(job::missing());
    };
    let holder = weir_ledger::read::jobs::holder(&api.pool, id).await?;
    jobs::end(&api, id, holder).await?;
    api.pool
        .with(async |client| {
            let after = json!({ "job": id });
            control::record(client, &actor, "job.cancel", holder, after).await?;
            Ok::<_, ConsoleError>(())
        })
        .await?;
    Ok(Redirect::to(&format!("/console/jobs/{id}")))
}

/// Pauses a lane.
pub(super) async fn pause(
    State(api): State<Arc<Api>>,
    Extension(Operator(actor)): Extension<Operator>,
    Path(queue): Path<String>,
) -> Result<Redirect, ConsoleError> {
    set_paused(&api, &actor, &queue, true).await
}

/// Resumes a lane.
pub(super) async fn resume(
    State(api): State<Arc<Api>>,
    Extension(Operator(actor)): Extension<Operator>,
    Path(queue): Path<String>,
) -> Result<Redirect, ConsoleError> {
    set_paused(&api, &actor, &queue, false).await
}

async fn set_paused(api: &Api, actor: &str, queue: &str, pauses: bool) -> Result<Redirect, ConsoleError> {
    let changed = api.pool.with(async |client| {
        let changed =
            river_control::set_paused(&api.settings, &api.river, client, actor, queue, pauses).await;
        changed.map_err(|error| match error {
            PauseError::Unknown(_) | PauseError::Unworked(_) => ConsoleError::Missing(error.to_string()),
            PauseError::River(_) | PauseError::Log(_) => ConsoleError::Broken(error.to_string()),
        })
    });
    changed.await?;
    Ok(Redirect::to("/console"))
}

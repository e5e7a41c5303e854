//! Changes from the console's forms. Each is in the audit log, with the operator.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Form;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::response::{Html, Redirect};
use maud::html;
use serde::Deserialize;
use serde_json::json;
use weir_ledger::control::{self, JobFilter};

use super::super::jobs;
use super::super::state::Api;
use super::guard::Operator;
use super::job;
use super::page::{self, ConsoleError, Entry};
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

/// Runs a failed, expired or cancelled job again.
pub(super) async fn retry(
    State(api): State<Arc<Api>>,
    Extension(Operator(actor)): Extension<Operator>,
    id: Result<Path<i64>, PathRejection>,
) -> Result<Html<String>, ConsoleError> {
    let Ok(Path(id)) = id else {
        return Err(job::missing());
    };
    let outcomes = api
        .pool
        .with(async |client| {
            let retried = control::retry_jobs(client, &actor, &[id], None, || ()).await;
            Ok::<_, ConsoleError>(retried?)
        })
        .await?;
    Ok(retried(&outcomes, &html! { "Job " (page::job_link(id)) }))
}

/// The jobs of a row of the failures.
#[derive(Deserialize)]
pub(super) struct Failures {
    kind: String,
    reason: String,
}

/// Runs the jobs again that failed for a reason, at most a thousand.
pub(super) async fn retry_failures(
    State(api): State<Arc<Api>>,
    Extension(Operator(actor)): Extension<Operator>,
    Form(failures): Form<Failures>,
) -> Result<Html<String>, ConsoleError> {
    let filter = JobFilter {
        kinds: Some(vec![failures.kind]),
        reason: Some(failures.reason),
        ..JobFilter::default()
    };
    let outcomes = api
        .pool
        .with(async |client| {
            let jobs = control::matching_jobs(client, &filter, &control::FAILED, 0).await?;
            let retried = control::retry_jobs(client, &actor, &jobs, Some(&filter), || ()).await;
            Ok::<_, ConsoleError>(retried?)
        })
        .await?;
    Ok(retried(
        &outcomes,
        &html! { "At most " (control::SLICE) " jobs at a time" },
    ))
}

fn retried(outcomes: &BTreeMap<&'static str, usize>, what: &maud::Markup) -> Html<String> {
    let rows = html! {
        @for (outcome, count) in outcomes { tr { th scope="row" { (words(outcome)) } td { (count) } } }
    };
    let body = html! {
        p.soft { (what) ". " a href="/console/failures" { "Failures" } "." }
        @if outcomes.is_empty() { p { "No job matches any more." } }
        @else { (page::table("Jobs by what happened", &["", "jobs"], &rows)) }
    };
    page::page_below(Entry::Failures, "Run again", &body)
}

fn words(outcome: &str) -> &'static str {
    match outcome {
        "retried" => "run again",
        "not_failed" => "unfinished, or charged already",
        "not_found" => "not submitted through Weir, or deleted",
        "folded" => "an equal job is unfinished",
        "too_many_waiting" => "too many jobs of their users wait",
        _ => "over their users' quota",
    }
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

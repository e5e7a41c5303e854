//! The details of a job for an operator.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Html;
use maud::{Markup, html};
use weir_ledger::raw_json::RawJson;

use super::super::job::Status;
use super::super::job_report::{AttemptReport, JobReport, job_report};
use super::super::state::Api;
use super::page::{self, ConsoleError, Entry};
use crate::status::duration;

/// The maximum number of characters of arguments, metadata, output and each error.
const MAX_TEXT: usize = 4000;

pub(super) fn missing() -> ConsoleError {
    ConsoleError::Missing("Job not found. River deletes finished jobs after a while.".to_owned())
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    id: Result<Path<i64>, PathRejection>,
) -> Result<Html<String>, ConsoleError> {
    let Ok(Path(id)) = id else {
        return Err(missing());
    };
    let job = api
        .pool
        .with(async |client| job_report(client, &api.settings, id).await)
        .await?
        .ok_or_else(missing)?;
    let ended = job.finished_at.is_some();
    let body = html! {
        (facts(&job))
        @if !ended { (page::cancel(id)) }
        @if ended && job.charged.is_none() && job.holder.is_some() { (page::retry(id)) }
        @if !job.attempts.is_empty() { (attempts(&job)) }
        @if let Some(output) = &job.output {
            h2 { "Output" }
            (json(output))
        }
        h2 { "Arguments" }
        (json(&job.args))
        h2 { "Metadata" }
        p.soft { "Without the output." }
        (json(&job.metadata))
    };
    Ok(page::page_below(Entry::Holders, &format!("Job {id}"), &body))
}

fn facts(job: &JobReport) -> Markup {
    let mut facts = vec![
        ("holder", holder(job)),
        ("state", html! { (job.state()) }),
        ("service", html! { (job.service.as_deref().unwrap_or("none")) }),
        ("kind", html! { (job.kind) }),
        ("queue", html! { (job.queue) ", priority " (job.priority) }),
        ("attempt", html! { (job.attempt) " of " (job.max_attempts) }),
        ("submitted", page::time(job.created_at)),
        ("scheduled", page::time(job.scheduled_at)),
        (
            "ended",
            match job.finished_at {
                Some(at) => page::time(at),
                None => html! { "–" },
            },
        ),
        ("reservation", reservation(job)),
        (
            "charge",
            match job.charged {
                Some(amount) => html! { (amount) },
                None => html! { "none" },
            },
        ),
    ];
    if let Some(request) = &job.request_id {
        facts.push((
            "request",
            html! { a href={ "/console/find?q=" (request) } { (request) } },
        ));
    }
    if let Some(trace) = job.trace_id() {
        facts.push(("trace", html! { (trace) }));
    }
    page::facts(&facts)
}

fn holder(job: &JobReport) -> Markup {
    match job.holder {
        Some(holder) => html! {
            a href={ "/console/holders/" (holder) } {
                @if let Some(user) = &job.user { (user) } @else { (holder) }
            }
            @if job.user.is_none() { ", an anonymous address" }
        },
        None => html! { "none: it was not submitted through Weir" },
    }
}

fn reservation(job: &JobReport) -> Markup {
    let Some(of) = &job.reservation else {
        return html! { "none" };
    };
    html! {
        (of.amount) ", "
        @if let Some(at) = of.admitted_at { "with a slot since " (page::time(at)) }
        @else if let Some(at) = of.parked_at { "parked since " (page::time(at)) }
        @else { "between two attempts" }
        ", expires " (page::time(of.expires_at))
    }
}

fn attempts(job: &JobReport) -> Markup {
    let rows = html! {
        @for of in job.attempts.iter().rev() {
            tr {
                th scope="row" { "Attempt " (of.attempt) }
                td { @if let Some(at) = of.started_at { (page::time(at)) } }
                td { (took(job.status, of)) }
                td { (of.by.as_deref().unwrap_or("–")) }
                td.text { @if let Some(error) = &of.error { pre tabindex="0" { (page::beginning(error, MAX_TEXT)) } } }
            }
        }
    };
    page::table("Attempts", &["", "started", "took", "by", "error"], &rows)
}

fn took(status: Status, of: &AttemptReport) -> String {
    match of.took_ms {
        Some(took) => duration(took),
        None if status == Status::Running && of.by.is_some() => "running".to_owned(),
        None => "–".to_owned(),
    }
}

fn json(value: &RawJson) -> Markup {
    html! { pre tabindex="0" { (page::beginning(&value.pretty(), MAX_TEXT)) } }
}

//! The details of a job for an operator.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Html;
use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;

use super::super::state::Api;
use super::page::{self, ConsoleError, Entry};
use weir_ledger::raw_json::RawJson;
use weir_ledger::read::console::{self, JobDetails};

/// The maximum number of characters of arguments, metadata and each error.
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
    let job = console::job(&api.pool, id).await?.ok_or_else(missing)?;
    let body = html! {
        (facts(&job))
        @if job.finalized_at.is_none() { (page::cancel(id)) }
        @if job.finalized_at.is_some() && job.charged.is_none() && job.holder.is_some() { (page::retry(id)) }
        (errors(&job))
        h2 { "Metadata" }
        p.soft { "Without the output." }
        (json(&job.metadata))
        h2 { "Arguments" }
        (json(&job.args))
    };
    Ok(page::page_below(Entry::Holders, &format!("Job {id}"), &body))
}

fn facts(job: &JobDetails) -> Markup {
    let optional = |at: Option<Timestamp>| match at {
        Some(at) => page::time(at),
        None => html! { "–" },
    };
    page::facts(&[
        ("holder", holder(job)),
        ("state", html! { (job.state) }),
        ("kind", html! { (job.kind) }),
        ("queue", html! { (job.queue) ", priority " (job.priority) }),
        (
            "attempt",
            html! {
                (job.attempt) " of " (job.max_attempts)
                @if let Some(client) = &job.attempted_by { ", by " (client) }
            },
        ),
        ("submitted", page::time(job.created_at)),
        ("scheduled", page::time(job.scheduled_at)),
        ("last attempt", optional(job.attempted_at)),
        ("ended", optional(job.finalized_at)),
        ("reservation", reservation(job)),
        (
            "charge",
            match job.charged {
                Some(amount) => html! { (amount) },
                None => html! { "none" },
            },
        ),
    ])
}

fn holder(job: &JobDetails) -> Markup {
    match job.holder {
        Some(holder) => html! {
            a href={ "/console/holders/" (holder) } {
                @if let Some(subject) = &job.subject { (subject) } @else { (holder) }
            }
            @if job.user_id.is_none() { ", an anonymous address" }
        },
        None => html! { "none: it was not submitted through Weir" },
    }
}

fn reservation(job: &JobDetails) -> Markup {
    let Some((amount, expires_at)) = job.reserved_amount.zip(job.expires_at) else {
        return html! { "none" };
    };
    html! {
        (amount) ", "
        @if let Some(at) = job.admitted_at { "with a slot since " (page::time(at)) }
        @else if let Some(at) = job.parked_at { "parked since " (page::time(at)) }
        @else { "between two attempts" }
        ", expires " (page::time(expires_at))
    }
}

fn errors(job: &JobDetails) -> Markup {
    let errors: Option<Vec<Value>> = job.errors.as_ref().and_then(RawJson::read);
    let text = |error: &Value, member: &str| match error.get(member) {
        Some(Value::String(text)) => page::beginning(text, MAX_TEXT),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    html! {
        @if let Some(errors) = errors.filter(|errors| !errors.is_empty()) {
            h2 { "Errors" }
            @for error in errors.iter().rev() {
                h3 { "Attempt " (text(error, "attempt")) ", " (text(error, "at")) }
                pre tabindex="0" { (text(error, "error")) }
            }
        }
    }
}

fn json(value: &RawJson) -> Markup {
    html! { pre tabindex="0" { (page::beginning(&value.pretty(), MAX_TEXT)) } }
}

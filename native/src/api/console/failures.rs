//! The most frequent errors of jobs.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Html;
use maud::{Markup, html};
use weir_ledger::read::console::{self, FailureReason};

use super::super::state::Api;
use super::page::{self, ConsoleError, Entry};
use crate::status::number;

/// The maximum number of jobs to read, the most recent failures first.
const JOBS: i64 = 10_000;

/// The maximum number of reasons to show.
const REASONS: i64 = 100;

pub(super) async fn show(State(api): State<Arc<Api>>) -> Result<Html<String>, ConsoleError> {
    let reasons = console::failures(&api.pool, JOBS, REASONS).await?;
    let seen = reasons.first().map_or(0, |first| first.seen);
    let service = |kind: &str| match api.settings.service_of_kind(kind) {
        Some(service) => service.name.clone(),
        None => kind.to_owned(),
    };
    let cells = html! {
        @for of in &reasons {
            tr {
                td { (service(&of.kind)) }
                td.text { @if of.reason.is_empty() { "no reason given" } @else { (of.reason) } }
                td { (number(of.jobs)) }
                td { (page::job_link(of.newest)) }
                td { (page::time(of.last_at)) }
                td { (again(of)) }
            }
        }
    };
    let columns = ["service", "reason", "jobs", "newest job", "last at", ""];
    let body = html! {
        p.soft {
            "Jobs that failed permanently within the last day, by service and the first line of their last error. "
            "Only the last " (JOBS) " are read, and the " (REASONS) " most frequent reasons are shown."
            @if seen == JOBS { " " strong { "There are more. The counts cover the last " (JOBS) "." } }
        }
        @if reasons.is_empty() { p { "No failed jobs." } }
        @else { (page::table(&format!("{} failed", number(seen)), &columns, &cells)) }
    };
    Ok(page::main_page(Entry::Failures, None, &body))
}

/// The form that shows how many jobs of a row would run again.
fn again(of: &FailureReason) -> Markup {
    html! {
        @if !of.reason.is_empty() {
            form action="/console/jobs/change" method="get" {
                input type="hidden" name="kind" value=(of.kind);
                input type="hidden" name="reason" value=(of.reason);
                button name="action" value="retry" { "Run again…" }
            }
        }
    }
}

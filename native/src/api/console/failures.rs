//! What fails, and why.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Html;
use maud::html;

use super::super::state::Api;
use super::page::{self, ConsoleError};
use crate::status::number;

/// How many jobs are looked at, the last to fail first.
const JOBS: i64 = 10_000;

/// How many reasons are shown.
const REASONS: i64 = 100;

pub(super) async fn show(State(api): State<Arc<Api>>) -> Result<Html<String>, ConsoleError> {
    let rows = api
        .pool
        .query(include_str!("sql/failures.sql"), &[&JOBS, &REASONS])
        .await?;
    let seen: i64 = rows.first().map_or(0, |row| row.get("seen"));
    let service = |kind: &str| match api.settings.service_of_kind(kind) {
        Some(service) => service.name.clone(),
        None => kind.to_owned(),
    };
    let cells = html! {
        @for row in &rows {
            @let reason: &str = row.get("reason");
            tr {
                td { (service(row.get("kind"))) }
                td.text { @if reason.is_empty() { "no reason given" } @else { (reason) } }
                td { (number(row.get("jobs"))) }
                td { (page::job_link(row.get("newest"))) }
                td { (page::time(row.get("last_at"))) }
            }
        }
    };
    let columns = ["service", "reason", "jobs", "newest job", "last at"];
    let body = html! {
        p.soft {
            "Jobs that failed for good within the last day, by service and the first line of their last error. "
            "Looks at the last " (JOBS) " of them at most, and shows the " (REASONS) " most frequent reasons."
            @if seen == JOBS { " " strong { "There are more: the counts are of the last " (JOBS) "." } }
        }
        @if rows.is_empty() { p { "Nothing has failed." } }
        @else { (page::table(&format!("{} failed", number(seen)), &columns, &cells)) }
    };
    Ok(page::page("Failures", None, &body))
}

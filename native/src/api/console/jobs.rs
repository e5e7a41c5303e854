//! Lists of jobs.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Html;
use maud::{Markup, html};
use serde::Deserialize;
use uuid::Uuid;
use weir_ledger::read::console;
use weir_policy::subject::Subject;

use super::super::state::Api;
use super::page::{self, ConsoleError, Entry};

/// The number of jobs on a page, as in `console_jobs.sql`.
const SHOWN: i64 = 50;

/// River's states, with the words of this console.
const STATES: [(&str, &str); 8] = [
    ("available", "waits for a worker"),
    ("pending", "waits for a slot, its time or an answer"),
    ("running", "running"),
    ("retryable", "waits for its next attempt"),
    ("scheduled", "waits for its time"),
    ("completed", "completed"),
    ("discarded", "failed"),
    ("cancelled", "cancelled"),
];

/// Ages in seconds, and their words.
const AGES: [(i32, &str); 4] = [
    (0, "at any time"),
    (3600, "over an hour ago"),
    (86_400, "over a day ago"),
    (604_800, "over a week ago"),
];

#[derive(Default, Deserialize)]
pub(super) struct Wanted {
    /// A service's name; empty: all.
    #[serde(default)]
    service: String,
    /// River's kind; empty: all.
    #[serde(default)]
    kind: String,
    /// A user's subject; empty: all.
    #[serde(default)]
    user: String,
    /// Submitted at least so many seconds ago.
    #[serde(default)]
    age: i32,
    /// One of River's states; empty: all.
    #[serde(default)]
    state: String,
    /// A part of the error.
    #[serde(default)]
    error: String,
    /// Only jobs with a smaller id.
    before: Option<i64>,
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Html<String>, ConsoleError> {
    let wanted = wanted.map(|Query(wanted)| wanted).unwrap_or_default();
    let service = api.settings.service(&wanted.service);
    let kinds = match service {
        Some(service) => Some(vec![service.kind.clone()]),
        None => Some(vec![wanted.kind.clone()]).filter(|_| !wanted.kind.is_empty()),
    };
    // A text that is not a subject matches no job.
    let user = wanted.user.parse::<Subject>();
    let holder =
        (!wanted.user.is_empty()).then(|| user.map_or(Uuid::nil(), |user| api.holders.subject(&user).id));
    let error = Some(wanted.error.as_str()).filter(|error| !error.is_empty());
    let states: Vec<&str> = STATES
        .iter()
        .map(|(state, _)| *state)
        .filter(|state| wanted.state.is_empty() || wanted.state == *state)
        .collect();
    let before = wanted.before.unwrap_or(i64::MAX);
    let (kinds, age) = (kinds.as_deref(), wanted.age);
    let jobs = console::listed_jobs(&api.pool, before, &states, kinds, error, holder, age).await?;
    let word = |state: &str| {
        STATES
            .iter()
            .find(|(of, _)| *of == state)
            .map_or("", |(_, word)| word)
    };
    let cells = html! {
        @for job in &jobs {
            tr {
                th scope="row" { (page::job_link(job.id)) }
                td { (api.settings.service_of_kind(&job.kind).map_or(job.kind.as_str(), |service| service.name.as_str())) }
                td { (word(&job.state)) }
                td { @if let Some(holder) = job.holder {
                    a href={ "/console/holders/" (holder) } { (job.subject.clone().unwrap_or_else(|| holder.to_string())) }
                } @else { "–" } }
                td { (job.attempt) " of " (job.max_attempts) }
                td { (page::time(job.created_at)) }
                td.text { (job.error.as_deref().unwrap_or_default()) }
            }
        }
    };
    let columns = [
        "job",
        "service",
        "state",
        "holder",
        "attempt",
        "submitted",
        "error",
    ];
    let body = html! {
        (form(&api, &wanted))
        @if jobs.is_empty() { p { "No job matches." } }
        @else { (page::table("Newest first", &columns, &cells)) }
        @if let Some(last) = jobs.last().filter(|_| i64::try_from(jobs.len()).is_ok_and(|shown| shown == SHOWN)) {
            form action="/console/jobs" method="get" {
                input type="hidden" name="service" value=(wanted.service);
                input type="hidden" name="kind" value=(wanted.kind);
                input type="hidden" name="user" value=(wanted.user);
                input type="hidden" name="age" value=(wanted.age);
                input type="hidden" name="state" value=(wanted.state);
                input type="hidden" name="error" value=(wanted.error);
                button name="before" value=(last.id) { "Older jobs" }
            }
        }
    };
    Ok(page::main_page(Entry::Jobs, None, &body))
}

fn form(api: &Api, wanted: &Wanted) -> Markup {
    html! {
        form.filter action="/console/jobs" method="get" {
            label { "Service " select name="service" {
                option value="" { "all" }
                @for service in &api.settings.services {
                    option value=(service.name) selected[service.name == wanted.service] { (service.name) }
                }
            } }
            label { "State " select name="state" {
                option value="" { "all" }
                @for (state, word) in STATES { option value=(state) selected[state == wanted.state] { (word) } }
            } }
            label { "Kind " input name="kind" value=(wanted.kind) maxlength="200"; }
            label { "User " input name="user" value=(wanted.user) maxlength="255"; }
            label { "Submitted " select name="age" {
                @for (age, word) in AGES { option value=(age) selected[age == wanted.age] { (word) } }
            } }
            label { "Error contains " input name="error" value=(wanted.error) maxlength="200"; }
            button { "Show" }
        }
    }
}

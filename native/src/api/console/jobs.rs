//! Lists of jobs.

use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::extract::State;
use axum::response::Html;
use maud::{Markup, html};
use uuid::Uuid;
use weir_ledger::control::{self, JobFilter};
use weir_ledger::read::console;
use weir_policy::subject::Subject;

use super::super::state::Api;
use super::change::Fields;
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

/// The fields of the filter. Each is empty if it selects all jobs.
#[derive(Default)]
pub(super) struct Wanted {
    /// A service's name.
    service: String,
    /// River's kind.
    kind: String,
    /// A user's subject.
    user: String,
    /// Ended, or submitted, at least so many seconds ago.
    age: String,
    /// One of River's states.
    state: String,
    /// A part of the error.
    error: String,
    /// The whole reason of a failure.
    reason: String,
}

impl Wanted {
    pub(super) fn parse(fields: &[(String, String)]) -> Self {
        let mut wanted = Self::default();
        for (name, value) in fields {
            let field = match name.as_str() {
                "service" => &mut wanted.service,
                "kind" => &mut wanted.kind,
                "user" => &mut wanted.user,
                "age" => &mut wanted.age,
                "state" => &mut wanted.state,
                "error" => &mut wanted.error,
                "reason" => &mut wanted.reason,
                _ => continue,
            };
            field.clone_from(value);
        }
        wanted
    }

    const fn fields(&self) -> [(&'static str, &String); 7] {
        [
            ("service", &self.service),
            ("kind", &self.kind),
            ("user", &self.user),
            ("age", &self.age),
            ("state", &self.state),
            ("error", &self.error),
            ("reason", &self.reason),
        ]
    }

    /// The fields for another form.
    pub(super) fn hidden(&self) -> Markup {
        html! {
            @for (name, value) in self.fields() {
                @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
            }
        }
    }

    /// Whether jobs in this state match.
    pub(super) fn has_state(&self, state: &str) -> bool {
        self.state.is_empty() || self.state == state
    }

    /// The jobs in any state. An unknown service or age matches no job.
    pub(super) fn filter(&self, api: &Api) -> JobFilter {
        let text = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let service = api.settings.service(&self.service);
        let kinds = match service {
            Some(service) => Some(vec![service.kind.clone()]),
            None if !self.service.is_empty() => Some(Vec::new()),
            None => text(&self.kind).map(|kind| vec![kind]),
        };
        let age = match self.age.as_str() {
            "" => Some(0),
            age => age.parse().ok(),
        };
        // A text that is not a subject matches no job.
        let holder = |user: String| {
            user.parse::<Subject>()
                .map_or(Uuid::nil(), |user| api.holders.subject(&user).id)
        };
        JobFilter {
            kinds: age.map_or(Some(Vec::new()), |_| kinds),
            holder: text(&self.user).map(holder),
            error: text(&self.error),
            reason: text(&self.reason),
            older_than: age.filter(|age| *age > 0).map(Duration::from_secs),
        }
    }
}

pub(super) async fn show(State(api): State<Arc<Api>>, fields: Fields) -> Result<Html<String>, ConsoleError> {
    let fields = fields.map(|Form(fields)| fields).unwrap_or_default();
    let mut wanted = Wanted::parse(&fields);
    // Only the page of the failures has it.
    wanted.reason.clear();
    let filter = wanted.filter(&api);
    let states = STATES.map(|(state, _)| state);
    let states: Vec<&str> = states
        .into_iter()
        .filter(|state| wanted.has_state(state))
        .collect();
    let before = fields.iter().find(|(name, _)| name == "before");
    let before = before.and_then(|(_, id)| id.parse().ok()).unwrap_or(i64::MAX);
    let age = filter.older_than.map_or(0, |age| age.as_secs());
    let age = i32::try_from(age).unwrap_or(i32::MAX);
    let jobs = console::listed_jobs(
        &api.pool,
        before,
        &states,
        filter.kinds.as_deref(),
        filter.error.as_deref(),
        filter.holder,
        age,
    )
    .await?;
    let word = |state: &str| {
        STATES
            .iter()
            .find(|(of, _)| *of == state)
            .map_or("", |(_, word)| word)
    };
    let cells = html! {
        @for job in &jobs {
            tr {
                td { input type="checkbox" name="job" value=(job.id) aria-label={ "Select job " (job.id) }; }
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
        "",
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
        @else {
            form.selected action="/console/jobs/change" method="post" {
                (page::table("Newest first", &columns, &cells))
                button name="action" value="retry" { "Run selected again" }
                button name="action" value="cancel" { "Cancel selected" }
            }
        }
        @if !filter.is_empty() {
            form.selected action="/console/jobs/change" method="get" {
                (wanted.hidden())
                @if states.contains(&"discarded") {
                    button name="action" value="retry" { "Run all that failed and match again…" }
                }
                @if control::UNFINISHED.iter().any(|state| states.contains(state)) {
                    button name="action" value="cancel" { "Cancel all unfinished that match…" }
                }
            }
        }
        @if let Some(last) = jobs.last().filter(|_| i64::try_from(jobs.len()).is_ok_and(|shown| shown == SHOWN)) {
            form action="/console/jobs" method="get" {
                (wanted.hidden())
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
            label { "Ended or submitted " select name="age" {
                @for (age, word) in AGES { option value=(age) selected[age.to_string() == wanted.age] { (word) } }
            } }
            label { "Error contains " input name="error" value=(wanted.error) maxlength="200"; }
            button { "Show" }
        }
    }
}

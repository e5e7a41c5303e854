//! The parts that all pages of the console share: head, navigation, headers and error pages.

use axum::http::{HeaderName, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use weir_ledger::control::ControlError;
use weir_ledger::database::{DatabaseError, FromDatabase};

use super::super::problem::ApiError;
use crate::river_control::JobChangeError;

pub(super) const STYLE: &str = include_str!("style.css");

/// Weir's logo. It is inline because the policy allows no images.
const MARK: &str = r##"<svg viewBox="0 0 40 40" width="24" height="24" aria-hidden="true"><rect width="40" height="40" rx="9" fill="#0b6e99"/><path d="M6 14c4-4 7-4 10 0s6 4 9 0 6-4 9 0" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round"/><path d="M8 23h24" stroke="#bfe6f5" stroke-width="4" stroke-linecap="round"/><path d="M12 27v6M20 27v6M28 27v6" stroke="#fff" stroke-width="3" stroke-linecap="round"/></svg>"##;

/// A page in the navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Overview,
    Jobs,
    Holders,
    Failures,
}

impl Entry {
    const ALL: [Self; 4] = [Self::Overview, Self::Jobs, Self::Holders, Self::Failures];

    const fn href(self) -> &'static str {
        match self {
            Self::Overview => "/console",
            Self::Jobs => "/console/jobs",
            Self::Holders => "/console/holders",
            Self::Failures => "/console/failures",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Jobs => "Jobs",
            Self::Holders => "Holders",
            Self::Failures => "Failures",
        }
    }
}

/// The page loads only its stylesheet, runs no script, cannot be framed and is not cached.
pub(super) const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // Forms keep their `Origin`, and other sites get no ids.
    (header::REFERRER_POLICY, "same-origin"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// The refresh interval in seconds, if the page refreshes itself.
pub(super) type Refresh = Option<u32>;

/// A page of the navigation.
pub(super) fn main_page(entry: Entry, refresh: Refresh, body: &Markup) -> Html<String> {
    whole(entry.title(), Some((entry, "page")), refresh, body)
}

/// A page below one of the navigation.
pub(super) fn page_below(parent: Entry, title: &str, body: &Markup) -> Html<String> {
    whole(title, Some((parent, "true")), None, body)
}

/// A page outside the navigation.
pub(super) fn page(title: &str, body: &Markup) -> Html<String> {
    whole(title, None, None, body)
}

/// A whole page. `current` is the marked entry of the navigation, and its `aria-current`.
fn whole(title: &str, current: Option<(Entry, &str)>, refresh: Refresh, body: &Markup) -> Html<String> {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if let Some(seconds) = refresh {
                    meta http-equiv="refresh" content=(seconds);
                }
                title { (title) " · Weir console" }
                link rel="stylesheet" href="/console/style.css";
            }
            body {
                header {
                    span.brand { (PreEscaped(MARK)) "Weir" }
                    nav aria-label="Console" {
                        @for entry in Entry::ALL {
                            @let mark = current.filter(|(marked, _)| *marked == entry).map(|(_, mark)| mark);
                            a href=(entry.href()) aria-current=[mark] { (entry.title()) }
                        }
                    }
                    form action="/console/find" method="get" role="search" {
                        input type="search" name="q" required maxlength="200" aria-label="A job's id, a request's id, a user's or a holder's id" placeholder="job, request, user or holder";
                        button { "Find" }
                    }
                }
                main {
                    h1 { (title) }
                    (body)
                }
            }
        }
    };
    Html(markup.into_string())
}

/// A table that scrolls if it is wider than the screen.
pub(super) fn table(caption: &str, columns: &[&str], rows: &Markup) -> Markup {
    html! {
        div.wide role="region" aria-label=(caption) tabindex="0" {
            table {
                caption { (caption) }
                thead { tr { @for column in columns { th scope="col" { (column) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Names with their values.
pub(super) fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! { dl { @for (name, value) in facts { dt { (name) } dd { (value) } } } }
}

pub(super) fn time(at: Timestamp) -> Markup {
    html! { time datetime=(at.strftime("%Y-%m-%dT%H:%M:%SZ")) { (at.strftime("%Y-%m-%d %H:%M:%S")) " UTC" } }
}

pub(super) fn job_link(id: i64) -> Markup {
    html! { a href={ "/console/jobs/" (id) } { (id) } }
}

/// The noun for a number of jobs.
pub(super) const fn jobs(count: usize) -> &'static str {
    if count == 1 { "job" } else { "jobs" }
}

/// The form that runs a job again.
pub(super) fn retry(id: i64) -> Markup {
    html! {
        form action="/console/jobs/change" method="post" {
            input type="hidden" name="job" value=(id);
            button name="action" value="retry" { "Run again" }
        }
    }
}

/// The form that cancels a job.
pub(super) fn cancel(id: i64) -> Markup {
    html! {
        form action={ "/console/jobs/" (id) "/cancel" } method="post" {
            button aria-label={ "Cancel job " (id) } { "Cancel" }
        }
    }
}

/// The beginning of a text that may be long.
pub(super) fn beginning(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}… ({} bytes in all)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

/// Why a page cannot be shown.
#[derive(Debug)]
pub(super) enum ConsoleError {
    /// The page or object does not exist.
    Missing(String),
    /// Another website sent the change.
    Foreign,
    /// The change cannot be made.
    Refused(String),
    /// The database is not available.
    Unavailable(DatabaseError),
    /// Something else went wrong.
    Broken(String),
}

impl From<DatabaseError> for ConsoleError {
    fn from(error: DatabaseError) -> Self {
        Self::Unavailable(error)
    }
}

impl FromDatabase for ConsoleError {
    fn database(&self) -> Option<&DatabaseError> {
        match self {
            Self::Unavailable(error) => Some(error),
            Self::Missing(_) | Self::Foreign | Self::Refused(_) | Self::Broken(_) => None,
        }
    }
}

impl From<ControlError> for ConsoleError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Database(error) => error.into(),
            other if other.is_not_found() => Self::Missing(other.to_string()),
            other => Self::Refused(other.to_string()),
        }
    }
}

impl From<tokio_postgres::Error> for ConsoleError {
    fn from(error: tokio_postgres::Error) -> Self {
        DatabaseError::from(error).into()
    }
}

impl From<ApiError> for ConsoleError {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::NoJob => Self::Missing("Job not found.".to_owned()),
            ApiError::Database(error) => error.into(),
            other => Self::Broken(other.to_string()),
        }
    }
}

impl From<JobChangeError> for ConsoleError {
    fn from(error: JobChangeError) -> Self {
        match error {
            JobChangeError::Control(error) => error.into(),
            JobChangeError::River(error) => Self::Broken(error.to_string()),
        }
    }
}

impl ConsoleError {
    /// The reason in words.
    pub(super) fn detail(&self) -> String {
        match self {
            Self::Missing(text) | Self::Refused(text) | Self::Broken(text) => text.clone(),
            Self::Foreign => {
                "This request came from another website. Open the console and try again there.".to_owned()
            }
            Self::Unavailable(error) => error.to_string(),
        }
    }
}

impl IntoResponse for ConsoleError {
    fn into_response(self) -> Response {
        let (status, title) = match &self {
            Self::Missing(_) => (StatusCode::NOT_FOUND, "Not found"),
            Self::Foreign => (StatusCode::FORBIDDEN, "Refused"),
            Self::Refused(_) => (StatusCode::UNPROCESSABLE_ENTITY, "Nothing changed"),
            Self::Unavailable(_) | Self::Broken(_) => (StatusCode::SERVICE_UNAVAILABLE, "Not available"),
        };
        (status, HEADERS, page(title, &html! { p { (self.detail()) } })).into_response()
    }
}

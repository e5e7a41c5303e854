//! Runs jobs again, or cancels them: the selected ones, or all that match a filter, after a preview of their number.
//!
//! The page runs no script. The answer to the form is sent in pieces while the jobs change, each with a progress bar that
//! hides the one before.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Form;
use axum::body::Body;
use axum::extract::rejection::FormRejection;
use axum::extract::{Extension, State};
use axum::http::header;
use axum::response::{Html, IntoResponse, Response};
use futures_util::stream;
use maud::{Markup, html};
use tokio::sync::mpsc;
use weir_ledger::control::{self, JobFilter};

use super::super::state::Api;
use super::guard::Operator;
use super::jobs::Wanted;
use super::page::{self, ConsoleError, Entry};
use crate::river_control::JobChange;

/// A new progress bar is sent after this many jobs.
const STEP: usize = 25;

/// The maximum time to find the jobs, and to change a slice of them.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Where the page puts what is sent last.
const MARK: &str = "<!-- jobs -->";

/// The fields of a form, which may be repeated.
pub(super) type Fields = Result<Form<Vec<(String, String)>>, FormRejection>;

/// What a form asks for.
fn action(fields: &[(String, String)]) -> Result<JobChange, ConsoleError> {
    let field = fields.iter().find(|(name, _)| name == "action");
    match field.map(|(_, value)| value.as_str()) {
        Some("retry") => Ok(JobChange::Retry),
        Some("cancel") => Ok(JobChange::Cancel),
        _ => Err(ConsoleError::Refused("The form lacks what to do.".to_owned())),
    }
}

const fn title(action: JobChange) -> &'static str {
    match action {
        JobChange::Retry => "Run again",
        JobChange::Cancel => "Cancel",
    }
}

/// Shows how many jobs match.
pub(super) async fn preview(
    State(api): State<Arc<Api>>,
    fields: Fields,
) -> Result<Html<String>, ConsoleError> {
    let fields = parsed(fields)?;
    let action = action(&fields)?;
    let wanted = Wanted::parse(&fields);
    let found = matching(&api, &filter(&api, &wanted)?, &wanted, action).await?;
    let jobs = found.len();
    let (name, what, done) = match action {
        JobChange::Retry => (
            "retry",
            "failed",
            "run again. Each reserves quota as a new submission does.",
        ),
        JobChange::Cancel => (
            "cancel",
            "unfinished",
            "cancelled. Running ones stop a moment later.",
        ),
    };
    let body = html! {
        @if jobs == 0 { p { "No " (what) " job matches." } }
        @else {
            p { strong { (jobs) " " (what) " " (page::jobs(jobs)) } " will be " (done) }
            form action="/console/jobs/change" method="post" {
                (wanted.hidden())
                // Later jobs are not part of the number.
                input type="hidden" name="through" value=[found.last()];
                button name="action" value=(name) { (title(action)) " " (jobs) " " (page::jobs(jobs)) }
            }
        }
        p { a href="/console/jobs" { "Jobs" } " · " a href="/console/failures" { "Failures" } }
    };
    Ok(page::page_below(Entry::Jobs, title(action), &body))
}

/// Changes the selected jobs, or all that match.
pub(super) async fn run(
    State(api): State<Arc<Api>>,
    Extension(Operator(actor)): Extension<Operator>,
    fields: Fields,
) -> Result<Response, ConsoleError> {
    let fields = parsed(fields)?;
    let action = action(&fields)?;
    let ids = |wanted: &str| -> Result<Vec<i64>, ConsoleError> {
        let ids = fields.iter().filter(|(name, _)| name == wanted);
        ids.map(|(_, id)| id.parse())
            .collect::<Result<_, _>>()
            .map_err(|_| ConsoleError::Refused("A job's id is a number.".to_owned()))
    };
    let mut jobs = ids("job")?;
    let mut by_filter = None;
    if jobs.is_empty() {
        let wanted = Wanted::parse(&fields);
        let filter = filter(&api, &wanted)?;
        jobs = matching(&api, &filter, &wanted, action).await?;
        let through = ids("through")?;
        jobs.retain(|job| through.iter().all(|last| job <= last));
        by_filter = Some(filter);
    }
    let Html(whole) = page::page_below(Entry::Jobs, title(action), &html! { (maud::PreEscaped(MARK)) });
    let (before, after) = whole.split_once(MARK).unwrap_or((&whole, ""));
    let (pieces, mut sent) = mpsc::unbounded_channel();
    // Sending fails once the browser is gone. The next slice then does not start.
    let _ = pieces.send(before.to_owned());
    let after = after.to_owned();
    // A task, because a slice must not stop in the middle when the browser does.
    tokio::spawn(async move {
        let done = change(&api, &actor, &jobs, by_filter.as_ref(), action, &pieces).await;
        let _ = pieces.send(done.into_string() + &after);
    });
    let body = Body::from_stream(stream::poll_fn(move |context| {
        sent.poll_recv(context)
            .map(|piece| piece.map(Ok::<_, Infallible>))
    }));
    Ok(([(header::CONTENT_TYPE, "text/html; charset=utf-8")], body).into_response())
}

fn parsed(fields: Fields) -> Result<Vec<(String, String)>, ConsoleError> {
    let Form(fields) = fields.map_err(|rejection| ConsoleError::Refused(rejection.to_string()))?;
    Ok(fields)
}

/// The filter of a form, which must not select all jobs. It selects other programs' jobs only by their kind.
fn filter(api: &Api, wanted: &Wanted) -> Result<JobFilter, ConsoleError> {
    let mut filter = wanted.filter(api);
    if filter.is_empty() {
        let why = "Select jobs, or set a service, kind, user, age or error first.";
        return Err(ConsoleError::Refused(why.to_owned()));
    }
    let services = api.settings.services.iter();
    filter
        .kinds
        .get_or_insert_with(|| services.map(|service| service.kind.clone()).collect());
    Ok(filter)
}

async fn matching(
    api: &Api,
    filter: &JobFilter,
    wanted: &Wanted,
    action: JobChange,
) -> Result<Vec<i64>, ConsoleError> {
    let states = action.states().iter().copied();
    let states: Vec<&str> = states.filter(|state| wanted.has_state(state)).collect();
    let found = api.pool.within(TIMEOUT, async |client| {
        Ok(control::all_matching_jobs(client, filter, &states).await?)
    });
    found.await
}

/// Changes jobs while the page is read, and returns the end of the page.
async fn change(
    api: &Api,
    actor: &str,
    jobs: &[i64],
    filter: Option<&JobFilter>,
    action: JobChange,
    pieces: &mpsc::UnboundedSender<String>,
) -> Markup {
    let (mut outcomes, mut done) = (BTreeMap::<_, usize>::new(), 0);
    let mut failure = None;
    for slice in jobs.chunks(usize::try_from(control::SLICE).unwrap_or(usize::MAX)) {
        if pieces.is_closed() {
            break;
        }
        let mut show = |outcome| {
            done += 1;
            *outcomes.entry(outcome).or_default() += 1;
            if done % STEP == 0 {
                let bar = html! {
                    p.step { progress max=(jobs.len()) value=(done) {} " " (done) " of " (jobs.len()) " " (page::jobs(jobs.len())) }
                };
                let _ = pieces.send(bar.into_string());
            }
        };
        let changed = api.pool.within(TIMEOUT, async |client| {
            action
                .apply(&api.river, client, actor, slice, filter, &mut show)
                .await?;
            Ok::<_, ConsoleError>(())
        });
        failure = changed.await.err();
        if failure.is_some() {
            break;
        }
        api.feed.hurry();
    }
    let rows = html! {
        @for (outcome, count) in &outcomes { tr { th scope="row" { (words(outcome)) } td { (count) } } }
    };
    html! {
        p.step {}
        @if let Some(failure) = failure {
            p { "Not all jobs were changed: " (failure.detail()) " Go back, and try again." }
        }
        @if jobs.is_empty() { p { "No job matches any more." } }
        @if !outcomes.is_empty() { (page::table("Jobs by what happened", &["", "jobs"], &rows)) }
        p { a href="/console/jobs" { "Jobs" } " · " a href="/console/failures" { "Failures" } }
    }
}

fn words(outcome: &str) -> &'static str {
    match outcome {
        "retried" => "run again",
        "cancelled" => "cancelled",
        "ended" => "had ended before",
        "not_failed" => "unfinished, or charged already",
        "not_found" => "not submitted through Weir, or deleted",
        "folded" => "an equal job is unfinished",
        "too_many_waiting" => "too many jobs of their users wait",
        _ => "over their users' quota",
    }
}

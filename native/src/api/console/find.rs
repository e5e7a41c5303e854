//! Finds the page for an id: of a request, a job or a holder.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use serde::Deserialize;
use tokio_postgres::Client;
use uuid::Uuid;

use super::super::state::Api;
use super::page::{self, ConsoleError};
use weir_ledger::database::DatabaseError;
use weir_ledger::holder::Holders;
use weir_ledger::read::{console, holders, jobs};
use weir_policy::subject::{self, Subject};

/// The longest search text.
const MAX_INPUT: usize = subject::MAX_BYTES;

/// The maximum number of jobs to show for one request. A request submits one job, but its id may be sent again.
const MAX_FOUND: i64 = 20;

#[derive(Deserialize)]
pub(super) struct Wanted {
    q: String,
}

/// The object that an id names.
enum Found {
    Jobs(Vec<i64>),
    Holder(Uuid),
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Response, ConsoleError> {
    let text = wanted.map(|Query(wanted)| wanted.q).unwrap_or_default();
    let text = text.trim();
    let nothing = || {
        ConsoleError::Missing(format!(
            "No job, request, user or holder has the id “{}”.",
            page::beginning(text, MAX_INPUT)
        ))
    };
    // PostgreSQL does not allow a zero character in text.
    if text.is_empty() || text.len() > MAX_INPUT || text.contains('\0') {
        return Err(nothing());
    }
    let found = api
        .pool
        .with(async |client| {
            if let Some(found) = job_or_holder(client, api.holders, text).await? {
                return Ok(found);
            }
            let jobs = console::jobs_of_request(client, text, MAX_FOUND).await?;
            Ok::<_, DatabaseError>(Found::Jobs(jobs))
        })
        .await?;
    match found {
        Found::Holder(id) => Ok(Redirect::to(&format!("/console/holders/{id}")).into_response()),
        Found::Jobs(jobs) => match jobs.as_slice() {
            [] => Err(nothing()),
            [id] => Ok(Redirect::to(&format!("/console/jobs/{id}")).into_response()),
            jobs => {
                let body = html! { ul { @for id in jobs { li { "job " (page::job_link(*id)) } } } };
                Ok(page::page(&format!("Jobs of request {text}"), &body).into_response())
            }
        },
    }
}

/// A job by its number, or a holder by its UUID or subject.
async fn job_or_holder(
    client: &Client,
    holders: Holders,
    text: &str,
) -> Result<Option<Found>, DatabaseError> {
    if let Ok(id) = text.parse::<i64>() {
        // A subject may also be a number.
        if jobs::exists(client, id).await? {
            return Ok(Some(Found::Jobs(vec![id])));
        }
    }
    let Ok(subject) = text.parse::<Subject>() else {
        return Ok(None);
    };
    let id = holders.subject(&subject).id;
    let known = holders::known(client, id).await?;
    Ok((known.is_user || known.is_holder).then_some(Found::Holder(id)))
}

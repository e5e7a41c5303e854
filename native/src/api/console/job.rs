//! One job as an operator needs it, and its cancellation.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{Html, Redirect};
use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;
use tokio_postgres::Row;
use uuid::Uuid;

use super::super::jobs;
use super::super::state::Api;
use super::page::{self, ConsoleError};
use weir_ledger::raw_json::RawJson;

/// Characters of arguments, metadata and each error.
const MAX_TEXT: usize = 4000;

fn missing() -> ConsoleError {
    ConsoleError::Missing("There is no such job. River removes finished ones after a time.".to_owned())
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    id: Result<Path<i64>, PathRejection>,
) -> Result<Html<String>, ConsoleError> {
    let Ok(Path(id)) = id else {
        return Err(missing());
    };
    let row = api
        .pool
        .query(include_str!("sql/job.sql"), &[&id])
        .await?
        .into_iter()
        .next()
        .ok_or_else(missing)?;
    let (metadata, args): (RawJson, RawJson) = (row.get("metadata"), row.get("args"));
    let is_unfinished = row.get::<_, Option<Timestamp>>("finalized_at").is_none();
    let body = html! {
        (facts(&row))
        @if is_unfinished { (page::cancel(id)) }
        (errors(&row))
        h2 { "Metadata" }
        p.soft { "Without the output." }
        (json(&metadata))
        h2 { "Arguments" }
        (json(&args))
    };
    Ok(page::page(&format!("Job {id}"), None, &body))
}

fn facts(row: &Row) -> Markup {
    let optional = |column: &str| match row.get::<_, Option<Timestamp>>(column) {
        Some(at) => page::time(at),
        None => html! { "–" },
    };
    page::facts(&[
        ("holder", holder(row)),
        ("state", html! { (row.get::<_, &str>("state")) }),
        ("kind", html! { (row.get::<_, &str>("kind")) }),
        (
            "queue",
            html! { (row.get::<_, &str>("queue")) ", priority " (row.get::<_, i16>("priority")) },
        ),
        (
            "attempt",
            html! {
                (row.get::<_, i16>("attempt")) " of " (row.get::<_, i16>("max_attempts"))
                @if let Some(client) = row.get::<_, Option<&str>>("attempted_by") { ", by " (client) }
            },
        ),
        ("submitted", optional("created_at")),
        ("scheduled", optional("scheduled_at")),
        ("last attempt", optional("attempted_at")),
        ("ended", optional("finalized_at")),
        ("reservation", reservation(row)),
        (
            "charge",
            match row.get::<_, Option<i64>>("charged") {
                Some(amount) => html! { (amount) },
                None => html! { "none" },
            },
        ),
    ])
}

fn holder(row: &Row) -> Markup {
    match row.get::<_, Option<Uuid>>("holder") {
        Some(holder) => html! {
            a href={ "/console/holders/" (holder) } {
                @if let Some(subject) = row.get::<_, Option<&str>>("subject") { (subject) } @else { (holder) }
            }
            @if row.get::<_, Option<Uuid>>("user_id").is_none() { ", an anonymous address" }
        },
        None => html! { "nobody: it was not submitted through Weir" },
    }
}

fn reservation(row: &Row) -> Markup {
    if !row.get::<_, bool>("has_reservation") {
        return html! { "none" };
    }
    let (admitted, parked): (Option<Timestamp>, Option<Timestamp>) =
        (row.get("admitted_at"), row.get("parked_at"));
    html! {
        (row.get::<_, i64>("reserved_amount")) ", "
        @if let Some(at) = admitted { "with a slot since " (page::time(at)) }
        @else if let Some(at) = parked { "parked since " (page::time(at)) }
        @else { "between two attempts" }
        ", expires " (page::time(row.get("expires_at")))
    }
}

fn errors(row: &Row) -> Markup {
    let errors: Option<RawJson> = row.get("errors");
    let errors: Option<Vec<Value>> = errors.and_then(|errors| errors.read());
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

/// Cancels as the owner's `DELETE /api/jobs/{id}` does.
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    id: Result<Path<i64>, PathRejection>,
) -> Result<Redirect, ConsoleError> {
    let Ok(Path(id)) = id else {
        return Err(missing());
    };
    let rows = api
        .pool
        .query("SELECT holder FROM submissions WHERE job_id = $1", &[&id])
        .await?;
    let holder = rows.first().map(|row| row.get("holder"));
    jobs::end(&api, id, holder).await?;
    tracing::info!(
        job = id,
        holder = holder.map(tracing::field::display::<Uuid>),
        "cancelled in the console"
    );
    Ok(Redirect::to(&format!("/console/jobs/{id}")))
}

//! The holders with the most waiting or running jobs.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Html;
use maud::html;
use serde::Deserialize;
use weir_ledger::read::holders;

use super::super::state::Api;
use super::page::{self, ConsoleError, Entry};
use crate::status::{duration, number};

/// The maximum number of holders to show.
const MAX_SHOWN: i64 = 50;

#[derive(Default, Deserialize)]
pub(super) struct Wanted {
    /// `running` sorts by running jobs; any other value sorts by waiting jobs.
    by: Option<String>,
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Html<String>, ConsoleError> {
    let wanted = wanted.map(|Query(wanted)| wanted).unwrap_or_default();
    let by_running = wanted.by.as_deref() == Some("running");
    let busiest = holders::busiest(&api.pool, by_running, MAX_SHOWN).await?;
    let cells = html! {
        @for of in &busiest {
            tr {
                th scope="row" { a href={ "/console/holders/" (of.holder) } {
                    @if let Some(subject) = &of.subject { (subject) } @else { code { (of.holder) } }
                } }
                td { (of.plan) }
                td { (number(of.running)) }
                td { (number(of.waiting)) }
                td { (number(of.parked)) }
                td { @if of.parked > 0 { (duration(of.oldest_turn_ms)) } @else { "–" } }
            }
        }
    };
    let (caption, other) = if by_running {
        (
            "Most running first",
            html! { a href="/console/holders" { "Most waiting first" } },
        )
    } else {
        (
            "Most waiting first",
            html! { a href="/console/holders?by=running" { "Most running first" } },
        )
    };
    let columns = [
        "holder",
        "plan",
        "running",
        "waiting",
        "waiting for a slot",
        "the oldest for",
    ];
    let body = html! {
        p.soft {
            "Holders with unfinished jobs, at most " (MAX_SHOWN) ": users, and anonymous client addresses by their id. " (other) "."
        }
        @if busiest.is_empty() { p { "No unfinished jobs." } } @else { (page::table(caption, &columns, &cells)) }
    };
    Ok(page::main_page(Entry::Holders, None, &body))
}

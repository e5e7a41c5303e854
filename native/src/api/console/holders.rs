//! The holders with the most waiting or running jobs, or with the most usage.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Html;
use maud::{Markup, html};
use serde::Deserialize;
use uuid::Uuid;
use weir_ledger::read::holders;

use super::super::state::Api;
use super::page::{self, ConsoleError, Entry};
use crate::status::{duration, number};

/// The maximum number of holders to show.
const MAX_SHOWN: i64 = 50;

/// The orders: the value of `by`, and its words.
const ORDERS: [(&str, &str); 3] = [
    ("waiting", "Most waiting first"),
    ("running", "Most running first"),
    ("usage", "Most usage first"),
];

#[derive(Default, Deserialize)]
pub(super) struct Wanted {
    /// One of the orders; any other value sorts by waiting jobs.
    by: Option<String>,
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Html<String>, ConsoleError> {
    let wanted = wanted.ok().and_then(|Query(wanted)| wanted.by);
    let wanted = ORDERS.iter().find(|(by, _)| Some(*by) == wanted.as_deref());
    let (by, caption) = wanted.unwrap_or(&ORDERS[0]);
    let table = match *by {
        "usage" => heaviest(&api, caption).await?,
        _ => busiest(&api, *by == "running", caption).await?,
    };
    let body = html! {
        p.soft {
            "At most " (MAX_SHOWN) " holders: users, and anonymous client addresses by their id."
            @for (other, words) in ORDERS { @if other != *by { " " a href={ "/console/holders?by=" (other) } { (words) } "." } }
        }
        (table)
    };
    Ok(page::main_page(Entry::Holders, None, &body))
}

fn link(holder: Uuid, subject: Option<&String>) -> Markup {
    html! {
        a href={ "/console/holders/" (holder) } {
            @if let Some(subject) = subject { (subject) } @else { code { (holder) } }
        }
    }
}

/// The holders with unfinished jobs.
async fn busiest(api: &Api, by_running: bool, caption: &str) -> Result<Markup, ConsoleError> {
    let busiest = holders::busiest(&api.pool, by_running, MAX_SHOWN).await?;
    let cells = html! {
        @for of in &busiest {
            tr {
                th scope="row" { (link(of.holder, of.subject.as_ref())) }
                td { (of.plan) }
                td { (number(of.running)) }
                td { (number(of.waiting)) }
                td { (number(of.parked)) }
                td { @if of.parked > 0 { (duration(of.oldest_turn_ms)) } @else { "–" } }
            }
        }
    };
    let columns = [
        "holder",
        "plan",
        "running",
        "waiting",
        "waiting for a slot",
        "the oldest for",
    ];
    Ok(html! {
        @if busiest.is_empty() { p { "No unfinished jobs." } } @else { (page::table(caption, &columns, &cells)) }
    })
}

/// The users with usage in their current month.
async fn heaviest(api: &Api, caption: &str) -> Result<Markup, ConsoleError> {
    let heaviest = holders::heaviest(&api.pool, MAX_SHOWN).await?;
    let cells = html! {
        @for of in &heaviest {
            tr {
                th scope="row" { (link(of.holder, of.subject.as_ref())) }
                td { (of.plan) }
                td { (of.meter) }
                // Exact at any length, because users pay for these amounts.
                td { (of.used) }
                td { (of.reserved) }
            }
        }
    };
    let columns = ["holder", "plan", "meter", "used this month", "reserved"];
    Ok(html! {
        @if heaviest.is_empty() { p { "No usage this month." } } @else { (page::table(caption, &columns, &cells)) }
    })
}

//! The overview: waiting and running jobs, and what holds each lane back.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Html;
use maud::{Markup, html};
use serde::Deserialize;
use weir_policy::lane::Lane;

use super::super::state::Api;
use super::charts::charts;
use super::page::{self, ConsoleError, Entry};
use crate::status::{self, HeldBack, LaneState, Overview, duration, number, per_second};

/// The refresh interval in seconds.
const REFRESH: u32 = 5;

#[derive(Default, Deserialize)]
pub(super) struct Wanted {
    /// `off` stops the automatic refresh.
    refresh: Option<String>,
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Html<String>, ConsoleError> {
    let wanted = wanted.map(|Query(wanted)| wanted).unwrap_or_default();
    let refreshes = wanted.refresh.as_deref() != Some("off");
    let status = api
        .pool
        .with(async |client| status::overview(client, &api.settings).await)
        .await?;
    let body = html! {
        p.soft {
            "As of " (page::time(status.lanes.at)) ". "
            @if refreshes {
                "Refreshes every " (REFRESH) " s; " a href="/console?refresh=off" { "stop" } "."
            } @else {
                a href="/console" { "Refresh every " (REFRESH) " s" } "."
            }
        }
        (charts(&api.history.samples()))
        (whole(&status, api.settings.leads_river))
        (services(&status))
    };
    Ok(page::main_page(
        Entry::Overview,
        refreshes.then_some(REFRESH),
        &body,
    ))
}

/// The services, with those that have no jobs in one line.
fn services(status: &Overview) -> Markup {
    let of = |name: &String| status.held_back.get(name.as_str());
    let (idle, busy): (Vec<_>, Vec<_>) = status
        .lanes
        .services
        .iter()
        .partition(|(name, lanes)| status::is_idle(lanes, of(name)));
    html! {
        @for (name, _) in busy { (service(status, name)) }
        @if !idle.is_empty() {
            p.soft {
                "idle: "
                @for (index, (name, lanes)) in idle.iter().enumerate() {
                    @if index > 0 { ", " }
                    (name) " (" (status::all_workers(lanes)) ")"
                }
            }
        }
    }
}

fn no_process() -> Markup {
    html! { strong { "none" } "; start " code { "weir schedule" } }
}

fn whole(status: &Overview, leads_river: bool) -> Markup {
    let minute = status.last_minute;
    let leader = match &status.leader {
        Some(leader) => html! {
            (leader.id) @if leader.foreign { ", not Weir's" } ", since " (page::time(leader.elected_at))
        },
        None if leads_river => no_process(),
        None => html! {
            strong { "none" } "; start a River client that may lead, or set " code { "RIVER_LEADER=true" } " for "
            code { "weir schedule" }
        },
    };
    let maintenance = match &status.maintenance {
        Some(maintenance) => html! { (maintenance.process) ", since " (page::time(maintenance.since)) },
        None => no_process(),
    };
    let waiting = match status.lanes.parked {
        0 => "no jobs waiting for a slot".to_owned(),
        parked => format!(
            "{} waiting for a slot, the oldest for {}",
            number(parked),
            duration(status.lanes.oldest_turn_ms)
        ),
    };
    page::facts(&[
        ("leader", leader),
        ("maintenance", maintenance),
        (
            "finished",
            html! { (number(minute.finished())) " in the last minute, " (per_second(minute.finished())) " a second" },
        ),
        (
            "failed",
            html! {
                a href="/console/failures" { (number(minute.failed)) " in the last minute" }
                ", " (number(status.retrying)) " waiting to retry"
            },
        ),
        (
            "slots",
            html! { (number(status.lanes.slots_in_use)) " in use, " a href="/console/holders" { (waiting) } },
        ),
        (
            "vacuum",
            html! { @for line in status.vacuum.lines() { (line) br; } },
        ),
    ])
}

fn service(status: &Overview, name: &str) -> Markup {
    let Some(state) = status.lanes.services.get(name) else {
        return html! {};
    };
    let held_back = status.held_back.get(name);
    let why = |lane: Lane| held_back.and_then(|lanes| lanes.get(lane.as_str()));
    let (idle, busy): (Vec<Lane>, Vec<Lane>) = Lane::ALL
        .into_iter()
        .partition(|lane| is_idle(state.lane(*lane), why(*lane).copied()));
    let rows = html! {
        @for lane in busy {
            @let of_lane = state.lane(lane);
            @let why = why(lane);
            tr {
                th scope="row" { (lane.as_str()) }
                // Next to the name, so that it is visible on a phone.
                @match why {
                    Some(why) if needs_action(*why) => td.held { (why.label()) },
                    Some(why) => td.why { (why.label()) },
                    None => td {},
                }
                td { (number(of_lane.queued)) }
                td {
                    (number(of_lane.busy()))
                    @if !state.external { " / " (number(of_lane.workers)) }
                    @if of_lane.lent > 0 { ", " (number(of_lane.lent)) " lent" }
                    @if of_lane.outstanding > 0 { ", " (number(of_lane.outstanding)) " answer later" }
                }
                td { @if of_lane.oldest_wait_ms > 0 { (duration(of_lane.oldest_wait_ms)) } @else { "–" } }
                td { (pause(&lane.queue(name), of_lane.paused)) }
            }
        }
        @if !idle.is_empty() {
            tr.soft {
                th scope="row" { "idle" }
                td.text colspan="5" {
                    @for (index, lane) in idle.iter().enumerate() {
                        @if index > 0 { ", " }
                        (lane.as_str())
                        @if !state.external {
                            " (" (status::workers_text(state.lane(*lane).workers)) ")"
                        }
                    }
                }
            }
        }
    };
    let mut caption = format!(
        "{name}: {} in use, {} waiting for a slot",
        status::slots(state.slots_in_use),
        status::number(state.parked)
    );
    if let Some(workers) = state.external_workers() {
        let _ = write!(caption, "; {workers}");
    }
    let columns = [
        "lane",
        "held back by",
        "queued",
        "running / workers",
        "oldest",
        "",
    ];
    page::table(&caption, &columns, &rows)
}

/// The form that pauses or resumes a lane.
fn pause(queue: &str, is_paused: bool) -> Markup {
    let (action, word) = if is_paused {
        ("resume", "Resume")
    } else {
        ("pause", "Pause")
    };
    html! {
        form action={ "/console/lanes/" (queue) "/" (action) } method="post" { button { (word) } }
    }
}

/// Whether a lane has no jobs and needs no action.
fn is_idle(lane: &LaneState, why: Option<HeldBack>) -> bool {
    lane.queued == 0 && lane.busy() == 0 && lane.outstanding == 0 && !why.is_some_and(needs_action)
}

/// Whether a lane stays blocked until an operator acts.
fn needs_action(why: HeldBack) -> bool {
    matches!(why, HeldBack::Paused | HeldBack::NoWorkers)
}

//! One holder: the plan, the quota, the slots, the overrides and grants, and the newest jobs.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Html;
use jiff::Timestamp;
use maud::{Markup, html};
use tokio_postgres::Client;
use uuid::Uuid;
use weir_ledger::holder::Holder;
use weir_ledger::meter::Meter;
use weir_ledger::read::holders::{self, HolderSlots};
use weir_ledger::read::usage::{Usage, usage};

use super::super::job::{Job, words};
use super::super::jobs;
use super::super::state::Api;
use super::page::{self, ConsoleError, Entry};
use super::user;
use crate::status::{duration, number};

/// The maximum number of its jobs to show.
const JOBS: i64 = 50;

/// The database's data about a holder.
struct Seen {
    /// The plan and quotas, if it is a user.
    usage: Option<Usage>,
    /// The user's subject, unless it is the id.
    subject: Option<String>,
    /// The slots in use and the parked jobs, by meter.
    slots: Vec<HolderSlots>,
    /// The overrides and grants, if it is a user.
    controls: Option<user::Controls>,
}

async fn see(client: &Client, api: &Api, id: Uuid) -> Result<Option<Seen>, ConsoleError> {
    let known = holders::known(client, id).await?;
    if !known.is_user && !known.is_holder {
        return Ok(None);
    }
    let usage = match known.is_user {
        true => Some(usage(client, id).await?),
        false => None,
    };
    Ok(Some(Seen {
        usage,
        subject: known.subject,
        slots: holders::slots(client, id).await?,
        controls: match known.is_user {
            true => Some(user::read(client, api, id).await?),
            false => None,
        },
    }))
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    id: Result<Path<Uuid>, PathRejection>,
) -> Result<Html<String>, ConsoleError> {
    let missing = || ConsoleError::Missing("User or holder not found.".to_owned());
    let Ok(Path(id)) = id else {
        return Err(missing());
    };
    let seen = api.pool.with(async |client| see(client, &api, id).await).await?;
    let Some(Seen {
        usage,
        subject,
        slots,
        controls,
    }) = seen
    else {
        return Err(missing());
    };
    let holder = Holder {
        id,
        user_id: usage.as_ref().map(|_| id),
    };
    let jobs = jobs::newest_first(&api, holder, None, JOBS).await?;
    let body = html! {
        (plan(usage.as_ref(), subject.is_some().then_some(id)))
        (shares(usage.as_ref(), &slots))
        @if let Some(controls) = &controls { (user::section(id, controls)) }
        @if jobs.is_empty() { p { "No jobs. River deletes finished jobs after a while." } }
        @else { (list(&jobs)) }
    };
    let title = match (&usage, subject) {
        (Some(_), Some(subject)) => format!("User {subject}"),
        (Some(_), None) => format!("User {id}"),
        (None, _) => format!("Anonymous address {id}"),
    };
    Ok(page::page_below(Entry::Holders, &title, &body))
}

/// The plan and, unless the title has it, the id.
fn plan(usage: Option<&Usage>, id: Option<Uuid>) -> Markup {
    match usage {
        Some(usage) => {
            let mut facts = vec![
                ("plan", html! { (usage.plan) }),
                (
                    "billing period",
                    html! { (page::time(usage.period_start)) " to " (page::time(usage.period_end)) },
                ),
            ];
            if let Some(id) = id {
                facts.push(("id", html! { (id) }));
            }
            page::facts(&facts)
        }
        None => {
            html! { p.soft { "An anonymous client address. It has slots but no plan." } }
        }
    }
}

fn shares(usage: Option<&Usage>, slots: &[HolderSlots]) -> Markup {
    let of_plan = usage.map_or(&[][..], |usage| &usage.meters);
    let meters = of_plan
        .iter()
        .map(|of| of.meter)
        .chain(slots.iter().map(|of| of.meter));
    let meters: BTreeSet<Meter> = meters.collect();
    let rows = html! {
        @for meter in meters {
            @let of_meter = slots.iter().find(|of| of.meter == meter);
            @let allowed = of_plan.iter().find(|of| of.meter == meter);
            @let limit = allowed.map_or_else(|| of_meter.and_then(|of| of.slots_of_address), |of| of.slot_limit);
            tr {
                th scope="row" { (meter.as_str()) }
                td {
                    (number(of_meter.map_or(0, |of| of.slots_in_use)))
                    @if let Some(limit) = limit { " of " (limit) }
                }
                td { (number(of_meter.map_or(0, |of| of.running))) }
                td { (number(of_meter.map_or(0, |of| of.parked))) }
                @if let Some(quota) = allowed.map(|of| of.quotas.month) {
                    // Exact even if long, because users pay for them.
                    td { (quota.used) }
                    td { (quota.reserved) }
                    td { @if let Some(limit) = quota.limit { (limit) } @else { "unlimited" } }
                } @else { td { "–" } td { "–" } td { "–" } }
            }
            @for quota in allowed.map_or(&[][..], |of| &of.quotas.shorter) {
                tr {
                    th scope="row" { (meter.as_str()) ", this " (quota.window.span.as_str()) }
                    td { } td { } td { }
                    td { (quota.used) }
                    td { (quota.reserved) }
                    td { @if let Some(limit) = quota.limit { (limit) } }
                }
            }
        }
    };
    let columns = [
        "meter",
        "slots in use",
        "running",
        "wait for a slot",
        "used",
        "reserved",
        "limit",
    ];
    page::table("Slots and quota", &columns, &rows)
}

fn list(jobs: &[Job]) -> Markup {
    let now = Timestamp::now();
    let rows = html! {
        @for job in jobs {
            tr {
                th scope="row" { (page::job_link(job.id)) }
                td { (job.service) }
                td { (words(job.status, job.waiting_for)) }
                td { (page::time(job.created_at)) }
                td { (between(job.created_at, job.started_at.or(job.finished_at).unwrap_or(now))) }
                td {
                    @if let Some(started) = job.started_at.filter(|_| job.has_run()) {
                        (between(started, job.finished_at.unwrap_or(now)))
                    } @else { "–" }
                }
                td { (job.attempt) " of " (job.max_attempts) }
                td.text { @if let Some(error) = &job.error { (page::beginning(first_line(&error.message), 160)) } }
                td { @if !job.is_finished() { (page::cancel(job.id)) } }
            }
        }
    };
    let caption = format!("Newest jobs, at most {JOBS}");
    let columns = [
        "job",
        "service",
        "state",
        "submitted",
        "waited",
        "took",
        "attempt",
        "last error",
        "action",
    ];
    page::table(&caption, &columns, &rows)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn between(from: Timestamp, to: Timestamp) -> String {
    duration(i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX))
}

//! The plan, the overrides and the grants of a user, with the forms that change them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Form;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::response::Redirect;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use maud::{Markup, html};
use serde::Deserialize;
use tokio_postgres::Client;
use uuid::Uuid;
use weir_ledger::catalogue;
use weir_ledger::control::{self, ControlError, Effective, NewGrant, NotApplied, Override, PlanChange, User};
use weir_ledger::read::holders;
use weir_policy::span::Span;
use weir_policy::subject::Subject;

use super::super::admin::{HolderView, MeterView, holder_view};
use super::super::state::Api;
use super::guard::Operator;
use super::page::{self, ConsoleError};

/// What the forms need to know about a user.
pub(super) struct Controls {
    view: HolderView,
    plans: Vec<String>,
}

/// Reads a user's plan, overrides and grants.
pub(super) async fn read(client: &Client, api: &Api, id: Uuid) -> Result<Controls, ControlError> {
    Ok(Controls {
        view: holder_view(client, &api.settings, &user(client, api, id).await?).await?,
        plans: catalogue::load(client).await?.plans.into_keys().collect(),
    })
}

async fn user(client: &Client, api: &Api, id: Uuid) -> Result<User, ControlError> {
    let subject = holders::known(client, id).await?.subject;
    let subject: Option<Subject> = subject.and_then(|subject| subject.parse().ok());
    Ok(User::of(api.holders, subject.unwrap_or_else(|| id.into())))
}

/// The next plan, the overrides and the grants, and the forms.
pub(super) fn section(id: Uuid, Controls { view, plans }: &Controls) -> Markup {
    let path = format!("/console/holders/{id}");
    html! {
        form.filter action={ (path) "/plan" } method="post" {
            // A repeated form changes nothing.
            input type="hidden" name="event" value=(Uuid::now_v7());
            label { "Plan " select name="plan" {
                @for plan in plans { option value=(plan) selected[*plan == view.plan] { (plan) } }
            } }
            label { "from " select name="effective" {
                option value="now" { "now" }
                option value="period_end" { "the next billing period" }
            } }
            button { "Change plan" }
            @if let Some(next) = &view.next_plan { span.soft { (next.plan) " from " (page::time(next.at)) } }
        }
        h2 { "Overrides" }
        p.soft { "They replace the plan's limits and slots. An empty field keeps the plan's value." }
        @for (meter, of) in &view.meters { (override_form(&path, meter, of)) }
        h2 { "Grants" }
        (grants(view))
        form.filter action={ (path) "/grants" } method="post" {
            input type="hidden" name="key" value=(Uuid::now_v7());
            label { "Meter " select name="meter" {
                @for meter in view.meters.keys() { option value=(meter) { (meter) } }
            } }
            label { "Amount " input name="amount" type="number" min="1" required; }
            label { "Reason " input name="reason" required maxlength="200"; }
            (until_field(None))
            button { "Grant" }
        }
    }
}

fn override_form(path: &str, meter: &str, of: &MeterView) -> Markup {
    let set = of.overrides.as_ref();
    let limit = |span| match set?.limits.get(&span)? {
        Some(limit) => Some(limit.to_string()),
        None => Some("unlimited".to_owned()),
    };
    // Only windows that the meter is counted in can have a limit.
    let is_counted =
        |span: &Span| of.windows.iter().any(|window| window.window == *span) || limit(*span).is_some();
    html! {
        form.filter action={ (path) "/overrides" } method="post" aria-label={ "Override of " (meter) } {
            input type="hidden" name="meter" value=(meter);
            strong { (meter) }
            @for span in Span::ALL.into_iter().filter(is_counted) {
                label { "a " (span.as_str()) " " input name=(span.as_str()) value=[limit(span)] placeholder="plan's" pattern="[0-9]+|unlimited" size="8"; }
            }
            label { "slots " input name="slots" type="number" min="1" value=[set.and_then(|set| set.slots)] placeholder="plan's"; }
            label { "burst " input name="burst" type="number" min="1" value=[set.and_then(|set| set.burst)] placeholder="plan's"; }
            (until_field(set.and_then(|set| set.expires_at)))
            button { "Set" }
            @if set.is_some() { button name="remove" value="true" formnovalidate { "Remove" } }
        }
    }
}

/// The format of a browser's field for a time, in UTC.
const UNTIL: &str = "%Y-%m-%dT%H:%M:%S";

/// The field for an expiry. Empty: never.
fn until_field(at: Option<Timestamp>) -> Markup {
    let value = at.map(|at| at.strftime(UNTIL).to_string());
    html! { label { "until (UTC) " input name="until" type="datetime-local" step="1" value=[value]; } }
}

/// The time in the field for an expiry. Browsers leave out the seconds when they are zero.
fn until(text: &str) -> Result<Option<Timestamp>, ConsoleError> {
    if text.is_empty() {
        return Ok(None);
    }
    let at = text.parse::<DateTime>().and_then(|at| at.to_zoned(TimeZone::UTC));
    match at {
        Ok(at) => Ok(Some(at.timestamp())),
        Err(_) => Err(ConsoleError::Refused(format!("{text:?} is not a valid time."))),
    }
}

fn grants(view: &HolderView) -> Markup {
    let rows = html! {
        @for (meter, of) in &view.meters {
            @for grant in &of.grants {
                tr {
                    th scope="row" { (meter) }
                    td { (grant.left) " of " (grant.amount) }
                    td { @if let Some(at) = grant.expires_at { (page::time(at)) } @else { "never" } }
                    td.text { (grant.reason) }
                }
            }
        }
    };
    html! {
        @if view.meters.values().all(|of| of.grants.is_empty()) { p { "None." } }
        @else { (page::table("Amounts beyond the plan", &["meter", "left", "expires", "reason"], &rows)) }
    }
}

/// A change of plan.
#[derive(Deserialize)]
pub(super) struct WantedPlan {
    plan: String,
    effective: Effective,
    event: Uuid,
}

/// Changes the plan as `PUT /admin/holders/{subject}/plan` does.
pub(super) async fn plan(
    State(api): State<Arc<Api>>,
    Extension(Operator(actor)): Extension<Operator>,
    id: Result<Path<Uuid>, PathRejection>,
    Form(wanted): Form<WantedPlan>,
) -> Result<Redirect, ConsoleError> {
    let id = known(id)?;
    let event_id = format!("console:{}", wanted.event);
    let change = PlanChange {
        plan: &wanted.plan,
        event_id: &event_id,
        occurred_at: Timestamp::now(),
        effective: wanted.effective,
        subscription: None,
        period: None,
    };
    let outcome = api
        .changes
        .of::<_, ConsoleError, _>(id, || {
            async |client| {
                let user = user(client, &api, id).await?;
                Ok(control::set_plan(client, &actor, &user, &change).await?)
            }
        })
        .await?;
    match outcome.not_applied {
        Some(NotApplied::Older) => Err(ConsoleError::Refused(
            "A newer event of the payment provider was applied before.".to_owned(),
        )),
        Some(NotApplied::Superseded) => Err(ConsoleError::Refused(
            "The plan comes from a subscription. Change it at the payment provider.".to_owned(),
        )),
        None => Ok(back(id)),
    }
}

/// A new grant.
#[derive(Deserialize)]
pub(super) struct WantedGrant {
    meter: String,
    amount: i64,
    reason: String,
    #[serde(default)]
    until: String,
    key: Uuid,
}

/// Grants an amount as `POST /admin/holders/{subject}/grants` does.
pub(super) async fn grant(
    State(api): State<Arc<Api>>,
    Extension(Operator(actor)): Extension<Operator>,
    id: Result<Path<Uuid>, PathRejection>,
    Form(wanted): Form<WantedGrant>,
) -> Result<Redirect, ConsoleError> {
    let id = known(id)?;
    let key = format!("console:{}", wanted.key);
    let grant = NewGrant {
        meter: &wanted.meter,
        amount: wanted.amount,
        expires_at: until(&wanted.until)?,
        reason: &wanted.reason,
    };
    api.changes
        .of::<_, ConsoleError, _>(id, || {
            async |client| {
                let user = user(client, &api, id).await?;
                Ok(control::grant(client, &actor, &user, &grant, Some(&key)).await?)
            }
        })
        .await?;
    Ok(back(id))
}

/// An override. Empty fields keep the plan's value.
#[derive(Deserialize)]
pub(super) struct WantedOverride {
    meter: String,
    #[serde(default)]
    month: String,
    #[serde(default)]
    day: String,
    #[serde(default)]
    hour: String,
    #[serde(default)]
    minute: String,
    #[serde(default)]
    slots: String,
    #[serde(default)]
    burst: String,
    #[serde(default)]
    until: String,
    #[serde(default)]
    remove: bool,
}

/// Sets or removes an override as `/admin/holders/{subject}/overrides/{meter}` does.
pub(super) async fn set_override(
    State(api): State<Arc<Api>>,
    Extension(Operator(actor)): Extension<Operator>,
    id: Result<Path<Uuid>, PathRejection>,
    Form(wanted): Form<WantedOverride>,
) -> Result<Redirect, ConsoleError> {
    let id = known(id)?;
    let mut limits = BTreeMap::new();
    for (span, text) in std::iter::zip(
        Span::ALL,
        [&wanted.month, &wanted.day, &wanted.hour, &wanted.minute],
    ) {
        let limit = match text.trim() {
            "unlimited" => Some(None),
            text => number(text)?.map(Some),
        };
        limits.extend(limit.map(|limit| (span, limit)));
    }
    let set = Override {
        limits,
        slots: number(&wanted.slots)?,
        burst: number(&wanted.burst)?,
        expires_at: until(&wanted.until)?,
    };
    let meter = &wanted.meter;
    api.changes
        .of::<_, ConsoleError, _>(id, || {
            async |client| {
                let user = user(client, &api, id).await?;
                match wanted.remove {
                    true => Ok(control::remove_override(client, &actor, &user, meter).await?),
                    false => Ok(control::set_override(client, &actor, &user, meter, &set).await?),
                }
            }
        })
        .await?;
    Ok(back(id))
}

/// The number in a field; `None` if it is empty.
fn number<T: std::str::FromStr>(text: &str) -> Result<Option<T>, ConsoleError> {
    match text.trim() {
        "" => Ok(None),
        text => match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(ConsoleError::Refused(format!("{text:?} is not a valid number."))),
        },
    }
}

fn known(id: Result<Path<Uuid>, PathRejection>) -> Result<Uuid, ConsoleError> {
    match id {
        Ok(Path(id)) => Ok(id),
        Err(_) => Err(ConsoleError::Missing("User not found.".to_owned())),
    }
}

fn back(id: Uuid) -> Redirect {
    Redirect::to(&format!("/console/holders/{id}"))
}

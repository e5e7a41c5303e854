//! `weir user`: the operations of `/admin` from a shell.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{IsTerminal, stdin};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::Value;
use tokio_postgres::Client;
use uuid::Uuid;
use weir_ledger::control::{
    self, ControlError, Credit, Effective, Granted, NewAdjustment, NewGrant, NotApplied, Override,
    PaidPeriod, PlanChange,
};
use weir_ledger::holder::Holders;
use weir_ledger::read::usage::usage;
use weir_policy::span::Span;
use weir_policy::subject::Subject;

use super::connection::connected;
use super::output::{CommandResult, actor, counted, print, print_json};
use super::user_text;
use super::values;
use crate::api::admin::holder_view;
use crate::config::Settings;

#[derive(Args)]
pub(crate) struct User {
    #[command(subcommand)]
    action: Action,
}

/// The limits of `weir user override`.
#[derive(Args)]
pub(crate) struct OwnLimits {
    /// A limit, such as month=2000 or hour=unlimited; repeat for each window.
    #[arg(long = "limit", value_parser = limit)]
    limits: Vec<(Span, Option<i64>)>,
    /// The number of jobs at once, however busy the workers are.
    #[arg(long)]
    slots: Option<u32>,
    /// The number of jobs at once on workers that would be idle.
    #[arg(long)]
    burst: Option<u32>,
    /// When the override expires, such as 2027-01-31T00:00:00Z [default: never].
    #[arg(long, value_parser = values::time)]
    until: Option<Timestamp>,
}

impl From<OwnLimits> for Override {
    fn from(wanted: OwnLimits) -> Self {
        Self {
            limits: BTreeMap::from_iter(wanted.limits),
            slots: wanted.slots,
            burst: wanted.burst,
            expires_at: wanted.until,
        }
    }
}

#[derive(Subcommand)]
enum Action {
    /// Show plan, windows, slots, parked jobs and the newest jobs.
    #[command(after_help = "\
Examples:
  weir user show alice
  weir user show alice --json | jq .meters")]
    Show {
        /// The user's subject, as in their tokens.
        subject: Subject,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show usage by period and meter, newest first.
    #[command(after_help = "\
Examples:
  weir user usage alice
  weir user usage alice --window day --meter analysis")]
    Usage {
        /// The user's subject, as in their tokens.
        subject: Subject,
        /// The window: month (the billing period), day, hour or minute; all but month are kept for a few days.
        #[arg(long, default_value = "month", value_parser = window)]
        window: Span,
        /// Only this meter [default: all meters].
        #[arg(long)]
        meter: Option<String>,
        /// The maximum number of lines.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=1000))]
        limit: i64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Set the plan; creates the user if needed.
    #[command(after_help = "\
Examples:
  weir user plan alice pro
  weir user plan alice free --at-period-end")]
    Plan(PlanArguments),
    /// Set limits or slots for this user, instead of the plan's.
    #[command(after_help = "\
Examples:
  weir user override alice analysis --limit month=2000 --slots 5 --burst 10
  weir user override alice analysis --remove")]
    Override {
        /// The user's subject, as in their tokens.
        subject: Subject,
        /// The meter's name.
        meter: String,
        #[command(flatten)]
        wanted: OwnLimits,
        /// Remove the override; the plan's limits and slots apply again.
        #[arg(long, conflicts_with_all = ["limits", "slots", "burst", "until"])]
        remove: bool,
    },
    /// Grant an amount beyond the plan, used when the month's limit is reached.
    #[command(after_help = "\
Examples:
  weir user grant alice analysis 100 --reason 'support ticket 17'
  weir user grant alice analysis 100 --reason trial --expires 2027-01-31T00:00:00Z")]
    Grant {
        /// The user's subject, as in their tokens.
        subject: Subject,
        /// The meter's name.
        meter: String,
        /// The amount.
        amount: i64,
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
        /// When it expires, such as 2027-01-31T00:00:00Z [default: never].
        #[arg(long, value_parser = values::time)]
        expires: Option<Timestamp>,
        /// An idempotency key; a repeated key has no further effect.
        #[arg(long)]
        key: Option<String>,
    },
    /// Take back a grant, such as after a refund; what is used or reserved of it stays.
    #[command(after_help = "\
Examples:
  weir user revoke alice 5f0c1c3e-0000-4000-8000-000000000000 --reason 'refund of order 7'
  weir user revoke alice 5f0c1c3e-0000-4000-8000-000000000000 --keep 40 --reason 'refund of order 7'")]
    Revoke {
        /// The user's subject, as in their tokens.
        subject: Subject,
        /// The id of the grant, as `weir user show` prints it.
        #[arg(value_parser = values::grant)]
        grant: Uuid,
        /// Lower the grant to this amount [default: 0, which ends it].
        #[arg(long, default_value_t = 0, hide_default_value = true)]
        keep: i64,
        /// The reason, for the audit log.
        #[arg(long)]
        reason: String,
    },
    /// Correct the usage of this billing period; a negative amount is a refund.
    #[command(after_help = "\
Examples:
  weir user adjust alice analysis -3 --reason 'support ticket 17'
  weir user adjust alice analysis -3 --credit plan --reason 'support ticket 17'")]
    Adjust {
        /// The user's subject, as in their tokens.
        subject: Subject,
        /// The meter's name.
        meter: String,
        /// The amount to add.
        #[arg(allow_negative_numbers = true)]
        amount: i64,
        /// What a refund returns first: grants or plan.
        #[arg(long, default_value = "grants", value_parser = credit)]
        credit: Credit,
        /// The reason, for the audit log and billing.
        #[arg(long)]
        reason: String,
        /// An idempotency key; a repeated key has no further effect.
        #[arg(long)]
        key: Option<String>,
    },
    /// Cancel every waiting job; running jobs continue.
    #[command(after_help = "\
Example:
  weir user cancel alice --reason 'support ticket 17'")]
    Cancel {
        /// The user's subject, as in their tokens.
        subject: Subject,
        /// The reason, for the audit log.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Delete the user and all its jobs; billed usage is kept without the user's name.
    #[command(after_help = "\
Example:
  weir user delete alice")]
    Delete {
        /// The user's subject, as in their tokens.
        subject: Subject,
        /// Delete without asking; required if standard input is not a terminal.
        #[arg(long)]
        yes: bool,
    },
}

/// The arguments of `weir user plan`.
#[derive(Debug, Args)]
struct PlanArguments {
    /// The user's subject, as in their tokens.
    subject: Subject,
    /// The plan's name.
    plan: String,
    /// Change the plan at the end of the billing period [default: now].
    #[arg(long)]
    at_period_end: bool,
    /// The payment provider's id of the event; a repeated id changes nothing.
    #[arg(long)]
    event_id: Option<String>,
    /// When the event happened at the provider; an event older than the last one changes nothing [default: now].
    #[arg(long, value_parser = values::time)]
    occurred_at: Option<Timestamp>,
    /// The provider's id of the subscription.
    #[arg(long)]
    subscription: Option<String>,
    /// The start of the paid period; later billing periods start on the same day of the month [default: unchanged].
    #[arg(long, value_parser = values::time)]
    period_start: Option<Timestamp>,
    /// The end of the paid period, a whole number of months later.
    #[arg(long, requires = "period_start", value_parser = values::time)]
    period_end: Option<Timestamp>,
}

fn window(text: &str) -> Result<Span, String> {
    Span::parse(text).ok_or_else(|| format!("{text:?} is not a window; use month, day, hour or minute"))
}

fn credit(text: &str) -> Result<Credit, String> {
    match text {
        "grants" => Ok(Credit::Grants),
        "plan" => Ok(Credit::Plan),
        _ => Err(format!("{text:?} is no part of the usage; use grants or plan")),
    }
}

/// A window and its limit.
fn limit(text: &str) -> Result<(Span, Option<i64>), String> {
    let wants = || format!("{text:?} is not a limit; use one such as month=2000 or hour=unlimited");
    let (span, limit) = text.split_once('=').ok_or_else(wants)?;
    let span = Span::parse(span).ok_or_else(wants)?;
    match limit {
        "unlimited" => Ok((span, None)),
        limit => limit
            .parse()
            .map(|limit| (span, Some(limit)))
            .map_err(|_| wants()),
    }
}

impl Action {
    fn subject(&self) -> &Subject {
        match self {
            Self::Show { subject, .. }
            | Self::Usage { subject, .. }
            | Self::Plan(PlanArguments { subject, .. })
            | Self::Override { subject, .. }
            | Self::Grant { subject, .. }
            | Self::Revoke { subject, .. }
            | Self::Adjust { subject, .. }
            | Self::Cancel { subject, .. }
            | Self::Delete { subject, .. } => subject,
        }
    }
}

impl PlanArguments {
    /// Changes the plan. Fails if the change was not applied.
    async fn change(self, client: &mut Client, actor: &str, user: &control::User) -> CommandResult {
        let event_id = self
            .event_id
            .unwrap_or_else(|| format!("shell:{}", Uuid::now_v7()));
        let change = PlanChange {
            plan: &self.plan,
            event_id: &event_id,
            occurred_at: self.occurred_at.unwrap_or_else(Timestamp::now),
            effective: if self.at_period_end {
                Effective::PeriodEnd
            } else {
                Effective::Now
            },
            subscription: self.subscription.as_deref(),
            period: self.period_start.map(|start| PaidPeriod {
                start,
                end: self.period_end,
            }),
        };
        let outcome = control::set_plan(client, actor, user, &change).await?;
        let (is_refused, message) = match (outcome.repeated, outcome.not_applied) {
            (true, _) => (false, "nothing changed: this event was applied before".to_owned()),
            (false, Some(NotApplied::Older)) => (
                true,
                "nothing changed: a newer event was applied before".to_owned(),
            ),
            (false, Some(NotApplied::Superseded)) => (
                true,
                "nothing changed: the plan comes from another subscription".to_owned(),
            ),
            (false, None) => {
                let status = control::plan_status(client, user.id).await?;
                let plan = match status.next.zip(status.next_at) {
                    Some((next, at)) => format!("{} until {at}, then {next}", status.plan),
                    None => status.plan,
                };
                (false, plan)
            }
        };
        print(&format!("{message}\n"))?;
        Ok(if is_refused {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}

/// The meter and its unit, which is a plural: a number in front of it would be wrong for 1.
///
/// If the query fails, the name alone, because the change that is reported is already committed.
async fn meter_text(client: &Client, user: &control::User, meter: &str) -> String {
    let meters = usage(client, user.id)
        .await
        .map_or_else(|_| Vec::new(), |usage| usage.meters);
    let found = meters.into_iter().find(|of| of.meter.as_str() == meter);
    found.map_or_else(|| meter.to_owned(), |of| user_text::meter(meter, &of.unit))
}

async fn granted(
    client: &mut Client,
    actor: &str,
    user: &control::User,
    wanted: &NewGrant<'_>,
    key: Option<&str>,
) -> Result<String, ControlError> {
    let granted = control::grant(client, actor, user, wanted, key).await?;
    let before = if granted.repeated { "; already granted" } else { "" };
    let meter = meter_text(client, user, wanted.meter).await;
    let Granted { amount, id, .. } = granted.created;
    Ok(format!("{meter}: granted {amount} (grant {id}){before}"))
}

async fn adjusted(
    client: &mut Client,
    actor: &str,
    user: &control::User,
    wanted: &NewAdjustment<'_>,
    key: Option<&str>,
) -> Result<String, ControlError> {
    let booked = control::adjust(client, actor, user, wanted, key).await?;
    let before = if booked.repeated { "; already recorded" } else { "" };
    let meter = meter_text(client, user, wanted.meter).await;
    Ok(format!(
        "{meter}: {} used in this period{before}",
        booked.created.used
    ))
}

/// Shows what a deletion affects, and asks on a terminal whether to go ahead.
async fn is_confirmed(client: &Client, user: &control::User) -> Result<bool, Box<dyn Error>> {
    let subject = &user.subject;
    let control::ToDelete {
        jobs,
        unfinished,
        usage_events,
    } = control::to_delete(client, user).await?;
    print(&format!(
        "{subject}: {} will be deleted, {unfinished} of them unfinished; {} will be kept anonymously\n",
        counted(jobs, "job", "jobs"),
        counted(usage_events, "usage event", "usage events")
    ))?;
    if !stdin().is_terminal() {
        return Err("standard input is not a terminal; add --yes to delete the user".into());
    }
    print(&format!("Delete {subject}? [y/N] "))?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Prints a value as JSON or as text.
fn shown(value: &Value, json: bool, text: impl Fn(&Value) -> String) -> CommandResult {
    if json {
        print_json(value)?;
    } else {
        print(&text(value))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl User {
    pub(crate) async fn run(self, settings: &Settings) -> CommandResult {
        let mut client = connected(settings).await?;
        let holders = Holders::load(&client).await?;
        let user = control::User::of(holders, self.action.subject().clone());
        let (actor, client) = (actor(), &mut client);
        let message = match self.action {
            Action::Show { json, .. } => {
                let view = holder_view(client, settings, &user).await?;
                return shown(&serde_json::to_value(&view)?, json, user_text::holder);
            }
            Action::Usage {
                window,
                meter,
                limit,
                json,
                ..
            } => {
                let usage = control::usage_by_period(client, &user, window, meter.as_deref(), limit).await?;
                return shown(&serde_json::to_value(&usage)?, json, user_text::usage);
            }
            Action::Plan(arguments) => return arguments.change(client, &actor, &user).await,
            Action::Override {
                meter, remove: true, ..
            } => {
                control::remove_override(client, &actor, &user, &meter).await?;
                "removed; the plan's limits and slots apply again".to_owned()
            }
            Action::Override { meter, wanted, .. } => {
                control::set_override(client, &actor, &user, &meter, &wanted.into()).await?;
                "set".to_owned()
            }
            Action::Grant {
                meter,
                amount,
                reason,
                expires,
                key,
                ..
            } => {
                let wanted = NewGrant {
                    meter: &meter,
                    amount,
                    expires_at: expires,
                    reason: &reason,
                };
                granted(client, &actor, &user, &wanted, key.as_deref()).await?
            }
            Action::Revoke {
                grant, keep, reason, ..
            } => {
                let grant = control::lower_grant(client, &actor, &user, grant, keep, &reason).await?;
                let meter = meter_text(client, &user, &grant.meter).await;
                format!(
                    "{meter}: grant {} now has {}, of which {} are left",
                    grant.id, grant.amount, grant.left
                )
            }
            Action::Adjust {
                meter,
                amount,
                credit,
                reason,
                key,
                ..
            } => {
                let wanted = NewAdjustment {
                    meter: &meter,
                    amount,
                    reason: &reason,
                    credit,
                };
                adjusted(client, &actor, &user, &wanted, key.as_deref()).await?
            }
            Action::Cancel { reason, .. } => {
                let cancelled = control::cancel_waiting(client, &actor, &user, reason.as_deref()).await?;
                format!("cancelled {}", counted(i128::from(cancelled), "job", "jobs"))
            }
            Action::Delete { yes, .. } => {
                if !yes && !is_confirmed(client, &user).await? {
                    print("nothing was deleted\n")?;
                    return Ok(ExitCode::FAILURE);
                }
                let deleted = control::delete(client, &actor, &user).await?;
                format!(
                    "deleted, with {}; kept anonymously: {}",
                    counted(i128::from(deleted.jobs), "job", "jobs"),
                    counted(i128::from(deleted.usage_events), "usage event", "usage events")
                )
            }
        };
        print(&format!("{message}\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}

//! `weir webhook`: manages webhooks and their deliveries.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use tokio_postgres::Client;
use uuid::Uuid;
use weir_ledger::control::{self, Replay, TestDelivery, Webhook as Row};

use super::connection::connected;
use super::output::{CommandResult, actor, counted, plain_table, print, print_error, table_text};
use super::values;
use crate::config::Settings;
use crate::webhooks;

/// The maximum wait for a test: longer than a receiver may take to respond.
const PATIENCE: Duration = Duration::from_secs(25);

#[derive(Subcommand)]
pub(crate) enum Webhook {
    /// Create a webhook and print its secret once.
    #[command(after_help = "\
Examples:
  weir webhook add https://example.com/weir
  weir webhook add https://example.com/weir --events quota.threshold --thresholds 50,90")]
    Add {
        /// The URL to deliver to, such as <https://example.com/weir>.
        url: String,
        #[arg(long, value_delimiter = ',', help = event_help())]
        events: Vec<String>,
        /// The percentages of a limit at which quota.threshold is sent [default: 80,100].
        #[arg(long, value_delimiter = ',')]
        thresholds: Vec<i16>,
    },
    /// Show all webhooks and the state of their deliveries.
    #[command(after_help = "\
Examples:
  weir webhook list
  weir webhook list --json | jq .")]
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Create a new secret and print it once; the old secret stays valid for 24 hours.
    #[command(after_help = "\
Example:
  weir webhook rotate 0192f0c1-5a4e-7c3b-9a55-3f1c2d4e5f60")]
    Rotate {
        /// The webhook's id.
        #[arg(value_parser = values::webhook)]
        id: Uuid,
    },
    /// Enable a disabled webhook, and deliver the events of the last week.
    #[command(after_help = "\
Example:
  weir webhook enable 0192f0c1-5a4e-7c3b-9a55-3f1c2d4e5f60")]
    Enable {
        /// The webhook's id.
        #[arg(value_parser = values::webhook)]
        id: Uuid,
    },
    /// Remove a webhook and drop its waiting deliveries.
    #[command(after_help = "\
Example:
  weir webhook remove 0192f0c1-5a4e-7c3b-9a55-3f1c2d4e5f60")]
    Remove {
        /// The webhook's id.
        #[arg(value_parser = values::webhook)]
        id: Uuid,
    },
    /// Send an event of the type webhook.test and show the response; exit code 1 if the delivery fails.
    #[command(after_help = "\
Example:
  weir webhook test 0192f0c1-5a4e-7c3b-9a55-3f1c2d4e5f60")]
    Test {
        /// The webhook's id.
        #[arg(value_parser = values::webhook)]
        id: Uuid,
    },
    /// Deliver events again, with the same ids.
    #[command(after_help = "\
Example:
  weir webhook replay 0192f0c1-5a4e-7c3b-9a55-3f1c2d4e5f60 --undelivered-since 2026-01-31T00:00:00Z")]
    Replay {
        /// The webhook's id.
        #[arg(value_parser = values::webhook)]
        id: Uuid,
        #[command(flatten)]
        which: Which,
    },
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Which {
    /// The id of the event to deliver again, even if it was delivered.
    #[arg(long)]
    event: Option<String>,
    /// All undelivered events since this time, such as 2027-01-31T00:00:00Z.
    #[arg(long, value_parser = values::time)]
    undelivered_since: Option<Timestamp>,
}

fn event_help() -> String {
    let names = control::WEBHOOK_EVENTS.join(", ");
    format!("Events to deliver, separated by commas: {names} [default: all]")
}

impl Webhook {
    pub(crate) async fn run(self, settings: &Settings) -> CommandResult {
        let mut client = connected(settings).await?;
        let (actor, client) = (actor(), &mut client);
        let message = match self {
            Self::Add {
                url,
                events,
                thresholds,
            } => {
                let made = webhooks::add(client, settings, &actor, &url, &events, &thresholds).await?;
                print_error(&format!(
                    "created webhook {}; copy its secret now, it will not be shown again",
                    made.webhook.id
                ));
                made.secret
            }
            Self::List { json } => {
                let all = control::webhooks(client).await?;
                if json {
                    serde_json::to_string_pretty(&all)?
                } else {
                    table(&all)
                }
            }
            Self::Rotate { id } => {
                let made = webhooks::rotate(client, &actor, id).await?;
                print_error(
                    "both secrets are valid for 24 hours; copy the new one now, it will not be shown again",
                );
                made.secret
            }
            Self::Enable { id } => {
                let was_disabled = control::enable_webhook(client, &actor, id).await?;
                // Also if it is enabled already: an earlier call may have ended in between.
                let all = Replay::UndeliveredSince(Timestamp::UNIX_EPOCH);
                let replayed = control::replay_webhook(client, &actor, id, &all).await?;
                format!(
                    "webhook {}; replaying {}",
                    if was_disabled {
                        "enabled"
                    } else {
                        "was already enabled"
                    },
                    counted(replayed, "delivery", "deliveries")
                )
            }
            Self::Remove { id } => {
                let cancelled = control::remove_webhook(client, &actor, id).await?;
                let deliveries = counted(cancelled, "delivery", "deliveries");
                format!("removed, and cancelled {deliveries}")
            }
            Self::Test { id } => {
                let test = control::test_webhook(client, &actor, id).await?;
                return tested(client, &test).await;
            }
            Self::Replay { id, which } => {
                let what = match (which.event, which.undelivered_since) {
                    (Some(event), _) => Replay::Event(event),
                    (None, since) => Replay::UndeliveredSince(since.unwrap_or_else(Timestamp::now)),
                };
                let replayed = control::replay_webhook(client, &actor, id, &what).await?;
                format!("{} queued again", counted(replayed, "delivery", "deliveries"))
            }
        };
        print(&format!("{message}\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Waits for the first attempt.
async fn tested(client: &Client, test: &TestDelivery) -> CommandResult {
    let started = Instant::now();
    let (message, code) = loop {
        let Some(state) = control::delivery(client, test.job_id).await? else {
            break ("the delivery was deleted".to_owned(), ExitCode::FAILURE);
        };
        if state.delivered {
            let status = state.output.as_ref().and_then(|output| output["status"].as_u64());
            let millis = state.output.as_ref().and_then(|output| output["ms"].as_u64());
            let message = format!(
                "{} was delivered: {} after {} ms",
                test.event,
                status.unwrap_or_default(),
                millis.unwrap_or_default()
            );
            break (message, ExitCode::SUCCESS);
        }
        if let Some(because) = state.disabled_because {
            let message = format!(
                "{} was not delivered: {because}, so the webhook is disabled; fix the receiver, then run \
                 `weir webhook enable`",
                test.event
            );
            break (message, ExitCode::FAILURE);
        }
        if let Some(error) = state.last_error {
            let message = if state.ended {
                format!(
                    "{} was not delivered and is not retried; `weir webhook list` shows why",
                    test.event
                )
            } else {
                format!("{} was not delivered: {error}; it is retried", test.event)
            };
            break (message, ExitCode::FAILURE);
        }
        if started.elapsed() > PATIENCE {
            let message = format!(
                "{} has not been attempted yet; check that `weir work` or `weir up` is running with WEBHOOK_WORKERS ≥ 1",
                test.event
            );
            break (message, ExitCode::FAILURE);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    print(&format!("{message}\n"))?;
    Ok(code)
}

fn table(all: &[Row]) -> String {
    if all.is_empty() {
        return "no webhooks; `weir webhook add URL` creates one".to_owned();
    }
    let mut table = plain_table(["webhook", "url", "events", "waiting", "failed", "state"]);
    for webhook in all {
        let events = if webhook.events.len() == control::WEBHOOK_EVENTS.len() {
            "all".to_owned()
        } else {
            webhook.events.join(",")
        };
        let deliveries = webhook.deliveries.clone().unwrap_or_default();
        let state = match (&webhook.disabled_because, &deliveries.last_error) {
            (Some(because), _) => format!("disabled: {because}"),
            (None, _) if deliveries.workers == 0 => "not delivered: start `weir work`".to_owned(),
            (None, Some(error)) => error.chars().take(100).collect(),
            (None, None) => "well".to_owned(),
        };
        table.add_row([
            webhook.id.to_string(),
            webhook.url.clone(),
            events,
            deliveries.waiting.to_string(),
            deliveries.failed.to_string(),
            state,
        ]);
    }
    table_text(&table).trim_end().to_owned()
}

//! The subcommands.

mod connection;
pub(crate) mod first_process;
mod key;
mod migrate;
pub(crate) mod output;
mod plans;
mod screen;
mod signals;
mod status;
mod usage;
mod user;
mod webhook;

use std::error::Error;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use weir::api::probes::{self, Probes};
use weir::api::serve;
use weir::config::service::{HandlerSpec, Service};
use weir::config::{Environment, Settings};
use weir::context::Context;
use weir::handler::watch_programs;
use weir::telemetry::{logs, metrics, traces};
use weir::token;
use weir::work::{Role, Working, reconcile};
use weir_ledger::audit;
use weir_policy::subject::Subject;

use connection::{connected, ready};
use key::Key;
use migrate::Migrate;
use output::{CommandResult, print};
use signals::StopSignals;
use usage::Usage;
use user::User;
use webhook::Webhook;

/// What `--help` ends with.
const SETTINGS: &str = "\
Settings come from the environment; a wrong one stops the start, and all that is wrong is said at once:
  DATABASE_URL                  PostgreSQL, postgres://user@host:5432/name; or PGHOST and libpq's other variables
  WEIR_SCHEMA, RIVER_SCHEMA     the schemas of Weir's tables and of River's: where search_path leads
  EDGE_SECRET                   shared with the edge; `serve` and `up` need it
  WEIR_ORIGIN_HOST, _PORT       where `serve` and `up` listen: 127.0.0.1, 8080
  WEIR_METRICS_HOST, _PORT      where `work` and `schedule` answer /metrics, /healthz, /readyz; without a port
                                nowhere. `serve` and `up` answer them beside the API
  WEIR_CONFIG                   the services: weir.toml
  WEIR_DRAIN_TIMEOUT            how long running jobs may go on after SIGTERM: 30s
  WEIR_STOP_DELAY               how long `serve` and `up` accept requests after SIGTERM, with 503 on /readyz: 0s
  FAIRNESS_..., ..._WORKERS     slots by plan, pool sizes (LEND_IDLE_WORKERS: whether idle ones are lent)
  OTEL_EXPORTER_OTLP_ENDPOINT   where traces go (OTLP over HTTP); unset: nowhere. OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER
                                and the like as OpenTelemetry has them
Each secret can be in a file: DATABASE_URL_FILE and the like.
docs/reference/settings.md has the whole list, deploy/weir.env.example the defaults.

weir.toml has a [[service]] for each kind of work: its pools, its timeout, `retry` for when a failed job is tried again,
and who does it: a `builtin` handler, a program (`exec`) or an endpoint (`http`). A [[periodic]] enqueues a job by a
schedule. Its comments describe every member.";

/// Fair quotas, lanes and slots for a product's API, on River and PostgreSQL.
#[derive(Parser)]
#[command(name = "weir", version, about, after_help = SETTINGS)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring the database and its meters and plans up to date; safe to repeat, and to run from many places at once.
    ///
    /// What is somebody else's stays as it is: `migrate` looks first, and says what to set.
    Migrate(Migrate),
    /// Read the settings and the services, and do nothing: `npm start` asks whether they have faults.
    #[command(hide = true)]
    Check,
    /// Serve the API.
    Serve,
    /// Work jobs.
    Work {
        /// Only these services, comma separated.
        #[arg(long, value_delimiter = ',')]
        service: Vec<String>,
    },
    /// Lead: retries, periodic jobs, cleaning, reconciliation.
    Schedule,
    /// Serve, work and schedule in one process.
    Up,
    /// Print a bearer token, making the user and the subscription when they are missing.
    Token {
        /// The plan that the user shall have.
        #[arg(long)]
        tier: String,
        /// The user's subject, as tokens have it; a new UUID unless told.
        #[arg(long)]
        user: Option<Subject>,
        /// How long the token is good for.
        #[arg(long, default_value = "1h", value_parser = humantime::parse_duration)]
        ttl: Duration,
    },
    /// Prove the invariants on the database; exit code 1 when one does not hold.
    Audit {
        /// Machine-readable.
        #[arg(long)]
        json: bool,
        /// Rebuild the counters from the rows they stand for, then check.
        #[arg(long)]
        repair: bool,
    },
    /// Show who leads, what gets done, and what holds each lane back.
    Status {
        /// One user instead, by subject or id: slots, parked jobs and quota by meter.
        #[arg(long)]
        user: Option<Subject>,
        /// Machine-readable.
        #[arg(long)]
        json: bool,
        /// Again every second, until interrupted; q ends it on a terminal.
        #[arg(long)]
        watch: bool,
    },
    /// Show the catalogue as the database has it, and what differs from weir.toml.
    Plans {
        /// Machine-readable.
        #[arg(long)]
        json: bool,
    },
    /// Make, show and end service keys, which backends call the origin with.
    #[command(subcommand)]
    Key(Key),
    /// Show and change a user: plan, limits, usage, jobs.
    User(User),
    /// Move usage of long ago out of the database.
    #[command(subcommand)]
    Usage(Usage),
    /// Tell others what happens: jobs that end, thresholds of quotas, changes of plans.
    #[command(subcommand)]
    Webhook(Webhook),
}

impl Command {
    /// What its connections to the database are called.
    fn application_name(&self) -> &'static str {
        match self {
            Self::Migrate(_) => "weir migrate",
            Self::Check => "weir check",
            Self::Serve => "weir serve",
            Self::Work { .. } => "weir work",
            Self::Schedule => "weir schedule",
            Self::Up => "weir up",
            Self::Token { .. } => "weir token",
            Self::Audit { .. } => "weir audit",
            Self::Status { .. } => "weir status",
            Self::Plans { .. } => "weir plans",
            Self::Key(_) => "weir key",
            Self::User(_) => "weir user",
            Self::Usage(_) => "weir usage",
            Self::Webhook(_) => "weir webhook",
        }
    }
}

pub(crate) async fn run(cli: Cli) -> CommandResult {
    let mut settings = Settings::from_env()?;
    settings.application_name = cli.command.application_name();
    match cli.command {
        Command::Migrate(migrate) => migrate.run(&settings).await,
        Command::Check => Ok(ExitCode::SUCCESS),
        Command::Serve => {
            Parts {
                serve: true,
                role: None,
                services: Vec::new(),
            }
            .run(settings)
            .await
        }
        Command::Work { service } => {
            let services = chosen(&settings, &service)?;
            Parts {
                serve: false,
                role: Some(Role::Work),
                services,
            }
            .run(settings)
            .await
        }
        Command::Schedule => {
            Parts {
                serve: false,
                role: Some(Role::Lead),
                services: Vec::new(),
            }
            .run(settings)
            .await
        }
        Command::Up => {
            let services = settings.services.clone();
            Parts {
                serve: true,
                role: Some(Role::Both),
                services,
            }
            .run(settings)
            .await
        }
        Command::Token { tier, user, ttl } => {
            let client = connected(&settings).await?;
            let user = user.unwrap_or_else(|| Uuid::new_v4().into());
            print(&format!(
                "{}\n",
                token::issue(&client, &settings, &user, &tier, ttl).await?
            ))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Audit { json, repair } => {
            let mut client = connected(&settings).await?;
            if repair {
                audit::repair(&mut client).await?;
            }
            let findings =
                audit::audit(&mut client, settings.fairness.cluster_limits(), audit::GRACE).await?;
            if json {
                print(&format!("{}\n", serde_json::to_string_pretty(&findings)?))?;
            } else {
                print(&audit::report(&findings))?;
            }
            let clean = findings.iter().all(audit::Finding::holds);
            Ok(if clean {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Command::Key(key) => key.run(&settings).await,
        Command::User(user) => user.run(&settings).await,
        Command::Usage(usage) => usage.run(&settings).await,
        Command::Webhook(webhook) => webhook.run(&settings).await,
        Command::Plans { json } => plans::show(&settings, json).await,
        Command::Status { user, json, watch } => status::Status { user, json, watch }.run(&settings).await,
    }
}

/// The services of these names; all when there is none.
fn chosen(settings: &Settings, names: &[String]) -> Result<Vec<Service>, String> {
    if names.is_empty() {
        return Ok(settings.services.clone());
    }
    names
        .iter()
        .map(|name| {
            settings.service(name).cloned().ok_or_else(|| {
                let all: Vec<_> = settings
                    .services
                    .iter()
                    .map(|service| service.name.as_str())
                    .collect();
                format!("there is no service {name:?}; there are {}", all.join(", "))
            })
        })
        .collect()
}

/// What one process does.
struct Parts {
    serve: bool,
    role: Option<Role>,
    services: Vec<Service>,
}

/// How long the end may take beyond the drain time: programs have 10 s after SIGTERM, and their outcomes are recorded.
const STOP_MARGIN: Duration = Duration::from_secs(20);

/// The start and reconciliation may take this long to end, however short the drain time is.
const MIN_DRAIN: Duration = Duration::from_secs(1);

/// The exit status of a process that was asked twice to stop, as a shell has it after SIGINT.
const SIGNALLED: u8 = 130;

impl Parts {
    async fn run(self, settings: Settings) -> CommandResult {
        logs::start(settings.access_log);
        let mut signals = StopSignals::listen()?;
        if settings.environment == Environment::Production {
            // Programs of handlers run as the same user, and must not read this process's memory or environment.
            if let Err(error) = nix::sys::prctl::set_dumpable(false) {
                tracing::warn!(%error, "other processes of this user can read this one's secrets");
            }
        }
        let runs_programs = |service: &Service| matches!(service.handler, HandlerSpec::Exec { .. });
        if self.services.iter().any(runs_programs)
            && let Err(error) = watch_programs()
        {
            tracing::warn!(%error, "programs of handlers will outlive this process if it is killed");
        }
        if let Some(warning) = settings.database()?.warning() {
            tracing::warn!("{warning}");
        }
        let metrics = metrics::start(&settings)?;
        let export = settings.traces.as_ref().map(traces::start).transpose()?;
        let context = Context::new(settings)?;
        let drain_timeout = context.settings.drain_timeout;
        tokio::select! {
            ready = ready(&context.settings) => ready?,
            signal = signals.next() => {
                tracing::info!(signal, "stopping before the start");
                return Ok(ExitCode::SUCCESS);
            }
        }
        let mut starting = pin!(async {
            match self.role {
                Some(role) => Working::start(&context, role, &self.services).await.map(Some),
                None => Ok(None),
            }
        });
        let mut working = tokio::select! {
            started = &mut starting => started?,
            signal = signals.next() => {
                tracing::info!(signal, "stopping during the start");
                // It may run jobs already, so it is not dropped.
                let stopped = async {
                    let started = tokio::time::timeout(drain_timeout.max(MIN_DRAIN), starting).await;
                    if let Ok(Ok(Some(working))) = started {
                        working.stop().await;
                    }
                };
                return Ok(tokio::select! {
                    () = stopped => ExitCode::SUCCESS,
                    _ = signals.next() => ExitCode::from(SIGNALLED),
                });
            }
        };
        let stopping = CancellationToken::new();
        // `/readyz` reports it before the listener closes.
        let unready = CancellationToken::new();
        let delay = if self.serve {
            context.settings.stop_delay
        } else {
            Duration::ZERO
        };
        let mut tasks = tokio::task::JoinSet::<Result<(), Box<dyn Error + Send + Sync>>>::new();
        if matches!(self.role, Some(Role::Lead | Role::Both)) {
            let reconciliation = reconcile::run(context.clone(), stopping.clone());
            let stopping = stopping.clone();
            tasks.spawn(async move {
                // A round may wait for a database that does not answer.
                let given_up = async {
                    stopping.cancelled().await;
                    tokio::time::sleep(drain_timeout.max(MIN_DRAIN)).await;
                };
                tokio::select! {
                    () = reconciliation => {}
                    () = given_up => tracing::warn!("stopped in the middle of a round of reconciliation"),
                }
                Ok(())
            });
        }
        if self.serve {
            let serving = serve::run(context.clone(), metrics, unready.clone(), stopping.clone());
            tasks.spawn(async { Ok(serving.await?) });
        } else if let Some(address) = context.settings.probes {
            let probes = Probes::new(context.pool.clone(), &context.settings, metrics, unready.clone());
            let stopping = stopping.clone();
            tasks.spawn(async move { Ok(probes::run(probes, address, stopping).await?) });
        }
        let river_ended = async {
            match &mut working {
                Some(working) => working.ended().await,
                None => std::future::pending().await,
            }
        };
        let early = tokio::select! {
            signal = signals.next() => {
                tracing::info!(signal, "stopping");
                None
            }
            () = river_ended => Some("River's client ended".into()),
            Some(ended) = tasks.join_next() => match ended {
                Ok(Ok(())) => Some("a part of the process ended".into()),
                Ok(Err(error)) => Some(error as Box<dyn Error>),
                Err(error) => Some(error.into()),
            },
        };
        unready.cancel();
        // A part that has failed is not waited for.
        let delay = if early.is_some() { Duration::ZERO } else { delay };
        let stopped = async {
            let close = async {
                tokio::time::sleep(delay).await;
                stopping.cancel();
            };
            let drain = async {
                if let Some(working) = working {
                    working.stop().await;
                }
            };
            tokio::join!(close, drain);
            while tasks.join_next().await.is_some() {}
            if let Some(export) = export {
                export.finish().await;
            }
        };
        let stopped = async {
            if tokio::time::timeout(delay + drain_timeout + STOP_MARGIN, stopped)
                .await
                .is_err()
            {
                tracing::warn!("not everything stopped in time: what still runs is taken back and run again");
            }
        };
        tokio::select! {
            () = stopped => early.map_or(Ok(ExitCode::SUCCESS), Err),
            signal = signals.next() => {
                tracing::warn!(signal, "asked again to stop: what still runs is taken back and run again");
                Ok(ExitCode::from(SIGNALLED))
            }
        }
    }
}

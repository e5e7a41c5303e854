//! The subcommands.

mod audit;
mod connection;
mod documents;
#[cfg(target_os = "linux")]
pub(crate) mod first_process;
mod import;
mod job;
mod key;
mod lane;
mod migrate;
pub(crate) mod output;
mod plans;
mod process;
mod screen;
mod signals;
mod status;
mod token;
mod uninstall;
mod usage;
mod user;
mod user_text;
mod values;
mod webhook;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::Handlers;
use crate::config::Settings;
use crate::config::service::Service;
use crate::config::stored;
use crate::work::Role;

use audit::Audit;
use connection::connected;
use import::Import;
use job::Job;
use key::Key;
use lane::Lane;
use migrate::Migrate;
use output::CommandResult;
use process::{Process, registered};
use status::Status;
use token::Token;
use uninstall::Uninstall;
use usage::Usage;
use user::User;
use webhook::Webhook;

/// The end of `--help`.
const SETTINGS: &str = "\
Settings come from the environment. Weir refuses to start on invalid settings and lists every error:
  DATABASE_URL                  PostgreSQL, postgres://user@host:5432/name; or PGHOST and libpq's other variables
  WEIR_SCHEMA, RIVER_SCHEMA     the schemas of Weir's tables and of River's [default: by search_path]
  EDGE_SECRET                   shared with the edge; `serve` and `up` need it
  WEIR_ORIGIN_HOST, _PORT       where `serve` and `up` listen [default: 127.0.0.1, 8080]
  WEIR_METRICS_HOST, _PORT      where `work` and `schedule` answer /metrics, /healthz and /readyz; only with a port.
                                `serve` and `up` answer them on the API's port
  WEIR_CONFIG                   the file with the services [default: weir.toml]. Without it, status, audit, key, user,
                                job, lane, usage and webhook take the services from the database
  WEIR_DRAIN_TIMEOUT            how long running jobs may continue after SIGTERM [default: 30s]
  WEIR_STOP_DELAY               how long `serve` and `up` accept requests after SIGTERM; /readyz is 503 [default: 0s]
  FAIRNESS_..., ..._WORKERS     slots by plan, pool sizes (LEND_IDLE_WORKERS: whether lanes lend idle workers)
  OTEL_EXPORTER_OTLP_ENDPOINT   where to send traces, by OTLP over HTTP [default: nowhere]. OTEL_SERVICE_NAME,
                                OTEL_TRACES_SAMPLER and others as OpenTelemetry defines them
To read a secret from a file, append _FILE to the name of its variable: DATABASE_URL_FILE.
Exit codes: 0 success, 1 not done or violated, 2 wrong usage or another error, 3 not found.
docs/reference/settings.md lists all settings; deploy/weir.env.example has the defaults.

weir.toml has a [[service]] for each kind of job. It sets the pools, the timeout, the retry policy (`retry`), and the
handler: a program (`exec`), an endpoint (`http`), workers of your own (`external`), or Rust in a binary of your own
(`builtin`). A [[periodic]] enqueues a job on a schedule. Comments in weir.toml describe every key.";

/// Fair background jobs for your API.
#[derive(Parser)]
#[command(
    name = "weir",
    bin_name = "weir",
    version,
    about = "Fair background jobs for your API",
    after_help = SETTINGS
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring the database and its meters and plans up to date; safe to repeat and to run concurrently.
    ///
    /// `migrate` does not change other programs' tables. It checks the database first, and prints what to set if there
    /// is a conflict.
    #[command(after_help = "\
Examples:
  weir migrate
  weir migrate --print > weir.sql")]
    Migrate(Migrate),
    /// Read the settings and the services, and do nothing else; `npm start` uses it to check them.
    #[command(hide = true)]
    Check,
    /// Serve the API.
    #[command(after_help = "\
Examples:
  weir serve
  WEIR_ORIGIN_PORT=9000 weir serve")]
    Serve,
    /// Run jobs.
    #[command(after_help = "\
Examples:
  weir work
  weir work --service analysis,specview")]
    Work {
        /// Only these services, comma separated.
        #[arg(long, value_delimiter = ',')]
        service: Vec<String>,
    },
    /// Run the scheduler: retries, periodic jobs, cleaning and reconciliation.
    #[command(after_help = "\
Examples:
  weir schedule
  WEIR_METRICS_PORT=9090 weir schedule")]
    Schedule,
    /// Serve, run jobs and schedule in one process.
    #[command(after_help = "\
Examples:
  weir up
  WEIR_CONFIG=/etc/weir/weir.toml weir up")]
    Up,
    /// Print a bearer token; creates the user and the subscription if needed.
    #[command(after_help = "\
Examples:
  weir token --plan pro
  weir token --plan free --user 7e1f1d9e-3c87-4d2c-9a6e-9d6a9d1b9c11 --ttl 8h")]
    Token(Token),
    /// Check the database's invariants; exit code 1 if any is violated.
    #[command(after_help = "\
Examples:
  weir audit
  weir audit --json | jq '.[] | select(.violations != [])'")]
    Audit(Audit),
    /// Show the leaders, the throughput, and why jobs are waiting, by lane.
    #[command(after_help = "\
Examples:
  weir status --watch
  weir status --json | jq .lanes")]
    Status(Status),
    /// Show the database's catalogue, and its differences from weir.toml.
    #[command(after_help = "\
Examples:
  weir plans
  weir plans --json | jq .")]
    Plans {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Create, list and revoke the service keys that backends use to call the origin.
    #[command(
        subcommand,
        after_help = "\
Examples:
  weir key create --name billing --scope admin --ttl 90d
  weir key revoke billing"
    )]
    Key(Key),
    /// Show and change a user: plan, limits, usage, jobs.
    #[command(after_help = "\
Examples:
  weir user show alice
  weir user plan alice pro --at-period-end
  weir user override alice analysis --limit month=2000 --slots 5
  weir user grant alice analysis 100 --reason 'support ticket 17'")]
    User(User),
    /// Show a job, run failed jobs again, or cancel jobs: one, or all that match.
    #[command(
        subcommand,
        after_help = "\
Examples:
  weir job show 4711
  weir job retry --service render --error 'connection refused' --dry-run
  weir job cancel 4711"
    )]
    Job(Job),
    /// Pause and resume a lane.
    #[command(
        subcommand,
        after_help = "\
Example:
  weir lane pause analysis_default"
    )]
    Lane(Lane),
    /// Move old usage events out of the database.
    #[command(
        subcommand,
        after_help = "\
Example:
  weir usage archive --before 2026-01-01T00:00:00Z --to usage-2025.jsonl"
    )]
    Usage(Usage),
    /// Import the users, subscriptions, usage and reservations of an existing product.
    ///
    /// `import` reads tables or views in a schema of this database, with the columns in docs/how-to/take-over.md. It
    /// writes everything in one transaction, or lists the rows that it cannot import. A repeated import changes nothing.
    #[command(after_help = "\
Examples:
  weir import --from takeover --dry-run
  weir import --from takeover")]
    Import(Import),
    /// Remove Weir from the database; River's tables and all jobs stay.
    ///
    /// `uninstall` makes jobs that wait for a slot available to River's clients, and drops Weir's tables, functions and
    /// roles. It refuses while a process of Weir runs, or another program's object uses one of Weir's.
    #[command(after_help = "\
Examples:
  weir uninstall
  weir uninstall --queue default --yes")]
    Uninstall(Uninstall),
    /// Manage webhooks, which receive events: finished jobs, quota thresholds, plan changes.
    #[command(
        subcommand,
        after_help = "\
Examples:
  weir webhook add https://example.com/weir --events job.completed,job.failed
  weir webhook replay 0192f0c1-5a4e-7c3b-9a55-3f1c2d4e5f60 --undelivered-since 2026-01-31T00:00:00Z"
    )]
    Webhook(Webhook),
    /// Print a completion script for a shell.
    #[command(after_help = "\
Examples:
  weir completions bash > /etc/bash_completion.d/weir
  weir completions zsh > ~/.zfunc/_weir
  weir completions fish > ~/.config/fish/completions/weir.fish")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages into a folder; a release contains them.
    #[command(hide = true)]
    Manual {
        /// The folder.
        #[arg(long)]
        to: PathBuf,
    },
}

impl Command {
    /// The `application_name` of its database connections.
    fn application_name(&self) -> &'static str {
        match self {
            Self::Migrate(_) => "weir migrate",
            Self::Check => "weir check",
            Self::Serve => "weir serve",
            Self::Work { .. } => "weir work",
            Self::Schedule => "weir schedule",
            Self::Up => "weir up",
            Self::Token(_) => "weir token",
            Self::Audit(_) => "weir audit",
            Self::Status(_) => "weir status",
            Self::Plans { .. } => "weir plans",
            Self::Key(_) => "weir key",
            Self::User(_) => "weir user",
            Self::Job(_) => "weir job",
            Self::Lane(_) => "weir lane",
            Self::Usage(_) => "weir usage",
            Self::Import(_) => "weir import",
            Self::Uninstall(_) => "weir uninstall",
            Self::Webhook(_) => "weir webhook",
            Self::Completions { .. } => "weir completions",
            Self::Manual { .. } => "weir manual",
        }
    }
}

impl Command {
    /// Whether it runs services or compares the file with the database. The others work on any machine that reaches the
    /// database.
    fn needs_services_file(&self) -> bool {
        !matches!(
            self,
            Self::Status(_)
                | Self::Audit(_)
                | Self::Key(_)
                | Self::User(_)
                | Self::Job(_)
                | Self::Lane(_)
                | Self::Usage(_)
                | Self::Webhook(_)
        )
    }
}

pub(crate) async fn run(cli: Cli, handlers: Handlers<'_>) -> CommandResult {
    match cli.command {
        // These commands need no settings.
        Command::Completions { shell } => documents::completions(Cli::command(), shell),
        Command::Manual { to } => documents::manual(Cli::command(), &to),
        command => {
            let mut settings = match command.needs_services_file() {
                true => Settings::from_env()?,
                false => Settings::from_env_without_file()?,
            };
            settings.application_name = command.application_name();
            if !settings.has_services_file {
                settings.services = stored::services(&connected(&settings).await?).await?;
            }
            command.run(settings, handlers).await
        }
    }
}

impl Command {
    async fn run(self, settings: Settings, handlers: Handlers<'_>) -> CommandResult {
        match self {
            Self::Completions { .. } | Self::Manual { .. } => Ok(ExitCode::SUCCESS),
            Self::Check => Ok(registered(&settings.services, handlers).map(|()| ExitCode::SUCCESS)?),
            Self::Migrate(migrate) => migrate.run(&settings).await,
            Self::Serve => Process::serve().run(settings, handlers).await,
            Self::Work { service } => {
                let services = chosen(&settings, &service)?;
                Process::work(Role::Work, services).run(settings, handlers).await
            }
            Self::Schedule => {
                Process::work(Role::Lead, Vec::new())
                    .run(settings, handlers)
                    .await
            }
            Self::Up => {
                Process::up(settings.services.clone())
                    .run(settings, handlers)
                    .await
            }
            Self::Token(token) => token.run(&settings).await,
            Self::Audit(audit) => audit.run(&settings).await,
            Self::Key(key) => key.run(&settings).await,
            Self::User(user) => user.run(&settings).await,
            Self::Job(job) => job.run(&settings).await,
            Self::Lane(lane) => lane.run(&settings).await,
            Self::Usage(usage) => usage.run(&settings).await,
            Self::Import(import) => import.run(&settings).await,
            Self::Uninstall(uninstall) => uninstall.run(&settings).await,
            Self::Webhook(webhook) => webhook.run(&settings).await,
            Self::Plans { json } => plans::show(&settings, json).await,
            Self::Status(status) => status.run(&settings).await,
        }
    }
}

/// The services with these names, which must not be external; all services when the list is empty.
fn chosen(settings: &Settings, names: &[String]) -> Result<Vec<Service>, String> {
    if names.is_empty() {
        return Ok(settings.services.clone());
    }
    names
        .iter()
        .map(|name| {
            let service = settings.service(name).ok_or_else(|| {
                let all: Vec<_> = settings
                    .services
                    .iter()
                    .map(|service| service.name.as_str())
                    .collect();
                format!("unknown service {name:?}; expected one of {}", all.join(", "))
            })?;
            if service.is_external() {
                return Err(format!(
                    "the service {name:?} is external: other programs work it; leave it out"
                ));
            }
            Ok(service.clone())
        })
        .collect()
}

//! `weir job`: shows a job, and runs and cancels jobs, one or all that match.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio_postgres::Client;
use weir_ledger::control::{self, JobFilter};
use weir_ledger::holder::Holders;
use weir_policy::subject::Subject;

use super::connection::connected;
use super::output::{
    CommandResult, NOT_FOUND, NotFound, ProgressLine, actor, bold, counted, print, print_json,
};
use super::values;
use crate::api::{JobReport, job_report};
use crate::config::Settings;
use crate::river_control::JobChange;
use crate::status::duration;

#[derive(Subcommand)]
pub(crate) enum Job {
    /// Show a job: why it waits, its attempts with their errors, its output.
    #[command(after_help = "\
Examples:
  weir job show 4711
  weir job show 4711 --json")]
    Show {
        /// The job's id.
        id: i64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Run failed jobs again, with a new reservation of their quota.
    ///
    /// Without ids, the options select failed jobs. With ids, a job may also have been cancelled or have expired. Jobs over
    /// their user's quota stay as they are.
    #[command(after_help = "\
Examples:
  weir job retry 4711
  weir job retry --service render --error 'connection refused' --dry-run")]
    Retry(Selection),
    /// Cancel jobs; running ones stop a moment later.
    #[command(after_help = "\
Examples:
  weir job cancel 4711
  weir job cancel --user alice --older-than 1h")]
    Cancel(Selection),
}

/// The jobs to change.
#[derive(Args)]
pub(crate) struct Selection {
    /// The jobs' ids.
    #[arg(conflicts_with_all = ["service", "kind", "user", "error", "older_than"])]
    ids: Vec<i64>,
    /// Jobs of this service.
    #[arg(long, conflicts_with = "kind")]
    service: Option<String>,
    /// Jobs of this River kind.
    #[arg(long)]
    kind: Option<String>,
    /// Jobs of the user with this subject.
    #[arg(long)]
    user: Option<Subject>,
    /// Jobs whose error contains this text, in any case.
    #[arg(long)]
    error: Option<String>,
    /// Jobs that ended, or were submitted, at least this long ago, such as 1h.
    #[arg(long, value_parser = values::duration)]
    older_than: Option<Duration>,
    /// Only print the number of jobs.
    #[arg(long)]
    dry_run: bool,
}

impl Job {
    pub(crate) async fn run(self, settings: &Settings) -> CommandResult {
        let mut client = connected(settings).await?;
        let (selection, change) = match &self {
            Self::Show { id, json } => return show(settings, &client, *id, *json).await,
            Self::Retry(selection) => (selection, JobChange::Retry),
            Self::Cancel(selection) => (selection, JobChange::Cancel),
        };
        let filter = selection.filter(settings, &client).await?;
        let jobs = match &filter {
            Some(filter) => control::all_matching_jobs(&client, filter, change.states()).await?,
            None => selection.ids.clone(),
        };
        if selection.dry_run {
            print(&format!(
                "{} would change\n",
                counted(jobs.len() as i128, "job", "jobs")
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        let (mut line, mut done) = (ProgressLine::new(), 0);
        let show = |_| {
            done += 1;
            line.show(|| format!("{done} of {} jobs", jobs.len()));
        };
        let (actor, filter) = (actor(), filter.as_ref());
        let river = riverqueue::Client::builder(settings.database()?.river_pool(1)?).build()?;
        let outcomes = change
            .apply(&river, &mut client, &actor, &jobs, filter, show)
            .await?;
        let is_whole = outcomes
            .keys()
            .all(|outcome| matches!(*outcome, "retried" | "cancelled"));
        let is_missing = !outcomes.is_empty() && outcomes.keys().all(|outcome| *outcome == "not_found");
        if outcomes.is_empty() {
            print("no job matches\n")?;
        }
        for (outcome, count) in outcomes {
            print(&format!("{outcome}: {}\n", counted(count as i128, "job", "jobs")))?;
        }
        Ok(match (is_whole, is_missing) {
            (true, _) => ExitCode::SUCCESS,
            (false, true) => ExitCode::from(NOT_FOUND),
            (false, false) => ExitCode::FAILURE,
        })
    }
}

impl Selection {
    /// The filter; `None` with ids.
    async fn filter(
        &self,
        settings: &Settings,
        client: &Client,
    ) -> Result<Option<JobFilter>, Box<dyn std::error::Error>> {
        if !self.ids.is_empty() {
            return Ok(None);
        }
        let kinds = match &self.service {
            Some(name) => {
                let service = settings.service(name);
                let service = service.ok_or_else(|| NotFound(format!("unknown service {name:?}")))?;
                Some(vec![service.kind.clone()])
            }
            None => self.kind.clone().map(|kind| vec![kind]),
        };
        let holders = Holders::load(client).await?;
        let filter = JobFilter {
            kinds,
            holder: self.user.as_ref().map(|user| holders.subject(user).id),
            error: self.error.clone(),
            older_than: self.older_than,
            ..JobFilter::default()
        };
        if filter.is_empty() {
            return Err(
                "name jobs by their ids, or by --service, --kind, --user, --error or --older-than".into(),
            );
        }
        Ok(Some(filter))
    }
}

async fn show(settings: &Settings, client: &Client, id: i64, json: bool) -> CommandResult {
    let job = job_report(client, settings, id).await?;
    let job = job.ok_or_else(|| {
        NotFound(format!(
            "job {id} not found; River deletes finished jobs after a while"
        ))
    })?;
    if json {
        print_json(&job)?;
    } else {
        print(&text(&job))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(job: &JobReport) -> String {
    let holder = match (&job.user, job.holder) {
        (Some(user), _) => user.clone(),
        (None, Some(holder)) => format!("{holder}, an anonymous address"),
        (None, None) => "none: it was not submitted through Weir".to_owned(),
    };
    let reservation = job.reservation.as_ref().map(|of| {
        let since = match (of.admitted_at, of.parked_at) {
            (Some(at), _) => format!("with a slot since {at}"),
            (None, Some(at)) => format!("parked since {at}"),
            (None, None) => "between two attempts".to_owned(),
        };
        format!("{}, {since}, expires {}", of.amount, of.expires_at)
    });
    let facts = [
        ("state", Some(job.state())),
        ("holder", Some(holder)),
        ("service", job.service.clone()),
        ("kind", Some(job.kind.clone())),
        ("queue", Some(format!("{}, priority {}", job.queue, job.priority))),
        (
            "attempt",
            Some(format!("{} of {}", job.attempt, job.max_attempts)),
        ),
        ("submitted", Some(job.created_at.to_string())),
        ("scheduled", Some(job.scheduled_at.to_string())),
        ("ended", job.finished_at.map(|at| at.to_string())),
        ("reserved", reservation),
        ("charged", job.charged.map(|amount| amount.to_string())),
        ("request", job.request_id.clone()),
        ("trace", job.trace_id().map(str::to_owned)),
    ];
    let mut text = String::new();
    for (name, value) in facts {
        if let Some(value) = value {
            text += &format!("{name:<12} {value}\n");
        }
    }
    for of in &job.attempts {
        let started = of
            .started_at
            .map_or_else(String::new, |at| format!(" started {at}"));
        let took = of
            .took_ms
            .map_or_else(String::new, |took| format!(", took {}", duration(took)));
        let by = of.by.as_ref().map_or_else(String::new, |by| format!(", by {by}"));
        text += &format!(
            "\n{}{started}{took}{by}\n",
            bold(&format!("attempt {}", of.attempt))
        );
        for line in of.error.iter().flat_map(|error| error.lines()) {
            text += &format!("  {line}\n");
        }
    }
    for (name, value) in [("output", job.output.as_ref()), ("arguments", Some(&job.args))] {
        if let Some(value) = value {
            text += &format!("\n{}\n{}\n", bold(name), value.pretty());
        }
    }
    text
}

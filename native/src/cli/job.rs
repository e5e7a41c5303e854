//! `weir job`: runs and cancels jobs, one or all that match.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio_postgres::Client;
use weir_ledger::control::{self, JobFilter};
use weir_ledger::holder::Holders;
use weir_policy::subject::Subject;

use super::connection::connected;
use super::output::{CommandResult, NOT_FOUND, NotFound, ProgressLine, actor, counted, print};
use super::values;
use crate::config::Settings;

#[derive(Subcommand)]
pub(crate) enum Job {
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
    #[arg(conflicts_with_all = ["service", "user", "error", "older_than"])]
    ids: Vec<i64>,
    /// Jobs of this service.
    #[arg(long)]
    service: Option<String>,
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
        let (selection, states): (_, &[&str]) = match &self {
            Self::Retry(selection) => (selection, &control::FAILED),
            Self::Cancel(selection) => (selection, &control::UNFINISHED),
        };
        let filter = selection.filter(settings, &client).await?;
        let jobs = match &filter {
            Some(filter) => all(&client, filter, states).await?,
            None => selection.ids.clone(),
        };
        if selection.dry_run {
            print(&format!(
                "{} would change\n",
                counted(jobs.len() as i128, "job", "jobs")
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        let outcomes = match self {
            Self::Retry(_) => {
                let (mut line, mut done) = (ProgressLine::new(), 0);
                control::retry_jobs(&mut client, &actor(), &jobs, filter.as_ref(), || {
                    done += 1;
                    line.show(|| format!("{done} of {} jobs", jobs.len()));
                })
                .await?
            }
            Self::Cancel(_) => {
                let (outcomes, failure) = cancel(settings, &jobs).await?;
                if outcomes.contains_key("cancelled") {
                    control::record_jobs(
                        &client,
                        &actor(),
                        "jobs.cancel",
                        &jobs,
                        filter.as_ref(),
                        &outcomes,
                    )
                    .await?;
                }
                if let Some(error) = failure {
                    return Err(error.into());
                }
                outcomes
            }
        };
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
            None => None,
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
            return Err("name jobs by their ids, or by --service, --user, --error or --older-than".into());
        }
        Ok(Some(filter))
    }
}

async fn all(
    client: &Client,
    filter: &JobFilter,
    states: &[&str],
) -> Result<Vec<i64>, control::ControlError> {
    let mut jobs = Vec::new();
    loop {
        let after = jobs.last().copied().unwrap_or_default();
        let more = control::matching_jobs(client, filter, states, after).await?;
        if more.is_empty() {
            return Ok(jobs);
        }
        jobs.extend(more);
    }
}

/// Cancels as River does. Reconciliation then releases the quota and the slots. Stops at the first error, and returns it
/// with the outcomes before it.
async fn cancel(
    settings: &Settings,
    jobs: &[i64],
) -> Result<(BTreeMap<&'static str, usize>, Option<riverqueue::Error>), Box<dyn std::error::Error>> {
    let pool = settings.database()?.river_pool(1)?;
    let river = riverqueue::Client::builder(pool).build()?;
    let (mut line, mut outcomes) = (ProgressLine::new(), BTreeMap::<_, usize>::new());
    for (index, job) in jobs.iter().enumerate() {
        let outcome = match river.jobs().cancel(*job).await {
            Ok(_) => "cancelled",
            Err(riverqueue::Error::NotFound(_)) => "not_found",
            Err(error) => return Ok((outcomes, Some(error))),
        };
        *outcomes.entry(outcome).or_default() += 1;
        line.show(|| format!("{} of {} jobs", index + 1, jobs.len()));
    }
    Ok((outcomes, None))
}

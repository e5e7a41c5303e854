//! What operators change by River's own means: they cancel jobs, and pause lanes.

use std::collections::BTreeMap;

use riverqueue::JobState;
use serde_json::json;
use thiserror::Error;
use tokio_postgres::Client;
use weir_ledger::control::{self, ControlError, JobFilter};

use crate::config::Settings;

/// Why a lane cannot be paused or resumed.
#[derive(Debug, Error)]
pub enum PauseError {
    /// No service has it.
    #[error("no service has a lane {0:?}; `weir status` lists the lanes")]
    Unknown(String),
    /// River has no row for it.
    #[error("no worker has ever worked {0:?}, so River has no row to pause it by")]
    Unworked(String),
    /// River cannot change it.
    #[error(transparent)]
    River(#[from] riverqueue::Error),
    /// The change cannot be logged.
    #[error(transparent)]
    Log(#[from] tokio_postgres::Error),
}

/// Pauses or resumes a lane, and logs it. While it is paused, no more of its jobs start; running jobs continue.
///
/// # Errors
///
/// When no service has the lane, no worker ever worked it, or the database cannot be used.
pub async fn set_paused(
    settings: &Settings,
    river: &riverqueue::Client,
    client: &Client,
    actor: &str,
    queue: &str,
    pauses: bool,
) -> Result<(), PauseError> {
    let mut queues = settings.services.iter().flat_map(|service| service.queues());
    if !queues.any(|(_, name, _)| name == queue) {
        return Err(PauseError::Unknown(queue.to_owned()));
    }
    let (changed, action) = if pauses {
        (river.queues().pause(queue).await, "lane.pause")
    } else {
        (river.queues().resume(queue).await, "lane.resume")
    };
    match changed {
        Err(riverqueue::Error::NotFound(_)) => return Err(PauseError::Unworked(queue.to_owned())),
        changed => changed?,
    }
    control::record(client, actor, action, None, json!({ "queue": queue })).await?;
    Ok(())
}

/// What operators do with jobs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum JobChange {
    /// Runs failed jobs again.
    Retry,
    /// Cancels unfinished jobs.
    Cancel,
}

/// Why jobs cannot be changed.
#[derive(Debug, Error)]
pub enum JobChangeError {
    /// River cannot cancel one. The jobs after it stay as they are.
    #[error(transparent)]
    River(#[from] riverqueue::Error),
    /// A job cannot run again, or the change cannot be logged.
    #[error(transparent)]
    Control(#[from] ControlError),
}

impl JobChange {
    /// River's states of the jobs that a filter selects.
    #[must_use]
    pub const fn states(self) -> &'static [&'static str] {
        match self {
            Self::Retry => &control::FAILED,
            Self::Cancel => &control::UNFINISHED,
        }
    }

    /// Changes these jobs one after the other, calls `show` with the outcome of each, and logs it. Returns the number of
    /// jobs by outcome.
    ///
    /// # Errors
    ///
    /// When the database cannot be used. Jobs may have been changed then.
    pub async fn apply(
        self,
        river: &riverqueue::Client,
        client: &mut Client,
        actor: &str,
        jobs: &[i64],
        filter: Option<&JobFilter>,
        show: impl FnMut(&'static str),
    ) -> Result<BTreeMap<&'static str, usize>, JobChangeError> {
        match self {
            Self::Retry => Ok(control::retry_jobs(client, actor, jobs, filter, show).await?),
            Self::Cancel => cancel(river, client, actor, jobs, filter, show).await,
        }
    }
}

/// Cancels these jobs as River does. Reconciliation then releases their quota and slots. The outcomes are `cancelled`,
/// `ended` before, and `not_found`.
async fn cancel(
    river: &riverqueue::Client,
    client: &Client,
    actor: &str,
    jobs: &[i64],
    filter: Option<&JobFilter>,
    mut show: impl FnMut(&'static str),
) -> Result<BTreeMap<&'static str, usize>, JobChangeError> {
    let (mut outcomes, mut failure) = (BTreeMap::<_, usize>::new(), None);
    for job in jobs {
        let outcome = match river.jobs().cancel(*job).await {
            Ok(job) if matches!(job.state, JobState::Completed | JobState::Discarded) => "ended",
            Ok(_) => "cancelled",
            Err(riverqueue::Error::NotFound(_)) => "not_found",
            Err(error) => {
                failure = Some(error);
                break;
            }
        };
        *outcomes.entry(outcome).or_default() += 1;
        show(outcome);
    }
    if outcomes.contains_key("cancelled") {
        control::record_jobs(client, actor, "jobs.cancel", jobs, filter, &outcomes).await?;
    }
    failure.map_or(Ok(outcomes), |error| Err(error.into()))
}

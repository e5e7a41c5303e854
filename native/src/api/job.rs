//! A job as its owner sees it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use weir_ledger::read::jobs::JobView;
use weir_ledger::reservation::NewJob;

use crate::config::Settings;
use crate::config::service::Service;
use weir_ledger::raw_json::RawJson;

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Not running now; `waiting_for` has the reason.
    Queued,
    /// Running.
    Running,
    /// Completed; `output` has the result.
    Completed,
    /// The last attempt failed; `error` has the reason.
    Failed,
    /// Cancelled by its owner or by an operator.
    Cancelled,
}

/// Why a queued job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitingFor {
    /// For a slot, until another job of the same user ends.
    Slot,
    /// For a free worker of its lane.
    Worker,
    /// For its next attempt.
    Retry,
    /// For the time it is scheduled for.
    Schedule,
}

/// The state of a job in words, as the console and the commands write it.
pub(super) fn words(status: Status, waiting_for: Option<WaitingFor>) -> &'static str {
    match (status, waiting_for) {
        (Status::Queued, Some(WaitingFor::Slot)) => "waits for a slot",
        (Status::Queued, Some(WaitingFor::Retry)) => "waits for its next attempt",
        (Status::Queued, Some(WaitingFor::Schedule)) => "waits for its time",
        (Status::Queued, _) => "waits for a worker",
        (Status::Running, _) => "running",
        (Status::Completed, _) => "completed",
        (Status::Failed, _) => "failed",
        (Status::Cancelled, _) => "cancelled",
    }
}

/// The last error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct JobError {
    /// A message for people.
    pub message: String,
}

/// The progress that the current attempt reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// From 0 to 1.
    pub fraction: f64,
    /// A message for people.
    pub message: Option<String>,
}

/// A job.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Job {
    /// River's job id.
    pub id: i64,
    /// The service it was submitted to.
    pub service: String,
    /// Its state.
    pub status: Status,
    /// Why it waits; null unless it is queued.
    pub waiting_for: Option<WaitingFor>,
    /// Its lane.
    pub queue: String,
    /// The plan of its owner now; `anonymous` without an owner.
    pub plan: String,
    /// The same as `plan`, until the next release.
    #[schema(deprecated)]
    pub tier: String,
    /// The number of attempts, including the current one.
    pub attempt: i16,
    /// The maximum number of attempts.
    pub max_attempts: i16,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it is cancelled if it still waits; null if never, or if it has ended.
    pub expires_at: Option<Timestamp>,
    /// When the last attempt started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The quota that is reserved for it.
    pub reserved: i64,
    /// The quota that it was charged.
    pub charged: i64,
    /// The output of a completed job. Null in lists.
    #[schema(value_type = Option<Value>)]
    pub(super) output: Option<RawJson>,
    /// The last error, including when the job will be retried.
    pub error: Option<JobError>,
    /// Whether it runs on a worker that would be idle, over its owner's slots.
    pub lent: bool,
    /// The progress of the current attempt; null unless it reports any.
    pub progress: Option<Progress>,
    /// Whether it no longer holds anything. A job that ended outside Weir is settled and charged a moment later.
    #[serde(skip)]
    pub(super) is_settled: bool,
}

impl Job {
    pub(super) fn of(view: JobView, settings: &Settings) -> Self {
        let (status, waiting_for) = status_of(&view.state, view.parked, view.later, view.error.is_some());
        let finished = matches!(status, Status::Completed | Status::Cancelled | Status::Failed);
        Self {
            id: view.id,
            service: settings
                .service_of_kind(&view.kind)
                .map_or(view.kind, |service| service.name.clone()),
            status,
            waiting_for,
            queue: view.queue,
            tier: view.plan.clone(),
            plan: view.plan,
            attempt: view.attempt,
            max_attempts: view.max_attempts,
            created_at: view.created_at,
            expires_at: view.expires_at,
            started_at: view.attempted_at,
            finished_at: view.finalized_at,
            reserved: if finished { 0 } else { view.reserved },
            charged: view.charged,
            output: view.output.filter(|_| status == Status::Completed),
            error: view.error.map(|message| JobError { message }),
            lent: view.lent,
            progress: view
                .progress
                .and_then(|progress| serde_json::from_value(progress).ok()),
            is_settled: view.settled,
        }
    }

    /// A newly committed job.
    pub(super) fn accepted(job: NewJob, service: &Service) -> Self {
        let plan = job.plan.unwrap_or("anonymous");
        Self {
            id: job.id,
            service: service.name.clone(),
            status: Status::Queued,
            waiting_for: Some(match (job.has_slot, job.run_at) {
                (true, _) => WaitingFor::Worker,
                (false, None) => WaitingFor::Slot,
                (false, Some(_)) => WaitingFor::Schedule,
            }),
            queue: job.queue,
            plan: plan.to_owned(),
            tier: plan.to_owned(),
            attempt: 0,
            max_attempts: service.max_attempts,
            created_at: job.created_at,
            expires_at: job.expires_at,
            started_at: None,
            finished_at: None,
            reserved: job.reserved,
            charged: 0,
            output: None,
            error: None,
            lent: false,
            progress: None,
            is_settled: false,
        }
    }

    /// Whether the job's last attempt is running or ended the job. River keeps the time of the last attempt in a job
    /// that waits for a retry.
    pub(super) fn has_run(&self) -> bool {
        self.status == Status::Running || self.is_finished()
    }

    /// Whether it can no longer change.
    pub(super) fn is_over(&self) -> bool {
        self.is_finished() && self.is_settled
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(
            self.status,
            Status::Completed | Status::Cancelled | Status::Failed
        )
    }
}

/// The state by River's; a job with an outstanding answer counts as running.
pub(super) fn status_of(
    state: &str,
    parked: bool,
    later: bool,
    has_failed: bool,
) -> (Status, Option<WaitingFor>) {
    match state {
        "running" => (Status::Running, None),
        "completed" => (Status::Completed, None),
        "cancelled" => (Status::Cancelled, None),
        "discarded" => (Status::Failed, None),
        state => (
            Status::Queued,
            Some(waiting_for(state, parked, later, has_failed)),
        ),
    }
}

fn waiting_for(state: &str, parked: bool, later: bool, has_failed: bool) -> WaitingFor {
    match state {
        "pending" if later && !parked => WaitingFor::Schedule,
        "pending" => WaitingFor::Slot,
        _ if parked => WaitingFor::Slot,
        "retryable" => WaitingFor::Retry,
        _ if later && has_failed => WaitingFor::Retry,
        _ if later => WaitingFor::Schedule,
        _ => WaitingFor::Worker,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queued_job_has_a_reason_to_wait() {
        assert_eq!(waiting_for("pending", true, false, false), WaitingFor::Slot);
        assert_eq!(waiting_for("pending", true, true, true), WaitingFor::Slot);
        assert_eq!(waiting_for("pending", false, true, false), WaitingFor::Schedule);
        assert_eq!(waiting_for("scheduled", true, true, false), WaitingFor::Slot);
        assert_eq!(waiting_for("available", false, false, false), WaitingFor::Worker);
        assert_eq!(waiting_for("available", false, true, true), WaitingFor::Retry);
        assert_eq!(waiting_for("retryable", false, true, true), WaitingFor::Retry);
        assert_eq!(waiting_for("scheduled", false, true, false), WaitingFor::Schedule);
        assert_eq!(waiting_for("available", false, false, true), WaitingFor::Worker);
    }
}

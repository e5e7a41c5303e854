//! Why the jobs of a lane wait.

use serde::Serialize;
use weir_ledger::read::lanes::LaneWaiting;

use super::lanes::LaneState;

/// The reason why a lane's jobs wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HeldBack {
    /// An operator has paused its queue.
    Paused,
    /// Jobs wait, and no running process has workers for them.
    NoWorkers,
    /// Jobs are ready, and all workers are busy.
    WorkersBusy,
    /// Jobs are ready, and there are idle workers, so the jobs are about to be claimed.
    BeingClaimed,
    /// All waiting jobs belong to holders without a free slot.
    HoldersAtLimit,
    /// All waiting jobs have failed and wait for a retry.
    RetryLater,
    /// All waiting jobs are scheduled for later.
    ScheduledLater,
    /// No jobs wait.
    NothingWaits,
}

impl HeldBack {
    /// A short label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::NoWorkers => "no workers",
            Self::WorkersBusy => "workers busy",
            Self::BeingClaimed => "being claimed",
            Self::HoldersAtLimit => "holders at limit",
            Self::RetryLater => "retry later",
            Self::ScheduledLater => "scheduled later",
            Self::NothingWaits => "no jobs waiting",
        }
    }
}

/// The first obstacle to the start of a job of this lane.
pub(super) fn held_back(waiting: &LaneWaiting, lane: &LaneState) -> HeldBack {
    let (due, parked, later) = (waiting.due, waiting.parked, waiting.later);
    let retrying = waiting.retrying > 0;
    if lane.paused {
        HeldBack::Paused
    } else if lane.workers == 0 && (due || parked || retrying || later) {
        HeldBack::NoWorkers
    } else if due && lane.busy() >= lane.workers {
        HeldBack::WorkersBusy
    } else if due {
        HeldBack::BeingClaimed
    } else if parked {
        HeldBack::HoldersAtLimit
    } else if retrying {
        HeldBack::RetryLater
    } else if later {
        HeldBack::ScheduledLater
    } else {
        HeldBack::NothingWaits
    }
}

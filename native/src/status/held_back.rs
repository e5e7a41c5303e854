//! Why the jobs of a lane wait.

use serde::Serialize;

use super::lanes::LaneState;

/// What holds a lane back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBack {
    /// Somebody has paused its queue.
    Paused,
    /// Jobs wait, and no living process has workers for them.
    NoWorkers,
    /// Jobs could run, and all workers are busy.
    WorkersBusy,
    /// Jobs could run, and there are workers: they are about to be claimed.
    BeingClaimed,
    /// All that wait are jobs of holders who use all of their slots.
    HoldersAtLimit,
    /// All that wait have failed, and are tried again later.
    RetryLater,
    /// All that wait have their time later.
    ScheduledLater,
    /// Nothing waits.
    NothingWaits,
}

impl HeldBack {
    /// In words.
    #[must_use]
    pub fn as_words(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::NoWorkers => "no workers",
            Self::WorkersBusy => "workers busy",
            Self::BeingClaimed => "being claimed",
            Self::HoldersAtLimit => "holders at limit",
            Self::RetryLater => "retry later",
            Self::ScheduledLater => "scheduled later",
            Self::NothingWaits => "nothing waits",
        }
    }
}

/// What waits in a lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    /// Jobs that could run now.
    pub(super) due: bool,
    /// Jobs that wait for a slot of their holder's.
    pub(super) parked: bool,
    /// Jobs that wait for their next attempt.
    pub(super) retrying: bool,
    /// Jobs whose time is later.
    pub(super) later: bool,
}

impl Waiting {
    /// The first thing that has to change before a job of this lane starts.
    pub(super) fn held_back(self, lane: &LaneState) -> HeldBack {
        let Self {
            due,
            parked,
            retrying,
            later,
        } = self;
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
}

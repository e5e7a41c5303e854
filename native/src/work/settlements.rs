//! Settlements of jobs that other clients ended. The caller waits a moment for each settlement, but not if the holder
//! is locked: those settlements continue in the background.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use uuid::Uuid;
use weir_ledger::hold_off::HoldOff;
use weir_ledger::reconciliation::UnsettledJob;
use weir_ledger::settlement::{Ended, SettleError, Settled, Settler};

/// Default wait for the next settlement.
const PATIENCE: Duration = Duration::from_secs(2);

/// The time to skip a holder after a wait timed out, unless one of its settlements succeeds. Longer than a settlement
/// waits for a lock.
const STUCK_HOLD_OFF: Duration = Duration::from_secs(30);

pub(super) struct Settlements {
    settler: Settler,
    patience: Duration,
    tasks: JoinSet<Result<Settled, SettleError>>,
    under_way: HashMap<Id, UnsettledJob>,
    /// Holders to skip.
    stuck: HoldOff,
}

impl Settlements {
    pub(super) fn new(settler: Settler) -> Self {
        Self {
            settler,
            patience: PATIENCE,
            tasks: JoinSet::new(),
            under_way: HashMap::new(),
            stuck: HoldOff::new(STUCK_HOLD_OFF),
        }
    }

    pub(super) fn waits(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Settles these jobs, except those that are being settled already or have a locked holder. Returns the jobs that
    /// are settled on return; settlements that have started continue.
    pub(super) async fn settle(&mut self, jobs: &[UnsettledJob]) -> HashSet<i64> {
        let mut settled = HashSet::new();
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.end(ended, &mut settled);
        }
        let under_way: HashSet<i64> = self.under_way.values().map(|one| one.job_id).collect();
        let mut busy: HashSet<Uuid> = self.under_way.values().map(|one| one.holder).collect();
        let mut awaited = HashSet::new();
        for job in jobs {
            if under_way.contains(&job.job_id) || settled.contains(&job.job_id) {
                continue;
            }
            if !self.stuck.applies_to(&job.holder) {
                self.begin(*job);
                awaited.insert(job.job_id);
            // One job of a locked holder finds out when the lock is free.
            } else if busy.insert(job.holder) {
                self.begin(*job);
            }
        }
        // The timeout restarts for each settlement: it limits a single settlement, not all of them.
        while !awaited.is_empty()
            && let Ok(Some(ended)) = tokio::time::timeout(self.patience, self.tasks.join_next_with_id()).await
        {
            if let Some(job) = self.end(ended, &mut settled) {
                awaited.remove(&job.job_id);
            }
        }
        if !awaited.is_empty() {
            tracing::warn!(
                jobs = awaited.len(),
                "settlements wait for their holder's lock; other holders are not affected"
            );
            let left = self
                .under_way
                .values()
                .filter(|one| awaited.contains(&one.job_id));
            for one in left {
                self.stuck.start(one.holder);
            }
        }
        settled
    }

    /// Waits for all settlements.
    pub(super) async fn finish(&mut self) {
        while let Ok(Some(ended)) = tokio::time::timeout(self.patience, self.tasks.join_next_with_id()).await
        {
            self.end(ended, &mut HashSet::new());
        }
    }

    fn begin(&mut self, job: UnsettledJob) {
        let settler = self.settler.clone();
        let ended = Ended {
            job_id: job.job_id,
            holder: Some(job.holder),
            success: None,
        };
        let task = self.tasks.spawn(async move { settler.settle(ended).await });
        self.under_way.insert(task.id(), job);
    }

    fn end(
        &mut self,
        ended: Result<(Id, Result<Settled, SettleError>), JoinError>,
        settled: &mut HashSet<i64>,
    ) -> Option<UnsettledJob> {
        let (id, outcome) = match ended {
            Ok((id, outcome)) => (id, Some(outcome)),
            Err(error) => (error.id(), None),
        };
        let job = self.under_way.remove(&id)?;
        match outcome {
            Some(Ok(_)) => {
                self.stuck.end(&job.holder);
                settled.insert(job.job_id);
            }
            Some(Err(error)) => {
                tracing::warn!(job = job.job_id, %error, "could not settle a job that ended");
            }
            // The task panicked, which is logged already.
            None => {}
        }
        Some(job)
    }
}

//! The possible next steps and their effects. A step covers a real transaction between two boundaries: lock, commit,
//! answer.

use super::broken_rule::BrokenRule;
use super::rows::{Answer, BURST, MAX_ATTEMPTS, PLANS, Rows, Runner, State, USED};
use super::world::{Locker, Maintenance, Request, Stage, Violation, World};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Send(usize),
    Read(usize, usize),
    Lock(usize, usize),
    Commit(usize, usize),
    /// The answer arrives, and the connection breaks before the commit.
    AnswerWithoutCommit(usize, usize),
    /// The client has no answer, and retries.
    RetryRequest(usize),
    Disconnect(usize, usize),
    Claim(usize, usize),
    Lend(usize),
    Succeed(usize),
    Fail(usize),
    Extend(usize),
    CommitExtension(usize),
    LockForSettlement(usize),
    Settle(usize),
    FreeSlot(usize),
    WriteFailure(usize),
    Crash(usize),
    Freeze(usize),
    Wake(usize),
    TakeOver(usize),
    ReadForMaintenance,
    Begin(Maintenance),
    LockForMaintenance,
    CommitMaintenance,
    DisconnectMaintenance,
    Cancel(usize),
    ChangePlan,
    ForeignClaim(usize),
    ForeignComplete(usize),
}

impl Step {
    /// Whether it is a fault or an optional request. All jobs must end even if only the other steps occur.
    pub(super) fn is_optional(&self) -> bool {
        matches!(
            self,
            Self::RetryRequest(_)
                | Self::AnswerWithoutCommit(..)
                | Self::Disconnect(..)
                | Self::Fail(_)
                | Self::Extend(_)
                | Self::Crash(_)
                | Self::Freeze(_)
                | Self::DisconnectMaintenance
                | Self::Cancel(_)
                | Self::ChangePlan
                | Self::ForeignClaim(_)
                | Self::Lend(_)
        )
    }
}

impl World {
    pub(super) fn steps(&self, broken: Option<BrokenRule>, steps: &mut Vec<Step>) {
        let is = |rule| broken == Some(rule);
        let reads_first = is(BrokenRule::LockAfterRead) || is(BrokenRule::ReadKeyBeforeLock);
        for (c, requests) in self.clients.iter().enumerate() {
            for (r, request) in requests.iter().enumerate() {
                match request {
                    Request::NotSent if r == 0 => steps.push(Step::Send(c)),
                    Request::NotSent if requests[0] != Request::NotSent && self.budget.timeouts > 0 => {
                        steps.push(Step::RetryRequest(c));
                    }
                    Request::Sent if reads_first => steps.push(Step::Read(c, r)),
                    Request::Sent | Request::Read(_) if self.lock.is_none() => steps.push(Step::Lock(c, r)),
                    Request::Locked(_) => {
                        steps.push(Step::Commit(c, r));
                        if is(BrokenRule::AnswerBeforeCommit) {
                            steps.push(Step::AnswerWithoutCommit(c, r));
                        }
                        if self.budget.disconnects > 0 {
                            steps.push(Step::Disconnect(c, r));
                        }
                    }
                    _ => {}
                }
            }
        }
        for w in 0..self.workers.len() {
            self.steps_of_worker(w, broken, steps);
        }
        self.steps_of_jobs(broken, steps);
        self.steps_of_maintenance(broken, steps);
        if self.budget.plans > 0 && self.lock.is_none() {
            steps.push(Step::ChangePlan);
        }
    }

    fn steps_of_worker(&self, w: usize, broken: Option<BrokenRule>, steps: &mut Vec<Step>) {
        let worker = &self.workers[w];
        if worker.is_frozen {
            return steps.push(Step::Wake(w));
        }
        match worker.stage {
            Stage::Idle => {
                let jobs = self.rows.jobs.iter().enumerate();
                steps.extend(
                    jobs.filter(|(_, job)| job.state == State::Available)
                        .map(|(j, _)| Step::Claim(w, j)),
                );
                let is_below = self.rows.slots_in_use < BURST || broken == Some(BrokenRule::LendOverBurst);
                if self.budget.lends > 0 && self.rows.parked > 0 && is_below && self.lock.is_none() {
                    steps.push(Step::Lend(w));
                }
            }
            Stage::Working => {
                steps.push(Step::Succeed(w));
                if self.budget.failures > 0 {
                    steps.push(Step::Fail(w));
                }
                if self.budget.extensions > 0 && self.lock.is_none() {
                    steps.push(Step::Extend(w));
                }
            }
            Stage::Extending => steps.push(Step::CommitExtension(w)),
            Stage::Settling if self.lock.is_none() => steps.push(Step::LockForSettlement(w)),
            Stage::Locked => steps.push(Step::Settle(w)),
            Stage::BetweenTransactions => steps.push(Step::FreeSlot(w)),
            Stage::Failing => steps.push(Step::WriteFailure(w)),
            Stage::Settling | Stage::Dead => {}
        }
        if self.budget.crashes > 0 && !matches!(worker.stage, Stage::Idle | Stage::Dead) {
            steps.push(Step::Crash(w));
        }
        let can_freeze = matches!(
            worker.stage,
            Stage::Working | Stage::Settling | Stage::Locked | Stage::Failing
        );
        if self.budget.freezes > 0 && can_freeze {
            steps.push(Step::Freeze(w));
        }
    }

    fn steps_of_jobs(&self, broken: Option<BrokenRule>, steps: &mut Vec<Step>) {
        for (j, job) in self.rows.jobs.iter().enumerate() {
            match (job.state, job.by) {
                (State::Available, _) if self.budget.foreign > 0 => steps.push(Step::ForeignClaim(j)),
                (State::Running, Some(Runner::Foreign)) => steps.push(Step::ForeignComplete(j)),
                (State::Running, Some(Runner::Worker(w))) => {
                    let worker = &self.workers[w];
                    if worker.is_frozen
                        || worker.stage == Stage::Dead
                        || broken == Some(BrokenRule::TakeOverFromLiveProcess)
                    {
                        steps.push(Step::TakeOver(j));
                    }
                }
                _ => {}
            }
            if self.budget.cancels > 0 && !job.state.is_final() {
                steps.push(Step::Cancel(j));
            }
        }
    }

    fn steps_of_maintenance(&self, broken: Option<BrokenRule>, steps: &mut Vec<Step>) {
        let is = |rule| broken == Some(rule);
        let reads_first = is(BrokenRule::PromoteWithoutRecount) || is(BrokenRule::PromoteByPreviousPlan);
        if self.maintenance != Maintenance::None {
            let is_locked = self.lock == Some(Locker::Maintenance);
            if is_locked {
                steps.push(Step::CommitMaintenance);
                if self.budget.disconnects > 0 {
                    steps.push(Step::DisconnectMaintenance);
                }
            } else if self.lock.is_none() {
                steps.push(Step::LockForMaintenance);
            }
            return;
        }
        if self.rows.parked > 0 && self.rows.slots_in_use < self.rows.slots() {
            if reads_first {
                steps.push(Step::ReadForMaintenance);
            } else if self.lock.is_none() {
                steps.push(Step::Begin(Maintenance::Promote(None)));
            }
        }
        if self.lock.is_some() {
            return;
        }
        for (j, job) in self.rows.jobs.iter().enumerate() {
            let Some(reservation) = job.reservation else {
                continue;
            };
            if job.state.is_final() && !is(BrokenRule::NoSweep)
                || job.state == State::Retryable && reservation.admitted
            {
                steps.push(Step::Begin(Maintenance::Settle(j)));
            }
            if job.state == State::Retryable && reservation.due {
                steps.push(Step::Begin(Maintenance::Due(j)));
            }
        }
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each kind of step")]
    pub(super) fn after(&self, step: Step, broken: Option<BrokenRule>) -> Self {
        let is = |rule| broken == Some(rule);
        let mut next = self.clone();
        match step {
            Step::Send(c) => next.clients[c][0] = Request::Sent,
            Step::RetryRequest(c) => {
                next.budget.timeouts -= 1;
                next.clients[c][1] = Request::Sent;
            }
            Step::Read(c, r) => next.clients[c][r] = Request::Read(Box::new(self.rows.clone())),
            Step::Lock(c, r) => {
                next.lock = Some(Locker::Request(c, r));
                next.clients[c][r] = match &self.clients[c][r] {
                    Request::Read(seen) => Request::Locked(Some(seen.clone())),
                    _ => Request::Locked(None),
                };
            }
            Step::Commit(c, r) => next.commit(c, r, broken),
            Step::AnswerWithoutCommit(c, r) => {
                next.commit(c, r, broken);
                next.rows = self.rows.clone();
            }
            Step::Disconnect(c, r) => {
                next.budget.disconnects -= 1;
                next.lock = None;
                next.clients[c][r] = Request::Ended(None);
            }
            Step::Claim(w, j) => {
                let job = &mut next.rows.jobs[j];
                (job.state, job.by) = (State::Running, Some(Runner::Worker(w)));
                job.attempt += 1;
                let worker = &mut next.workers[w];
                (worker.stage, worker.job, worker.attempt) = (Stage::Working, j, job.attempt);
            }
            Step::Lend(w) => {
                next.budget.lends -= 1;
                if let Some(j) = next.rows.lend(w) {
                    let attempt = next.rows.jobs[j].attempt;
                    let worker = &mut next.workers[w];
                    (worker.stage, worker.job, worker.attempt) = (Stage::Working, j, attempt);
                }
                if next.rows.slots_in_use > BURST {
                    next.violation = Some(Violation::OverBurst);
                }
            }
            Step::Succeed(w) => next.workers[w].stage = Stage::Settling,
            Step::Fail(w) => {
                next.budget.failures -= 1;
                next.workers[w].stage = Stage::Failing;
            }
            Step::Extend(w) => {
                next.budget.extensions -= 1;
                next.lock = Some(Locker::Worker(w));
                next.workers[w].stage = Stage::Extending;
            }
            Step::CommitExtension(w) => {
                next.lock = None;
                next.workers[w].stage = Stage::Working;
                if self.owns(w) {
                    next.rows
                        .extend(self.workers[w].job, !is(BrokenRule::ExtendWithoutRoom));
                    next.check_limit(&self.rows);
                }
            }
            Step::LockForSettlement(w) => {
                next.lock = Some(Locker::Worker(w));
                next.workers[w].stage = Stage::Locked;
            }
            Step::Settle(w) => next.settle(w, broken),
            Step::FreeSlot(w) => {
                next.rows.slots_in_use -= 1;
                next.workers[w].stage = Stage::Idle;
            }
            Step::WriteFailure(w) => {
                let worker = &mut next.workers[w];
                worker.stage = Stage::Idle;
                if self.owns(w) || is(BrokenRule::FailAnyAttempt) {
                    let state = match worker.attempt >= MAX_ATTEMPTS {
                        true => State::Discarded,
                        false => State::Retryable,
                    };
                    next.rows.write_as_river(worker.job, state);
                }
            }
            Step::Crash(w) => {
                next.budget.crashes -= 1;
                next.unlock(Locker::Worker(w));
                next.workers[w].stage = Stage::Dead;
            }
            Step::Freeze(w) => {
                next.budget.freezes -= 1;
                let worker = &mut next.workers[w];
                (worker.is_frozen, worker.was_frozen) = (true, true);
                // The server ends an idle transaction, and it is retried.
                if worker.stage == Stage::Locked {
                    worker.stage = Stage::Settling;
                }
                next.unlock(Locker::Worker(w));
            }
            Step::Wake(w) => next.workers[w].is_frozen = false,
            Step::TakeOver(j) => {
                let job = &mut next.rows.jobs[j];
                job.state = if job.attempt >= MAX_ATTEMPTS {
                    State::Discarded
                } else {
                    State::Available
                };
                job.by = None;
            }
            Step::ReadForMaintenance => {
                next.maintenance = Maintenance::Promote(Some(Box::new(self.rows.clone())))
            }
            Step::Begin(maintenance) => {
                next.maintenance = maintenance;
                next.lock = Some(Locker::Maintenance);
            }
            Step::LockForMaintenance => next.lock = Some(Locker::Maintenance),
            Step::CommitMaintenance => next.run_maintenance(broken),
            Step::DisconnectMaintenance => {
                next.budget.disconnects -= 1;
                next.lock = None;
                next.maintenance = Maintenance::None;
            }
            Step::Cancel(j) => {
                next.budget.cancels -= 1;
                let job = &mut next.rows.jobs[j];
                (job.state, job.cancelled) = (State::Cancelled, true);
            }
            Step::ChangePlan => {
                next.budget.plans -= 1;
                next.rows.plan = (self.rows.plan + 1) % PLANS.len();
            }
            Step::ForeignClaim(j) => {
                next.budget.foreign -= 1;
                let job = &mut next.rows.jobs[j];
                (job.state, job.by) = (State::Running, Some(Runner::Foreign));
                job.attempt += 1;
            }
            Step::ForeignComplete(j) => next.rows.write_as_river(j, State::Completed),
        }
        next
    }

    /// The fencing rule: the job belongs to this attempt.
    fn owns(&self, w: usize) -> bool {
        let (worker, job) = (&self.workers[w], &self.rows.jobs[self.workers[w].job]);
        job.state == State::Running && job.attempt == worker.attempt
    }

    fn unlock(&mut self, locker: Locker) {
        if self.lock == Some(locker) {
            self.lock = None;
        }
    }

    fn commit(&mut self, c: usize, r: usize, broken: Option<BrokenRule>) {
        let before = self.rows.clone();
        let seen = match (&self.clients[c][r], broken) {
            (Request::Locked(Some(seen)), Some(BrokenRule::ReadKeyBeforeLock)) => Rows {
                jobs: seen.jobs.clone(),
                ..before.clone()
            },
            (Request::Locked(Some(seen)), _) => Rows::clone(seen),
            _ => before.clone(),
        };
        let answer = self.rows.admit(&seen, c);
        self.check_limit(&before);
        self.check_slots(&before);
        self.lock = None;
        self.clients[c][r] = Request::Ended(Some(answer));
    }

    fn settle(&mut self, w: usize, broken: Option<BrokenRule>) {
        let id = self.workers[w].job;
        let is_own = if broken == Some(BrokenRule::SettleAnyAttempt) {
            self.rows.jobs[id].state == State::Running
        } else {
            self.owns(w)
        };
        self.lock = None;
        if !is_own {
            if !self.workers[w].was_frozen && !self.rows.jobs[id].cancelled {
                self.violation = Some(Violation::FencedOutWithoutReason);
            }
            self.workers[w].stage = Stage::Idle;
            return;
        }
        let before = self.rows.clone();
        self.rows.jobs[id].state = State::Completed;
        let released = self
            .rows
            .release(id, Some(USED), broken != Some(BrokenRule::ReleaseTwice));
        let mut released: Vec<_> = released.into_iter().collect();
        let in_two = broken == Some(BrokenRule::ReleaseInTwoTransactions) && !released.is_empty();
        if in_two {
            released[0].held_slot = false;
        }
        let seen = match broken {
            Some(BrokenRule::PromoteAboveSlots) => Rows {
                slots_in_use: before.slots_in_use.min(before.slots()),
                ..before.clone()
            },
            _ => before.clone(),
        };
        if self.rows.settle(&seen, &released) > 0 && self.rows.slots_in_use > self.rows.slots() {
            self.violation = Some(Violation::OverSlotLimit);
        }
        self.workers[w].stage = if in_two {
            Stage::BetweenTransactions
        } else {
            Stage::Idle
        };
    }

    fn run_maintenance(&mut self, broken: Option<BrokenRule>) {
        let before = self.rows.clone();
        let maintenance = std::mem::replace(&mut self.maintenance, Maintenance::None);
        self.lock = None;
        match maintenance {
            Maintenance::Settle(id) => {
                let waits = self.rows.jobs[id].state == State::Retryable;
                if waits || self.rows.jobs[id].state.is_final() {
                    let released: Vec<_> = self.rows.release(id, None, true).into_iter().collect();
                    self.rows.settle(&before, &released);
                }
            }
            Maintenance::Due(id) if broken == Some(BrokenRule::RetryWithoutSlot) => {
                let job = &mut self.rows.jobs[id];
                job.state = State::Available;
                job.reservation
                    .iter_mut()
                    .for_each(|reservation| reservation.due = false);
            }
            Maintenance::Due(id) => {
                self.rows.park_due(id);
                let seen = self.rows.clone();
                self.rows.settle(&seen, &[]);
            }
            Maintenance::Promote(seen) => {
                let seen = match (seen, broken) {
                    (Some(seen), Some(BrokenRule::PromoteByPreviousPlan)) => Rows {
                        plan: seen.plan,
                        ..before.clone()
                    },
                    (Some(seen), _) => Rows {
                        plan: before.plan,
                        ..*seen
                    },
                    (None, _) => before.clone(),
                };
                self.rows.settle(&seen, &[]);
            }
            Maintenance::None => {}
        }
        self.check_slots(&before);
    }

    /// A transaction that increases usage must have had room for it.
    fn check_limit(&mut self, before: &Rows) {
        let taken = |rows: &Rows| rows.used + rows.reserved;
        if taken(&self.rows) > taken(before) && taken(&self.rows) > self.rows.limit() {
            self.violation = Some(Violation::OverLimit);
        }
    }

    fn check_slots(&mut self, before: &Rows) {
        if self.rows.slots_in_use > before.slots_in_use && self.rows.slots_in_use > self.rows.slots() {
            self.violation = Some(Violation::OverSlotLimit);
        }
    }

    /// The answers to the clients.
    pub(super) fn answers(&self) -> impl Iterator<Item = Answer> {
        self.clients.iter().flatten().filter_map(|request| match request {
            Request::Ended(answer) => *answer,
            _ => None,
        })
    }
}

//! Lanes: how many jobs of each queue this process runs at once, and when it claims the next ones.
//!
//! A queue is *due* when it may have jobs to claim: after a notification, after a claim that found as many jobs as it
//! might, and at each poll. A due queue with a free worker is claimed once its previous claim is long enough ago.
//!
//! An attempt whose handler is done frees its worker for the next job and settles meanwhile.
//!
//! Idle capacity may be lent on top of that (ADR-16): the default lane may use idle workers of the priority lane. This
//! takes nothing from the priority lane: its jobs start as they arrive, next to the default jobs that still run on lent
//! workers. Until those are done, the default lane starts no others.
//!
//! Workers that no job with a slot needs are lent to parked jobs of holders whose plan has a `burst`, except for the
//! lane's headroom. A separate claim starts these jobs as soon as a worker may be lent. It searches their holders, and
//! jobs with a slot do not wait for that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_ledger::attempts::{ClaimedJob, QueueClaim};
use weir_policy::lane::Lane;

use super::claim_pace::ClaimPace;
use super::claim_start::{ClaimStart, Scope};
use crate::config::service::Service;

/// All queues are due this often. Polls find jobs without a notification: it was lost, or the job was due later.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a failed claim.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The pause after a claim that lent fewer workers than it might, although more jobs wait: another transaction has locked
/// their holders.
const LEND_PAUSE: Duration = Duration::from_millis(50);

/// Maximum number of unsettled results per worker in a small pool. Beyond that, the workers wait for the database.
const MAX_PER_WORKER: usize = 4;
const MAX_OF_SMALL_POOL: usize = 32;

/// River's first priority.
const FIRST_PRIORITY: i16 = 1;

/// The queues of a process.
pub(super) struct Lanes {
    state: Mutex<State>,
    changed: Notify,
    pace: ClaimPace,
}

struct State {
    queues: HashMap<String, Queue>,
    next_poll: Instant,
}

struct Queue {
    lane: Lane,
    workers: usize,
    /// The shortest time between two claims while workers are idle.
    wake: Duration,
    /// Jobs without a slot start only while fewer jobs than this run.
    lendable: usize,
    /// The queue with idle workers that this one may use.
    lender: Option<String>,
    running: usize,
    settling: usize,
    is_due: bool,
    /// Whether more jobs may start on lent workers, and not before when.
    may_lend: Option<Instant>,
    /// The end of a pause as long as the last claim for lent workers.
    rested: Instant,
    /// Whether a settlement has unlocked its holder since that claim began.
    has_unlocked: bool,
    /// Whether it was the settlement of a lent job, so that the holder may run one more.
    has_returned: bool,
    /// The workers that the current claim for lent workers may use.
    lending: usize,
    /// The jobs with a slot among those that are settling, and those that have settled since the last claim for such jobs
    /// began. Their slots go to the next jobs of their holders, which need their workers.
    settling_with_slot: usize,
    settled_with_slot: usize,
    is_claiming: bool,
    /// Whether the last claim failed.
    has_failed: bool,
    not_before: Instant,
    start: ClaimStart,
    /// Whether it was resumed during its current claim.
    is_resumed: bool,
}

/// A claim of one queue that should start now.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) claim: QueueClaim,
    scope: Scope,
    has_failed: bool,
}

impl Planned {
    /// Whether later claims should know where to start.
    pub(super) fn is_slow(&self) -> bool {
        self.scope != Scope::All
    }

    /// Whether it is for lent workers.
    pub(super) fn lends(&self) -> bool {
        self.claim.lend > 0
    }

    /// Whether it needs a separate statement. If a claim is slow or fails, that must not delay the other queues.
    pub(super) fn is_alone(&self) -> bool {
        self.is_slow() || self.has_failed || self.lends()
    }
}

/// A look for earlier jobs that should start now.
pub(super) struct Look {
    pub(super) queue: String,
    pub(super) before: Timestamp,
}

impl Lanes {
    /// `lends`: whether default lanes may use the idle workers of priority lanes.
    pub(super) fn new(services: &[&Service], lends: bool) -> Arc<Self> {
        let mut queues = HashMap::new();
        for service in services {
            let priority = service
                .queues()
                .find_map(|(lane, queue, _)| (lane == Lane::Priority).then_some(queue));
            for (lane, queue, workers) in service.queues() {
                let lender = priority.clone().filter(|_| lends && lane == Lane::Default);
                let mut new = Queue::new(lane, workers as usize, lender);
                new.lendable = service.lendable(workers) as usize;
                new.wake = service.wake.pause();
                queues.insert(queue, new);
            }
        }
        Arc::new(Self {
            state: Mutex::new(State {
                queues,
                next_poll: Instant::now() + POLL_INTERVAL,
            }),
            changed: Notify::new(),
            pace: ClaimPace::default(),
        })
    }

    /// The names of the queues.
    pub(super) fn names(&self) -> Vec<String> {
        self.state.lock().queues.keys().cloned().collect()
    }

    /// Starts to claim a queue.
    pub(super) fn add(&self, queue: &str, workers: usize) {
        let new = Queue::new(Lane::Scheduled, workers, None);
        self.state.lock().queues.entry(queue.to_owned()).or_insert(new);
        self.changed.notify_one();
    }

    /// Claims no more jobs of a queue. Its running jobs continue.
    pub(super) fn remove(&self, queue: &str) {
        self.state.lock().queues.remove(queue);
    }

    /// There may be jobs in this queue; `None` for all queues.
    pub(super) fn wake(&self, queue: Option<&str>) {
        self.of(queue, |queue| queue.is_due = true);
    }

    /// The same after a pause.
    pub(super) fn resume(&self, queue: Option<&str>) {
        self.of(queue, |queue| {
            queue.is_due = true;
            queue.start.resume();
            queue.is_resumed = queue.is_claiming;
        });
    }

    /// Changes one queue, if it is worked here, or all of them.
    fn of(&self, queue: Option<&str>, change: impl FnMut(&mut Queue)) {
        let mut state = self.state.lock();
        match queue {
            Some(queue) => state.queues.get_mut(queue).into_iter().for_each(change),
            None => state.queues.values_mut().for_each(change),
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Completes when there may be something to claim that was not there before.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The claims to start now, and the time until more of them can be due.
    pub(super) fn plan(&self, now: Instant) -> (Vec<Planned>, Duration) {
        let mut state = self.state.lock();
        if now >= state.next_poll {
            state.next_poll = now + POLL_INTERVAL;
            state.queues.values_mut().for_each(|queue| queue.is_due = true);
        }
        let mut wait = state.next_poll.saturating_duration_since(now);
        let rooms: Vec<(String, usize)> = state
            .queues
            .iter()
            .filter(|(_, queue)| {
                queue.is_due && !queue.is_claiming || queue.may_lend.is_some() && queue.lending == 0
            })
            .map(|(name, queue)| (name.clone(), queue.room(&state.queues)))
            .collect();
        let mut planned = Vec::new();
        for (name, mut room) in rooms {
            let Some(queue) = state.queues.get_mut(&name) else {
                continue;
            };
            // First, because a claim for jobs with a slot takes all other workers. It can start while this one runs.
            if let Some(may_lend) = queue
                .may_lend
                .filter(|_| queue.lending == 0 && !queue.is_claiming)
            {
                let taken = queue.running + queue.settling_with_slot + queue.settled_with_slot;
                let lend = queue.lendable.saturating_sub(taken).min(room);
                if lend > 0 && now < may_lend {
                    wait = wait.min(may_lend - now);
                } else if lend > 0 {
                    planned.push(queue.plan_lending(name.clone(), lend));
                    room -= lend;
                }
            }
            if queue.is_due && !queue.is_claiming && room > 0 {
                if now < queue.not_before {
                    wait = wait.min(queue.not_before - now);
                } else {
                    planned.push(queue.plan(name, room));
                }
            }
        }
        (planned, wait)
    }

    /// Records a statement that took `time` and found `jobs`.
    pub(super) fn record(&self, time: Duration, jobs: usize) {
        self.pace.record(time, jobs);
    }

    /// Records a claim by a statement that took `time` and found `all` jobs, `jobs` of them in the queue. `may_lend`: whether
    /// more may start on lent workers. `began` is the database's time when it began, if claims are slow. Returns a look that
    /// should start now.
    pub(super) fn claimed(
        &self,
        planned: &Planned,
        (time, all): (Duration, usize),
        jobs: &[&ClaimedJob],
        may_lend: bool,
        began: Option<Timestamp>,
    ) -> Option<Look> {
        let mut state = self.state.lock();
        let queue = state.queues.get_mut(&planned.claim.queue)?;
        let now = Instant::now();
        queue.running += jobs.len();
        if planned.lends() {
            queue.lending = 0;
            // At most half of the time, also while another session holds an old snapshot.
            let has_lent = i32::try_from(jobs.len()).is_ok_and(|found| found >= planned.claim.lend);
            let pause = if has_lent || queue.has_unlocked {
                time
            } else {
                time.max(LEND_PAUSE)
            };
            queue.rested = now + time;
            queue.may_lend = None;
            if may_lend || queue.has_returned {
                queue.lend_from(now + pause);
            }
            drop(state);
            self.changed.notify_one();
            return None;
        }
        (queue.is_claiming, queue.has_failed) = (false, false);
        let is_full = i32::try_from(jobs.len()).is_ok_and(|found| found >= planned.claim.most);
        // A full claim leaves no worker idle, so the next one starts a job as soon as a worker is free.
        let wake = if is_full { Duration::ZERO } else { queue.wake };
        queue.not_before = now + self.pace.cooldown(queue.lane).max(wake);
        queue.is_due |= is_full;
        if may_lend {
            queue.lend_from(now);
        }
        let until = began.map(|began| match is_full {
            true => claimed_until(jobs, began),
            false => began,
        });
        queue.start.claimed(planned.scope, time, all, until);
        if std::mem::take(&mut queue.is_resumed) {
            queue.start.resume();
        }
        let look = queue.start.look(now);
        drop(state);
        self.changed.notify_one();
        look.map(|before| Look {
            queue: planned.claim.queue.clone(),
            before,
        })
    }

    /// Records that a claim failed.
    pub(super) fn failed(&self, planned: &Planned) {
        let mut state = self.state.lock();
        let later = Instant::now() + RETRY_PAUSE;
        match state.queues.get_mut(&planned.claim.queue) {
            Some(queue) if planned.lends() => (queue.lending, queue.may_lend) = (0, Some(later)),
            Some(queue) => {
                (queue.is_claiming, queue.is_due, queue.has_failed) = (false, true, true);
                queue.not_before = later;
            }
            None => {}
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Records a look that took `time`. `has_earlier` is `None` if it failed.
    pub(super) fn looked(&self, queue: &str, time: Duration, has_earlier: Option<bool>) {
        if let Some(queue) = self.state.lock().queues.get_mut(queue) {
            queue.start.looked(time, has_earlier, Instant::now());
        }
    }

    /// The worker of a claimed job.
    pub(super) fn permit(self: &Arc<Self>, queue: &str, is_lent: bool) -> Permit {
        Permit {
            lanes: Arc::clone(self),
            queue: queue.to_owned(),
            is_lent,
            is_settling: false,
        }
    }

    fn change(&self, queue: &str, change: impl FnOnce(&mut Queue)) {
        // The queue of a removed webhook is gone.
        if let Some(queue) = self.state.lock().queues.get_mut(queue) {
            change(queue);
        }
        self.changed.notify_one();
    }
}

impl Queue {
    fn new(lane: Lane, workers: usize, lender: Option<String>) -> Self {
        let now = Instant::now();
        Self {
            lane,
            workers,
            wake: Duration::ZERO,
            lendable: 0,
            lender,
            running: 0,
            settling: 0,
            is_due: true,
            may_lend: None,
            rested: Instant::now(),
            has_unlocked: false,
            has_returned: false,
            lending: 0,
            settling_with_slot: 0,
            settled_with_slot: 0,
            is_claiming: false,
            has_failed: false,
            not_before: now,
            start: ClaimStart::new(now),
            is_resumed: false,
        }
    }

    /// A claim that starts now, for jobs with a slot. It also finds out whether jobs wait for lent workers.
    fn plan(&mut self, name: String, room: usize) -> Planned {
        (self.is_due, self.is_claiming, self.settled_with_slot) = (false, true, 0);
        let scope = self.start.scope();
        Planned {
            claim: QueueClaim {
                queue: name,
                most: i32::try_from(room).unwrap_or(i32::MAX),
                since: self.start.since(),
                lend: 0,
            },
            scope,
            has_failed: self.has_failed,
        }
    }

    /// Workers may be lent from now on, once the next jobs of slots that have just become free have theirs.
    fn lend_from(&mut self, at: Instant) {
        self.may_lend = Some(self.may_lend.map_or(at, |earlier| earlier.min(at)));
        self.is_due |= self.settled_with_slot > 0;
    }

    /// A claim that starts now, for up to this many lent workers.
    fn plan_lending(&mut self, name: String, lend: usize) -> Planned {
        (self.may_lend, self.lending) = (None, lend);
        (self.has_unlocked, self.has_returned) = (false, false);
        let lend = i32::try_from(lend).unwrap_or(i32::MAX);
        Planned {
            claim: QueueClaim {
                queue: name,
                most: lend,
                since: self.start.since(),
                lend,
            },
            scope: Scope::All,
            has_failed: false,
        }
    }

    /// The number of jobs that may start.
    fn room(&self, queues: &HashMap<String, Self>) -> usize {
        let lender = self.lender.as_ref().and_then(|lender| queues.get(lender));
        let lent = lender.map_or(0, |lender| lender.workers.saturating_sub(lender.running));
        let most = (self.workers * MAX_PER_WORKER).max(MAX_OF_SMALL_POOL);
        (self.workers + lent)
            .saturating_sub(self.running + self.lending)
            .min(most.saturating_sub(self.settling))
    }
}

/// All jobs that start before this time are claimed, after a claim that began at `began` and may have left later ones.
fn claimed_until(jobs: &[&ClaimedJob], began: Timestamp) -> Timestamp {
    let first = jobs.iter().filter(|job| job.priority == FIRST_PRIORITY);
    first.map(|job| job.scheduled_at).max().unwrap_or(began)
}

/// The right to run one job. Returned when it goes out of scope.
pub(super) struct Permit {
    lanes: Arc<Lanes>,
    queue: String,
    is_lent: bool,
    is_settling: bool,
}

impl Permit {
    /// The handler is done, so the worker is free for the next job.
    pub(super) fn settle(&mut self) {
        if !self.is_settling {
            self.is_settling = true;
            let has_slot = usize::from(!self.is_lent);
            self.lanes.change(&self.queue, |queue| {
                queue.running = queue.running.saturating_sub(1);
                queue.settling += 1;
                queue.settling_with_slot += has_slot;
            });
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Self {
            is_lent, is_settling, ..
        } = *self;
        let has_slot = usize::from(!is_lent);
        self.lanes.change(&self.queue, |queue| {
            if !is_settling {
                queue.running = queue.running.saturating_sub(1);
                return;
            }
            queue.settling = queue.settling.saturating_sub(1);
            queue.settling_with_slot = queue.settling_with_slot.saturating_sub(has_slot);
            queue.settled_with_slot += has_slot;
            // The settlement has just unlocked its holder, whose jobs a claim may have left out.
            queue.has_unlocked = true;
            queue.has_returned |= is_lent;
            if is_lent && queue.lending == 0 || queue.may_lend.is_some() {
                queue.lend_from(queue.rested);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue that may lend four of its five workers.
    fn lending() -> Arc<Lanes> {
        let lanes = Lanes::new(&[], false);
        lanes.add("q", 5);
        lanes.state.lock().queues.get_mut("q").unwrap().lendable = 4;
        lanes
    }

    /// The claims that start after the pause between two claims.
    fn plan_of(lanes: &Lanes) -> Vec<Planned> {
        lanes.plan(Instant::now() + Duration::from_millis(10)).0
    }

    /// The claim finds no job, and jobs wait for lent workers.
    fn find_none(lanes: &Lanes, planned: &Planned) {
        lanes.claimed(planned, (Duration::ZERO, 0), &[], true, None);
    }

    #[test]
    fn jobs_with_a_slot_are_claimed_while_workers_are_being_lent() {
        let lanes = lending();
        let plan = |after_ms| {
            let (planned, _) = lanes.plan(Instant::now() + Duration::from_millis(after_ms));
            planned
        };
        let found = |planned: &Planned, time| lanes.claimed(planned, (time, 0), &[], true, None);
        let first = plan(0);
        assert_eq!((first.len(), first[0].claim.most, first[0].claim.lend), (1, 5, 0));
        assert!(plan(0).is_empty(), "one claim at a time");
        // Jobs wait for lent workers.
        found(&first[0], Duration::ZERO);
        let lending = plan(0);
        assert_eq!(
            (lending.len(), lending[0].claim.most, lending[0].claim.lend),
            (1, 4, 4)
        );
        // A newcomer's job arrives while the search for jobs to lend to takes long.
        lanes.wake(Some("q"));
        let newcomer = plan(10);
        assert_eq!(
            (newcomer.len(), newcomer[0].claim.most, newcomer[0].claim.lend),
            (1, 1, 0)
        );
        found(&newcomer[0], Duration::ZERO);
        found(&lending[0], Duration::from_millis(200));
        // The next search waits as long as the last one took.
        assert!(plan(100).is_empty());
        assert_eq!(plan(400)[0].claim.lend, 4);
    }

    #[test]
    fn a_settlement_ends_the_pause_after_a_claim_that_lent_nothing() {
        let lanes = lending();
        let (plan, found) = (|| plan_of(&lanes), |planned: &Planned| find_none(&lanes, planned));
        found(&plan()[0]);
        found(&plan()[0]);
        assert!(plan().is_empty(), "it waits for the holder's lock");
        let settle = || {
            let mut permit = lanes.permit("q", false);
            permit.settle();
        };
        settle();
        let during = plan();
        assert_eq!((during[0].claim.lend, during[1].claim.lend), (3, 0));
        found(&during[1]);
        settle();
        found(&during[0]);
        assert_eq!(plan()[0].claim.lend, 3);
    }

    #[test]
    fn the_worker_of_a_job_with_a_slot_is_not_lent_before_its_next_job_can_be_claimed() {
        let lanes = lending();
        let (plan, found) = (|| plan_of(&lanes), |planned: &Planned| find_none(&lanes, planned));
        let mut permit = lanes.permit("q", false);
        permit.settle();
        found(&plan()[0]);
        let during = plan();
        assert_eq!(during[0].claim.lend, 3, "it is settling");
        drop(permit);
        found(&during[0]);
        let after = plan();
        assert_eq!(
            (after.len(), after[0].claim.lend, after[1].claim.lend),
            (2, 3, 0),
            "the next job with a slot can be claimed"
        );
        found(&after[0]);
        assert!(plan().is_empty());
        found(&after[1]);
        assert_eq!(plan()[0].claim.lend, 4);
    }

    #[test]
    fn a_later_wake_claims_less_often_while_workers_are_idle() {
        const HOUR: Duration = Duration::from_hours(1);
        let lanes = Lanes::new(&[], false);
        lanes.add("q", 1);
        lanes.state.lock().queues.get_mut("q").unwrap().wake = HOUR;
        let plan = |after| {
            lanes.wake(Some("q"));
            let (planned, _) = lanes.plan(Instant::now() + after);
            planned
        };
        let found = |planned: &Planned| lanes.claimed(planned, (Duration::ZERO, 0), &[], false, None);
        let first = plan(Duration::ZERO);
        assert_eq!(first.len(), 1, "the first job after a pause starts at once");
        found(&first[0]);
        assert!(plan(HOUR / 2).is_empty());
        let mut full = plan(HOUR);
        full[0].claim.most = 0;
        found(&full[0]);
        assert_eq!(plan(HOUR / 2).len(), 1, "after a full claim, no worker is idle");
    }
}

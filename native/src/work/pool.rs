//! Pools: how many handlers of a lane run at once in this process.
//!
//! River counts an attempt as running until its task ends, and Weir's tasks end only when their settlement is
//! committed. So River may run more attempts than the pool has workers. When a handler is done, its attempt frees the
//! worker for the next job and settles under a *settle permit*.
//!
//! The number of permits rarely changes: River applies a change only after a moment, and would claim jobs that have no
//! worker. A settled attempt keeps its permit until the next finished handler takes it over. Only then does River see
//! the attempt leave and claim another job. A permit that stays idle for a while is removed, first from River's
//! configuration and then from the pool.
//!
//! When handlers take less time than a claim, the workers would still idle while River claims. Then River may
//! *prefetch*: it claims a few more jobs than there are workers. The workers finish them in a few milliseconds (see
//! [`Prefetch`]). Prefetched jobs wait here for a worker in order of arrival. With slow handlers nothing is prefetched,
//! so no job waits here that another process could work.
//!
//! Idle capacity may be lent on top of that (ADR-16): the default lane may use idle workers of the priority lane. This
//! takes nothing from the priority lane: its pool keeps its size. Its jobs start as they arrive, next to the default
//! jobs that still run on lent workers. Until those are done, the default lane starts no others.

use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use riverqueue::{Client, QueueConfig};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use weir_policy::lane::Lane;

use super::claim_pace::{ClaimPace, FETCH_COOLDOWN};
use super::prefetch::Prefetch;
use crate::config::service::{MAX_WORKERS, Service};

/// The time that a settled attempt keeps its permit for the next one.
const SETTLE_PERMIT_IDLE: Duration = Duration::from_millis(100);

/// The time that River takes to apply a smaller size. If an attempt left earlier, River would claim another job.
const RESIZE_DELAY: Duration = Duration::from_millis(50);

/// The time that a prematurely claimed job waits for a worker. After that it returns to its queue, behind the jobs that
/// wait there.
const WORKER_WAIT_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of unsettled results per worker in a small pool; beyond that the workers wait for the database. Also
/// the limit for prefetched jobs.
const MAX_PER_WORKER: usize = 4;
const MAX_OF_SMALL_POOL: usize = 32;

/// The pools of a process by queue. Cheap to clone.
#[derive(Clone)]
pub(super) struct Pools(Arc<HashMap<String, Arc<Pool>>>);

impl Pools {
    /// `lend`: whether default lanes may use the idle workers of priority lanes.
    pub(super) fn new(services: &[Service], lend: bool, pace: &ClaimPace) -> Self {
        let mut pools = HashMap::new();
        for service in services {
            let queues: HashMap<Lane, (String, u32)> = service
                .queues()
                .map(|(lane, queue, size)| (lane, (queue, size)))
                .collect();
            let new = |lane, lent: usize, borrower: Option<Arc<Pool>>| {
                let (queue, size): &(String, u32) = &queues[&lane];
                let pool = Arc::new(Pool::new(
                    queue,
                    lane,
                    *size as usize,
                    lent,
                    borrower,
                    pace.clone(),
                ));
                (queue.clone(), pool)
            };
            let idle = queues[&Lane::Priority].1 as usize;
            let default = new(Lane::Default, if lend { idle } else { 0 }, None);
            let borrower = lend.then(|| Arc::clone(&default.1));
            pools.extend([
                new(Lane::Priority, 0, borrower),
                default,
                new(Lane::Scheduled, 0, None),
            ]);
        }
        Self(Arc::new(pools))
    }

    /// The pool of this queue, if this process works it.
    pub(super) fn of(&self, queue: &str) -> Option<Arc<Pool>> {
        self.0.get(queue).cloned()
    }

    /// The number of concurrent attempts that River may run at the start.
    pub(super) fn at_start(&self, queue: &str) -> usize {
        self.0.get(queue).map_or(1, |pool| pool.state().room())
    }
}

pub(super) struct Pool {
    queue: String,
    lane: Lane,
    /// The maximum of settle permits, and of prefetched jobs.
    most: usize,
    state: Mutex<State>,
    /// The lane that may use this one's idle workers.
    borrower: Option<Arc<Pool>>,
    pace: ClaimPace,
}

struct State {
    workers: usize,
    /// The number of another lane's idle workers that may be used now.
    lent: usize,
    running: usize,
    /// Claimed jobs that wait for a worker, in order of arrival.
    waiting: VecDeque<oneshot::Sender<WorkerPermit>>,
    prefetch: Prefetch,
    /// The number of jobs that River may prefetch now.
    prefetched: usize,
    /// How soon after a claim River may claim again.
    cooldown: Duration,
    /// Attempts that are settling or keep their permit.
    settling: usize,
    /// The settled ones among them, which stay only until another attempt takes over their permit; the latest is last.
    idle: Vec<(u64, oneshot::Sender<()>)>,
    next_id: u64,
}

impl State {
    /// The number of attempts that River may run.
    fn room(&self) -> usize {
        (self.workers + self.lent + self.settling + self.prefetched).min(MAX_WORKERS as usize)
    }

    fn has_idle(&self) -> bool {
        self.running < self.workers + self.lent
    }
}

impl Pool {
    fn new(
        queue: &str,
        lane: Lane,
        workers: usize,
        lent: usize,
        borrower: Option<Arc<Self>>,
        pace: ClaimPace,
    ) -> Self {
        Self {
            queue: queue.to_owned(),
            lane,
            most: (workers * MAX_PER_WORKER).max(MAX_OF_SMALL_POOL),
            state: Mutex::new(State {
                workers,
                lent,
                running: 0,
                waiting: VecDeque::new(),
                prefetch: Prefetch::unknown(Instant::now()),
                prefetched: 0,
                cooldown: FETCH_COOLDOWN,
                settling: 0,
                idle: Vec::new(),
                next_id: 0,
            }),
            borrower,
            pace,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn cooldown(&self) -> Duration {
        self.pace.cooldown(self.lane)
    }

    /// A worker for a claimed job. The job waits briefly if River claimed more jobs than there are workers. `None`
    /// means that the job should return to its queue, where another process may claim it, or must not run at all.
    pub(super) async fn worker(
        self: &Arc<Self>,
        client: &Client,
        cancelled: &CancellationToken,
    ) -> Option<WorkerPermit> {
        let coming = {
            let mut state = self.state();
            if state.has_idle() && state.waiting.is_empty() {
                return Some(self.take(&mut state, client));
            }
            let (hand_over, coming) = oneshot::channel();
            state.waiting.push_back(hand_over);
            coming
        };
        tokio::select! {
            biased;
            () = cancelled.cancelled() => return None,
            worker = coming => return worker.ok(),
            () = tokio::time::sleep(WORKER_WAIT_TIMEOUT) => {}
        }
        {
            let mut state = self.state();
            while state.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                state.waiting.pop_front();
            }
            // The workers are slower than estimated.
            let workers = state.workers;
            state.prefetch.slowed_down(workers);
            self.update_prefetch(&mut state, client);
        }
        resized(cancelled).await;
        None
    }

    /// Takes one of the idle workers.
    fn take(self: &Arc<Self>, state: &mut State, client: &Client) -> WorkerPermit {
        state.running += 1;
        self.lend(state, client);
        WorkerPermit {
            pool: Arc::clone(self),
            client: client.clone(),
            since: Instant::now(),
            taken: true,
        }
    }

    /// Returns a worker after a handler that took `time`.
    fn give_back(self: &Arc<Self>, state: &mut State, time: Duration, client: &Client) {
        state.prefetch.took(time, self.cooldown(), Instant::now());
        self.update_prefetch(state, client);
        state.running -= 1;
        // The pool's own lane comes first; the remaining workers are idle.
        self.serve(state, client);
        self.lend(state, client);
    }

    /// Assigns idle workers to waiting jobs.
    fn serve(self: &Arc<Self>, state: &mut State, client: &Client) {
        while state.has_idle()
            && let Some(hand_over) = state.waiting.pop_front()
        {
            if hand_over.is_closed() {
                continue;
            }
            let worker = self.take(state, client);
            // The job stopped waiting. The worker is idle again, and the lock is already held.
            if let Err(mut worker) = hand_over.send(worker) {
                worker.taken = false;
                state.running -= 1;
                self.lend(state, client);
            }
        }
    }

    /// Sets River's prefetch to match the pace of the handlers.
    fn update_prefetch(&self, state: &mut State, client: &Client) {
        let jobs = state.prefetch.jobs(state.workers, self.most);
        let cooldown = self.cooldown();
        if jobs != state.prefetched || cooldown != state.cooldown {
            state.prefetched = jobs;
            state.cooldown = cooldown;
            self.resize_river(state, client);
        }
    }

    /// Updates the borrower's count of idle workers. The lender's lock is held; it is always taken first.
    fn lend(&self, state: &State, client: &Client) {
        let Some(borrower) = &self.borrower else { return };
        let mut theirs = borrower.state();
        theirs.lent = state.workers.saturating_sub(state.running);
        borrower.resize_river(&theirs, client);
        borrower.serve(&mut theirs, client);
    }

    fn resize_river(&self, state: &State, client: &Client) {
        let config = QueueConfig::new(state.room()).with_fetch_cooldown(state.cooldown);
        if let Err(error) = client.local_queues().update(&self.queue, config) {
            tracing::debug!(%error, queue = self.queue, "River did not apply a pool's new size");
        }
    }
}

/// Waits until River has applied a smaller size.
async fn resized(cancelled: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(RESIZE_DELAY) => {}
        () = cancelled.cancelled() => {}
    }
}

/// The right to run one handler. Returned when it goes out of scope.
pub(super) struct WorkerPermit {
    pool: Arc<Pool>,
    client: Client,
    since: Instant,
    taken: bool,
}

impl WorkerPermit {
    /// The handler is done and only the settlement is left, so the worker is free for the next job.
    pub(super) fn done(mut self) -> SettlePermit {
        let pool = Arc::clone(&self.pool);
        let mut state = pool.state();
        self.taken = false;
        pool.give_back(&mut state, self.since.elapsed(), &self.client);
        let holding = if let Some((_, leave)) = state.idle.pop() {
            // If the attempt is gone already, its permit is free as well.
            let _ = leave.send(());
            Holding::Permit
        } else if state.settling < pool.most {
            state.settling += 1;
            pool.resize_river(&state, &self.client);
            Holding::Permit
        } else {
            Holding::Nothing
        };
        drop(state);
        SettlePermit {
            pool,
            client: self.client.clone(),
            holding,
        }
    }
}

impl Drop for WorkerPermit {
    fn drop(&mut self) {
        if self.taken {
            let mut state = self.pool.state();
            self.pool
                .give_back(&mut state, self.since.elapsed(), &self.client);
        }
    }
}

#[derive(PartialEq)]
enum Holding {
    Nothing,
    Permit,
    /// Settled; another attempt may take over the permit.
    Idle(u64),
}

/// The right to settle without a worker. Released when it goes out of scope.
pub(super) struct SettlePermit {
    pool: Arc<Pool>,
    client: Client,
    holding: Holding,
}

impl SettlePermit {
    /// The attempt is settled. Returns when it may leave without River claiming a job that has no worker.
    pub(super) async fn leave(mut self, cancelled: &CancellationToken) {
        if self.holding == Holding::Nothing {
            return;
        }
        let (leave, wanted) = oneshot::channel();
        {
            let mut state = self.pool.state();
            let id = state.next_id;
            state.next_id += 1;
            state.idle.push((id, leave));
            self.holding = Holding::Idle(id);
        }
        tokio::select! {
            // Another attempt has the permit now.
            _ = wanted => {}
            () = tokio::time::sleep(SETTLE_PERMIT_IDLE) => {
                if self.give_up() {
                    resized(cancelled).await;
                }
            }
            () = cancelled.cancelled() => {}
        }
    }

    /// Whether there was a permit to release.
    fn give_up(&mut self) -> bool {
        let mut state = self.pool.state();
        let held = match std::mem::replace(&mut self.holding, Holding::Nothing) {
            Holding::Nothing => false,
            Holding::Permit => true,
            Holding::Idle(id) => {
                let before = state.idle.len();
                state.idle.retain(|(idle, _)| *idle != id);
                state.idle.len() < before
            }
        };
        if held {
            state.settling -= 1;
            self.pool.resize_river(&state, &self.client);
        }
        held
    }
}

impl Drop for SettlePermit {
    fn drop(&mut self) {
        self.give_up();
    }
}

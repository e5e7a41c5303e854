//! Reconciliation. It settles jobs that ended without a settlement by their worker (through another River client, River
//! UI, plain SQL or a crash). It takes over the jobs of dead processes, renews windows, and keeps or deletes old rows.
//!
//! Any number of processes may run this; a lease in the database selects one of them. The steps of a round are
//! independent: a failed step is logged, and the next one runs.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use weir_ledger::attempts::{self, AttemptError, SilentAttempt};
use weir_ledger::control;
use weir_ledger::database::{DatabaseError, PreparedClient};
use weir_ledger::maintenance;
use weir_ledger::reconciliation::{self as ledger, MAX_ENDED, MadeAvailable};
use weir_ledger::reservation::{LateAdmission, LateJob, admit_late};
use weir_ledger::settlement::Promoter;

use super::clean::Cleaner;
use super::elected::Elected;
use super::settlements::Settlements;
use super::step::{Pause, on_separate_connection, within};
use super::unclaimed;
use crate::context::Context;

/// Between two rounds. Jobs that other clients end are settled within about a second, and an upgrade soon helps parked
/// jobs.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);

/// The maximum between two rounds, while their queries are slow. The jobs of a dead process must run again within 15
/// seconds, and it counts as dead after ten.
const MAX_ROUND_INTERVAL: Duration = Duration::from_secs(2);

/// The queries of rounds and glances take at most one part in this many of the time. While another session holds an old
/// snapshot, they read the dead entries of all jobs since then. Claims and settlements need that time more.
const SCAN_SHARE: u32 = 10;

/// Between two rounds that include the less urgent steps.
const FULL_ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Between two glances at jobs that just ended, while other clients end jobs, so that their slots are freed soon. Also
/// the interval between tries to start jobs that fell due.
const GLANCE_INTERVAL: Duration = Duration::from_millis(50);

/// Between two reads of when the next job falls due, while there are reservations. The job itself starts on time.
const DUE_INTERVAL: Duration = Duration::from_millis(100);

/// Glances continue for this long after another client last ended a job. A round finds the next one.
const GLANCING_TIME: Duration = Duration::from_hours(1);

/// How late before a glance a job may turn out to have ended. The next round finds jobs that commit later.
const GLANCE_OVERLAP: SignedDuration = SignedDuration::from_millis(150);

/// The maximum period that a glance covers, so that each is fast. Rounds cover the rest.
const MAX_GLANCE_PERIOD: SignedDuration = SignedDuration::from_secs(1);

/// A job that another River client runs is stuck after this long, or after its timeout if that is longer.
const STUCK_AFTER: Duration = Duration::from_secs(60 * 60);

/// The time without reservations after which the installation is idle.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// The interval between full rounds while it is idle. In between, rounds only look for the first reservation.
const IDLE_ROUND_INTERVAL: Duration = Duration::from_secs(2);

/// The interval between the steps that can wait, while it is idle: silent attempts, due changes of plans, renewals.
const IDLE_STEP_INTERVAL: Duration = Duration::from_secs(10);

/// Between two looks at stuck jobs.
const STUCK_INTERVAL: Duration = Duration::from_secs(60);

/// The overlap of two looks: the transaction that ended a job may have committed late.
const OVERLAP: SignedDuration = SignedDuration::from_secs(4);

/// The maximum period covered again by a look after one that could not settle every job.
const MAX_LOOK_BACK: SignedDuration = SignedDuration::from_mins(10);

/// Maximum duration of a look in one round. Promotion follows it.
const MAX_LOOK: Duration = Duration::from_secs(5);

/// A look ends after this many jobs that could not be settled.
const MAX_FAILED: usize = 50_000;

/// Runs until it is stopped, including through outages.
pub async fn run(context: Context, stopped: CancellationToken) {
    let mut reconciler = Reconciler::new(&context);
    let mut leader: Option<Elected> = None;
    let mut last_round = Instant::now();
    let (leads, is_elected) = watch::channel(false);
    tokio::spawn(unclaimed::run(context.clone(), is_elected, stopped.clone()));
    loop {
        let wake_at = match &leader {
            Some(_) => reconciler
                .next_glance()
                .min(last_round + reconciler.round_interval),
            None => Instant::now() + ROUND_INTERVAL,
        };
        tokio::select! {
            () = tokio::time::sleep_until(wake_at.into()) => {}
            () = stopped.cancelled() => {
                if let Some(leader) = leader {
                    leader.leave().await;
                }
                return;
            }
        }
        let held = match leader.take().filter(|leader| !leader.client.is_closed()) {
            Some(held) => Ok(held),
            None => Elected::open(&context).await,
        };
        match held {
            Ok(mut held) => match held.is_elected(reconciler.has_begun()).await {
                Ok(true) if last_round.elapsed() < reconciler.round_interval => {
                    if held.during(reconciler.glance(&held.client)).await {
                        leader = Some(held);
                    }
                }
                Ok(true) => {
                    last_round = Instant::now();
                    if held.during(reconciler.next_round(&held.client)).await {
                        leader = Some(held);
                    }
                }
                Ok(false) => {
                    last_round = Instant::now();
                    leader = Some(held);
                }
                Err(error) => tracing::warn!(%error, "reconciliation could not request its lease"),
            },
            Err(error) => tracing::warn!(%error, "reconciliation cannot reach the database"),
        }
        leads.send_replace(leader.as_ref().is_some_and(Elected::holds_lease));
    }
}

fn report_silent(taken: Result<SilentAttempt, (i64, AttemptError)>) {
    match taken {
        Ok(SilentAttempt { job_id, outcome }) => {
            metrics::counter!("weir_reclaimed_total").increment(1);
            tracing::warn!(
                job = job_id,
                outcome,
                "took over a job from a handler that stopped reporting"
            );
        }
        Err((job_id, error)) => {
            tracing::warn!(job = job_id, %error, "could not take over a job from a handler that stopped reporting");
        }
    }
}

/// A look at ended jobs. A large number of them takes several rounds.
#[derive(Default)]
struct Look {
    /// When it started, by the database's clock.
    started: Option<Timestamp>,
    /// The jobs that it could not settle.
    failed: Vec<i64>,
}

/// The position of the rounds in each scan.
pub struct Reconciler {
    context: Context,
    promoter: Promoter,
    settlements: Settlements,
    /// The next look checks jobs that ended at or after this time; `None` before the database was queried.
    ended_since: Option<Timestamp>,
    look: Look,
    /// When ended jobs were last glanced at.
    glanced: Option<Timestamp>,
    /// The time that queries of the current round or glance have taken, without the work that they found.
    scanning: Duration,
    round_interval: Duration,
    glance_interval: Duration,
    /// When glances at ended jobs stop.
    glances_until: Instant,
    /// When the next job falls due, as of the last look.
    next_due: Option<Instant>,
    /// When the next job expires.
    next_expiry: Option<Instant>,
    /// Whether the last sweep found any reservation.
    has_reservations: bool,
    /// When there last were reservations.
    busy: Instant,
    /// When the last full round ran.
    last_full: Option<Instant>,
    /// When the steps that can wait last ran.
    last_deferrable: Option<Instant>,
    /// When stuck jobs of other clients were last looked at.
    looked_at_stuck: Option<Instant>,
    /// Until the next look at jobs that other clients inserted.
    adoption: Pause,
    /// Until the next sweep.
    sweeping: Pause,
    swept: i64,
    /// The number of reservations that the current sweep has seen, and the number at the end of the last complete
    /// sweep.
    seen: i64,
    total: i64,
    cleaner: Cleaner,
}

impl Reconciler {
    /// Starts with the first slice of everything.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            promoter: context.settler.promoter(),
            settlements: Settlements::new(context.settler.clone()),
            context: context.clone(),
            ended_since: None,
            look: Look::default(),
            glanced: None,
            scanning: Duration::ZERO,
            round_interval: ROUND_INTERVAL,
            glance_interval: GLANCE_INTERVAL,
            glances_until: Instant::now(),
            next_due: None,
            next_expiry: None,
            has_reservations: true,
            busy: Instant::now(),
            last_full: None,
            last_deferrable: None,
            looked_at_stuck: None,
            adoption: Pause::none(),
            sweeping: Pause::none(),
            swept: 0,
            seen: 0,
            total: 0,
            cleaner: Cleaner::new(),
        }
    }

    /// Sets how long to wait for the next settlement, for slow machines. Default: two seconds.
    #[must_use]
    pub fn waiting(mut self, patience: Duration) -> Self {
        self.settlements.waits(patience);
        self
    }

    /// Whether the start of the first look is known.
    fn has_begun(&self) -> bool {
        self.ended_since.is_some()
    }

    /// Finds the time from which to look at ended jobs: when a process last ran maintenance. Returns whether the
    /// connection is still usable.
    async fn begin(&mut self, client: &PreparedClient) -> bool {
        if self.ended_since.is_some() {
            return true;
        }
        let asked = async {
            let (now, last) = (ledger::now(client).await?, maintenance::last_done(client).await?);
            self.ended_since = Some(last.unwrap_or(now - MAX_LOOK_BACK));
            Ok(())
        };
        within("begin", asked).await
    }

    /// One full round. A failed step does not stop the others. Returns whether the connection is still usable.
    pub async fn round(&mut self, client: &PreparedClient) -> bool {
        self.last_full = None;
        self.has_reservations = true;
        self.busy = Instant::now();
        self.next_expiry = Some(self.busy);
        self.looked_at_stuck = None;
        self.adoption = Pause::none();
        self.sweeping = Pause::none();
        self.next_round(client).await
    }

    /// One round. One per second is full, and while idle, one in two seconds. The others run only urgent steps.
    async fn next_round(&mut self, client: &PreparedClient) -> bool {
        let is_idle = self.busy.elapsed() >= IDLE_AFTER;
        let full_interval = if is_idle {
            IDLE_ROUND_INTERVAL
        } else {
            FULL_ROUND_INTERVAL
        };
        let is_full = self
            .last_full
            .is_none_or(|last| last.elapsed() >= full_interval - ROUND_INTERVAL / 2);
        if is_full {
            self.last_full = Some(Instant::now());
        }
        let has_waited = self
            .last_deferrable
            .is_none_or(|last| last.elapsed() >= IDLE_STEP_INTERVAL);
        let runs_deferrable = is_full && (!is_idle || has_waited);
        if runs_deferrable {
            self.last_deferrable = Some(Instant::now());
        }
        self.scanning = Duration::ZERO;
        let mut is_of_use = self.begin(client).await;
        if is_full {
            is_of_use = is_of_use && within("take_over", self.take_over(client)).await;
        }
        if runs_deferrable {
            is_of_use = is_of_use && within("silent", Box::pin(self.fail_silent_attempts(client))).await;
        }
        // Most steps process reservations. The sweep finds the first one, and settles it if its job has ended.
        if self.has_reservations {
            is_of_use = is_of_use && within("ended", self.settle_ended(client)).await;
        }
        if is_full && self.next_expiry.is_some_and(|expiry| expiry <= Instant::now()) {
            is_of_use = is_of_use && within("expire", self.expire(client)).await;
        }
        is_of_use = is_of_use && within("sweep", self.sweep(client)).await;
        if is_full || !is_idle {
            is_of_use = is_of_use && within("adopt", self.adopt(client)).await;
        }
        if self.is_due() || is_full && self.has_reservations {
            on_separate_connection("due", self.start_due()).await;
        }
        // A due change of plan already counts; parked jobs are processed right after it.
        if runs_deferrable {
            is_of_use = is_of_use
                && within("plans", apply_scheduled(client)).await
                && within("renewals", emit_renewals(client)).await;
        }
        if self.has_reservations {
            on_separate_connection("promote", self.promote()).await;
        }
        if is_full {
            is_of_use = is_of_use && within("clean", self.cleaner.round(client)).await;
        }
        self.round_interval = interval(self.scanning, ROUND_INTERVAL, MAX_ROUND_INTERVAL);
        is_of_use
    }

    /// When the next glance has work to do.
    fn next_glance(&self) -> Instant {
        let now = Instant::now();
        let soon = now + self.glance_interval;
        let ended = self.looks_at_ended().then_some(soon);
        let due = self.next_due.map(|due| due.max(soon));
        let look = now + DUE_INTERVAL.max(self.glance_interval);
        let look = self.has_reservations.then_some(look);
        let next = [ended, due, look].into_iter().flatten().min();
        next.unwrap_or(now + ROUND_INTERVAL)
    }

    fn is_due(&self) -> bool {
        self.next_due.is_some_and(|due| due <= Instant::now())
    }

    /// A look between two rounds at jobs that just ended or fell due. Returns whether the connection is still usable.
    async fn glance(&mut self, client: &PreparedClient) -> bool {
        self.scanning = Duration::ZERO;
        let mut is_of_use = true;
        if self.looks_at_ended() {
            is_of_use = within("just_ended", self.notice_ended(client)).await;
        }
        if self.has_reservations {
            is_of_use = is_of_use && within("next_steps", self.note_next_steps(client)).await;
        }
        if self.is_due() {
            on_separate_connection("due", self.start_due()).await;
            is_of_use = is_of_use && within("next_steps", self.note_next_steps(client)).await;
        }
        self.glance_interval = interval(self.scanning, GLANCE_INTERVAL, ROUND_INTERVAL);
        is_of_use
    }

    /// Starts settlements of jobs that ended since the last glance, without waiting for them.
    async fn notice_ended(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let started = ledger::now(client).await?;
        let since = self.glanced.replace(started).unwrap_or(started);
        let since = since.max(started - MAX_GLANCE_PERIOD) - GLANCE_OVERLAP;
        let ended = timed(&mut self.scanning, ledger::ended_since(client, since, &[])).await?;
        self.extend_glancing(ended.by_others);
        for ended in ended.jobs {
            self.context.settler.notice(ended.job_id, Some(ended.holder));
        }
        Ok(())
    }

    /// Whether glances look at ended jobs. Without reservations, no job needs a settlement.
    fn looks_at_ended(&self) -> bool {
        self.has_reservations && Instant::now() < self.glances_until
    }

    fn extend_glancing(&mut self, others_end_jobs: bool) {
        if others_end_jobs {
            self.glances_until = Instant::now() + GLANCING_TIME;
        }
    }

    /// Records when the next job falls due, and when the next one expires.
    async fn note_next_steps(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let next = timed(&mut self.scanning, ledger::next_steps(client)).await?;
        self.next_due = next.due.map(|wait| Instant::now() + wait);
        self.next_expiry = next.expiry.map(|wait| Instant::now() + wait);
        Ok(())
    }

    /// Adopts jobs that other clients inserted, as far as they could be claimed next.
    async fn adopt(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let settings = &self.context.settings;
        if !settings.fairness.enabled || !self.adoption.is_over() {
            return Ok(());
        }
        let services = settings.services.iter();
        let queues: Vec<String> = services
            .clone()
            .flat_map(|service| service.queues().map(|(_, queue, _)| queue))
            .collect();
        let meters = services
            .map(|service| (service.kind.as_str(), service.meter))
            .collect();
        let holders = self.context.holders().await?;
        let adopting = ledger::adopt(client, holders, &queues, &meters, settings.reservation_ttl);
        let mut took = Duration::ZERO;
        let adopted = timed(&mut took, adopting).await;
        let found = matches!(&adopted, Ok(adopted) if adopted.jobs > 0 || !adopted.made_available.is_empty());
        if !found {
            self.adoption.after(took);
        }
        // The following steps process these jobs in the same round.
        if found {
            self.has_reservations = true;
            self.busy = Instant::now();
        }
        let adopted = adopted?;
        if adopted.jobs > 0 {
            weir_ledger::access_log!(
                false,
                adopted = adopted.jobs,
                "gave reservations to jobs that another River client inserted"
            );
        }
        self.admit_late(&adopted.made_available).await
    }

    /// Makes jobs that were made available by hand reserve the amounts of their submission again, and wait for a slot.
    async fn admit_late(&self, jobs: &[MadeAvailable]) -> Result<(), DatabaseError> {
        let mut blocked = HashSet::new();
        for job in jobs {
            // A holder locked by another transaction is not tried again.
            if blocked.contains(&job.holder.id) {
                continue;
            }
            let late = LateJob {
                id: job.job_id,
                attempt: None,
                holder: job.holder,
                subject: None,
                meter: job.meter,
                backlog: None,
            };
            let admission = self
                .context
                .pool
                .with(async |client| admit_late(client, late).await)
                .await;
            match admission {
                Ok(LateAdmission::Blocked) => {
                    blocked.insert(job.holder.id);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(job = job.job_id, %error, "could not admit a job that became available");
                }
            }
        }
        Ok(())
    }

    async fn start_due(&mut self) -> Result<(), DatabaseError> {
        self.promoter.start_due().await?;
        Ok(())
    }

    /// Runs rounds until one complete pass is done.
    pub async fn everything(&mut self, client: &PreparedClient) {
        self.swept = 0;
        self.cleaner.hurry();
        loop {
            self.round(client).await;
            if self.swept == 0 && self.cleaner.has_passed() {
                break;
            }
        }
        self.settlements.finish().await;
        if let Err(error) = self.promoter.promote_all().await {
            tracing::warn!(%error, "could not promote parked jobs");
        }
    }

    /// Returns the jobs of processes without a heartbeat to their queues. The same applies to jobs that another client
    /// has been running for too long, if their kind's timeout is known here.
    async fn take_over(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let services = &self.context.settings.services;
        let looks_at_stuck = self
            .looked_at_stuck
            .is_none_or(|last| last.elapsed() >= STUCK_INTERVAL);
        let longest: Vec<(&str, Duration)> = services
            .iter()
            .filter(|_| looks_at_stuck)
            .map(|service| (service.kind.as_str(), service.timeout.max(STUCK_AFTER)))
            .collect();
        let taken_over = timed(&mut self.scanning, ledger::take_over(client, &longest)).await?;
        if looks_at_stuck {
            self.looked_at_stuck = Some(Instant::now());
        }
        for taken in taken_over {
            metrics::counter!("weir_reclaimed_total").increment(1);
            tracing::warn!(
                job = taken.job_id,
                process = taken.client_id,
                state = taken.state,
                "took over a job from a dead process"
            );
        }
        Ok(())
    }

    /// Fails attempts that answer later and have not reported in time.
    async fn fail_silent_attempts(&self, client: &PreparedClient) -> Result<(), DatabaseError> {
        attempts::fail_silent_attempts(client, &self.context.pool, report_silent).await
    }

    /// Settles all jobs that ended since the last look. A long look continues in the next round, so that other
    /// maintenance runs in between.
    async fn settle_ended(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let began = Instant::now();
        let now = ledger::now(client).await?;
        let started = *self.look.started.get_or_insert(now);
        let since = self.ended_since.unwrap_or(started).max(started - MAX_LOOK_BACK) - OVERLAP;
        loop {
            let ended = ledger::ended_since(client, since, &self.look.failed);
            let ended = timed(&mut self.scanning, ended).await?;
            self.extend_glancing(ended.by_others);
            let ended = ended.jobs;
            let is_all = i64::try_from(ended.len()).unwrap_or(i64::MAX) < MAX_ENDED;
            let settled = self.settlements.settle(&ended).await;
            let left = ended.iter().map(|ended| ended.job_id);
            self.look
                .failed
                .extend(left.filter(|job_id| !settled.contains(job_id)));
            // The next look retries jobs that could not be settled. They do not delay the settlement of others.
            if is_all || self.look.failed.len() >= MAX_FAILED {
                let look = std::mem::take(&mut self.look);
                if is_all && look.failed.is_empty() {
                    self.ended_since = Some(started);
                }
                return Ok(());
            }
            if began.elapsed() >= MAX_LOOK {
                return Ok(());
            }
        }
    }

    /// Cancels jobs that still wait after their time to start, and settles them.
    async fn expire(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let expired = timed(&mut self.scanning, ledger::expire(client)).await?;
        if !expired.is_empty() {
            tracing::info!(
                jobs = expired.len(),
                "cancelled jobs that had not started before they expired"
            );
        }
        self.settlements.settle(&expired).await;
        Ok(())
    }

    /// Processes the next slice of all reservations.
    async fn sweep(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        if !self.sweeping.is_over() {
            // There may be a new one.
            self.has_reservations = true;
            return Ok(());
        }
        let after = self.swept;
        if after == 0 {
            self.total = std::mem::take(&mut self.seen);
        }
        let sweep = ledger::sweep(client, after, self.total, self.context.rules.ttl);
        let mut took = Duration::ZERO;
        let sweep = timed(&mut took, sweep).await;
        // A pass of a large table takes minutes, and does not pause between its slices.
        if sweep.as_ref().map_or(0, |sweep| sweep.next) == 0 {
            self.sweeping.after(took);
        } else {
            self.scanning += took;
        }
        let sweep = sweep?;
        self.swept = sweep.next;
        self.seen += sweep.size;
        self.has_reservations = after > 0 || sweep.size > 0;
        if self.has_reservations {
            self.busy = Instant::now();
        }
        let settled = self.settlements.settle(&sweep.orphans).await;
        let orphans = sweep.orphans.iter().map(|orphan| orphan.job_id);
        for job_id in orphans.filter(|job_id| settled.contains(job_id)) {
            metrics::counter!("weir_orphans_total").increment(1);
            tracing::info!(job = job_id, "the job was deleted; its reservation is released");
        }
        self.settlements.settle(&sweep.ended).await;
        if sweep.wants_renewal {
            ledger::renew(client, after, sweep.last, self.context.rules.ttl).await?;
        }
        Ok(())
    }

    async fn promote(&mut self) -> Result<(), DatabaseError> {
        self.promoter.promote().await?;
        Ok(())
    }
}

/// Adds the duration of a query to `total`.
async fn timed<T>(total: &mut Duration, query: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let result = query.await;
    *total += started.elapsed();
    result
}

/// The interval between the starts of two rounds or glances, when the queries of the last one took this long.
fn interval(scanning: Duration, min: Duration, max: Duration) -> Duration {
    (scanning * SCAN_SHARE).clamp(min, max)
}

async fn apply_scheduled(client: &PreparedClient) -> Result<(), DatabaseError> {
    control::apply_scheduled(client).await?;
    Ok(())
}

/// Emits the end of windows that webhooks have received an event about.
async fn emit_renewals(client: &PreparedClient) -> Result<(), DatabaseError> {
    control::emit_renewals(client).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_queries_make_rounds_rarer() {
        let interval = |scanning| interval(scanning, ROUND_INTERVAL, MAX_ROUND_INTERVAL);
        assert_eq!(interval(Duration::from_millis(50)), ROUND_INTERVAL);
        assert_eq!(interval(Duration::from_millis(120)), Duration::from_millis(1200));
        assert_eq!(interval(Duration::from_secs(1)), MAX_ROUND_INTERVAL);
    }
}

//! Reconciliation: what ended without its worker's settlement (another River client, River UI, plain SQL, a crash) is
//! settled; what a dead process ran is taken back; what lives is renewed; what is old is kept or deleted.
//!
//! Any number of processes may run this; a lease in the database makes one of them do it. Every step of a round is on its
//! own: one that fails is logged, and the next one goes on.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;
use weir_ledger::attempts::{self, AttemptError, Silent};
use weir_ledger::control;
use weir_ledger::database::{DatabaseError, PreparedClient};
use weir_ledger::maintenance;
use weir_ledger::reconciliation::{self as ledger, MAX_ENDED, MadeAvailable};
use weir_ledger::reservation::{LateAdmission, LateJob, admit_late};
use weir_ledger::settlement::Promoter;

use super::clean::Cleaner;
use super::elected::Elected;
use super::settlements::Settlements;
use super::step::{separately, within};
use crate::context::Context;

/// Between two rounds. What others end is settled within about a second, and an upgrade helps the jobs that wait.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);

/// Between two rounds that also do what can wait for a second.
const FULL_ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Between two looks at what ended just now, while other clients end jobs: they free their slots as soon. Also between two
/// tries to start what fell due.
const GLANCE_INTERVAL: Duration = Duration::from_millis(50);

/// Between two looks at when the next job falls due, while there are reservations. The job itself is started on time.
const DUE_INTERVAL: Duration = Duration::from_millis(100);

/// How long glances go on after the last job that another client ended. The next one is found by a round.
const GLANCES_FOR: Duration = Duration::from_hours(1);

/// How far behind the last glance a job may turn up as ended. What commits later is found by the next round.
const GLANCE_OVERLAP: SignedDuration = SignedDuration::from_millis(150);

/// How far back a glance goes at most, so that none takes long. The rounds see to the rest.
const MAX_GLANCE_BACK: SignedDuration = SignedDuration::from_secs(1);

/// A job that another River client runs is stuck after this long, or after its timeout when that is longer.
const STUCK_AFTER: Duration = Duration::from_secs(60 * 60);

/// How far behind the last look a job may turn up as ended: its transaction may have committed late.
const OVERLAP: SignedDuration = SignedDuration::from_secs(4);

/// How far back a look goes that could not settle all that it found.
const MAX_LOOK_BACK: SignedDuration = SignedDuration::from_mins(10);

/// How long a look goes on in one round. Promotion comes after it.
const MAX_LOOK: Duration = Duration::from_secs(5);

/// After so many that could not be settled, a look is over.
const MAX_FAILED: usize = 50_000;

/// Goes on until it is stopped, also through outages.
pub async fn run(context: Context, stopped: CancellationToken) {
    let mut reconciler = Reconciler::new(&context);
    let mut leader: Option<Elected> = None;
    let mut last_round = Instant::now();
    loop {
        let wake_at = match &leader {
            Some(_) => reconciler.next_glance().min(last_round + ROUND_INTERVAL),
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
                Ok(true) if last_round.elapsed() < ROUND_INTERVAL => {
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
                Err(error) => tracing::warn!(%error, "reconciliation could not ask for its lease"),
            },
            Err(error) => tracing::warn!(%error, "reconciliation cannot reach the database"),
        }
    }
}

fn report_silent(taken: Result<Silent, (i64, AttemptError)>) {
    match taken {
        Ok(Silent { job_id, outcome }) => {
            metrics::counter!("weir_reclaimed_total").increment(1);
            tracing::warn!(
                job = job_id,
                outcome,
                "taken back from a handler that reported nothing"
            );
        }
        Err((job_id, error)) => {
            tracing::warn!(job = job_id, %error, "could not be taken back from a handler that reported nothing");
        }
    }
}

/// A look at what ended, which takes several rounds when that is very much.
#[derive(Default)]
struct Look {
    /// When it began, by the database's clock.
    started: Option<Timestamp>,
    /// What it could not settle.
    failed: Vec<i64>,
}

/// Where the rounds are in what they go through.
pub struct Reconciler {
    context: Context,
    promoter: Promoter,
    settlements: Settlements,
    /// From when on ended jobs are looked for; `None` before anybody was asked.
    ended_since: Option<Timestamp>,
    look: Look,
    /// When the last glance at ended jobs was.
    glanced: Option<Timestamp>,
    /// Until when glances look at ended jobs.
    glances_until: Instant,
    /// When the next job falls due, as far as the last look knew.
    next_due: Option<Instant>,
    /// Whether the last sweep found any reservation.
    has_reservations: bool,
    /// When the last round did everything.
    last_full: Option<Instant>,
    swept: i64,
    /// How many reservations the sweep has seen so far, and how many there were when it last saw all.
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
            glances_until: Instant::now(),
            next_due: None,
            has_reservations: true,
            last_full: None,
            swept: 0,
            seen: 0,
            total: 0,
            cleaner: Cleaner::new(),
        }
    }

    /// How long the next settlement is waited for, for machines that may be slow; two seconds unless told.
    #[must_use]
    pub fn waiting(mut self, patience: Duration) -> Self {
        self.settlements.waits(patience);
        self
    }

    /// Whether it knows from when on it looks for ended jobs.
    fn has_begun(&self) -> bool {
        self.ended_since.is_some()
    }

    /// Looks from when on ended jobs are to be found: since a process last ran maintenance. Returns whether the connection is
    /// still of use.
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

    /// One round that does everything. A step that fails keeps no other from its turn. Returns whether the connection is
    /// still of use.
    pub async fn round(&mut self, client: &PreparedClient) -> bool {
        self.last_full = None;
        self.has_reservations = true;
        self.next_round(client).await
    }

    /// One round. Once a second it does everything; those in between do what cannot wait for a second.
    async fn next_round(&mut self, client: &PreparedClient) -> bool {
        let is_full = self
            .last_full
            .is_none_or(|last| last.elapsed() >= FULL_ROUND_INTERVAL - ROUND_INTERVAL / 2);
        if is_full {
            self.last_full = Some(Instant::now());
        }
        let mut is_of_use = self.begin(client).await;
        if is_full {
            is_of_use = is_of_use && within("take_back", self.take_back(client)).await;
            is_of_use = is_of_use && within("silent", Box::pin(self.take_back_silent(client))).await;
        }
        // Most steps are about reservations. The sweep finds the first one, and settles it if its job has ended.
        if self.has_reservations {
            is_of_use = is_of_use && within("ended", self.settle_ended(client)).await;
        }
        is_of_use = is_of_use && within("sweep", self.sweep(client)).await;
        is_of_use = is_of_use && within("adopt", self.adopt(client)).await;
        if self.is_due() || is_full && self.has_reservations {
            separately("due", self.start_due()).await;
        }
        // A change of plan that fell due counts already; what waits is looked at right after.
        if is_full {
            is_of_use = is_of_use && within("plans", apply_scheduled(client)).await;
        }
        if self.has_reservations {
            separately("promote", self.promote()).await;
        }
        if is_full {
            is_of_use = is_of_use
                && within("renewals", emit_renewals(client)).await
                && within("clean", self.cleaner.round(client)).await;
        }
        is_of_use
    }

    /// When the next glance has something to do.
    fn next_glance(&self) -> Instant {
        let now = Instant::now();
        let soon = now + GLANCE_INTERVAL;
        let ended = self.looks_at_ended().then_some(soon);
        let due = self.next_due.map(|due| due.max(soon));
        let look = self.has_reservations.then_some(now + DUE_INTERVAL);
        let next = [ended, due, look].into_iter().flatten().min();
        next.unwrap_or(now + ROUND_INTERVAL)
    }

    fn is_due(&self) -> bool {
        self.next_due.is_some_and(|due| due <= Instant::now())
    }

    /// A look between two rounds at what ended just now and what falls due. Returns whether the connection is still of use.
    async fn glance(&mut self, client: &PreparedClient) -> bool {
        let mut is_of_use = true;
        if self.looks_at_ended() {
            is_of_use = within("just_ended", self.notice_ended(client)).await;
        }
        if self.has_reservations {
            is_of_use = is_of_use && within("next_due", self.note_due(client)).await;
        }
        if self.is_due() {
            separately("due", self.start_due()).await;
            is_of_use = is_of_use && within("next_due", self.note_due(client)).await;
        }
        is_of_use
    }

    /// Has settled what ended since the last glance, and waits for none of it.
    async fn notice_ended(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let started = ledger::now(client).await?;
        let since = self.glanced.replace(started).unwrap_or(started);
        let since = since.max(started - MAX_GLANCE_BACK) - GLANCE_OVERLAP;
        let ended = ledger::ended_since(client, since, &[]).await?;
        self.go_on_glancing(ended.by_others);
        for ended in ended.jobs {
            self.context.settler.notice(ended.job_id, Some(ended.holder));
        }
        Ok(())
    }

    /// Whether glances look at ended jobs. Without a reservation, none of them is to be settled.
    fn looks_at_ended(&self) -> bool {
        self.has_reservations && Instant::now() < self.glances_until
    }

    fn go_on_glancing(&mut self, others_end_jobs: bool) {
        if others_end_jobs {
            self.glances_until = Instant::now() + GLANCES_FOR;
        }
    }

    /// Remembers when the next job falls due.
    async fn note_due(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        self.next_due = ledger::next_due(client).await?.map(|wait| Instant::now() + wait);
        Ok(())
    }

    /// Puts what other clients inserted in line, as far as it could be claimed next.
    async fn adopt(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let settings = &self.context.settings;
        if settings.fairness.cluster_limits().is_none() {
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
        let adopted = ledger::adopt(client, holders, &queues, &meters, settings.reservation_ttl).await?;
        // The steps after this one serve them in the same round.
        self.has_reservations |= adopted.jobs > 0 || !adopted.made_available.is_empty();
        if adopted.jobs > 0 {
            weir_ledger::access_log!(
                false,
                adopted = adopted.jobs,
                "put jobs that another River client inserted in line"
            );
        }
        self.admit_late(&adopted.made_available).await
    }

    /// Has jobs that were made available by hand reserve again what their submission did, and wait for a slot.
    async fn admit_late(&self, jobs: &[MadeAvailable]) -> Result<(), DatabaseError> {
        let mut blocked = HashSet::new();
        for job in jobs {
            // Whose lock somebody else holds is not waited for again and again.
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
            let rules = &self.context.rules;
            let admission = self
                .context
                .pool
                .with(async |client| admit_late(client, rules, late).await)
                .await;
            match admission {
                Ok(LateAdmission::Blocked) => {
                    blocked.insert(job.holder.id);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(job = job.job_id, %error, "a job that was made available could not be put in line");
                }
            }
        }
        Ok(())
    }

    async fn start_due(&mut self) -> Result<(), DatabaseError> {
        self.promoter.start_due().await?;
        Ok(())
    }

    /// Rounds until all that is there was gone through once.
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
            tracing::warn!(%error, "could not promote");
        }
    }

    /// Jobs of processes that stopped beating go back to their queues, and so do those that another client has been
    /// running for too long, of the kinds whose timeout is known here.
    async fn take_back(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let services = &self.context.settings.services;
        let longest: Vec<(&str, Duration)> = services
            .iter()
            .map(|service| (service.kind.as_str(), service.timeout.max(STUCK_AFTER)))
            .collect();
        for taken in ledger::take_back(client, &longest).await? {
            metrics::counter!("weir_reclaimed_total").increment(1);
            tracing::warn!(
                job = taken.job_id,
                process = taken.client_id,
                state = taken.state,
                "taken back from a process that died"
            );
        }
        Ok(())
    }

    /// Attempts whose handler wanted to answer later and has reported nothing for too long have failed.
    async fn take_back_silent(&self, client: &PreparedClient) -> Result<(), DatabaseError> {
        attempts::take_back_silent(client, &self.context.pool, report_silent).await
    }

    /// Settles what ended since the last look, however much it is: a look that takes long goes on in the next round, so that
    /// other maintenance has its turn.
    async fn settle_ended(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let began = Instant::now();
        let now = ledger::now(client).await?;
        let started = *self.look.started.get_or_insert(now);
        let since = self.ended_since.unwrap_or(started).max(started - MAX_LOOK_BACK) - OVERLAP;
        loop {
            let ended = ledger::ended_since(client, since, &self.look.failed).await?;
            self.go_on_glancing(ended.by_others);
            let ended = ended.jobs;
            let is_all = i64::try_from(ended.len()).unwrap_or(i64::MAX) < MAX_ENDED;
            let settled = self.settlements.settle(&ended).await;
            let left = ended.iter().map(|ended| ended.job_id);
            self.look
                .failed
                .extend(left.filter(|job_id| !settled.contains(job_id)));
            // What cannot be settled is looked at again by the next look, and keeps nothing else from being settled.
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

    /// Looks at the next slice of all reservations.
    async fn sweep(&mut self, client: &PreparedClient) -> Result<(), DatabaseError> {
        let after = self.swept;
        if after == 0 {
            self.total = std::mem::take(&mut self.seen);
        }
        let sweep = ledger::sweep(client, after, self.total, self.context.rules.ttl).await?;
        self.swept = sweep.next;
        self.seen += sweep.size;
        self.has_reservations = after > 0 || sweep.size > 0;
        let settled = self.settlements.settle(&sweep.orphans).await;
        let orphans = sweep.orphans.iter().map(|orphan| orphan.job_id);
        for job_id in orphans.filter(|job_id| settled.contains(job_id)) {
            metrics::counter!("weir_orphans_total").increment(1);
            tracing::info!(job = job_id, "the job was deleted; what it held is released");
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

async fn apply_scheduled(client: &PreparedClient) -> Result<(), DatabaseError> {
    control::apply_scheduled(client).await?;
    Ok(())
}

/// Tells which windows are over that webhooks heard of.
async fn emit_renewals(client: &PreparedClient) -> Result<(), DatabaseError> {
    control::emit_renewals(client).await?;
    Ok(())
}

//! Reconciliation: what ended without its worker's settlement (another River client, River UI, plain SQL, a crash) is
//! settled; what a dead process ran is taken back; what lives is renewed; what is old is kept or deleted.
//!
//! Any number of processes may run this; a lease in the database makes one of them do it. Every step of a round is on its
//! own: one that fails is logged, and the next one goes on.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use weir_ledger::attempts::{self, AttemptError, Silent};
use weir_ledger::control;
use weir_ledger::database::DatabaseError;
use weir_ledger::maintenance;
use weir_ledger::reconciliation::{self as ledger, MAX_ENDED, MadeAvailable};
use weir_ledger::reservation::{LateAdmission, LateJob, admit_late};
use weir_ledger::settlement::Promoter;

use super::clean::Cleaner;
use super::elected::Elected;
use super::settlements::Settlements;
use super::step::{apart, within};
use crate::context::Context;

/// Between two rounds. What others end is settled within about a second, and an upgrade helps the jobs that wait.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);

/// Between two looks at what ended or fell due just now: whoever works jobs without telling Weir frees their slots as soon.
const GLANCE_INTERVAL: Duration = Duration::from_millis(50);

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
pub const MAX_LOOK: Duration = Duration::from_secs(5);

/// After so many that could not be settled, a look is over.
const MAX_FAILED: usize = 50_000;

/// Goes on until it is stopped, also through outages.
pub async fn run(context: Context, stopped: CancellationToken) {
    let mut reconciler = Reconciler::new(&context);
    let mut leader: Option<Elected> = None;
    let mut last_round = Instant::now();
    loop {
        let interval = if leader.is_some() {
            GLANCE_INTERVAL
        } else {
            ROUND_INTERVAL
        };
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
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
                    if held.during(reconciler.round(&held.client)).await {
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
                "taken back from a handler that said nothing"
            );
        }
        Err((job_id, error)) => {
            tracing::warn!(job = job_id, %error, "could not be taken back from a handler that said nothing");
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
    /// When the last glance was.
    glanced: Option<Timestamp>,
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
    async fn begin(&mut self, client: &Client) -> bool {
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

    /// One round. A step that fails keeps no other from its turn. Returns whether the connection is still of use.
    pub async fn round(&mut self, client: &Client) -> bool {
        let mut is_of_use = self.begin(client).await && within("take_back", self.take_back(client)).await;
        apart("silent", self.take_back_silent()).await;
        is_of_use = is_of_use
            && within("ended", self.settle_ended(client)).await
            && within("sweep", self.sweep(client)).await
            && within("adopt", self.adopt(client)).await;
        apart("due", self.start_due()).await;
        // A change of plan that fell due counts already; what waits is looked at right after.
        is_of_use = is_of_use && within("plans", apply_scheduled(client)).await;
        apart("promote", self.promote()).await;
        is_of_use
            && within("renewals", emit_renewals(client)).await
            && within("clean", self.cleaner.round(client)).await
    }

    /// A look between two rounds at what ended just now and what falls due. Returns whether the connection is still of use.
    pub async fn glance(&mut self, client: &Client) -> bool {
        let is_of_use = within("just_ended", self.notice_ended(client)).await;
        apart("due", self.start_due()).await;
        is_of_use
    }

    /// Has settled what ended since the last glance, and waits for none of it.
    async fn notice_ended(&mut self, client: &Client) -> Result<(), DatabaseError> {
        let started = ledger::now(client).await?;
        let since = self.glanced.replace(started).unwrap_or(started);
        let since = since.max(started - MAX_GLANCE_BACK) - GLANCE_OVERLAP;
        for ended in ledger::ended_since(client, since, &[]).await? {
            self.context.settler.notice(ended.job_id, Some(ended.holder));
        }
        Ok(())
    }

    /// Puts what other clients inserted in line, as far as it could be claimed next.
    async fn adopt(&mut self, client: &Client) -> Result<(), DatabaseError> {
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
            .map(|service| (service.kind.as_str(), service.event_type))
            .collect();
        let holders = self.context.holders().await?;
        let adopted = ledger::adopt(client, holders, &queues, &meters, settings.reservation_ttl).await?;
        if adopted.jobs > 0 {
            tracing::info!(
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
                event_type: job.event_type,
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
    pub async fn everything(&mut self, client: &Client) {
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
    async fn take_back(&mut self, client: &Client) -> Result<(), DatabaseError> {
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

    /// Attempts whose handler wanted to answer later and has said nothing for too long have failed.
    async fn take_back_silent(&self) -> Result<(), DatabaseError> {
        self.context
            .pool
            .with(async |client| {
                Ok::<_, DatabaseError>(attempts::take_back_silent(client, report_silent).await?)
            })
            .await
    }

    /// Settles what ended since the last look, however much it is: a look that takes long goes on in the next round, so that
    /// other maintenance has its turn.
    async fn settle_ended(&mut self, client: &Client) -> Result<(), DatabaseError> {
        let began = Instant::now();
        let now = ledger::now(client).await?;
        let started = *self.look.started.get_or_insert(now);
        let since = self.ended_since.unwrap_or(started).max(started - MAX_LOOK_BACK) - OVERLAP;
        loop {
            let ended = ledger::ended_since(client, since, &self.look.failed).await?;
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
    async fn sweep(&mut self, client: &Client) -> Result<(), DatabaseError> {
        let after = self.swept;
        if after == 0 {
            self.total = std::mem::take(&mut self.seen);
        }
        let sweep = ledger::sweep(client, after, self.total).await?;
        self.swept = sweep.next;
        self.seen += sweep.size;
        let settled = self.settlements.settle(&sweep.orphans).await;
        let orphans = sweep.orphans.iter().map(|orphan| orphan.job_id);
        for job_id in orphans.filter(|job_id| settled.contains(job_id)) {
            metrics::counter!("weir_orphans_total").increment(1);
            tracing::info!(job = job_id, "the job was deleted; what it held is released");
        }
        self.settlements.settle(&sweep.ended).await;
        Ok(ledger::renew(client, after, sweep.last, self.context.rules.ttl).await?)
    }

    async fn promote(&mut self) -> Result<(), DatabaseError> {
        self.promoter.promote().await?;
        Ok(())
    }
}

async fn apply_scheduled(client: &Client) -> Result<(), DatabaseError> {
    control::apply_scheduled(client).await?;
    Ok(())
}

/// Tells which windows are over that webhooks heard of.
async fn emit_renewals(client: &Client) -> Result<(), DatabaseError> {
    control::emit_renewals(client).await?;
    Ok(())
}

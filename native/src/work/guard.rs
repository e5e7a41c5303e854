//! The attempt guard (ADR-10): no attempt of a user's job runs without one of that user's slots.
//!
//! Jobs submitted through Weir already have their slot when a worker can claim them. The guard handles the other jobs:
//! those that another River client inserted, retries, and those that were made available by hand.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use riverqueue::{JobRow, WorkContext, WorkError, WorkMiddleware, WorkNext, WorkOutcome};
use weir_ledger::database::DatabaseError;
use weir_ledger::hold_off::HoldOff;
use weir_ledger::holder::Holder;
use weir_ledger::lookup::{Found, Holds, ReservationLookup};
use weir_ledger::meter::Meter;
use weir_ledger::plans::{self, Plan};
use weir_ledger::reservation::{LateAdmission, LateJob, admit_late};
use weir_policy::subject::Subject;

use super::attempt_holder::{self, user_id};
use super::cancellation::{self, Attempted, Cancellations};

use super::deliveries;
use super::fenced;
use super::heartbeat::Lease;
use super::internal::{not_started, snoozed};
use super::local_limiter::{Held, LocalLimiter};
use super::under_way::UnderWay;
use super::worker;
use crate::config::fairness::{Fairness, FairnessScope};
use crate::context::Context;

/// The time during which no attempt retries a lock that another transaction holds. Then one attempt asks.
const BLOCKED_RETRY_DELAY: Duration = Duration::from_millis(200);

/// The maximum time that a job waits for such a lock, without a connection, before it returns to its queue.
const BLOCKED_PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Guard {
    context: Context,
    lookup: ReservationLookup,
    lease: Lease,
    under_way: UnderWay,
    cancellations: Cancellations,
    local: LocalLimiter,
    /// Holders locked by another transaction.
    blocked: Mutex<HoldOff>,
}

impl Guard {
    pub(super) fn new(
        context: &Context,
        lookup: &ReservationLookup,
        lease: &Lease,
        under_way: &UnderWay,
        cancellations: Cancellations,
    ) -> Self {
        Self {
            context: context.clone(),
            lookup: lookup.clone(),
            lease: lease.clone(),
            under_way: under_way.clone(),
            cancellations,
            local: LocalLimiter::default(),
            blocked: Mutex::new(HoldOff::new(BLOCKED_RETRY_DELAY)),
        }
    }
}

impl WorkMiddleware for Guard {
    async fn work(
        &self,
        context: &WorkContext,
        job: JobRow,
        next: WorkNext<'_>,
    ) -> Result<WorkOutcome, WorkError> {
        let _lease = self.lease.until_over();
        let mut under_way = self.under_way.enter(&job);
        let attempted = Attempted::of(&job);
        let service = self.context.settings.service_of_kind(&job.kind);
        let (errors, left) = (job.errors.len(), job.max_attempts.saturating_sub(job.attempt));
        let attempt = async {
            match service {
                Some(service) => self.guard(job, service.meter, next).await,
                // A delivery counts against no holder.
                None => next.run(job).await,
            }
        };
        let river = context.cancellation_token();
        let outcome = self
            .cancellations
            .run(river, &attempted, attempt, |error, least| match service {
                Some(service) => worker::pause(service.retry, errors, error, least),
                None => deliveries::pause_after(error, left, least),
            })
            .await;
        if matches!(outcome, Ok(WorkOutcome::Complete)) && service.is_some() {
            under_way.settled();
        }
        outcome
    }
}

/// The decision on an attempt that arrived without a slot.
enum Entry {
    /// It runs. It has a slot in this process if slots are local to processes.
    Runs(Option<Held>),
    /// The job returns to its queue.
    Waits(WorkOutcome),
    /// Another process has taken over the job.
    FencedOut,
}

impl Guard {
    async fn guard(&self, job: JobRow, meter: Meter, next: WorkNext<'_>) -> Result<WorkOutcome, WorkError> {
        let attempt = i16::try_from(job.attempt).unwrap_or(i16::MAX);
        let found = match self.lookup.find(job.id, attempt).await {
            Ok(found) => found,
            Err(error) => return not_started(job.id, error).map_err(WorkError::new),
        };
        let holder = found.map(|found| found.holder);
        attempt_holder::scope(holder, self.run_with_slot(job, attempt, meter, found, next)).await
    }

    async fn run_with_slot(
        &self,
        job: JobRow,
        attempt: i16,
        meter: Meter,
        found: Option<Found>,
        next: WorkNext<'_>,
    ) -> Result<WorkOutcome, WorkError> {
        let fairness = &self.context.settings.fairness;
        let is_cluster = fairness.cluster_limits().is_some();
        if is_cluster && found.is_some_and(|found| found.holds == Holds::Slot) {
            record_wake(&job);
            return next.run(job).await;
        }
        match self.entry(&job, attempt, meter, found).await {
            Ok(Entry::Runs(_held)) => next.run(job).await,
            Ok(Entry::Waits(outcome)) => Ok(outcome),
            Ok(Entry::FencedOut) => {
                fenced::wait_out(&self.context.pool, job.id, &cancellation::current_attempt()).await;
                Ok(WorkOutcome::Complete)
            }
            Err(error) => not_started(job.id, error).map_err(WorkError::new),
        }
    }

    /// Whether an attempt without a slot may run.
    async fn entry(
        &self,
        job: &JobRow,
        attempt: i16,
        meter: Meter,
        found: Option<Found>,
    ) -> Result<Entry, DatabaseError> {
        let fairness = &self.context.settings.fairness;
        let is_cluster = fairness.cluster_limits().is_some();
        let meter = match found.map(|found| found.holds) {
            Some(Holds::Quota(meter) | Holds::Nothing(meter)) => meter,
            Some(Holds::Slot) | None => meter,
        };
        // Without slots in the database, the only purpose of admission is to charge a settled job again when it runs
        // again.
        if is_cluster || found.is_some_and(|found| matches!(found.holds, Holds::Nothing(_))) {
            match self.admit_with_retries(job, attempt, meter, found).await? {
                LateAdmission::Admitted => {}
                LateAdmission::Parked(tier) => return Ok(Entry::Waits(snooze(fairness, job, tier))),
                LateAdmission::Blocked => {
                    weir_ledger::access_log!(
                        false,
                        job = job.id,
                        "snoozed: another transaction holds its holder's lock"
                    );
                    return Ok(Entry::Waits(snoozed()));
                }
                LateAdmission::FencedOut => return Ok(Entry::FencedOut),
            }
        }
        if fairness.enabled
            && fairness.scope == FairnessScope::Process
            && let Some(user) = user_id(job)
        {
            let holder = self.context.holders().await?.user_id(&user);
            let plan = self.plan_of(holder, meter).await?;
            let limit = fairness.limits.of(plan);
            return Ok(match self.local.try_acquire(holder.id, limit, job.id) {
                Some(held) => Entry::Runs(Some(held)),
                None => Entry::Waits(snooze(fairness, job, plan.map(|plan| plan.name))),
            });
        }
        Ok(Entry::Runs(None))
    }

    /// Requests a slot, and repeats the request while another transaction holds the holder's lock.
    async fn admit_with_retries(
        &self,
        job: &JobRow,
        attempt: i16,
        meter: Meter,
        found: Option<Found>,
    ) -> Result<LateAdmission, DatabaseError> {
        let until = Instant::now() + BLOCKED_PATIENCE;
        loop {
            let admission = self.admit(job, attempt, meter, found).await?;
            if admission != LateAdmission::Blocked || Instant::now() >= until {
                return Ok(admission);
            }
            tokio::time::sleep(BLOCKED_RETRY_DELAY).await;
        }
    }

    /// Requests a slot from the ledger. A job without an owner needs none.
    async fn admit(
        &self,
        job: &JobRow,
        attempt: i16,
        meter: Meter,
        found: Option<Found>,
    ) -> Result<LateAdmission, DatabaseError> {
        let context = &self.context;
        let user = user_id(job);
        let holder = match (found, &user) {
            (Some(found), _) => found.holder,
            (None, Some(user)) => context.holders().await?.user_id(user),
            (None, None) => return Ok(LateAdmission::Admitted),
        };
        // The submission has already recorded the job's owner.
        let subject: Option<Subject> = match (found, &user) {
            (None, Some(user)) => user.parse().ok(),
            _ => None,
        };
        if holder.user_id.is_none() && found.is_none() {
            tracing::warn!(
                job = job.id,
                "the job's user_id is not a valid subject; it is limited like an anonymous client"
            );
        }
        // Of the attempts that found the lock held, one asks again and the others wait for its result. Each request
        // uses a connection of the shared pool.
        if !self.blocked.lock().may_try(&holder.id) {
            return Ok(LateAdmission::Blocked);
        }
        let services = context.settings.services.iter();
        let kinds: Vec<&str> = services
            .filter(|service| service.meter == meter)
            .map(|service| service.kind.as_str())
            .collect();
        let admission = context
            .pool
            .with(async |client| {
                let late = LateJob {
                    id: job.id,
                    attempt: Some(attempt),
                    holder,
                    subject: subject.as_ref(),
                    meter,
                    backlog: user.as_deref().map(|user| (user, &*kinds)),
                };
                admit_late(client, late).await
            })
            .await?;
        let mut blocked = self.blocked.lock();
        if admission == LateAdmission::Blocked {
            blocked.start(holder.id);
        } else {
            blocked.end(&holder.id);
        }
        Ok(admission)
    }

    /// ADR-10's TierResolver. An unknown user has the default plan; anonymous holders have no plan.
    async fn plan_of(&self, holder: Holder, meter: Meter) -> Result<Option<Plan>, DatabaseError> {
        let Some(id) = holder.user_id else {
            return Ok(None);
        };
        self.context
            .pool
            .with(async |client| Ok(plans::plan_of(&**client, id, meter).await?))
            .await
    }
}

/// The time that a freed slot was unused: from the promotion, which makes the job available after it was created, to
/// its claim. Both times are by the database's clock. Later attempts may have kept the slot of the previous one.
fn record_wake(job: &JobRow) {
    let promoted = job.attempted_by.len() <= 1 && job.scheduled_at > job.created_at;
    if let Some(claimed) = job.attempted_at.filter(|_| promoted) {
        let idle = claimed.duration_since(job.scheduled_at).as_secs_f64();
        metrics::histogram!("weir_wake_duration_seconds").record(idle.max(0.0));
    }
}

fn snooze(fairness: &Fairness, job: &JobRow, tier: Option<&'static str>) -> WorkOutcome {
    let tier = tier.unwrap_or("anonymous");
    metrics::counter!("weir_snoozes_total", "tier" => tier).increment(1);
    weir_ledger::access_log!(false, job = job.id, tier, "snoozed: no free slot");
    // Spread by jitter, so that jobs refused together do not return together.
    let jitter = fairness.jitter.as_secs_f64() * rand::random::<f64>();
    WorkOutcome::Snooze(fairness.snooze + Duration::from_secs_f64(jitter))
}

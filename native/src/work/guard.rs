//! The attempt guard (ADR-10): no attempt of a user's job runs without one of that user's slots.
//!
//! Jobs submitted through Weir already have their slot when a worker can claim them. The guard is for the others:
//! jobs that another River client inserted, retries, and jobs that somebody made available by hand.

use std::time::Duration;

use deadpool_postgres::Pool;
use riverqueue::{JobRow, WorkContext, WorkError, WorkMiddleware, WorkNext, WorkOutcome};
use serde::Deserialize;
use uuid::Uuid;
use weir_policy::tier::Tier;

use super::Context;
use super::heartbeat::Lease;
use super::tickets::{Ticket, Tickets};
use super::worker::Internal;
use crate::config::Fairness;
use crate::database::DatabaseError;
use crate::holder::{self, Holders};
use crate::service::EventType;

pub(super) struct Guard {
    context: Context,
    tickets: Tickets,
    lease: Lease,
    local: local::Limiter,
}

impl Guard {
    pub(super) fn new(context: &Context, tickets: &Tickets, lease: &Lease) -> Self {
        Self {
            context: context.clone(),
            tickets: tickets.clone(),
            lease: lease.clone(),
            local: local::Limiter::default(),
        }
    }

    fn event_type(&self, kind: &str) -> Option<EventType> {
        self.context
            .settings
            .services
            .iter()
            .find(|service| service.kind == kind)
            .map(|service| service.event_type)
    }
}

impl WorkMiddleware for Guard {
    async fn work(
        &self,
        _context: &WorkContext,
        job: JobRow,
        next: WorkNext<'_>,
    ) -> Result<WorkOutcome, WorkError> {
        let _lease = self.lease.until_over();
        let fairness = self.context.settings.fairness;
        let Some(event_type) = self.event_type(&job.kind) else {
            return next.run(job).await;
        };
        let attempt = i16::try_from(job.attempt).unwrap_or(i16::MAX);
        let no_database = |error| WorkError::new(Internal::no_database(job.id)(error));
        match fairness.scope {
            _ if !fairness.enabled => next.run(job).await,
            crate::config::FairnessScope::Cluster => {
                let ticket = self.tickets.of(job.id, attempt).await.map_err(no_database)?;
                if let Some(Ticket {
                    holder,
                    admitted: true,
                }) = ticket
                {
                    record_wake(&job);
                    let _remembered = self.tickets.remember(job.id, holder);
                    return next.run(job).await;
                }
                let has_slot = acquire(&self.context, &job, event_type, ticket).await;
                match has_slot.map_err(no_database)? {
                    Verdict::Run => next.run(job).await,
                    Verdict::Refused(tier) => Ok(snooze(&fairness, &job, tier)),
                }
            }
            crate::config::FairnessScope::Process => {
                let Some(user) = user_id(&job) else {
                    return next.run(job).await;
                };
                let tier = tier_of(&self.context.pool, &user).await.map_err(no_database)?;
                let limit = fairness.limits.of(tier.unwrap_or_default());
                let Some(_held) = self.local.try_acquire(&user, limit, job.id) else {
                    return Ok(snooze(&fairness, &job, tier));
                };
                next.run(job).await
            }
        }
    }
}

/// For how long a freed slot was not used: from the promotion, which makes the job available later than it was made,
/// to its claim, both by the database's clock. Later attempts may have kept their slot from the one before.
fn record_wake(job: &JobRow) {
    let promoted = job.attempted_by.len() <= 1 && job.scheduled_at > job.created_at;
    if let Some(claimed) = job.attempted_at.filter(|_| promoted) {
        let idle = claimed.duration_since(job.scheduled_at).as_secs_f64();
        metrics::histogram!("weir_wake_duration_seconds").record(idle.max(0.0));
    }
}

fn snooze(fairness: &Fairness, job: &JobRow, tier: Option<Tier>) -> WorkOutcome {
    let tier = tier.unwrap_or_default();
    metrics::counter!("weir_snoozes_total", "tier" => tier.as_str()).increment(1);
    tracing::info!(job = job.id, tier = tier.as_str(), "snoozed: no free slot");
    // Spread, so that what was refused together does not come back together.
    let jitter = fairness.jitter.as_secs_f64() * rand::random::<f64>();
    WorkOutcome::Snooze(fairness.snooze + Duration::from_secs_f64(jitter))
}

enum Verdict {
    Run,
    Refused(Option<Tier>),
}

/// ADR-10's UserJobExtractor: the text `user_id` of the arguments; absent and empty are nobody.
fn user_id(job: &JobRow) -> Option<String> {
    #[derive(Deserialize)]
    struct WithUser {
        user_id: Option<String>,
    }
    let args: WithUser = serde_json::from_str(job.encoded_args.get()).ok()?;
    args.user_id.filter(|user| !user.is_empty())
}

/// ADR-10's TierResolver. An unknown user has no tier, and counts as Free.
async fn tier_of(pool: &Pool, user: &str) -> Result<Option<Tier>, DatabaseError> {
    let Ok(id) = Uuid::parse_str(user) else {
        return Ok(None);
    };
    let row = pool
        .get()
        .await?
        .query_opt(
            "SELECT p.tier::text FROM user_subscriptions s JOIN subscription_plans p ON p.id = s.plan_id \
             WHERE s.user_id = $1 AND s.status = 'active'",
            &[&id],
        )
        .await?;
    Ok(row.and_then(|row| holder::tier(row.get(0))))
}

/// How much of a backlog is parked by one refusal, so that no transaction is long; the next refusal parks more.
const MOST_PARKED_AT_ONCE: i64 = 10_000;

/// Whether the job may run now. Takes a slot for it when it has none and one is free; otherwise leaves it parked, so
/// that the next freed slot wakes it, and parks the rest of that user's backlog with it: of ten thousand jobs that
/// another client inserted, a handful is claimed in vain, not all.
async fn acquire(
    context: &Context,
    job: &JobRow,
    event_type: EventType,
    ticket: Option<Ticket>,
) -> Result<Verdict, DatabaseError> {
    let rules = &context.rules;
    let mut client = context.pool.get().await?;
    let holder = match ticket {
        Some(ticket) => ticket.holder,
        None => match user_id(job) {
            None => return Ok(Verdict::Run),
            Some(user) => match Uuid::parse_str(&user) {
                Ok(id) => Holders::user(id),
                Err(_) => {
                    tracing::warn!(
                        job = job.id,
                        "the job's user_id is not a UUID; it has as many slots as an anonymous client"
                    );
                    Holders::load(&client).await?.address(&user)
                }
            },
        },
    };
    let transaction = client.transaction().await?;
    let (holders, events, users) = ([holder.id], [event_type], [holder.user_id]);
    let provisioned = transaction
        .query(
            include_str!("../sql/provision.sql"),
            &[&&holders[..], &&events[..], &&users[..]],
        )
        .await?;
    if provisioned.iter().any(|row| row.get::<_, i64>(0) > 0) {
        tracing::warn!(job = job.id, user = %holder.id, "the job's user is not known here; it counts as Free");
    }
    transaction
        .query(
            include_str!("../sql/reserve_lock.sql"),
            &[&&holders[..], &&events[..]],
        )
        .await?;
    let row = transaction
        .query_one(
            include_str!("../sql/reserve_read.sql"),
            &[&&holders[..], &&events[..]],
        )
        .await?;
    let slots_in_use: i32 = row.get(1);
    let tier = row.get::<_, Option<&str>>(3).and_then(holder::tier);
    let period: Option<jiff::Timestamp> = row.get(5);
    let limit = rules
        .slots(holder.user_id.is_some(), tier)
        .map(|limit| i32::try_from(limit).unwrap_or(i32::MAX));
    let admitted = limit.is_none_or(|limit| slots_in_use < limit);
    // The triggers book the counters.
    transaction
        .execute(
            "INSERT INTO quota_reservations \
                 (user_id, event_type, reserved_amount, job_id, expires_at, holder, period_start, admitted_at, parked_at) \
             VALUES ($1, $2, 0, $3, now() + make_interval(secs => $4), $5, $6, \
                     CASE WHEN $7 THEN clock_timestamp() END, CASE WHEN NOT $7 THEN clock_timestamp() END) \
             ON CONFLICT (job_id) DO UPDATE SET admitted_at = excluded.admitted_at, parked_at = excluded.parked_at",
            &[&holder.user_id, &event_type, &job.id, &rules.ttl.as_secs_f64(), &holder.id, &period, &admitted],
        )
        .await?;
    if admitted {
        transaction
            .execute(
                "UPDATE holders SET granted_slots = $3 WHERE holder = $1 AND event_type = $2",
                &[&holder.id, &event_type, &limit.unwrap_or(i32::MAX)],
            )
            .await?;
    } else if let Some(user) = user_id(job) {
        let services = context.settings.services.iter();
        let kinds: Vec<&str> = services
            .filter(|service| service.event_type == event_type)
            .map(|service| service.kind.as_str())
            .collect();
        let parked = transaction
            .execute(
                include_str!("../sql/park_backlog.sql"),
                &[
                    &kinds,
                    &user,
                    &holder.user_id,
                    &event_type,
                    &holder.id,
                    &period,
                    &rules.ttl.as_secs_f64(),
                    &MOST_PARKED_AT_ONCE,
                ],
            )
            .await?;
        if parked > 0 {
            tracing::info!(
                job = job.id,
                user,
                parked,
                "parked the backlog of a user without a free slot"
            );
        }
    }
    transaction.commit().await?;
    Ok(if admitted {
        Verdict::Run
    } else {
        Verdict::Refused(tier)
    })
}

/// ADR-10's PerUserLimiter, exactly as written there: in memory, for one process.
mod local {
    use std::collections::{HashMap, HashSet};
    use std::sync::{Arc, Mutex, PoisonError};

    type Running = Arc<Mutex<HashMap<String, HashSet<i64>>>>;

    /// Who runs what in this process.
    #[derive(Default)]
    pub(super) struct Limiter {
        running: Running,
    }

    /// A slot, given back when it goes out of scope: on success, error, panic and cancellation alike.
    pub(super) struct Held {
        running: Running,
        user: String,
        job_id: i64,
    }

    impl Limiter {
        /// A slot for the job, unless the user has `limit` already. The same job twice takes one slot.
        pub(super) fn try_acquire(&self, user: &str, limit: u32, job_id: i64) -> Option<Held> {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            let jobs = running.entry(user.to_owned()).or_default();
            if !jobs.contains(&job_id) && jobs.len() >= limit as usize {
                return None;
            }
            jobs.insert(job_id);
            Some(Held {
                running: Arc::clone(&self.running),
                user: user.to_owned(),
                job_id,
            })
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(jobs) = running.get_mut(&self.user) {
                jobs.remove(&self.job_id);
                if jobs.is_empty() {
                    running.remove(&self.user);
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_user_gets_as_many_slots_as_the_limit_and_others_are_not_touched() {
            let limiter = Limiter::default();
            let first = limiter.try_acquire("a", 1, 1);
            assert!(first.is_some());
            assert!(limiter.try_acquire("a", 1, 2).is_none());
            assert!(limiter.try_acquire("b", 1, 3).is_some());
            drop(first);
            assert!(limiter.try_acquire("a", 1, 2).is_some());
        }

        #[test]
        fn the_same_job_twice_counts_once() {
            let limiter = Limiter::default();
            let _one = limiter.try_acquire("a", 2, 1).unwrap();
            let _same = limiter.try_acquire("a", 2, 1).unwrap();
            assert!(limiter.try_acquire("a", 2, 2).is_some());
        }

        #[test]
        fn a_panic_gives_the_slot_back() {
            let limiter = Arc::new(Limiter::default());
            let inner = Arc::clone(&limiter);
            let _ = std::thread::spawn(move || {
                let _held = inner.try_acquire("a", 1, 1);
                panic!("a handler panics");
            })
            .join();
            assert!(limiter.try_acquire("a", 1, 2).is_some());
        }
    }
}

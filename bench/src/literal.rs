//! River that does the same work as Weir: ADR-21 and ADR-10 taken literally, on riverqueue.
//!
//! The limiter is a map in memory, and a job without a slot is snoozed for half a minute. The worker's transaction deletes
//! the reservation, inserts the usage event and completes the job.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use riverqueue::{Client, Job, QueueConfig, WorkContext, WorkOutcome, Workers};
use sqlx::PgPool;
use uuid::Uuid;

use super::jobs::{Count, counted, enough, fill_bare};
use super::report::{BenchError, Effort};
use super::reserve::BareArgs;
use super::stage::Stage;
use weir::work::FETCH_COOLDOWN;

/// Connections of the handlers, next to those of River's client.
pub(super) const CONNECTIONS: u32 = 20;

/// A job without a slot comes back after 30 s and a jitter.
const SNOOZE: Duration = Duration::from_secs(30);
const MAX_JITTER_MILLIS: u64 = 10_000;

/// The tables of the decision, without Weir's triggers.
const TABLES: &str = "CREATE TABLE IF NOT EXISTS literal_work_reservations ( \
         id uuid PRIMARY KEY DEFAULT gen_random_uuid(), user_id uuid NOT NULL, event_type usage_event_type NOT NULL, \
         reserved_amount int NOT NULL, job_id bigint NOT NULL UNIQUE, expires_at timestamptz NOT NULL, \
         created_at timestamptz NOT NULL DEFAULT now()); \
     CREATE INDEX IF NOT EXISTS literal_work_sum ON literal_work_reservations (user_id, event_type, expires_at); \
     CREATE TABLE IF NOT EXISTS literal_usage_events ( \
         id uuid PRIMARY KEY DEFAULT gen_random_uuid(), user_id uuid NOT NULL, event_type usage_event_type NOT NULL, \
         quota_amount int NOT NULL, job_id bigint NOT NULL UNIQUE, created_at timestamptz NOT NULL DEFAULT now()); \
     CREATE INDEX IF NOT EXISTS literal_usage_sum ON literal_usage_events (user_id, event_type, created_at); \
     TRUNCATE literal_work_reservations, literal_usage_events";

/// A reservation for each job in the queue.
const RESERVE: &str = "INSERT INTO literal_work_reservations (user_id, event_type, reserved_amount, job_id, expires_at) \
     SELECT (args ->> 'user_id')::uuid, 'analysis', 1, id, now() + interval '1 hour' FROM river_job";

const TIER: &str = "SELECT p.tier::text FROM user_subscriptions s JOIN subscription_plans p ON p.id = s.plan_id \
     WHERE s.user_id = $1::text::uuid AND s.status = 'active'";

/// Slots in the memory of one process.
#[derive(Clone, Default)]
struct Limiter {
    taken: Arc<Mutex<HashMap<Uuid, u32>>>,
}

impl Limiter {
    fn take(&self, user: Uuid, limit: u32) -> bool {
        let mut taken = self.taken.lock();
        let slots = taken.entry(user).or_default();
        let is_free = *slots < limit;
        *slots += u32::from(is_free);
        is_free
    }

    fn free(&self, user: Uuid) {
        if let Some(slots) = self.taken.lock().get_mut(&user) {
            *slots -= 1;
        }
    }
}

/// An attempt, from the limiter to the commit.
async fn attempt(
    context: &WorkContext,
    job: &Job<BareArgs>,
    pool: &PgPool,
    limiter: &Limiter,
    count: &Count,
) -> Result<WorkOutcome, riverqueue::Error> {
    let user = job.args.user();
    let tier: Option<String> = sqlx::query_scalar(TIER)
        .bind(user.to_string())
        .fetch_optional(pool)
        .await?;
    let limit = match tier.as_deref() {
        Some("pro" | "pro_plus") => 3,
        Some("enterprise") => 5,
        _ => 1,
    };
    if !limiter.take(user, limit) {
        let jitter = job.id().unsigned_abs() % MAX_JITTER_MILLIS;
        return Ok(WorkOutcome::Snooze(SNOOZE + Duration::from_millis(jitter)));
    }
    let ended = async {
        let mut transaction = pool.begin().await?;
        sqlx::query("DELETE FROM literal_work_reservations WHERE job_id = $1")
            .bind(job.id())
            .execute(&mut *transaction)
            .await?;
        sqlx::query(
            "INSERT INTO literal_usage_events (user_id, event_type, quota_amount, job_id) VALUES ($1::text::uuid, 'analysis', 1, $2)",
        )
        .bind(user.to_string())
        .bind(job.id())
        .execute(&mut *transaction)
        .await?;
        context.job_complete_tx(&mut transaction).await?;
        transaction.commit().await?;
        Ok(WorkOutcome::Complete)
    };
    let outcome = ended.await;
    limiter.free(user);
    if outcome.is_ok() {
        count.run().await;
    }
    outcome
}

/// Jobs a second of these users through so many workers.
pub(super) async fn with_literal(
    stage: &Stage,
    users: &[Uuid],
    workers: u32,
    count: &Count,
    effort: Effort,
) -> Result<f64, BenchError> {
    stage.clear().await?;
    let jobs = enough(workers, Duration::ZERO, effort);
    let jobs = fill_bare(stage, Some(users), jobs, effort.filling()).await?;
    let client = stage.database.connect().await?;
    client.batch_execute(TABLES).await?;
    client.batch_execute(RESERVE).await?;
    stage.tidy().await?;
    let (pool, handlers) = (
        stage.database.river_pool(10)?,
        stage.database.river_pool(CONNECTIONS)?,
    );
    let limiter = Limiter::default();
    let (counting, connections) = (count.clone(), handlers.clone());
    let mut registered = Workers::new();
    registered.add_fn::<BareArgs, _, _, _>(move |context: WorkContext, job: Job<BareArgs>| {
        let (count, pool, limiter) = (counting.clone(), connections.clone(), limiter.clone());
        async move { attempt(&context, &job, &pool, &limiter, &count).await }
    })?;
    let client = Client::builder(pool.clone())
        .workers(registered)
        .fetch_cooldown(FETCH_COOLDOWN)
        .queue("analysis_default", QueueConfig::new(workers as usize))
        .build()?;
    let mut run = client.start()?;
    let rate = counted(&count.done, effort.span, jobs).await;
    run.stop_and_cancel().await?;
    pool.close().await;
    handlers.close().await;
    rate
}

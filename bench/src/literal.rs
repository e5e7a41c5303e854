//! River that does the same work as Weir: ADR-21 and ADR-10 taken literally, on riverqueue.
//!
//! One transaction locks the user, reads the plan and both sums in one statement, and inserts the job and its reservation.
//! `reserve` measures the three separate reads of ADR-21's product. The limiter is a map in memory, and a job without a
//! slot is snoozed for half a minute. The worker's transaction deletes the reservation, inserts the usage event and
//! completes the job.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use riverqueue::{Client, InsertOpts, Job, QueueConfig, WorkContext, WorkOutcome, Workers};
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

/// The statements of a reservation, before and after the job's insert. ADR-21 sums up to the limit; the benchmark's is
/// never reached.
const LOCK: &str = "SELECT 1 FROM users WHERE id = $1::text::uuid FOR NO KEY UPDATE";
const QUOTA: &str = "SELECT l.month \
         - (SELECT coalesce(sum(quota_amount), 0)::bigint FROM literal_usage_events u WHERE u.user_id = s.user_id \
            AND u.event_type = 'analysis' AND u.created_at >= s.current_period_start AND u.created_at < s.current_period_end) \
         - (SELECT coalesce(sum(reserved_amount), 0)::bigint FROM literal_work_reservations r \
            WHERE r.user_id = s.user_id AND r.event_type = 'analysis' AND r.expires_at > now()) \
     FROM user_subscriptions s JOIN plan_limits l ON l.plan_id = s.plan_id AND l.event_type = 'analysis' \
     WHERE s.user_id = $1::text::uuid AND s.status = 'active'";
const RESERVE_ONE: &str = "INSERT INTO literal_work_reservations (user_id, event_type, reserved_amount, job_id, expires_at) \
     VALUES ($1::text::uuid, 'analysis', 1, $2, now() + interval '1 hour')";

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

/// Creates its tables, empty, and gives all users the plan with the most slots. A job without a slot would be snoozed for
/// half a minute, and the benchmark would wait for it.
pub(super) async fn prepare(client: &tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(TABLES).await?;
    client
        .batch_execute(
            "UPDATE user_subscriptions SET plan_id = (SELECT id FROM subscription_plans WHERE tier = 'enterprise')",
        )
        .await
}

/// Reserves one unit and inserts the job, in one transaction. Returns the job's id; `None` without room.
pub(super) async fn reserve(
    river: &Client,
    pool: &PgPool,
    args: BareArgs,
) -> Result<Option<i64>, riverqueue::Error> {
    let user = args.user().to_string();
    let mut transaction = pool.begin().await?;
    sqlx::query(LOCK).bind(&user).execute(&mut *transaction).await?;
    let left: Option<i64> = sqlx::query_scalar(QUOTA)
        .bind(&user)
        .fetch_one(&mut *transaction)
        .await?;
    if left.is_some_and(|left| left < 1) {
        return Ok(None);
    }
    let inserted = river
        .insert(args)
        .opts(InsertOpts::default().with_queue("analysis_default"))
        .tx(&mut transaction)
        .await?;
    sqlx::query(RESERVE_ONE)
        .bind(&user)
        .bind(inserted.job.id())
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(Some(inserted.job.id()))
}

/// A client that works the jobs with this many workers. `count` counts the ended ones.
pub(super) fn workers(
    pool: PgPool,
    handlers: PgPool,
    workers: u32,
    count: &Count,
) -> Result<Client, riverqueue::Error> {
    let limiter = Limiter::default();
    let counting = count.clone();
    let mut registered = Workers::new();
    registered.add_fn::<BareArgs, _, _, _>(move |context: WorkContext, job: Job<BareArgs>| {
        let (count, pool, limiter) = (counting.clone(), handlers.clone(), limiter.clone());
        async move { attempt(&context, &job, &pool, &limiter, &count).await }
    })?;
    Client::builder(pool)
        .workers(registered)
        .fetch_cooldown(FETCH_COOLDOWN)
        .queue("analysis_default", QueueConfig::new(workers as usize))
        .build()
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
    let client = self::workers(pool.clone(), handlers.clone(), workers, count)?;
    let mut run = client.start()?;
    let rate = counted(&count.done, effort.span, jobs).await;
    run.stop_and_cancel().await?;
    pool.close().await;
    handlers.close().await;
    rate
}

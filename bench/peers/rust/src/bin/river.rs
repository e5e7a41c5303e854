//! River for Rust with the limiter of ADR-10: it counts in this process's memory and snoozes jobs over the limit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use peers::{Failure, database_url, job, number, produce, rescues_soon, takes, until_stdin_ends};
use riverqueue::migrate::PostgresMigrator;
use riverqueue::{Client, Job, JobArgs, MaintenanceConfig, QueueConfig, WorkContext, WorkOutcome, Workers};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};
use uuid::Uuid;

#[derive(Serialize, Deserialize)]
struct Args {
    user_id: Uuid,
}

impl JobArgs for Args {
    const KIND: &'static str = "work";
}

/// The running jobs by user.
#[derive(Clone, Default)]
struct Limiter(Arc<Mutex<HashMap<Uuid, i32>>>);

/// A slot, released when it goes out of scope.
struct Held(Limiter, Uuid);

impl Limiter {
    fn take(&self, user: Uuid, slots: i32) -> Option<Held> {
        let mut running = self.0.lock().ok()?;
        let count = running.entry(user).or_default();
        if *count >= slots {
            return None;
        }
        *count += 1;
        Some(Held(self.clone(), user))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Ok(mut running) = self.0.0.lock()
            && let Some(count) = running.get_mut(&self.1)
        {
            *count -= 1;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let callers = number("PEER_CALLERS");
    let pool = PgPoolOptions::new()
        .max_connections(callers as u32)
        .connect(&database_url())
        .await?;
    match std::env::args().nth(1).as_deref() {
        Some("setup") => {
            PostgresMigrator::new(pool).migrate_up().await?;
        }
        Some("produce") => {
            let client = Client::builder(pool).build()?;
            produce(callers, move |user_id, _| {
                let client = client.clone();
                async move {
                    client.insert(Args { user_id }).await?;
                    Ok(())
                }
            })
            .await?;
        }
        _ => work(pool).await?,
    }
    Ok(())
}

async fn work(pool: PgPool) -> Result<(), Failure> {
    let (limiter, takes, users) = (Limiter::default(), takes(), pool.clone());
    let mut workers = Workers::new();
    workers.add_fn::<Args, _, _, _>(move |_: WorkContext, todo: Job<Args>| {
        let (limiter, users) = (limiter.clone(), users.clone());
        async move {
            let user = todo.args.user_id;
            let slots: i32 = sqlx::query_scalar("SELECT slots FROM bench_users WHERE id = $1")
                .bind(user)
                .fetch_one(&users)
                .await?;
            let Some(_held) = limiter.take(user, slots) else {
                let later = Duration::from_millis(30_000 + rand::random_range(0..10_000));
                return Ok::<_, sqlx::Error>(WorkOutcome::Snooze(later));
            };
            job(user, todo.id(), takes).await;
            Ok(WorkOutcome::Complete)
        }
    })?;
    let mut builder = Client::builder(pool.clone())
        .workers(workers)
        .fetch_cooldown(Duration::from_millis(1))
        .queue("default", QueueConfig::new(number("PEER_WORKERS")));
    if rescues_soon() {
        // At least as long as a job may take.
        let at_least = Duration::from_secs(2);
        builder = builder.job_timeout(at_least).maintenance(
            MaintenanceConfig::default()
                .with_rescue_after(at_least)
                .with_rescuer_interval(Duration::from_secs(1)),
        );
    }
    let mut run = builder.build()?.start()?;
    until_stdin_ends().await?;
    run.stop_and_cancel().await?;
    pool.close().await;
    Ok(())
}

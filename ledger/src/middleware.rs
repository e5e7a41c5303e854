//! ADR-10's middleware for workers of `riverqueue`: limits how many jobs of a user run at once, over all processes.
//!
//! The jobs need neither Weir's submission nor quota. The database takes and frees the slots, by `weir_admit()` and
//! `weir_release()`. `weir schedule` must run.

use std::sync::Arc;
use std::time::Duration;

use riverqueue::{JobRow, WorkContext, WorkError, WorkMiddleware, WorkNext, WorkOutcome};
use serde_json::Value;
use sqlx::{PgPool, Row as _};

/// Returns the user of a job; `None`: no limit.
pub type UserOf = Arc<dyn Fn(&JobRow) -> Option<String> + Send + Sync>;

/// The options of [`FairnessMiddleware`]. The default has those of ADR-10.
#[derive(Clone)]
pub struct FairnessOptions {
    /// Default: the text `user_id` of the job's arguments.
    pub user: UserOf,
    /// The meter with the slots. Default: that of the service with the job's kind, or the only meter.
    pub meter: Option<String>,
    /// How long a job without a slot waits at most. Default: 30 s.
    pub snooze: Duration,
    /// The maximum of a random time that is added. Default: 10 s.
    pub jitter: Duration,
    /// Runs jobs without a limit if the database cannot answer. Default: they are snoozed.
    pub fail_open: bool,
}

impl Default for FairnessOptions {
    fn default() -> Self {
        Self {
            user: Arc::new(user_of),
            meter: None,
            snooze: Duration::from_secs(30),
            jitter: Duration::from_secs(10),
            fail_open: false,
        }
    }
}

fn user_of(job: &JobRow) -> Option<String> {
    let args: Value = serde_json::from_str(job.encoded_args.get()).ok()?;
    args.get("user_id")?.as_str().map(str::to_owned)
}

/// Limits running jobs by user and plan.
///
/// A job over the limit is snoozed, which costs no attempt. It starts at once when another job of its user ends. The
/// counter `weir_snoozes_total` has the label `plan`. Jobs that were submitted through Weir have their slot already.
pub struct FairnessMiddleware {
    pool: PgPool,
    options: FairnessOptions,
}

impl FairnessMiddleware {
    /// The pool's sessions find Weir's functions by their `search_path`.
    #[must_use]
    pub const fn new(pool: PgPool, options: FairnessOptions) -> Self {
        Self { pool, options }
    }

    fn snooze(&self, plan: Option<String>) -> WorkOutcome {
        metrics::counter!("weir_snoozes_total", "plan" => plan.unwrap_or_default()).increment(1);
        let jitter = rand::random::<f64>();
        WorkOutcome::Snooze(self.options.snooze + self.options.jitter.mul_f64(jitter))
    }

    async fn admit(&self, job: &JobRow, user: &str) -> Result<(String, Option<String>), sqlx::Error> {
        let row = sqlx::query("SELECT outcome, plan FROM weir_admit($1, $2, $3, $4)")
            .bind(job.id)
            .bind(job.attempt)
            .bind(user)
            .bind(self.options.meter.as_deref())
            .fetch_one(&self.pool)
            .await?;
        Ok((row.try_get("outcome")?, row.try_get("plan")?))
    }
}

impl WorkMiddleware for FairnessMiddleware {
    async fn work(
        &self,
        _context: &WorkContext,
        job: JobRow,
        next: WorkNext<'_>,
    ) -> Result<WorkOutcome, WorkError> {
        let Some(user) = (self.options.user)(&job).filter(|user| !user.is_empty()) else {
            return next.run(job).await;
        };
        match self.admit(&job, &user).await {
            Err(error) if self.options.fail_open => {
                tracing::warn!(job = job.id, %error, "a job runs without a slot, because the database could not answer");
                return next.run(job).await;
            }
            Err(error) => {
                tracing::warn!(job = job.id, %error, "a job waits, because the database could not give it a slot");
                return Ok(self.snooze(None));
            }
            Ok((outcome, plan)) if outcome == "wait" => return Ok(self.snooze(plan)),
            Ok((outcome, _)) if outcome == "fenced_out" => {
                return Err(WorkError::new("the job was taken over by another worker"));
            }
            Ok(_) => {}
        }
        let mut slot = Slot {
            pool: self.pool.clone(),
            job: job.id,
            attempt: job.attempt,
            is_held: true,
        };
        let result = next.run(job).await;
        // Before River records the end of the attempt.
        slot.is_held = false;
        slot.release().await;
        result
    }
}

/// The slot of an attempt. It is freed too when the attempt panics or is aborted.
#[derive(Clone)]
struct Slot {
    pool: PgPool,
    job: i64,
    attempt: i32,
    is_held: bool,
}

impl Slot {
    async fn release(&self) {
        let release = sqlx::query("SELECT weir_release($1, $2)")
            .bind(self.job)
            .bind(self.attempt);
        if let Err(error) = release.execute(&self.pool).await {
            tracing::warn!(job = self.job, %error, "a slot is free only after its job's end is recorded");
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if std::mem::take(&mut self.is_held) {
            let slot = self.clone();
            tokio::spawn(async move { slot.release().await });
        }
    }
}

//! A job as operators see it: in `weir job show`, `/admin/jobs/{id}` and the console.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio_postgres::Client;
use utoipa::ToSchema;
use uuid::Uuid;
use weir_ledger::database::DatabaseError;
use weir_ledger::job_metadata::{REQUEST_ID, TRACEPARENT};
use weir_ledger::raw_json::RawJson;
use weir_ledger::read::console::JobDetails;
use weir_ledger::read::{self, jobs};

use super::job::{Status, WaitingFor, status_of, words};
use crate::config::Settings;
use crate::status::{self, HeldBack};

/// A job with its attempts.
#[derive(Serialize, ToSchema)]
pub struct JobReport {
    /// River's id.
    pub id: i64,
    /// The service; null for a job of another program.
    pub service: Option<String>,
    /// River's kind.
    pub kind: String,
    /// Its state.
    pub status: Status,
    /// Why it waits; null unless it is queued.
    pub waiting_for: Option<WaitingFor>,
    /// Why the jobs of its lane wait; null unless it waits for a worker.
    pub held_back: Option<HeldBack>,
    /// The holder; null for a job that was not submitted through Weir.
    pub holder: Option<Uuid>,
    /// The user's subject; null for an anonymous address.
    pub user: Option<String>,
    /// River's queue.
    pub queue: String,
    /// River's priority.
    pub priority: i16,
    /// The number of attempts that have started.
    pub attempt: i16,
    /// The maximum number of attempts.
    pub max_attempts: i16,
    /// When it was inserted.
    pub created_at: Timestamp,
    /// When it may start.
    pub scheduled_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The attempts that failed, at most the last twenty, and the last one.
    pub attempts: Vec<AttemptReport>,
    /// What it reserves; null without a reservation.
    pub reservation: Option<Reservation>,
    /// The amount that it was charged; null if nothing was.
    pub charged: Option<i64>,
    /// The `X-Request-Id` of its submission.
    pub request_id: Option<String>,
    /// The W3C `traceparent` of its submission.
    pub traceparent: Option<String>,
    /// The arguments.
    #[schema(value_type = Value)]
    pub args: RawJson,
    /// River's metadata, without the output.
    #[schema(value_type = Value)]
    pub metadata: RawJson,
    /// The output of a completed job.
    #[schema(value_type = Option<Value>)]
    pub output: Option<RawJson>,
}

impl JobReport {
    /// Its state in words, with the reason why its lane's jobs wait.
    #[must_use]
    pub fn state(&self) -> String {
        let state = words(self.status, self.waiting_for);
        match self.held_back {
            Some(why) => format!("{state}: {}", why.label()),
            None => state.to_owned(),
        }
    }

    /// The id of its trace.
    #[must_use]
    pub fn trace_id(&self) -> Option<&str> {
        self.traceparent.as_deref()?.split('-').nth(1)
    }
}

/// An attempt at a job.
#[derive(Serialize, ToSchema)]
pub struct AttemptReport {
    /// Its number, from 1.
    pub attempt: i64,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// How long it took; null while it runs, and for attempts before the last one, whose end River does not record.
    pub took_ms: Option<i64>,
    /// The River client that ran it; null for attempts before the last one.
    pub by: Option<String>,
    /// Its error.
    pub error: Option<String>,
}

/// The quota and slot of an unfinished job.
#[derive(Serialize, ToSchema)]
pub struct Reservation {
    /// The amount.
    pub amount: i64,
    /// When it got its slot.
    pub admitted_at: Option<Timestamp>,
    /// When it was parked.
    pub parked_at: Option<Timestamp>,
    /// When it expires.
    pub expires_at: Timestamp,
}

/// Reads a job; `None` if River has none of this id.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn job_report(
    client: &Client,
    settings: &Settings,
    id: i64,
) -> Result<Option<JobReport>, DatabaseError> {
    let Some(job) = read::console::job(client, id).await? else {
        return Ok(None);
    };
    let attempts = attempts(&job);
    let later = job.scheduled_at > Timestamp::now();
    let (status, waiting_for) = status_of(&job.state, job.parked_at.is_some(), later, !attempts.is_empty());
    let service = settings.service_of_kind(&job.kind);
    let held_back = match (service, waiting_for) {
        (Some(service), Some(WaitingFor::Worker)) => {
            status::held_back_in(client, service, &job.queue).await?
        }
        _ => None,
    };
    let output = match job.holder.filter(|_| status == Status::Completed) {
        Some(holder) => jobs::output(client, holder, id).await?.and_then(|of| of.output),
        None => None,
    };
    let user = match job.user_id {
        Some(id) => Some(job.subject.unwrap_or_else(|| id.to_string())),
        None => None,
    };
    let reservation = job.reserved_amount.zip(job.expires_at);
    let metadata: Value = job.metadata.read().unwrap_or_default();
    let text = |key: &str| metadata.get(key).and_then(Value::as_str).map(str::to_owned);
    Ok(Some(JobReport {
        id,
        service: service.map(|service| service.name.clone()),
        kind: job.kind,
        status,
        waiting_for,
        held_back,
        holder: job.holder,
        user,
        queue: job.queue,
        priority: job.priority,
        attempt: job.attempt,
        max_attempts: job.max_attempts,
        created_at: job.created_at,
        scheduled_at: job.scheduled_at,
        finished_at: job.finalized_at,
        attempts,
        reservation: reservation.map(|(amount, expires_at)| Reservation {
            amount,
            admitted_at: job.admitted_at,
            parked_at: job.parked_at,
            expires_at,
        }),
        charged: job.charged,
        request_id: text(REQUEST_ID),
        traceparent: text(TRACEPARENT),
        args: job.args,
        metadata: job.metadata,
        output,
    }))
}

/// The failed attempts by River's errors, and the last attempt by the job's row.
fn attempts(job: &JobDetails) -> Vec<AttemptReport> {
    let errors: Vec<Value> = job.errors.as_ref().and_then(RawJson::read).unwrap_or_default();
    let mut attempts: Vec<AttemptReport> = errors
        .iter()
        .map(|error| AttemptReport {
            attempt: error.get("attempt").and_then(Value::as_i64).unwrap_or_default(),
            started_at: error
                .get("at")
                .and_then(Value::as_str)
                .and_then(|at| at.parse().ok()),
            took_ms: None,
            by: None,
            error: match error.get("error") {
                Some(Value::String(text)) => Some(text.clone()),
                Some(Value::Null) | None => None,
                Some(other) => Some(other.to_string()),
            },
        })
        .collect();
    let Some(started_at) = job.attempted_at.filter(|_| job.attempt > 0) else {
        return attempts;
    };
    let number = i64::from(job.attempt);
    let last = AttemptReport {
        attempt: number,
        started_at: Some(started_at),
        took_ms: job
            .finalized_at
            .map(|ended| i64::try_from(ended.duration_since(started_at).as_millis()).unwrap_or(i64::MAX)),
        by: job.attempted_by.clone(),
        error: None,
    };
    match attempts.last_mut().filter(|of| of.attempt == number) {
        Some(failed) => {
            failed.took_ms = last.took_ms;
            failed.by = last.by;
        }
        None => attempts.push(last),
    }
    attempts
}

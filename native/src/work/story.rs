//! What is told of an attempt: a line when it starts and one when it ends, its metrics, and its span. The request id in them is
//! the one that the edge gave the submission.

use std::time::Instant;

use metrics::{counter, histogram};
use riverqueue::JobRow;
use weir_policy::lane::Lane;

use crate::config::Settings;
use crate::holder::Holder;
use crate::traces::{self, Place, Span};

/// The member of a job's metadata with the request id of its submission.
pub(crate) const REQUEST_ID: &str = "weir:request_id";

/// An attempt under way. Dropped before its end is told, it was broken off: by its timeout, a panic, or a hard stop.
pub(super) struct Story<'a> {
    job: &'a JobRow,
    service: String,
    user: Option<uuid::Uuid>,
    request_id: Option<String>,
    started: Instant,
    span: Span,
    told: bool,
}

impl<'a> Story<'a> {
    /// Tells that the attempt starts.
    pub(super) fn starts(settings: &Settings, job: &'a JobRow, holder: Option<Holder>) -> Self {
        let service = settings.services.iter().find(|service| service.kind == job.kind);
        let user = holder.and_then(|holder| holder.user_id);
        let story = Self {
            job,
            service: service.map_or_else(|| job.kind.clone(), |service| service.name.clone()),
            span: traces::attempt(job, user),
            user,
            // Somebody else's job may have anything there.
            request_id: job.metadata.get(REQUEST_ID).ok().flatten(),
            started: Instant::now(),
            told: false,
        };
        // Both by the database's clock.
        let waited = job
            .attempted_at
            .map_or(0.0, |at| at.duration_since(job.scheduled_at).as_secs_f64())
            .max(0.0);
        let lane = service.and_then(|service| {
            let mut queues = service.queues();
            queues.find_map(|(lane, queue, _)| (queue == job.queue).then_some(lane))
        });
        if let Some(lane) = lane.map(Lane::as_str) {
            histogram!("weir_job_wait_seconds", "service" => story.service.clone(), "lane" => lane)
                .record(waited);
        }
        tracing::info!(
            job = job.id,
            user = story.user.map(tracing::field::display),
            request_id = story.request_id,
            attempt = job.attempt,
            queue = job.queue,
            waited_ms = milliseconds(waited),
            "attempt started"
        );
        story
    }

    /// Where in its trace the attempt is.
    pub(super) fn place(&self) -> Place {
        self.span.place()
    }

    /// The settlement, which is over when that is dropped.
    pub(super) fn settlement(&self) -> Span {
        traces::settlement(&self.place())
    }

    /// Tells how the attempt ended. `charged` is what a completed job cost.
    pub(super) fn ends(mut self, outcome: &'static str, charged: Option<i64>, reason: Option<&str>) {
        self.told = true;
        self.tell(outcome, charged, reason);
    }

    fn tell(&mut self, outcome: &'static str, charged: Option<i64>, reason: Option<&str>) {
        let seconds = self.started.elapsed().as_secs_f64();
        counter!("weir_attempts_total", "service" => self.service.clone(), "outcome" => outcome).increment(1);
        histogram!("weir_attempt_duration_seconds", "service" => self.service.clone()).record(seconds);
        self.span.set("weir.outcome", outcome);
        if let Some(charged) = charged {
            self.span.set("weir.charged", charged);
        }
        if outcome != "completed" {
            self.span.failed(outcome, reason.unwrap_or_default().to_owned());
        }
        tracing::info!(
            job = self.job.id,
            user = self.user.map(tracing::field::display),
            request_id = self.request_id,
            attempt = self.job.attempt,
            outcome,
            charged,
            reason,
            duration_ms = milliseconds(seconds),
            "attempt ended"
        );
    }
}

impl Drop for Story<'_> {
    fn drop(&mut self) {
        if !self.told {
            self.tell("broken_off", None, None);
        }
    }
}

/// To the microsecond.
fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

//! The attempt log: a line at the start and at the end of each attempt, with its metrics and its span. The lines
//! contain the request id that the edge assigned to the submission.

use std::time::{Duration, Instant};

use metrics::{counter, histogram};
use weir_ledger::attempts::ClaimedJob;
use weir_policy::lane::Lane;

use crate::config::Settings;
use crate::telemetry::traces::{self, Span, TraceContext};
use weir_ledger::holder::Holder;

/// A running attempt. If it is dropped before its end is logged, a timeout, a panic or a hard stop interrupted it.
pub(super) struct AttemptLog<'a> {
    job: &'a ClaimedJob,
    service: String,
    user: Option<uuid::Uuid>,
    request_id: Option<String>,
    started: Instant,
    /// Slower successes are logged too: half of the service's time limit.
    slow: Option<Duration>,
    span: Span,
    is_ended: bool,
}

impl<'a> AttemptLog<'a> {
    /// Logs that the attempt starts.
    pub(super) fn start(settings: &Settings, job: &'a ClaimedJob, holder: Option<Holder>) -> Self {
        let service = settings.service_of_kind(&job.kind);
        let user = holder.and_then(|holder| holder.user_id);
        let log = Self {
            job,
            service: service.map_or_else(|| job.kind.clone(), |service| service.name.clone()),
            span: traces::attempt(job, user),
            user,
            request_id: job.request_id.clone(),
            started: Instant::now(),
            slow: service.map(|service| service.timeout / 2),
            is_ended: false,
        };
        // The database's clock sets both times.
        let waited = job.attempted_at.duration_since(job.scheduled_at);
        let waited = waited.as_secs_f64().max(0.0);
        let lane = service.and_then(|service| {
            let mut queues = service.queues();
            queues.find_map(|(lane, queue, _)| (queue == job.queue).then_some(lane))
        });
        if let Some(lane) = lane.map(Lane::as_str) {
            histogram!("weir_job_wait_seconds", "service" => log.service.clone(), "lane" => lane)
                .record(waited);
        }
        weir_ledger::access_log!(
            false,
            job = job.id,
            user = log.user.map(tracing::field::display),
            request_id = log.request_id,
            attempt = job.attempt,
            queue = job.queue,
            waited_ms = milliseconds(waited),
            "attempt started"
        );
        log
    }

    /// The attempt's position in its trace.
    pub(super) fn trace_context(&self) -> TraceContext {
        self.span.context()
    }

    /// The span of the settlement, which ends when the span is dropped.
    pub(super) fn settlement(&self) -> Span {
        traces::settlement(&self.trace_context())
    }

    /// Logs how the attempt ended. `charged` is the amount that a completed job was charged.
    pub(super) fn end(mut self, outcome: &'static str, charged: Option<i64>, reason: Option<&str>) {
        self.is_ended = true;
        self.log_end(outcome, charged, reason);
    }

    fn log_end(&mut self, outcome: &'static str, charged: Option<i64>, reason: Option<&str>) {
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
        let is_success = matches!(outcome, "completed" | "outstanding");
        let is_slow = self.slow.is_some_and(|slow| self.started.elapsed() > slow);
        weir_ledger::access_log!(
            !is_success || is_slow,
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

impl Drop for AttemptLog<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            self.log_end("aborted", None, None);
        }
    }
}

/// Rounds to the microsecond.
fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e3
}

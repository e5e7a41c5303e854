//! Spans for an OpenTelemetry collector: they show how a request and its job spent their time.
//!
//! Off unless `OTEL_EXPORTER_OTLP_ENDPOINT` is set; then each function here only checks that. One trace contains the
//! request, the submission, the wait, each attempt and its settlement, across processes. The edge's `traceparent`
//! arrives with the request, and the job's metadata passes it on.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::SystemTime;

use axum::http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;

use weir_ledger::attempts::ClaimedJob;
use weir_ledger::holder::Holder;

/// The header, the environment variable in lower case, and the W3C's name for it.
const HEADER: &str = "traceparent";

/// Set once, when the process exports.
pub(super) static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// A position in a trace for further spans; empty when nothing is exported.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceContext(Option<SpanContext>);

impl TraceContext {
    fn from_traceparent(text: String) -> Self {
        let carrier = HashMap::from([(HEADER.to_owned(), text)]);
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        Self(Some(context.span().span_context().clone()))
    }

    /// The value for a header or a job's metadata.
    pub(crate) fn traceparent(&self) -> Option<String> {
        let mut carrier = HashMap::new();
        TraceContextPropagator::new().inject_context(&self.parent()?, &mut carrier);
        carrier.remove(HEADER)
    }

    /// The parent of a span below it. The thread's context is ignored, because tasks share threads.
    fn parent(&self) -> Option<Context> {
        Some(Context::new().with_remote_span_context(self.0.clone()?))
    }
}

/// A running span. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Span(Option<opentelemetry_sdk::trace::Span>);

impl Span {
    fn start(builder: impl FnOnce() -> SpanBuilder, parent: &TraceContext) -> Self {
        Self(TRACER.get().map(|tracer| {
            let parent = parent.parent().unwrap_or_default();
            tracer.build_with_context(builder(), &parent)
        }))
    }

    pub(crate) fn context(&self) -> TraceContext {
        TraceContext(self.0.as_ref().map(|span| span.span_context().clone()))
    }

    pub(crate) fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    /// Marks the span as failed.
    pub(crate) fn failed(&mut self, kind: impl Into<Value>, reason: String) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new("error.type", kind));
            span.set_status(Status::error(reason));
        }
    }
}

/// A request to the API. The parent is the edge's span, if the request has one.
pub(crate) fn request(method: &'static str, route: &str, headers: &HeaderMap) -> Span {
    let parent = if TRACER.get().is_some() {
        let propagator = TraceContextPropagator::new();
        let context = propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers));
        TraceContext(Some(context.span().span_context().clone()))
    } else {
        TraceContext::default()
    };
    let builder = || {
        SpanBuilder::from_name(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method),
                KeyValue::new("http.route", route.to_owned()),
            ])
    };
    Span::start(builder, &parent)
}

/// The submission of a job: check, reserve, enqueue. The job's spans are below it.
pub(crate) fn submission(parent: &TraceContext, service: &str, kind: &str, holder: Holder) -> Span {
    let builder = || {
        SpanBuilder::from_name(format!("submit {service}"))
            .with_kind(SpanKind::Producer)
            .with_attributes(messaging("send", kind, holder.user_id))
    };
    Span::start(builder, parent)
}

/// The attempt at a job, after a span for the time that it has waited.
pub(crate) fn attempt(job: &ClaimedJob, user: Option<uuid::Uuid>) -> Span {
    if TRACER.get().is_none() {
        return Span(None);
    }
    // A job of another application may have any value there; it starts a new trace.
    let submitted = job.traceparent.clone();
    let submitted = submitted.map_or_else(TraceContext::default, TraceContext::from_traceparent);
    let attributes = |operation| {
        let mut attributes = messaging(operation, &job.kind, user);
        attributes.push(KeyValue::new("messaging.destination.name", job.queue.clone()));
        attributes.push(KeyValue::new("messaging.message.id", job.id.to_string()));
        attributes.push(KeyValue::new("weir.attempt", i64::from(job.attempt)));
        attributes
    };
    let start = |name: &str, kind, operation, at: SystemTime| {
        let builder = || {
            SpanBuilder::from_name(format!("{name} {}", job.queue))
                .with_kind(kind)
                .with_start_time(at)
                .with_attributes(attributes(operation))
        };
        Span::start(builder, &submitted)
    };
    let started = SystemTime::from(job.attempted_at);
    // From the end of the previous attempt, or from the job's creation.
    let failed = job.last_error_at.as_ref().and_then(|at| at.parse().ok());
    let since: jiff::Timestamp = failed.unwrap_or(job.created_at);
    let mut waiting = start("wait", SpanKind::Internal, "wait", since.into());
    if let Some(span) = &mut waiting.0 {
        // Until then it was parked, or its next attempt was not due.
        if job.scheduled_at > since {
            span.add_event_with_timestamp("could run", job.scheduled_at.into(), Vec::new());
        }
        span.end_with_timestamp(started);
    }
    start("process", SpanKind::Consumer, "process", started)
}

/// The settlement of an attempt.
pub(crate) fn settlement(attempt: &TraceContext) -> Span {
    Span::start(|| SpanBuilder::from_name("settle"), attempt)
}

/// Attributes named by OpenTelemetry's conventions for messaging and for users, and the job's kind.
fn messaging(operation: &'static str, kind: &str, user: Option<uuid::Uuid>) -> Vec<KeyValue> {
    let mut attributes = vec![
        KeyValue::new("messaging.system", "river"),
        KeyValue::new("messaging.operation.name", operation),
        KeyValue::new("weir.kind", kind.to_owned()),
    ];
    if operation != "wait" {
        attributes.push(KeyValue::new("messaging.operation.type", operation));
    }
    if let Some(user) = user {
        attributes.push(KeyValue::new("user.id", user.to_string()));
    }
    attributes
}

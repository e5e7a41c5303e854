//! Spans: where the time of a request and of its job went, as spans for an OpenTelemetry collector.
//!
//! Off unless `OTEL_EXPORTER_OTLP_ENDPOINT` is set: then nothing here does more than look whether it is on. One trace
//! has the request, the submission, the wait, each attempt and its settlement, in whichever processes they happen: the
//! edge's
//! `traceparent` comes with the request, and goes on in the job's metadata.

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
use riverqueue::JobRow;

use weir_ledger::holder::Holder;
use weir_ledger::job_metadata::TRACEPARENT;

/// The header, the environment variable in lower case, and the W3C's name for it.
const HEADER: &str = "traceparent";

/// Set once, when the process exports.
pub(super) static TRACER: OnceLock<SdkTracer> = OnceLock::new();

/// A place in a trace from which others go on; none when nothing is exported.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceContext(Option<SpanContext>);

impl TraceContext {
    fn from_traceparent(text: String) -> Self {
        let carrier = HashMap::from([(HEADER.to_owned(), text)]);
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        Self(Some(context.span().span_context().clone()))
    }

    /// As it stands in a header or in a job's metadata.
    pub(crate) fn traceparent(&self) -> Option<String> {
        let mut carrier = HashMap::new();
        TraceContextPropagator::new().inject_context(&self.parent()?, &mut carrier);
        carrier.remove(HEADER)
    }

    /// What a span below it starts from: nothing of the thread's, since tasks share threads.
    fn parent(&self) -> Option<Context> {
        Some(Context::new().with_remote_span_context(self.0.clone()?))
    }
}

/// A span under way. It ends when it is dropped.
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

    /// Marks it as what went wrong.
    pub(crate) fn failed(&mut self, kind: impl Into<Value>, reason: String) {
        if let Some(span) = &mut self.0 {
            span.set_attribute(KeyValue::new("error.type", kind));
            span.set_status(Status::error(reason));
        }
    }
}

/// A request to the API. The parent is the edge, when it says so.
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

/// The submission of a job: check, reserve, enqueue. What the job does goes on from here.
pub(crate) fn submission(parent: &TraceContext, service: &str, kind: &str, holder: Holder) -> Span {
    let builder = || {
        SpanBuilder::from_name(format!("submit {service}"))
            .with_kind(SpanKind::Producer)
            .with_attributes(messaging("send", kind, holder.user_id))
    };
    Span::start(builder, parent)
}

/// The attempt at a job, after a span for the time that it has waited.
pub(crate) fn attempt(job: &JobRow, user: Option<uuid::Uuid>) -> Span {
    if TRACER.get().is_none() {
        return Span(None);
    }
    // Somebody else's job may have anything there; it starts a trace of its own.
    let submitted = job.metadata.get(TRACEPARENT).ok().flatten();
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
    let started = job.attempted_at.map_or_else(SystemTime::now, SystemTime::from);
    // From the end of the attempt before, or from the start.
    let since = job.errors.last().map_or(job.created_at, |error| error.at);
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

/// What OpenTelemetry's conventions for messaging and for users have names for, and the job's kind.
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

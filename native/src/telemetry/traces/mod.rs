//! Traces: spans for an OpenTelemetry collector, off unless `OTEL_EXPORTER_OTLP_ENDPOINT` is set.

mod export;
mod span;

pub use export::{Export, start};
pub(crate) use span::{Span, TraceContext, attempt, request, settlement, submission};

//! Logs, metrics and traces.

pub mod gauges;
pub mod logs;
pub mod metrics;
pub mod traces;
mod vacuum;

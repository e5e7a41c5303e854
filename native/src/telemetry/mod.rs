//! Logs, metrics and traces.

mod busy_holders;
pub mod gauges;
pub mod logs;
pub mod metrics;
pub mod traces;
mod vacuum;

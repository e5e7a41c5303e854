//! Logs and metrics.
//!
//! Logs are one JSON line an event; on a terminal they are made for people. `RUST_LOG` filters them.

use std::io::IsTerminal;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

/// Starts logging to standard error. Calling it twice does nothing.
pub fn logs() {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn,riverqueue=warn"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() {
        logs.with_target(false).try_init()
    } else {
        logs.json().flatten_event(true).try_init()
    };
    // A second start keeps the first one's settings.
    drop(started);
}

/// Buckets for durations in seconds: from a lone transaction to an outage.
const SECONDS: [f64; 14] = [
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];

/// Starts collecting metrics; what it returns renders them.
///
/// # Errors
///
/// When the process collects metrics already.
pub fn metrics() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .install_recorder()?;
    describe();
    Ok(handle)
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!(
        "weir_reservations_total",
        "Accepted submissions, by event type and decision (admitted, parked)"
    );
    describe_counter!(
        "weir_rejections_total",
        "Refused submissions, by event type and reason"
    );
    describe_counter!(
        "weir_settlements_total",
        "Reservations that came to their end, by event type and outcome"
    );
    describe_counter!("weir_promotions_total", "Parked jobs that were given a slot");
    describe_counter!(
        "weir_snoozes_total",
        "Attempts sent back for want of a slot, by tier"
    );
    describe_counter!("weir_orphans_total", "Reservations whose job was gone");
    describe_counter!("weir_reclaimed_total", "Jobs taken back from processes that died");
    describe_counter!(
        "weir_fenced_attempts_total",
        "Successes dropped because the job had been taken back"
    );
    describe_histogram!(
        "weir_settlement_duration_seconds",
        "Time a settlement transaction takes"
    );
    describe_histogram!(
        "weir_admission_group_size",
        "Submissions admitted in one transaction"
    );
    describe_gauge!("weir_lane_jobs", "Jobs by queue and state (queued, running)");
    describe_gauge!("weir_parked_jobs", "Jobs that wait for a slot, by event type");
    describe_gauge!("weir_slots_in_use", "Slots in use, by event type");
    describe_gauge!(
        "weir_oldest_wait_seconds",
        "Age of the oldest job that waits for a worker"
    );
}

//! Logs: one JSON line per event, or short readable lines on a terminal. `RUST_LOG` filters them, and `ACCESS_LOG`
//! filters the lines about single requests, attempts and jobs.

use std::fmt;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;

use crate::config::AccessLog;

/// Starts logging to standard error. If no program reads it, log lines are lost without further effect. A second call
/// does nothing.
pub fn start(access_log: AccessLog) {
    let level = match access_log {
        AccessLog::Errors => "warn",
        AccessLog::All => "info",
        AccessLog::Off => "off",
    };
    let mut filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn,riverqueue=warn"));
    if let Ok(directive) = format!("access_log={level}").parse() {
        filter = filter.add_directive(directive);
    }
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Otherwise a closed standard error would be reported on standard error, and the caller would panic.
        .log_internal_errors(false);
    let started = if std::io::stderr().is_terminal() {
        let clock: fn(&mut Writer<'_>) -> fmt::Result = clock;
        logs.compact().with_target(false).with_timer(clock).try_init()
    } else {
        logs.json().flatten_event(true).try_init()
    };
    // A second start keeps the settings of the first.
    drop(started);
}

/// The time alone: a reader at a terminal knows the day.
fn clock(out: &mut Writer<'_>) -> fmt::Result {
    write!(out, "{}", jiff::Zoned::now().strftime("%H:%M:%S"))
}

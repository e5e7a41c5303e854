//! Logs: one JSON line an event; on a terminal they are made for people, and short. `RUST_LOG` filters them, and
//! `ACCESS_LOG` those about single requests, attempts and jobs.

use std::fmt;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;

use crate::config::AccessLog;

/// Starts logging to standard error. What nobody reads there is lost, and nothing else with it. Calling it twice does
/// nothing.
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
        // It would say on standard error that nobody reads standard error, and panic in whatever logs.
        .log_internal_errors(false);
    let started = if std::io::stderr().is_terminal() {
        let clock: fn(&mut Writer<'_>) -> fmt::Result = clock;
        logs.compact().with_target(false).with_timer(clock).try_init()
    } else {
        logs.json().flatten_event(true).try_init()
    };
    // A second start keeps the first one's settings.
    drop(started);
}

/// Whoever looks at a terminal knows the day.
fn clock(out: &mut Writer<'_>) -> fmt::Result {
    write!(out, "{}", jiff::Zoned::now().strftime("%H:%M:%S"))
}

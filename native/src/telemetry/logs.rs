//! Logs: one JSON line an event; on a terminal they are made for people, and short. `RUST_LOG` filters them.

use std::fmt;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;

/// Starts logging to standard error. Calling it twice does nothing.
pub fn start() {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn,riverqueue=warn"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
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

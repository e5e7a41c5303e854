//! The progress lines on standard error.

use std::io::Write as _;
use std::sync::OnceLock;
use std::time::Instant;

static STARTED: OnceLock<Instant> = OnceLock::new();

/// Prints the next measurement, and the seconds since the first such line.
pub(super) fn progress(what: &str) {
    let started = STARTED.get_or_init(Instant::now);
    // `eprintln!` would panic if standard error is closed.
    let _ = writeln!(
        std::io::stderr(),
        "weir-bench: {:>3} s  {what}",
        started.elapsed().as_secs()
    );
}

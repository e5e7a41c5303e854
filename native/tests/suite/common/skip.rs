//! Tests that need a program which is not here are skipped, and counted as skipped.

use std::io::Write as _;
use std::path::PathBuf;

/// Says that the test is skipped, and why. The caller returns. The test runner counts it, since Rust's own harness
/// knows no test that finds out by itself.
pub fn skip(reason: &str) {
    eprintln!("SKIPPED: {reason}");
    if let Some(folder) = std::env::var_os("WEIR_TEST_FOLDER") {
        let file = PathBuf::from(folder).join("skipped");
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .unwrap();
        writeln!(file, "{}", reason.replace('\n', " ")).unwrap();
    }
}

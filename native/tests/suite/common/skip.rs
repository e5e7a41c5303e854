//! Tests that need a missing program are skipped, and counted as skipped.

use std::io::Write as _;
use std::path::PathBuf;

/// Prints that the test is skipped, and why. The caller then returns. The test runner counts this line, because in
/// Rust's harness a test cannot skip itself while it runs.
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

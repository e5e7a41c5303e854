//! Source files in five languages, as users submit them. To find slow inputs, run with `-timeout=2 -max_len=65536`.
#![no_main]
#![allow(dead_code)]

#[path = "../../native/src/handler/analysis/find.rs"]
mod find;
#[path = "../../native/src/handler/analysis/frameworks.rs"]
mod frameworks;

use libfuzzer_sys::fuzz_target;

const PATHS: [&str; 6] = ["a.rs", "a_test.go", "test_a.py", "a.test.ts", "ATest.kt", "a_spec.rb"];

fuzz_target!(|content: &str| {
    for path in PATHS {
        let (_, pattern) = frameworks::language(path, content).expect("a known ending");
        let (mut tests, mut left) = (Vec::new(), 100_000);
        let lines = content.lines().count();
        if find::scan(path, content, pattern, &mut tests, &mut left).is_ok() {
            assert!(tests.len() <= lines, "a line has at most one test");
            for test in tests {
                assert!((1..=lines).contains(&test.line));
                assert!(!test.name.is_empty() && test.name.len() <= find::MAX_NAME);
            }
        }
    }
});

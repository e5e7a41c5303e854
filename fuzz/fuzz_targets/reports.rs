//! The edge's reports of its counts, as the origin reads them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_policy::counts::Report;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(report) = serde_json::from_slice::<Report>(bytes) {
        let written = serde_json::to_vec(&report).expect("it was read");
        let again: Report = serde_json::from_slice(&written).expect("it was written");
        assert_eq!(again, report);
    }
});

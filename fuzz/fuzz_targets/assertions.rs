//! The edge's assertions: any text, and any claims under a valid signature.
#![no_main]

mod signed;

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use weir_policy::assertion::{AssertionKey, verify, verify_own};

static KEY: LazyLock<AssertionKey> = LazyLock::new(|| AssertionKey::new(signed::SECRET).expect("long enough"));

fuzz_target!(|text: &str| {
    let keys = std::slice::from_ref(&*KEY);
    let header = format!(r#"{{"alg":"HS256","typ":"JWT","kid":"{}"}}"#, KEY.id());
    assert!(verify(keys, text, "GET", "/api/jobs", signed::NOW).is_err(), "it has no valid signature");
    let token = signed::token(&header, text.as_bytes());
    if let Ok(assertion) = verify(keys, &token, "GET", "/api/jobs", signed::NOW) {
        assert!(assertion.expires_at >= signed::NOW - 60);
        assert!(verify(keys, &token, "POST", "/api/jobs", signed::NOW).is_err(), "for one method");
        assert!(verify(keys, &token, "GET", "/api/jobs/1", signed::NOW).is_err(), "for one path");
        assert!(verify_own(keys, &token, "GET", "/api/jobs", signed::NOW).is_err(), "for one audience");
    }
});

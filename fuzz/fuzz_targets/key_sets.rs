//! Key sets, as an issuer's server may send them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_policy::token::{Expected, Keys, verify};

fuzz_target!(|text: &str| {
    if let Ok(keys) = Keys::from_jwks(text) {
        assert!(!keys.is_empty());
        // No key set makes an unsigned token valid.
        for header in ["eyJhbGciOiJFZERTQSJ9", "eyJhbGciOiJIUzI1NiJ9", "eyJhbGciOiJub25lIn0"] {
            let token = format!("{header}.eyJzdWIiOiJhIiwiZXhwIjo5OTk5OTk5OTk5fQ.AAAA");
            assert!(verify(&keys, &token, &Expected::default(), 1, |_, _| false).is_err());
        }
    }
});

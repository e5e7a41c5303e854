//! Bearer tokens: any text, and any claims under a valid signature.
#![no_main]

mod signed;

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use weir_policy::token::{Expected, Keys, verify};

static KEYS: LazyLock<Keys> = LazyLock::new(|| Keys::from_secret(signed::SECRET).expect("long enough"));

static EXPECTED: LazyLock<Expected> = LazyLock::new(|| Expected {
    issuer: Some("https://issuer.example".to_owned()),
    audiences: None,
    holder_claim: Some("org.id".to_owned()),
    ..Expected::default()
});

fuzz_target!(|text: &str| {
    for expected in [&*EXPECTED, &Expected::default()] {
        assert!(verify(&KEYS, text, expected, signed::NOW, |_, _| false).is_err(), "it has no valid signature");
        for header in [r#"{"alg":"HS256","typ":"JWT"}"#, r#"{"alg":"HS256","kid":"a"}"#] {
            let token = signed::token(header, text.as_bytes());
            if let Ok(user) = verify(&KEYS, &token, expected, signed::NOW, |_, _| false) {
                assert!(user.expires_at >= signed::NOW - 60, "{user:?}");
                assert!(!user.identity.subject.as_str().contains(char::is_control));
            }
        }
    }
});

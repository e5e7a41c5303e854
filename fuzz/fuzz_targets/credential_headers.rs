//! Tokens in the headers `Authorization` and `Cookie`.
#![no_main]

#[path = "../../src/credential_headers.rs"]
mod credential_headers;

use credential_headers::{CookieName, bearer, is_service_key};
use libfuzzer_sys::fuzz_target;

fn cookie(cookies: &str) -> Option<&str> {
    let Ok(name) = "auth_token".parse::<CookieName>() else {
        panic!("the default name is valid");
    };
    credential_headers::cookie(cookies, &name)
}

fuzz_target!(|text: &str| {
    if let Some(token) = bearer(text) {
        assert!(!token.is_empty() && token == token.trim());
        assert!(!token.contains([' ', ',']), "one token");
        assert!(text.contains(token), "it was sent");
        for scheme in ["Bearer", "bearer", "BEARER"] {
            assert_eq!(bearer(&format!("{scheme} {token}")), Some(token));
        }
        assert_eq!(bearer(&format!("Bearer {token} {token}")), None, "two tokens");
    }
    if let Some(token) = cookie(text) {
        assert!(!token.is_empty() && !token.contains(';'));
        assert!(text.contains(token), "it was sent");
        // Other cookies change nothing, in any order. A second one of the same name invalidates both.
        for among in [format!("{text}; theme=dark"), format!("theme=dark;{text}")] {
            assert_eq!(cookie(&among), Some(token));
        }
        for twice in [format!("{text}; auth_token=x"), format!("auth_token=; {text}")] {
            assert_eq!(cookie(&twice), None);
        }
    } else if !text.contains("auth_token") {
        assert_eq!(cookie(&format!("{text}; auth_token=a.b.c")), Some("a.b.c"));
    }
    // Any name that is accepted finds its cookie.
    if let Ok(name) = text.parse::<CookieName>() {
        let cookies = format!("{text}=a.b.c");
        assert_eq!(credential_headers::cookie(&cookies, &name), Some("a.b.c"));
    }
    let lower = text.to_ascii_lowercase();
    assert_eq!(is_service_key(text), lower.starts_with("weir_sk_"));
});

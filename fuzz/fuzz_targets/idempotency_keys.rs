//! `Idempotency-Key`: one header or none. A key is the sent text, and is short enough.
#![no_main]

#[path = "../../native/src/api/headers.rs"]
mod headers;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;

const NAME: HeaderName = HeaderName::from_static("idempotency-key");

fuzz_target!(|bytes: &[u8]| {
    let mut headers = HeaderMap::new();
    // Each line is a header, if it is valid.
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| *line != b"-");
    let values: Vec<HeaderValue> = lines
        .filter_map(|line| HeaderValue::from_bytes(line).ok())
        .collect();
    for value in &values {
        headers.append(NAME, value.clone());
    }
    let usable = |value: &HeaderValue| {
        let text = value.as_bytes().trim_ascii();
        let is_text = text.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
        (is_text && (1..=headers::MAX_KEY).contains(&text.len())).then(|| text.to_vec())
    };
    match (headers::idempotency_key(&headers), values.as_slice()) {
        (Ok(None), []) => {}
        (Ok(Some(key)), [value]) => assert_eq!(usable(value).as_deref(), Some(key.as_bytes())),
        (Ok(key), _) => panic!("{key:?} from {values:?}"),
        (Err(_), []) => panic!("there is none"),
        (Err(_), [value]) => assert_eq!(usable(value), None),
        (Err(_), _) => {}
    }
    // Other headers are not keys.
    headers.remove(NAME);
    headers.append("idempotency-keys", HeaderValue::from_static("a"));
    assert!(matches!(headers::idempotency_key(&headers), Ok(None)));
});

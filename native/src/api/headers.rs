//! Headers that a request has once or not at all.

use axum::http::{HeaderMap, HeaderValue};
use uuid::Uuid;

/// Where a request's id is.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// The id by which a request is found in the log: the caller's own, or a new one.
pub(super) fn request_id(given: Option<&HeaderValue>) -> String {
    let given = given.and_then(|value| value.to_str().ok());
    let given = given.filter(|id| !id.is_empty() && id.len() <= 128);
    given.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

/// The longest `Idempotency-Key`, in bytes.
pub const MAX_KEY: usize = 255;

/// There is more than one, or one that cannot be read.
pub(super) struct Unusable;

/// The value of a header; `None` when there is none.
pub(super) fn single<'a, T>(
    headers: &'a HeaderMap,
    name: &str,
    parse: impl FnOnce(&'a str) -> Option<T>,
) -> Result<Option<T>, Unusable> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let parsed = value.to_str().ok().and_then(|text| parse(text.trim()));
    match (parsed, values.next()) {
        (Some(parsed), None) => Ok(Some(parsed)),
        _ => Err(Unusable),
    }
}

/// What tells a request from its repetition.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Unusable> {
    single(headers, "idempotency-key", |key| {
        (1..=MAX_KEY).contains(&key.len()).then_some(key)
    })
}

//! Headers that a request may have at most once.

use axum::http::{HeaderMap, HeaderValue};
use uuid::Uuid;

/// The header with the request's id.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// The id by which to find a request in the log: the client's, or a new one.
pub(super) fn request_id(given: Option<&HeaderValue>) -> String {
    let given = given.and_then(|value| value.to_str().ok());
    let given = given.filter(|id| !id.is_empty() && id.len() <= 128);
    given.map_or_else(|| Uuid::now_v7().to_string(), str::to_owned)
}

/// The longest `Idempotency-Key`, in bytes.
pub const MAX_KEY: usize = 255;

/// The header is repeated or cannot be read.
pub(super) struct Unusable;

/// The value of a header; `None` without one.
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

/// The key by which a repeated request is recognised.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Unusable> {
    single(headers, "idempotency-key", |key| {
        (1..=MAX_KEY).contains(&key.len()).then_some(key)
    })
}

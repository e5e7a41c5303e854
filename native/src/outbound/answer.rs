//! What is read of answers, which may be anything: as much as is wanted and no more.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::Response;
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// The start of a body, as far as it came.
pub async fn start_of(mut response: Response, most: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        body.extend_from_slice(&chunk);
        if body.len() >= most {
            body.truncate(most);
            break;
        }
    }
    body
}

/// Why a request failed, without its URL, which may hold what others must not read.
#[must_use]
pub fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut message = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        message = format!("{message}: {cause}");
        source = cause.source();
    }
    message
}

/// How long a server asks to be left alone, which it says in seconds or as a date.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

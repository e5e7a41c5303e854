//! The issuer's key set, cached in the isolate. It is fetched again every hour, and when a token names an unknown
//! key, at most once a minute. While it cannot be fetched, the cached one stays in use.

use std::cell::RefCell;

use js_sys::Promise;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{RequestInit, RequestRedirect, Response};
use weir_policy::token::Keys;

use crate::bindings::fetch_url;
use crate::clock;
use crate::context::RequestContext;
use crate::events::Event;
use crate::glue;
use crate::timeout::{WaitError, with_timeout};

/// How long a key set is used before it is fetched again, in milliseconds.
const MAX_AGE_MS: u64 = 60 * 60 * 1000;

/// The shortest time between two fetches while there is no key set at all, in seconds.
pub(crate) const RETRY_DELAY_SECS: u64 = 5;

/// How long the issuer may take for the response, and then for its body, in milliseconds.
const TIMEOUT_MS: u32 = 5_000;

/// The longest key set that is accepted, in bytes.
const MAX_LENGTH: usize = 256 * 1024;

/// How often a request checks whether the fetch of another request has ended, in milliseconds.
const POLL_INTERVAL_MS: u32 = 20;

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Cache::new()) };
}

#[derive(Debug)]
struct Cache {
    keys: Option<Keys>,
    fetched_at: u64,
    attempted_at: u64,
    failed_at: u64,
    /// Until when the fetch of a request may take; 0 without one. The client of that request may hang up, and then the
    /// fetch ends without a result.
    fetching_until: u64,
    /// The number of fetches that have ended, with or without success.
    fetches: u32,
}

/// What a request does about the key set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refresh {
    /// Use the cached keys.
    NotNeeded,
    /// Fetch the key set.
    Fetch,
    /// Wait for the fetch of another request.
    Wait,
}

impl Cache {
    const fn new() -> Self {
        Self {
            keys: None,
            fetched_at: 0,
            attempted_at: 0,
            failed_at: 0,
            fetching_until: 0,
            fetches: 0,
        }
    }

    fn refresh(&self, key_unknown: bool, cooldown_ms: u64, now: u64) -> Refresh {
        if now < self.fetching_until {
            let needs_result = key_unknown || self.keys.is_none();
            return if needs_result {
                Refresh::Wait
            } else {
                Refresh::NotNeeded
            };
        }
        let due = match self.keys {
            None => self.failed_at == 0 || now >= self.failed_at + RETRY_DELAY_SECS * 1000,
            Some(_) => {
                (key_unknown || now >= self.fetched_at + MAX_AGE_MS) && now >= self.attempted_at + cooldown_ms
            }
        };
        if due { Refresh::Fetch } else { Refresh::NotNeeded }
    }
}

/// The issuer's keys; `None` while there has never been a key set. Pass `key_unknown` when a token names a key that is
/// not among them.
pub(crate) async fn keys(context: &RequestContext<'_>, url: &str, key_unknown: bool) -> Option<Keys> {
    let cooldown_ms = u64::from(context.config.jwks_cooldown_ms);
    let fetches = CACHE.with_borrow(|cache| cache.fetches);
    // A request that has waited for a fetch uses its result, even if another fetch is due by then.
    while CACHE.with_borrow(|cache| cache.fetches) == fetches {
        let now = clock::now_ms();
        match CACHE.with_borrow(|cache| cache.refresh(key_unknown, cooldown_ms, now)) {
            Refresh::NotNeeded => break,
            Refresh::Fetch => {
                refresh(context, url, now).await;
                break;
            }
            // Each request waits by a timer of its own: the runtime ties a promise to the request that created it.
            Refresh::Wait => {
                let _ = JsFuture::from(glue::sleep(POLL_INTERVAL_MS)).await;
            }
        }
    }
    CACHE.with_borrow(|cache| cache.keys.clone())
}

async fn refresh(context: &RequestContext<'_>, url: &str, now: u64) {
    CACHE.with_borrow_mut(|cache| {
        cache.attempted_at = now;
        cache.fetching_until = now + 2 * u64::from(TIMEOUT_MS);
    });
    let fetched = fetch(url).await;
    let failure = CACHE.with_borrow_mut(|cache| {
        cache.fetching_until = 0;
        cache.fetches = cache.fetches.wrapping_add(1);
        match fetched {
            Ok(keys) => {
                cache.keys = Some(keys);
                cache.fetched_at = now;
                None
            }
            Err(reason) => {
                cache.failed_at = now;
                Some(reason)
            }
        }
    });
    if let Some(reason) = failure {
        context.report(Event::KeySetUnavailable, &reason);
    }
}

async fn fetch(url: &str) -> Result<Keys, String> {
    let init = RequestInit::new();
    // A redirect would lead to keys that are not configured.
    init.set_redirect(RequestRedirect::Manual);
    let response = fetch_url(url, &init).map_err(|error| WaitError::Failed(error).reason())?;
    let response: Response = with_timeout(response, TIMEOUT_MS)
        .await
        .map_err(|error| error.reason())?
        .unchecked_into();
    if response.status() != 200 {
        return Err(format!("the issuer answered {}", response.status()));
    }
    let text: Promise = response
        .text()
        .map_err(|error| WaitError::Failed(error).reason())?
        .unchecked_into();
    let text: JsValue = with_timeout(text, TIMEOUT_MS)
        .await
        .map_err(|error| error.reason())?;
    let text = text
        .as_string()
        .filter(|text| text.len() <= MAX_LENGTH)
        .ok_or("the key set is too long")?;
    Keys::from_jwks(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;
    const NOW: u64 = 1_800_000_000_000;

    fn fetched() -> Cache {
        Cache {
            keys: Some(Keys::default()),
            fetched_at: NOW,
            attempted_at: NOW,
            ..Cache::new()
        }
    }

    fn refresh(cache: &Cache, key_unknown: bool, now: u64) -> Refresh {
        cache.refresh(key_unknown, MINUTE, now)
    }

    #[test]
    fn a_key_set_is_fetched_once_and_again_every_hour() {
        assert_eq!(refresh(&Cache::new(), false, NOW), Refresh::Fetch);
        assert_eq!(refresh(&fetched(), false, NOW + 59 * MINUTE), Refresh::NotNeeded);
        assert_eq!(refresh(&fetched(), false, NOW + 60 * MINUTE), Refresh::Fetch);
    }

    #[test]
    fn an_unknown_key_causes_at_most_one_fetch_a_minute() {
        let mut cache = fetched();
        assert_eq!(refresh(&cache, true, NOW + MINUTE - 1), Refresh::NotNeeded);
        assert_eq!(refresh(&cache, true, NOW + MINUTE), Refresh::Fetch);
        cache.attempted_at = NOW + MINUTE;
        assert_eq!(refresh(&cache, true, NOW + MINUTE + 1), Refresh::NotNeeded);
    }

    #[test]
    fn a_failed_fetch_is_retried_after_a_delay() {
        let stale = Cache {
            attempted_at: NOW + 60 * MINUTE,
            failed_at: NOW + 60 * MINUTE,
            ..fetched()
        };
        assert_eq!(refresh(&stale, false, NOW + 60 * MINUTE + 1), Refresh::NotNeeded);
        assert_eq!(refresh(&stale, false, NOW + 61 * MINUTE), Refresh::Fetch);
        let none = Cache {
            failed_at: NOW,
            ..Cache::new()
        };
        assert_eq!(refresh(&none, true, NOW + 4_999), Refresh::NotNeeded);
        assert_eq!(refresh(&none, false, NOW + 5_000), Refresh::Fetch);
    }

    #[test]
    fn only_requests_that_need_the_result_wait_for_a_fetch_and_none_for_ever() {
        let first = Cache {
            fetching_until: NOW + 10,
            ..Cache::new()
        };
        assert_eq!(refresh(&first, false, NOW + 9), Refresh::Wait);
        assert_eq!(refresh(&first, false, NOW + 10), Refresh::Fetch);
        let again = Cache {
            fetching_until: NOW + 10,
            ..fetched()
        };
        assert_eq!(refresh(&again, true, NOW + 9), Refresh::Wait);
        assert_eq!(refresh(&again, false, NOW + 9), Refresh::NotNeeded);
    }
}

//! The issuer's key set, cached in the isolate. It is fetched again every hour, and when a token names an unknown
//! key, at most once a minute. While it cannot be fetched, the cached one stays in use.

use std::cell::RefCell;

use js_sys::Promise;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{RequestInit, RequestRedirect, Response};
use weir_policy::token::Keys;

use crate::bindings::fetch_url;
use crate::clock;
use crate::context::RequestContext;
use crate::events::Event;
use crate::timeout::{WaitError, with_timeout};

/// How long a key set is used before it is fetched again, in milliseconds.
const MAX_AGE_MS: u64 = 60 * 60 * 1000;

/// The shortest time between two fetches, in milliseconds.
const COOLDOWN_MS: u64 = 60 * 1000;

/// The shortest time between two fetches while there is no key set at all, in milliseconds.
const RETRY_DELAY_MS: u64 = 5 * 1000;

/// How long the issuer may take for the response, and then for its body, in milliseconds.
const TIMEOUT_MS: u32 = 5_000;

/// The longest key set that is accepted, in bytes.
const MAX_LENGTH: usize = 256 * 1024;

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Cache::new()) };
}

#[derive(Debug)]
struct Cache {
    keys: Option<Keys>,
    fetched_at: u64,
    attempted_at: u64,
    failed_at: u64,
}

impl Cache {
    const fn new() -> Self {
        Self {
            keys: None,
            fetched_at: 0,
            attempted_at: 0,
            failed_at: 0,
        }
    }

    fn needs_fetch(&self, key_unknown: bool, now: u64) -> bool {
        if self.keys.is_none() {
            return self.failed_at == 0 || now >= self.failed_at + RETRY_DELAY_MS;
        }
        (key_unknown || now >= self.fetched_at + MAX_AGE_MS) && now >= self.attempted_at + COOLDOWN_MS
    }
}

/// The keys that verify tokens: the issuer's, and the shared secret's if there is one. Pass `key_unknown` when a token
/// names a key that is not among them.
pub(crate) async fn keys(context: &RequestContext<'_>, url: &str, key_unknown: bool) -> Keys {
    let config = context.config;
    let now = clock::now_ms();
    let needs_fetch = CACHE.with_borrow_mut(|cache| {
        let needs_fetch = cache.needs_fetch(key_unknown, now);
        if needs_fetch {
            cache.attempted_at = now;
        }
        needs_fetch
    });
    if needs_fetch {
        match fetch(url).await {
            Ok(keys) => CACHE.with_borrow_mut(|cache| {
                cache.keys = Some(config.token_keys.clone().and(keys));
                cache.fetched_at = now;
            }),
            Err(reason) => {
                CACHE.with_borrow_mut(|cache| cache.failed_at = now);
                context.report(Event::KeySetUnavailable, &reason);
            }
        }
    }
    CACHE
        .with_borrow(|cache| cache.keys.clone())
        .unwrap_or_else(|| config.token_keys.clone())
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
            failed_at: 0,
        }
    }

    #[test]
    fn a_key_set_is_fetched_once_and_again_every_hour() {
        assert!(Cache::new().needs_fetch(false, NOW));
        assert!(!fetched().needs_fetch(false, NOW + 59 * MINUTE));
        assert!(fetched().needs_fetch(false, NOW + 60 * MINUTE));
    }

    #[test]
    fn an_unknown_key_causes_at_most_one_fetch_a_minute() {
        let mut cache = fetched();
        assert!(!cache.needs_fetch(true, NOW + MINUTE - 1));
        assert!(cache.needs_fetch(true, NOW + MINUTE));
        cache.attempted_at = NOW + MINUTE;
        assert!(!cache.needs_fetch(true, NOW + MINUTE + 1));
    }

    #[test]
    fn a_failed_fetch_is_retried_after_a_delay() {
        let stale = Cache {
            attempted_at: NOW + 60 * MINUTE,
            failed_at: NOW + 60 * MINUTE,
            ..fetched()
        };
        assert!(!stale.needs_fetch(false, NOW + 60 * MINUTE + 1));
        assert!(stale.needs_fetch(false, NOW + 61 * MINUTE));
        let none = Cache {
            failed_at: NOW,
            ..Cache::new()
        };
        assert!(!none.needs_fetch(true, NOW + 4_999));
        assert!(none.needs_fetch(false, NOW + 5_000));
    }
}

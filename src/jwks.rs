//! The issuer's key set: fetched, kept in the isolate, renewed every hour and when a token names a key that it has
//! not, though at most once a minute. When it cannot be fetched, the one that is there stays.

use std::cell::RefCell;

use js_sys::Promise;
use wasm_bindgen::{JsCast, JsValue};
use web_sys::{RequestInit, RequestRedirect, Response};
use weir_policy::token::Keys;

use crate::bindings::fetch_url;
use crate::call::Call;
use crate::clock;
use crate::events::Event;
use crate::wait::{NoValue, within};

/// How long a key set is good for, in milliseconds.
const FRESH_MS: u64 = 60 * 60 * 1000;

/// How long to wait between two attempts to fetch it, in milliseconds.
const BETWEEN_ATTEMPTS_MS: u64 = 60 * 1000;

/// How long to wait after a failed attempt while there is no key set at all, in milliseconds.
const AFTER_FAILURE_MS: u64 = 5 * 1000;

/// How long the issuer may take, in milliseconds.
const TIMEOUT_MS: u32 = 5_000;

/// The longest key set that is read, in characters.
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

    fn wants_fetching(&self, key_unknown: bool, now: u64) -> bool {
        if self.keys.is_none() {
            return self.failed_at == 0 || now >= self.failed_at + AFTER_FAILURE_MS;
        }
        (key_unknown || now >= self.fetched_at + FRESH_MS) && now >= self.attempted_at + BETWEEN_ATTEMPTS_MS
    }
}

/// The keys that verify tokens: the issuer's, and the shared secret's if there is one. `key_unknown` says that a token
/// has named a key that is not among them.
pub(crate) async fn keys(call: &Call<'_>, url: &str, key_unknown: bool) -> Keys {
    let config = call.config;
    let now = clock::now_ms();
    let wants = CACHE.with_borrow_mut(|cache| {
        let wants = cache.wants_fetching(key_unknown, now);
        if wants {
            cache.attempted_at = now;
        }
        wants
    });
    if wants {
        match fetch(url).await {
            Ok(keys) => CACHE.with_borrow_mut(|cache| {
                cache.keys = Some(config.token_keys.clone().and(keys));
                cache.fetched_at = now;
            }),
            Err(reason) => {
                CACHE.with_borrow_mut(|cache| cache.failed_at = now);
                call.report(Event::KeySetUnavailable, &reason);
            }
        }
    }
    CACHE
        .with_borrow(|cache| cache.keys.clone())
        .unwrap_or_else(|| config.token_keys.clone())
}

async fn fetch(url: &str) -> Result<Keys, String> {
    let init = RequestInit::new();
    // A redirect would lead to keys that nobody configured.
    init.set_redirect(RequestRedirect::Manual);
    let answer = fetch_url(url, &init).map_err(|error| NoValue::Failed(error).reason())?;
    let response: Response = within(answer, TIMEOUT_MS)
        .await
        .map_err(|reason| reason.reason())?
        .unchecked_into();
    if response.status() != 200 {
        return Err(format!("the issuer answered {}", response.status()));
    }
    let text: Promise = response
        .text()
        .map_err(|error| NoValue::Failed(error).reason())?
        .unchecked_into();
    let text: JsValue = within(text, TIMEOUT_MS).await.map_err(|reason| reason.reason())?;
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
    fn a_key_set_is_fetched_once_and_renewed_every_hour() {
        assert!(Cache::new().wants_fetching(false, NOW));
        assert!(!fetched().wants_fetching(false, NOW + 59 * MINUTE));
        assert!(fetched().wants_fetching(false, NOW + 60 * MINUTE));
    }

    #[test]
    fn an_unknown_key_is_asked_for_at_most_once_a_minute() {
        let mut cache = fetched();
        assert!(!cache.wants_fetching(true, NOW + MINUTE - 1));
        assert!(cache.wants_fetching(true, NOW + MINUTE));
        cache.attempted_at = NOW + MINUTE;
        assert!(!cache.wants_fetching(true, NOW + MINUTE + 1));
    }

    #[test]
    fn a_failing_issuer_is_asked_again_but_not_at_once() {
        let stale = Cache {
            attempted_at: NOW + 60 * MINUTE,
            failed_at: NOW + 60 * MINUTE,
            ..fetched()
        };
        assert!(!stale.wants_fetching(false, NOW + 60 * MINUTE + 1));
        assert!(stale.wants_fetching(false, NOW + 61 * MINUTE));
        let none = Cache {
            failed_at: NOW,
            ..Cache::new()
        };
        assert!(!none.wants_fetching(true, NOW + 4_999));
        assert!(none.wants_fetching(false, NOW + 5_000));
    }
}

//! The issuers' key sets by URL, cached in the isolate. While one is in use, it is fetched again every hour. It is also fetched,
//! at most once per cooldown, when its keys do not verify a token that newer keys might verify. The issuer may have
//! added a key, or replaced one under the same `kid` or without one. While it cannot be fetched, the cached one stays
//! in use.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::rc::Rc;

use js_sys::Promise;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use web_sys::{RequestInit, RequestRedirect, Response};
use weir_policy::token::Keys;

use crate::bindings::{Bindings, fetch_url};
use crate::clock;
use crate::context::RequestContext;
use crate::events::{self, Event};
use crate::glue;
use crate::timeout::{WaitError, with_timeout};

/// The shortest time between two fetches while there is no key set at all, in seconds.
const RETRY_DELAY_SECS: u64 = 5;

/// The maximum time for the issuer's response, and then for its body, in milliseconds.
const TIMEOUT_MS: u32 = 5_000;

/// The longest key set that is accepted, in bytes.
const MAX_LENGTH: usize = 256 * 1024;

/// The maximum number of remembered tokens that newer keys might verify. A flood of more leaves the others unverifiable
/// until the next fetch, as long as they claim to be newer than the keys.
const MAX_REMEMBERED_TOKENS: usize = 4096;

/// The interval at which a request checks whether another request's fetch has ended, in milliseconds.
const POLL_INTERVAL_MS: u32 = 20;

thread_local! {
    static CACHES: RefCell<BTreeMap<String, Cache>> = const { RefCell::new(BTreeMap::new()) };
}

/// Calls a function with the cache of a key set.
fn with_cache<R>(url: &str, call: impl FnOnce(&mut Cache) -> R) -> R {
    CACHES.with_borrow_mut(|caches| match caches.get_mut(url) {
        Some(cache) => call(cache),
        None => call(caches.entry(url.to_owned()).or_insert_with(Cache::new)),
    })
}

#[derive(Debug)]
struct Cache {
    keys: Option<KeySet>,
    attempted_at: u64,
    failed_at: u64,
    /// Until when another request's fetch may take; 0 without one. If that request's client disconnects, the fetch ends
    /// without a result.
    fetching_until: u64,
    /// The number of fetches that have ended, with or without success.
    fetches: u32,
    /// Tokens that the keys did not verify, by their hashes: those seen since the last fetch began, and those seen before.
    unsettled: BTreeSet<u64>,
    settled: BTreeSet<u64>,
}

/// The action of a request on the key set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refresh {
    /// Use the cached keys.
    NotNeeded,
    /// Fetch the key set.
    Fetch,
    /// Use the cached keys, and fetch the key set in the background.
    FetchBehind,
    /// Wait for the fetch of another request.
    Wait,
}

impl Cache {
    const fn new() -> Self {
        Self {
            keys: None,
            attempted_at: 0,
            failed_at: 0,
            fetching_until: 0,
            fetches: 0,
            unsettled: BTreeSet::new(),
            settled: BTreeSet::new(),
        }
    }

    /// Starts a fetch. Returns the tokens that its result settles.
    fn begin(&mut self, now: u64) -> BTreeSet<u64> {
        self.attempted_at = now;
        self.fetching_until = now + 2 * u64::from(TIMEOUT_MS);
        mem::take(&mut self.unsettled)
    }

    /// Ends a fetch that started at `began_at`.
    fn end(&mut self, fetched: Option<Keys>, mut settles: BTreeSet<u64>, began_at: u64) {
        self.fetching_until = 0;
        self.fetches = self.fetches.wrapping_add(1);
        match fetched {
            Some(keys) => {
                self.keys = Some(KeySet {
                    keys: Rc::new(keys),
                    asked_at: began_at,
                });
                if self.settled.len() >= MAX_REMEMBERED_TOKENS {
                    self.settled.clear();
                }
                self.settled.append(&mut settles);
            }
            None => {
                self.failed_at = began_at;
                self.unsettled.append(&mut settles);
            }
        }
    }

    fn refresh(&self, need_newer: bool, cooldown_ms: u64, max_age_ms: u64, now: u64) -> Refresh {
        if now < self.fetching_until {
            let needs_result = need_newer || self.keys.is_none();
            return if needs_result {
                Refresh::Wait
            } else {
                Refresh::NotNeeded
            };
        }
        let needed = match &self.keys {
            None => Refresh::Fetch,
            Some(_) if need_newer => Refresh::Fetch,
            Some(keys) if now >= keys.asked_at + max_age_ms => Refresh::FetchBehind,
            Some(_) => Refresh::NotNeeded,
        };
        if now >= self.next_at(cooldown_ms) {
            needed
        } else {
            Refresh::NotNeeded
        }
    }

    /// When the next fetch may start.
    fn next_at(&self, cooldown_ms: u64) -> u64 {
        match (&self.keys, self.failed_at) {
            (None, 0) => 0,
            (None, failed_at) => failed_at + RETRY_DELAY_SECS * 1000,
            (Some(_), _) => self.attempted_at + cooldown_ms,
        }
    }
}

/// The issuer's keys, and when they were requested.
#[derive(Clone, Debug)]
pub(crate) struct KeySet {
    pub(crate) keys: Rc<Keys>,
    /// Milliseconds since the Unix epoch. The set includes all keys published by then.
    pub(crate) asked_at: u64,
}

/// The issuer's keys; `None` until a key set has been fetched. Pass `need_newer` if they do not verify a token that
/// newer keys might verify.
pub(crate) async fn key_set(context: &RequestContext<'_>, url: &str, need_newer: bool) -> Option<KeySet> {
    let config = context.config;
    let (cooldown_ms, max_age_ms) = (
        u64::from(config.jwks_cooldown_ms),
        u64::from(config.jwks_max_age_ms),
    );
    let fetches = with_cache(url, |cache| cache.fetches);
    // A request that has waited for a fetch uses its result, even if another fetch is due by then.
    while with_cache(url, |cache| cache.fetches) == fetches {
        let now = clock::now_ms();
        match with_cache(url, |cache| {
            cache.refresh(need_newer, cooldown_ms, max_age_ms, now)
        }) {
            Refresh::NotNeeded => break,
            Refresh::Fetch => {
                refresh(context.bindings, url, now).await;
                break;
            }
            Refresh::FetchBehind => {
                let (bindings, url) = (context.bindings.clone(), url.to_owned());
                glue::wait_until(&future_to_promise(async move {
                    refresh(&bindings, &url, now).await;
                    Ok(JsValue::UNDEFINED)
                }));
                break;
            }
            // Each request has its own timer, because the runtime ties a promise to the request that created it.
            Refresh::Wait => {
                let _ = JsFuture::from(glue::sleep(POLL_INTERVAL_MS)).await;
            }
        }
    }
    with_cache(url, |cache| cache.keys.clone())
}

/// When the key set in use was requested, in milliseconds since the Unix epoch.
pub(crate) fn asked_at(url: &str) -> Option<u64> {
    with_cache(url, |cache| cache.keys.as_ref().map(|keys| keys.asked_at))
}

/// In how many seconds the next request may fetch the key set.
pub(crate) fn retry_after_secs(context: &RequestContext<'_>, url: &str) -> u64 {
    let next_at = with_cache(url, |cache| {
        cache.next_at(u64::from(context.config.jwks_cooldown_ms))
    });
    next_at.saturating_sub(clock::now_ms()).div_ceil(1000).max(1)
}

/// Whether newer keys were fetched since this token was first seen; also remembers the token. If so, the token is
/// invalid, even if other invalid tokens have used up the fetch of this cooldown.
pub(crate) fn is_settled(url: &str, token: &str) -> bool {
    let mut hasher = DefaultHasher::new();
    token.hash(&mut hasher);
    let hash = hasher.finish();
    with_cache(url, |cache| {
        let is_settled = cache.settled.contains(&hash);
        if !is_settled && cache.unsettled.len() < MAX_REMEMBERED_TOKENS {
            cache.unsettled.insert(hash);
        }
        is_settled
    })
}

async fn refresh(bindings: &Bindings, url: &str, now: u64) {
    let settles = with_cache(url, |cache| cache.begin(now));
    let (keys, failure) = match fetch(url).await {
        Ok(keys) => (Some(keys), None),
        Err(reason) => (None, Some(reason)),
    };
    with_cache(url, |cache| cache.end(keys, settles, now));
    if let Some(reason) = failure {
        events::report(bindings, Event::KeySetUnavailable, None, &reason);
    }
}

async fn fetch(url: &str) -> Result<Keys, String> {
    let init = RequestInit::new();
    // A redirect could lead to keys that are not configured.
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
            keys: Some(KeySet {
                keys: Rc::default(),
                asked_at: NOW,
            }),
            attempted_at: NOW,
            ..Cache::new()
        }
    }

    fn refresh(cache: &Cache, need_newer: bool, now: u64) -> Refresh {
        cache.refresh(need_newer, MINUTE, 60 * MINUTE, now)
    }

    #[test]
    fn key_sets_are_fetched_once_per_hour() {
        assert_eq!(refresh(&Cache::new(), false, NOW), Refresh::Fetch);
        assert_eq!(refresh(&fetched(), false, NOW + 59 * MINUTE), Refresh::NotNeeded);
        assert_eq!(
            refresh(&fetched(), false, NOW + 60 * MINUTE),
            Refresh::FetchBehind
        );
    }

    #[test]
    fn a_fetch_decides_on_tokens_seen_before_it_started() {
        let mut cache = fetched();
        cache.unsettled.insert(1);
        let settles = cache.begin(NOW + 1);
        cache.unsettled.insert(2);
        cache.end(None, settles, NOW + 1);
        assert_eq!((cache.unsettled.len(), cache.settled.len()), (2, 0), "it failed");
        let settles = cache.begin(NOW + 2);
        cache.unsettled.insert(3);
        cache.end(Some(Keys::default()), settles, NOW + 2);
        assert_eq!(cache.settled, BTreeSet::from([1, 2]));
        assert_eq!(cache.unsettled, BTreeSet::from([3]));
        assert_eq!(cache.keys.map(|keys| keys.asked_at), Some(NOW + 2));
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
        assert_eq!(refresh(&stale, false, NOW + 61 * MINUTE), Refresh::FetchBehind);
        let none = Cache {
            failed_at: NOW,
            ..Cache::new()
        };
        assert_eq!(refresh(&none, true, NOW + 4_999), Refresh::NotNeeded);
        assert_eq!(refresh(&none, false, NOW + 5_000), Refresh::Fetch);
    }

    #[test]
    fn requests_do_not_wait_indefinitely_for_a_fetch() {
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

//! The edge as Rust code uses it. `weir.mjs` is the same for JavaScript.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use js_sys::Promise;
use serde::Deserialize;
use serde_json::{Map, Value};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use weir_policy::address::AddressKey;
use weir_policy::limit_set::SetResult;
use weir_policy::window::{MAX_LIMIT, MAX_WINDOW_MS};
use worker::{Env, Error, Request, Response, Result};

use crate::bindings::{Bindings, random_uuid};
use crate::config::{Config, ConfigError};
use crate::edge;
use crate::events::{Event, report};
use crate::own;
use crate::response;
use crate::settings::{self, HANDLER};
use crate::shard::own_shard;

#[wasm_bindgen(module = "/src/own.mjs")]
extern "C" {
    /// These bindings, with the handler of one request.
    #[wasm_bindgen(catch, js_name = withRustHandler)]
    fn with_handler(bindings: &Bindings, next: &JsValue) -> std::result::Result<Bindings, JsValue>;

    /// These bindings, with counting objects that are called by `fetch`.
    #[wasm_bindgen(js_name = countingByFetch)]
    fn counting_by_fetch(bindings: &Bindings) -> Bindings;
}

thread_local! {
    /// The configurations by the number of their edge. That of a running isolate cannot change: a deployment starts new
    /// isolates.
    static CONFIGS: RefCell<BTreeMap<Option<u32>, Configured>> = const { RefCell::new(BTreeMap::new()) };
}

type Configured = std::result::Result<Rc<Config>, ConfigError>;

/// The largest value of [`Limit::cost`].
const MAX_COST: u32 = 1000;

/// The edge of a Worker. Creating one is cheap, so each request may have its own.
///
/// All of them share the settings, which an isolate reads with its first request. So a Worker uses either
/// [`handle`](Self::handle) or [`forward`](Self::forward).
#[derive(Clone, Debug)]
pub struct Weir {
    bindings: Bindings,
}

impl Weir {
    /// The edge with these variables, secrets and bindings.
    #[must_use]
    pub fn new(env: &Env) -> Self {
        let bindings = counting_by_fetch(env.unchecked_ref());
        Self { bindings }
    }

    /// The edge of a Worker with a class `AddressCounter` in JavaScript that extends `DurableObject`, as in `src/weir.mjs`.
    /// Such objects are called without `fetch`.
    #[must_use]
    pub fn with_callable_counters(env: &Env) -> Self {
        let bindings = env.unchecked_ref::<Bindings>().clone();
        Self { bindings }
    }

    /// Answers a request: refuses it, or passes it to the Worker's own handler, or to an origin that its route names.
    ///
    /// The handler gets the request without headers that name an identity or an address, such as `X-Forwarded-For`. The
    /// caller is its second argument. `ORIGIN_URL` must not be set.
    ///
    /// Without `ROUTES`, all anonymous requests share the limit `ANON_LIMIT` per address and window. Users have one if
    /// `USER_LIMIT` is set. With `ROUTES`, each route has its own limits, and requests that match no route are not limited.
    ///
    /// An error of the handler gets a 500 and is logged as `handler_failed`. Invalid settings also get a 500, and all of
    /// their errors are logged.
    ///
    /// # Errors
    /// When the runtime cannot create a response.
    ///
    /// ```no_run
    /// # use weir_edge::{Caller, Weir};
    /// # use worker::{Env, Request, Response, Result};
    /// # async fn fetch(request: Request, env: Env) -> Result<Response> {
    /// let weir = Weir::new(&env);
    /// weir.handle(request, async move |request: Request, caller: Caller| {
    ///     let name = env.var("NAME")?;
    ///     Response::ok(format!("{name}: {} by {}", request.path(), caller.address))
    /// })
    /// .await
    /// # }
    /// ```
    pub async fn handle<Next>(&self, request: Request, next: Next) -> Result<Response>
    where
        Next: AsyncFnOnce(Request, Caller) -> Result<Response> + 'static,
    {
        let next = Closure::<dyn FnMut(web_sys::Request, String) -> Promise>::once(
            move |request: web_sys::Request, caller: String| -> Promise {
                future_to_promise(async move {
                    let caller = serde_json::from_str(&caller).map_err(Error::from)?;
                    let response = next(request.into(), caller).await?;
                    Ok(web_sys::Response::from(response).into())
                })
            },
        );
        let bindings = with_handler(&self.bindings, next.as_ref())?;
        // Not the method `clone` of JavaScript, which would copy the body.
        let request = Clone::clone(request.inner());
        answer(&bindings, request).await.map(Response::from)
    }

    /// Answers a request: refuses it, or forwards it to its origin. The types are those of the runtime, so that no part of
    /// the request or the response is converted. `#[event(fetch)]` accepts them.
    ///
    /// # Errors
    /// When the runtime cannot create a response.
    ///
    /// ```no_run
    /// use weir_edge::Weir;
    /// use worker::web_sys::{Request, Response};
    /// use worker::{Context, Env, Result, event};
    ///
    /// #[event(fetch)]
    /// async fn fetch(request: Request, env: Env, _context: Context) -> Result<Response> {
    ///     Weir::new(&env).forward(request).await
    /// }
    /// # fn main() {}
    /// ```
    pub async fn forward(&self, request: web_sys::Request) -> Result<web_sys::Response> {
        answer(&self.bindings, request).await
    }

    /// Counts units of a key in a fixed window, exactly and worldwide. All of them are counted, or none. It needs only the
    /// binding `ADDRESS_COUNTERS`, no other settings.
    ///
    /// Each combination of `limit` and `window` has its own counts. A key is any text.
    ///
    /// # Errors
    /// When a value is out of range, or when the counting object does not answer.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use weir_edge::{Limit, Weir};
    /// # use worker::{Env, Response, Result};
    /// # async fn export(env: Env, user: &str) -> Result<Response> {
    /// let limit = Limit { limit: 5, window: Duration::from_secs(3600), cost: 1 };
    /// let counted = Weir::new(&env).limit(&format!("export:{user}"), limit).await?;
    /// if !counted.allowed {
    ///     return Response::error("Too many exports", 429);
    /// }
    /// # Response::empty()
    /// # }
    /// ```
    pub async fn limit(&self, key: &str, limit: Limit) -> Result<Counted> {
        let seconds = limit.seconds().map_err(Error::RustError)?;
        let objects = self
            .bindings
            .address_counters()
            .ok_or_else(|| Error::RustError("the binding ADDRESS_COUNTERS is missing".to_owned()))?;
        let key = AddressKey::own(key);
        let (kind, upper, lower) = key.to_parts();
        let name = own_shard(key, limit.limit, seconds);
        let taken = objects.get_by_name(&name)?.take(kind, upper, lower, limit.cost)?;
        let packed = JsFuture::from(taken).await?;
        let SetResult { result, .. } = packed
            .as_f64()
            .and_then(SetResult::unpack)
            .flatten()
            .ok_or_else(|| Error::RustError("the counting object returned no result".to_owned()))?;
        Ok(Counted {
            allowed: result.admitted,
            limit: limit.limit,
            remaining: result.remaining(limit.limit),
            reset_after: Duration::from_millis(result.reset_after_ms),
        })
    }
}

/// The caller of a request that passed all checks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Caller {
    /// The subject of the verified token; `None` for an anonymous request.
    pub user: Option<String>,
    /// The account that requests count against: the user, or the claim that `HOLDER_CLAIM` names.
    pub account: Option<String>,
    /// The client's IPv4 address, its IPv6 prefix such as `2001:db8:1:2::/64`, or `unknown`.
    pub address: String,
    /// When the token expires, in seconds since the Unix epoch; `None` for an anonymous request.
    pub token_expires_at: Option<u64>,
    /// The claims of the token that `ASSERTION_CLAIMS` lists.
    pub claims: Map<String, Value>,
}

/// A limit of the Worker's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The units per window: 1 to 1 048 575.
    pub limit: u32,
    /// The length of the window, which begins with a key's first unit: 1 to 86 400 seconds, without a fraction.
    pub window: Duration,
    /// The units to count now: 1 to 1000.
    pub cost: u32,
}

impl Limit {
    /// The window in seconds, or the error of a value that is out of range.
    fn seconds(&self) -> std::result::Result<u64, String> {
        let range = |name: &str, value: u32, max: u32| {
            if (1..=max).contains(&value) {
                Ok(())
            } else {
                Err(format!("{name} is {value}; expected 1 to {max}"))
            }
        };
        range("limit", self.limit, MAX_LIMIT)?;
        range("cost", self.cost, MAX_COST)?;
        let (seconds, max) = (self.window.as_secs(), MAX_WINDOW_MS / 1000);
        if self.window.subsec_nanos() == 0 && (1..=max).contains(&seconds) {
            Ok(seconds)
        } else {
            Err(format!(
                "window is {:?}; expected 1 to {max} seconds without a fraction",
                self.window
            ))
        }
    }
}

/// The result of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counted {
    /// Whether the units were within the limit, and are counted.
    pub allowed: bool,
    /// The limit.
    pub limit: u32,
    /// The units that are left in the window.
    pub remaining: u32,
    /// The time until more units are allowed, to the millisecond.
    pub reset_after: Duration,
}

async fn answer(bindings: &Bindings, request: web_sys::Request) -> Result<web_sys::Response> {
    let response = match configuration(bindings).await {
        Ok(config) => edge::handle(bindings, &config, request).await,
        Err(error) => {
            let id = random_uuid();
            report(bindings, Event::Internal, Some(&id), &error.to_string());
            let mut fields = response::base_fields(request.url().starts_with("https:"));
            fields.set("x-request-id", &id).set("vary", "Origin");
            response::problem(&response::misconfigured(), &fields)
        }
    };
    response.map_err(Error::from)
}

/// The configuration, read by the isolate's first request.
async fn configuration(bindings: &Bindings) -> Configured {
    let edge = bindings.edge();
    if let Some(config) = CONFIGS.with_borrow(|configs| configs.get(&edge).cloned()) {
        return config;
    }
    let mut variables = settings::variables(bindings);
    // An error of the Secrets Store is not cached, so the next request reads the secrets again.
    settings::read_secrets(bindings, &mut variables)
        .await
        .map_err(ConfigError)?;
    if variables.contains_key(HANDLER) {
        own::complete(&mut variables);
    }
    let config = Config::read(&variables).map(Rc::new);
    CONFIGS.with_borrow_mut(|configs| configs.entry(edge).or_insert(config).clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_caller_is_read_as_own_mjs_writes_it() {
        let anonymous = json!({"account": null, "user": null, "address": "192.0.2.1", "tokenExpiresAt": null, "claims": {}});
        let caller: Caller = serde_json::from_value(anonymous).unwrap();
        assert_eq!((caller.user, caller.token_expires_at), (None, None));
        let user = json!({"account": "acme", "user": "anne", "address": "192.0.2.1", "tokenExpiresAt": 5, "claims": {"roles": ["a"]}});
        let caller: Caller = serde_json::from_value(user).unwrap();
        assert_eq!(caller.account.as_deref(), Some("acme"));
        assert_eq!(
            (caller.token_expires_at, &caller.claims["roles"]),
            (Some(5), &json!(["a"]))
        );
    }

    #[test]
    fn a_limit_out_of_range_is_an_error_that_names_the_value() {
        let limit = Limit {
            limit: 5,
            window: Duration::from_secs(60),
            cost: 1,
        };
        assert_eq!(limit.seconds(), Ok(60));
        let window = |window| Limit { window, ..limit };
        for (faulty, name) in [
            (Limit { limit: 0, ..limit }, "limit"),
            (
                Limit {
                    limit: MAX_LIMIT + 1,
                    ..limit
                },
                "limit",
            ),
            (Limit { cost: 0, ..limit }, "cost"),
            (Limit { cost: 1001, ..limit }, "cost"),
            (window(Duration::ZERO), "window"),
            (window(Duration::from_millis(1500)), "window"),
            (window(Duration::from_secs(86_401)), "window"),
        ] {
            assert!(faulty.seconds().unwrap_err().starts_with(name), "{faulty:?}");
        }
    }
}

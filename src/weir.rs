//! The edge as Rust code uses it. `weir.mjs` is the same for JavaScript.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use js_sys::Promise;
use serde::Deserialize;
use serde_json::{Map, Value};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;
use weir_limiter::own::{Change, Counted, Limit, count as own_limit};
use worker::{Env, Error, Request, Response, Result};

use crate::bindings::{Bindings, random_uuid};
use crate::config::{Config, ConfigError};
use crate::edge;
use crate::events::{Event, report};
use crate::own;
use crate::response;
use crate::settings::{self, HANDLER};

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
        self.count(key, Change::Take, limit).await
    }

    /// The count of a key, without counting: `allowed` is whether one unit would be.
    ///
    /// # Errors
    /// As [`Self::limit`].
    pub async fn peek(&self, key: &str, limit: Limit) -> Result<Counted> {
        self.count(key, Change::Peek, limit).await
    }

    /// Takes back the units of an action that failed. Do it before the window ends: later, they would be units of the next
    /// one. Other isolates learn of it within ten seconds.
    ///
    /// # Errors
    /// As [`Self::limit`].
    pub async fn refund(&self, key: &str, limit: Limit) -> Result<Counted> {
        self.count(key, Change::Refund, limit).await
    }

    /// Takes back all units of a key, as [`Self::refund`].
    ///
    /// # Errors
    /// As [`Self::limit`].
    pub async fn reset(&self, key: &str, limit: Limit) -> Result<Counted> {
        self.count(key, Change::Reset, limit).await
    }

    async fn count(&self, key: &str, change: Change, limit: Limit) -> Result<Counted> {
        own_limit(self.bindings.address_counters(), key, change, limit)
            .await
            .map_err(Error::from)
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
}

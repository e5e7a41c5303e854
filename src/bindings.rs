//! The bindings of `wrangler.toml`, typed. Each getter is one property read.

use js_sys::{Object, Promise};
use wasm_bindgen::prelude::*;
use weir_limiter::bindings::CounterNamespace;

#[wasm_bindgen]
extern "C" {
    /// The Worker's environment.
    #[derive(Clone, Debug)]
    pub type Bindings;

    /// The objects that count submissions.
    #[wasm_bindgen(method, getter, js_name = ADDRESS_COUNTERS)]
    pub(crate) fn address_counters(this: &Bindings) -> Option<CounterNamespace>;

    /// The native limiter that decides on submissions when no counting object can.
    #[wasm_bindgen(method, getter, js_name = SUBMISSION_LIMITER)]
    pub(crate) fn submission_limiter(this: &Bindings) -> Option<NativeLimiter>;

    /// The native limiter that decides on users' submissions when no counting object can.
    #[wasm_bindgen(method, getter, js_name = USER_LIMITER)]
    pub(crate) fn user_limiter(this: &Bindings) -> Option<NativeLimiter>;

    /// The native limiter of all other anonymous requests.
    #[wasm_bindgen(method, getter, js_name = READ_LIMITER)]
    pub(crate) fn read_limiter(this: &Bindings) -> Option<NativeLimiter>;

    /// The page's files.
    #[wasm_bindgen(method, getter, js_name = ASSETS)]
    pub(crate) fn assets(this: &Bindings) -> Option<Fetcher>;

    /// The Analytics Engine data set that counts events, if one is bound.
    #[wasm_bindgen(method, getter, js_name = METRICS)]
    pub(crate) fn metrics(this: &Bindings) -> Option<DataSet>;

    /// The number of the edge, in a Worker with several. None for the first.
    #[wasm_bindgen(method, getter, js_name = WEIR_EDGE)]
    pub(crate) fn edge(this: &Bindings) -> Option<u32>;

    /// A rate limiting binding.
    pub(crate) type NativeLimiter;

    #[wasm_bindgen(method, catch)]
    pub(crate) fn limit(this: &NativeLimiter, options: &Object) -> Result<Promise, JsValue>;

    /// A service that answers requests.
    pub(crate) type Fetcher;

    #[wasm_bindgen(method, catch)]
    pub(crate) fn fetch(this: &Fetcher, request: &web_sys::Request) -> Result<Promise, JsValue>;

    /// An Analytics Engine data set.
    pub(crate) type DataSet;

    #[wasm_bindgen(method, catch, js_name = writeDataPoint)]
    pub(crate) fn write_data_point(this: &DataSet, point: &Object) -> Result<(), JsValue>;

    /// A request with Cloudflare's data on the client.
    pub(crate) type IncomingRequest;

    #[wasm_bindgen(method, getter)]
    pub(crate) fn cf(this: &IncomingRequest) -> Option<ClientLocation>;

    /// The location of the client's address.
    pub(crate) type ClientLocation;

    #[wasm_bindgen(method, getter)]
    pub(crate) fn continent(this: &ClientLocation) -> Option<String>;

    #[wasm_bindgen(method, getter)]
    pub(crate) fn longitude(this: &ClientLocation) -> Option<String>;

    /// The global `fetch`.
    #[wasm_bindgen(catch, js_name = fetch)]
    pub(crate) fn fetch_url(url: &str, init: &web_sys::RequestInit) -> Result<Promise, JsValue>;

    #[wasm_bindgen(js_namespace = crypto, js_name = randomUUID)]
    pub(crate) fn random_uuid() -> String;
}

/// An object with one property.
pub(crate) fn object(name: &str, value: &JsValue) -> Object {
    let object = Object::new();
    // Setting a property of a plain object cannot fail.
    let _ = js_sys::Reflect::set(&object, &JsValue::from_str(name), value);
    object
}

//! The bindings of `wrangler.toml`, typed. Each getter is one property read.

use js_sys::{Object, Promise, Uint8Array};
use wasm_bindgen::prelude::*;

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

    /// The namespace of the counting objects.
    pub(crate) type CounterNamespace;

    #[wasm_bindgen(method, catch, js_name = getByName)]
    pub(crate) fn get_by_name(this: &CounterNamespace, name: &str) -> Result<CounterStub, JsValue>;

    #[wasm_bindgen(method, catch, js_name = getByName)]
    pub(crate) fn get_by_name_with_options(
        this: &CounterNamespace,
        name: &str,
        options: &Object,
    ) -> Result<CounterStub, JsValue>;

    /// A stub that calls one counting object.
    pub(crate) type CounterStub;

    /// Calls `AddressCounter::take`. The promise resolves to a packed result.
    #[wasm_bindgen(method, catch)]
    pub(crate) fn take(
        this: &CounterStub,
        kind: u32,
        upper: u32,
        lower: u32,
        cost: u32,
    ) -> Result<Promise, JsValue>;

    /// The storage of an object.
    pub(crate) type ObjectStorage;

    #[wasm_bindgen(method, getter)]
    pub(crate) fn kv(this: &ObjectStorage) -> Values;

    /// The storage as a synchronous key-value store. The runtime holds responses back until writes are durable.
    pub(crate) type Values;

    #[wasm_bindgen(method, catch)]
    pub(crate) fn put(this: &Values, name: &str, value: &Uint8Array) -> Result<(), JsValue>;

    #[wasm_bindgen(method, catch)]
    pub(crate) fn get(this: &Values, name: &str) -> Result<Option<Uint8Array>, JsValue>;

    /// Names and values.
    #[wasm_bindgen(method, catch)]
    pub(crate) fn list(this: &Values) -> Result<JsValue, JsValue>;

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

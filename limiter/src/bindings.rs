//! The counting objects and their storage, typed.

use js_sys::{Object, Promise, Uint8Array};
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    /// The namespace of the counting objects.
    pub type CounterNamespace;

    /// The object of this name.
    #[wasm_bindgen(method, catch, js_name = getByName)]
    pub fn get_by_name(this: &CounterNamespace, name: &str) -> Result<CounterStub, JsValue>;

    /// The object of this name, which is created where the options name.
    #[wasm_bindgen(method, catch, js_name = getByName)]
    pub fn get_by_name_with_options(
        this: &CounterNamespace,
        name: &str,
        options: &Object,
    ) -> Result<CounterStub, JsValue>;

    /// A stub that calls one counting object.
    pub type CounterStub;

    /// Calls `AddressCounter::take`. The promise resolves to a packed result.
    #[wasm_bindgen(method, catch)]
    pub fn take(this: &CounterStub, kind: u32, upper: u32, lower: u32, cost: u32)
    -> Result<Promise, JsValue>;

    /// Calls `AddressCounter::refund`, as [`Self::take`].
    #[wasm_bindgen(method, catch)]
    pub fn refund(
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
}

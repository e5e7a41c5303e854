//! Access to the runtime in few calls. The other half is `glue.mjs`.

use js_sys::{Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{Request, Response};

use crate::bindings::Bindings;

#[wasm_bindgen(module = "/src/glue.mjs")]
extern "C" {
    /// The Worker's variables and secrets as a JSON object. A binding to a service is `{"fetch": true}`, and one to
    /// anything else an empty object.
    pub(crate) fn variables(bindings: &Bindings) -> String;

    /// A secret of the Secrets Store.
    #[wasm_bindgen(catch)]
    pub(crate) async fn secret(bindings: &Bindings, name: &str) -> Result<JsValue, JsValue>;

    /// Keeps an owner's counts, which outlive a panic.
    pub(crate) fn save(owner: &str, counts: &Uint8Array);

    /// Removes and returns an owner's counts.
    pub(crate) fn restore(owner: &str) -> Option<Uint8Array>;

    /// A list of header names.
    #[derive(Clone, Debug)]
    pub(crate) type Names;

    /// A list of header names from a text with one name per line.
    pub(crate) fn names(lines: &str) -> Names;

    fn facts(request: &Request, read: &Names) -> String;

    /// The `Cache-Control` header of a response.
    #[wasm_bindgen(js_name = cacheControl)]
    pub(crate) fn cache_control(response: &Response) -> Option<String>;

    /// Decides which headers pass.
    #[derive(Debug)]
    pub(crate) type HeaderFilter;

    #[wasm_bindgen(constructor)]
    fn new(passes: &JsValue) -> HeaderFilter;

    /// Forwards a request to a URL, or to the service of this binding, with the headers that pass and these changes. The
    /// Worker's own handler also gets the caller as JSON. The
    /// promise resolves to the response. It rejects with [`TOO_LARGE`], [`CLIENT_ABORTED`], [`CLIENT_SLOW`],
    /// [`TIMED_OUT`] or the error of the origin.
    #[wasm_bindgen(catch)]
    pub(crate) fn forward(
        bindings: &Bindings,
        service: Option<&str>,
        url: &str,
        request: &Request,
        caller: Option<&str>,
        filter: &HeaderFilter,
        changes: &str,
        max_body_bytes: Option<u32>,
        upload_timeout_ms: u32,
        origin_timeout_ms: Option<u32>,
    ) -> Result<Promise, JsValue>;

    /// The same response with the headers that pass and these changes. Without a filter, all headers pass.
    #[wasm_bindgen(catch)]
    pub(crate) fn pass(
        response: &Response,
        filter: Option<&HeaderFilter>,
        changes: &str,
    ) -> Result<Response, JsValue>;

    /// A new response with these headers.
    #[wasm_bindgen(catch)]
    pub(crate) fn respond(status: u16, changes: &str, body: Option<&str>) -> Result<Response, JsValue>;

    /// Posts a JSON text with these headers. The promise resolves to the status of the response.
    pub(crate) fn post(url: &str, changes: &str, body: &str) -> Promise;

    /// Checks a signature of a token with a public key, a JWK. The promise resolves to a boolean.
    #[wasm_bindgen(js_name = verifySignature)]
    pub(crate) fn verify_signature(jwk: &str, algorithm: &str, signed: &str, signature: &[u8]) -> Promise;

    /// Keeps the isolate working on `promise` after the current request has been answered.
    #[wasm_bindgen(js_name = waitUntil)]
    pub(crate) fn wait_until(promise: &Promise);

    /// Resolves after this many milliseconds.
    pub(crate) fn sleep(milliseconds: u32) -> Promise;

    /// Settles as `promise` does, or rejects with [`TIMED_OUT`] after this many milliseconds.
    #[wasm_bindgen(js_name = withTimeout)]
    pub(crate) fn with_timeout(promise: &Promise, milliseconds: u32) -> Promise;
}

/// The error of [`with_timeout`] after the timeout.
pub(crate) const TIMED_OUT: &str = "timed out";

/// The body is longer than allowed.
pub(crate) const TOO_LARGE: &str = "too large";

/// The client did not send all of the body.
pub(crate) const CLIENT_ABORTED: &str = "client aborted";

/// The client did not send the body in time.
pub(crate) const CLIENT_SLOW: &str = "client slow";

/// Values packed one per line.
#[derive(Debug)]
pub(crate) struct Packed(String);

impl Packed {
    /// The values, in order.
    pub(crate) fn lines(&self) -> Lines<'_> {
        Lines(self.0.split('\n'))
    }
}

/// Reads the values of a [`Packed`] in order.
#[derive(Debug)]
pub(crate) struct Lines<'a>(std::str::Split<'a, char>);

impl<'a> Lines<'a> {
    /// The next value that is always present.
    pub(crate) fn text(&mut self) -> &'a str {
        self.0.next().unwrap_or_default()
    }

    /// The next header's value; `None` if the header is absent.
    pub(crate) fn value(&mut self) -> Option<&'a str> {
        self.text().strip_prefix('=')
    }
}

/// A request's method, URL and the values of these headers, in this order.
pub(crate) fn facts_of(request: &Request, read: &Names) -> Packed {
    Packed(facts(request, read))
}

/// A filter of headers that lives as long as the isolate. It calls `passes` once for each name.
pub(crate) fn header_filter(passes: impl Fn(&str) -> bool + 'static) -> HeaderFilter {
    let passes = Closure::<dyn Fn(String) -> bool>::new(move |name: String| passes(&name));
    HeaderFilter::new(&passes.into_js_value())
}

/// Changes to headers, packed. Names are in lower case: two that differ in case would be two headers.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderChanges(String);

impl HeaderChanges {
    /// Sets a header.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> &mut Self {
        self.push("", name, value)
    }

    /// Sets a header that is absent.
    pub(crate) fn set_absent(&mut self, name: &str, value: &str) -> &mut Self {
        self.push("?", name, value)
    }

    /// Appends a value to a header.
    pub(crate) fn append(&mut self, name: &str, value: &str) -> &mut Self {
        self.push("+", name, value)
    }

    /// Removes a header.
    pub(crate) fn remove(&mut self, name: &str) -> &mut Self {
        self.push("-", name, "")
    }

    /// Appends all changes of `others`.
    pub(crate) fn extend(&mut self, others: &HeaderChanges) -> &mut Self {
        if !self.0.is_empty() && !others.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(&others.0);
        self
    }

    fn push(&mut self, how: &str, name: &str, value: &str) -> &mut Self {
        debug_assert!(!name.contains(char::is_uppercase), "{name}");
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(how);
        self.0.push_str(name);
        self.0.push('\n');
        // A line break would start another header. No current value can contain one; this keeps it so.
        for part in value.split(['\r', '\n', '\0']) {
            self.0.push_str(part);
        }
        self
    }

    /// The format that `glue.mjs` reads.
    pub(crate) fn packed(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_unpacked_in_order_and_absent_differs_from_empty() {
        let packed = Packed("GET\nhttp://x/\n=a\n\n=\n".to_owned());
        let mut lines = packed.lines();
        assert_eq!((lines.text(), lines.text()), ("GET", "http://x/"));
        assert_eq!(
            (lines.value(), lines.value(), lines.value()),
            (Some("a"), None, Some(""))
        );
        assert_eq!(lines.value(), None);
    }

    #[test]
    fn header_changes_are_pairs_of_lines() {
        let mut changes = HeaderChanges::default();
        changes.set("a", "1").append("b", "2").remove("c");
        assert_eq!(changes.packed(), "a\n1\n+b\n2\n-c\n");
        let mut more = HeaderChanges::default();
        more.extend(&changes).set("d", "4");
        assert_eq!(more.packed(), "a\n1\n+b\n2\n-c\n\nd\n4");
    }

    #[test]
    fn a_value_cannot_start_another_header() {
        let mut changes = HeaderChanges::default();
        changes.set("a", "1\r\nx-user-id\nroot");
        assert_eq!(changes.packed(), "a\n1x-user-idroot");
    }
}

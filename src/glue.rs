//! Talking to the runtime in few calls; the other half is `glue.mjs`.

use js_sys::Promise;
use wasm_bindgen::prelude::*;
use web_sys::{Headers, Request, Response};

#[wasm_bindgen(module = "/src/glue.mjs")]
extern "C" {
    /// A list of header names.
    #[derive(Clone, Debug)]
    pub(crate) type Names;

    /// The list of these names, one to a line.
    pub(crate) fn names(lines: &str) -> Names;

    fn values(headers: &Headers, lines: &str) -> String;

    fn facts(request: &Request, lines: &str) -> String;

    /// Sends a request on with the listed ones of its headers and these changes.
    #[wasm_bindgen(catch)]
    pub(crate) fn forward(
        url: &str,
        method: &str,
        request: &Request,
        listed: &Names,
        changes: &str,
    ) -> Result<Promise, JsValue>;

    /// Passes an answer on with the listed ones of its headers and these changes.
    #[wasm_bindgen(catch)]
    pub(crate) fn pass(response: &Response, listed: &Names, changes: &str) -> Result<Response, JsValue>;

    /// An answer with these headers.
    #[wasm_bindgen(catch)]
    pub(crate) fn respond(status: u16, changes: &str, body: Option<&str>) -> Result<Response, JsValue>;

    /// Posts a JSON text with these headers; the promise's value is the answer's status.
    pub(crate) fn post(url: &str, changes: &str, body: &str) -> Promise;

    /// Lets what a promise stands for go on when the present request has been answered.
    #[wasm_bindgen(js_name = waitUntil)]
    pub(crate) fn wait_until(promise: &Promise);

    /// Comes to nothing in so many milliseconds.
    pub(crate) fn after(milliseconds: u32) -> Promise;

    /// What a promise comes to, or a rejection with [`TIMED_OUT`] after so many milliseconds.
    pub(crate) fn within(promise: &Promise, milliseconds: u32) -> Promise;
}

/// What [`within`] rejects with when it has taken too long.
pub(crate) const TIMED_OUT: &str = "timed out";

/// Packed values, to be taken out one after the other.
#[derive(Debug)]
pub(crate) struct Packed(String);

impl Packed {
    /// The lines of the package.
    pub(crate) fn lines(&self) -> Lines<'_> {
        Lines(self.0.split('\n'))
    }
}

/// See [`Packed`].
#[derive(Debug)]
pub(crate) struct Lines<'a>(std::str::Split<'a, char>);

impl<'a> Lines<'a> {
    /// The next text, which is always there.
    pub(crate) fn text(&mut self) -> &'a str {
        self.0.next().unwrap_or_default()
    }

    /// The next header's value, if it was sent.
    pub(crate) fn value(&mut self) -> Option<&'a str> {
        self.text().strip_prefix('=')
    }
}

/// A request's method, URL and the values of these headers (names one to a line), in this order.
pub(crate) fn facts_of(request: &Request, lines: &str) -> Packed {
    Packed(facts(request, lines))
}

/// The values of these headers, in their order.
pub(crate) fn values_of(headers: &Headers, lines: &str) -> Packed {
    Packed(values(headers, lines))
}

/// Changes to headers, packed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes(String);

impl Changes {
    /// Sets a header.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> &mut Self {
        self.push("", name, value)
    }

    /// Adds a value to what a header may have already.
    pub(crate) fn append(&mut self, name: &str, value: &str) -> &mut Self {
        self.push("+", name, value)
    }

    /// Takes a header away.
    pub(crate) fn remove(&mut self, name: &str) -> &mut Self {
        self.push("-", name, "")
    }

    /// All of these changes, too.
    pub(crate) fn extend(&mut self, others: &Changes) -> &mut Self {
        if !self.0.is_empty() && !others.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(&others.0);
        self
    }

    fn push(&mut self, how: &str, name: &str, value: &str) -> &mut Self {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(how);
        self.0.push_str(name);
        self.0.push('\n');
        // A line break would begin another header. None of the values can have one; this is so that none ever will.
        self.0.extend(
            value
                .chars()
                .filter(|letter| !matches!(letter, '\r' | '\n' | '\0')),
        );
        self
    }

    /// As `glue.mjs` reads it.
    pub(crate) fn packed(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_out_in_order_and_absent_ones_are_told_from_empty_ones() {
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
    fn changes_are_pairs_of_lines() {
        let mut changes = Changes::default();
        changes.set("a", "1").append("b", "2").remove("c");
        assert_eq!(changes.packed(), "a\n1\n+b\n2\n-c\n");
        let mut more = Changes::default();
        more.extend(&changes).set("d", "4");
        assert_eq!(more.packed(), "a\n1\n+b\n2\n-c\n\nd\n4");
    }

    #[test]
    fn no_value_can_begin_another_header() {
        let mut changes = Changes::default();
        changes.set("a", "1\r\nx-user-id\nroot");
        assert_eq!(changes.packed(), "a\n1x-user-idroot");
    }
}

//! The Worker's variables and secrets, read with their types. Each one is text or the JSON value that the text stands for.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use serde_json::Value;
use wasm_bindgen::prelude::wasm_bindgen;
use weir_policy::misspelling::{nearest, suggestion};

use crate::bindings::Bindings;
use crate::glue;

/// All settings of the edge.
pub(crate) const SETTINGS: [&str; 44] = [
    "ACCESS_LOG",
    "ALLOW",
    "ANON_ALGORITHM",
    "ANON_LIMIT",
    "ANON_MODE",
    "ANON_PREFIX_LIMIT",
    "ANON_READ_LIMIT",
    "ANON_WINDOW",
    "ASSERTION_CLAIMS",
    "CLIENT_IP_SOURCE",
    "CORS_METHODS",
    "CORS_ORIGINS",
    "CORS_REQUEST_HEADERS",
    "CORS_RESPONSE_HEADERS",
    "COUNTER_SHARDS",
    "COUNTER_TIMEOUT_MS",
    "DENY",
    "DEVELOPMENT",
    "DRILLS",
    "EDGE_SECRET",
    "HOLDER_CLAIM",
    "IDENTITY_HEADERS",
    "IPV6_PREFIX",
    "ISSUERS",
    "JWKS_COOLDOWN_MS",
    "JWKS_MAX_AGE_MS",
    "JWKS_URL",
    "JWT_AUDIENCE",
    "JWT_ISSUER",
    "JWT_REQUIRED_CLAIMS",
    "JWT_SECRET",
    "LIMITED_ROUTES",
    "MAX_BODY_BYTES",
    "ORIGINS",
    "ORIGIN_TIMEOUT_MS",
    "ORIGIN_URL",
    "REPORT_INTERVAL_MS",
    "ROUTES",
    "TOKEN_COOKIE",
    "UNMATCHED",
    "UPLOAD_TIMEOUT_MS",
    "USER_LIMIT",
    "USER_WINDOW",
    "WITHOUT_COUNTER",
];

/// The settings that may be bindings of the Secrets Store.
pub(crate) const SECRETS: [&str; 2] = ["EDGE_SECRET", "JWT_SECRET"];

/// Settings with names that are common elsewhere. Other code in the same Worker may have a variable of nearly the same name.
const COMMON: [&str; 21] = [
    "ACCESS_LOG",
    "ALLOW",
    "CORS_METHODS",
    "CORS_ORIGINS",
    "CORS_REQUEST_HEADERS",
    "CORS_RESPONSE_HEADERS",
    "DENY",
    "DEVELOPMENT",
    "EDGE_SECRET",
    "ISSUERS",
    "JWKS_URL",
    "JWT_AUDIENCE",
    "JWT_ISSUER",
    "JWT_SECRET",
    "ORIGINS",
    "ORIGIN_URL",
    "ROUTES",
    "TOKEN_COOKIE",
    "UNMATCHED",
    "USER_LIMIT",
    "USER_WINDOW",
];

/// The binding of the Worker's own handler. `own.mjs` adds it to the bindings of a request.
pub(crate) const HANDLER: &str = "WEIR_NEXT";

/// The name of the handler among the origins.
pub(crate) const HANDLER_ORIGIN: &str = "next";

/// The number of an edge of a Worker with several. `weir.mjs` adds it to the bindings of all but the first.
pub(crate) const EDGE: &str = "WEIR_EDGE";

/// Marks the bindings of an edge in a Worker's own code, which reads variables with the prefix `WEIR_`. `weir.mjs` adds it
/// and removes the prefix.
const LIBRARY: &str = "WEIR_LIBRARY";

/// The names of all settings, one per line.
#[allow(unreachable_pub, reason = "wasm-bindgen exports only public functions")]
#[wasm_bindgen(js_name = settingNames)]
pub fn setting_names() -> String {
    SETTINGS.join("\n")
}

/// The message about options of `createWeir()` that are no settings, if there are any. `names` has one name per line: that
/// of a setting, or the same in camel case.
#[allow(unreachable_pub, reason = "wasm-bindgen exports only public functions")]
#[wasm_bindgen(js_name = unknownOptions)]
pub fn unknown_options(names: &str) -> Option<String> {
    let is_known = |name: &&str| {
        SETTINGS
            .iter()
            .any(|known| known == name || option_name(known) == **name)
    };
    let unknown: Vec<_> = names
        .lines()
        .filter(|name| !is_known(name))
        .map(|name| {
            let nearest = nearest(name, SETTINGS).map(option_name).unwrap_or_default();
            format!("{name} (the nearest option is {nearest})")
        })
        .collect();
    (!unknown.is_empty()).then(|| format!("unknown options: {}", unknown.join(", ")))
}

/// The name of a setting as an option, such as `anonLimit` for `ANON_LIMIT`.
fn option_name(setting: &str) -> String {
    let mut words = setting.split('_').map(str::to_lowercase);
    let first = words.next().unwrap_or_default();
    words.fold(first, |name, word| {
        let (initial, rest) = word.split_at(1);
        name + &initial.to_uppercase() + rest
    })
}

/// The Worker's variables and secrets by name. A binding to a service is `{"fetch": true}`, and one to anything else an
/// empty object.
pub(crate) type Variables = BTreeMap<String, Value>;

/// The variables, without secrets of the Secrets Store.
pub(crate) fn variables(bindings: &Bindings) -> Variables {
    // The text is always an object.
    serde_json::from_str(&glue::variables(bindings)).unwrap_or_default()
}

/// Reads the secrets that are bindings of the Secrets Store.
///
/// # Errors
/// When the store returns none. It may return one the next time.
pub(crate) async fn read_secrets(bindings: &Bindings, variables: &mut Variables) -> Result<(), Vec<String>> {
    let mut errors = Vec::new();
    for name in SECRETS {
        let Some(value @ Value::Object(_)) = variables.get_mut(name) else {
            continue;
        };
        match glue::secret(bindings, name).await {
            Ok(secret) => *value = secret.as_string().map_or(Value::Null, Value::String),
            Err(_) => errors.push(format!("{name}: the Secrets Store did not return a secret")),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Reads settings and collects their errors, so that all of them can be fixed at once.
pub(crate) struct Reader<'a> {
    variables: &'a Variables,
    pub(crate) errors: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(variables: &'a Variables) -> Self {
        let errors = Vec::new();
        Self { variables, errors }
    }

    /// The value of a setting. An empty text counts as not set.
    fn value(&self, name: &str) -> Option<&'a Value> {
        debug_assert!(SETTINGS.contains(&name), "{name}");
        self.variables.get(name).filter(|value| !is_empty(value))
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// A setting that is one text.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        match self.value(name)? {
            Value::String(text) => Some(text.trim().to_owned()),
            other => self.wrong_type(name, other, "a string"),
        }
    }

    /// A setting that is a string or a list of strings.
    pub(crate) fn texts(&mut self, name: &str) -> Option<Vec<String>> {
        let value = self.value(name)?;
        texts_of(value).or_else(|| self.wrong_type(name, value, "a string or a list of strings"))
    }

    /// A setting that is one word or number.
    fn scalar(&mut self, name: &str, expected: &str) -> Option<String> {
        match self.value(name)? {
            Value::String(text) => Some(text.trim().to_owned()),
            value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string()),
            other => self.wrong_type(name, other, expected),
        }
    }

    fn wrong_type<T>(&mut self, name: &str, value: &Value, expected: &str) -> Option<T> {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list of something else",
            Value::Object(_) => "an object or another binding",
        };
        self.errors.push(format!("{name} is {kind}; expected {expected}"));
        None
    }

    pub(crate) fn number(&mut self, name: &str, default: u32, min: u32, max: u32) -> u32 {
        if !self.is_set(name) {
            return default;
        }
        let expected = format!("a whole number from {min} to {max}");
        let Some(text) = self.scalar(name, &expected) else {
            return default;
        };
        match text.parse() {
            Ok(number) if (min..=max).contains(&number) => number,
            _ => {
                self.errors
                    .push(format!("{name} is `{text}`; expected {expected}"));
                default
            }
        }
    }

    /// A setting in JSON: its value, or that of its text.
    pub(crate) fn json(&mut self, name: &str) -> Option<Value> {
        match self.value(name)? {
            Value::String(text) => serde_json::from_str(text)
                .map_err(|error| self.errors.push(format!("{name} is not JSON: {error}")))
                .ok(),
            value => Some(value.clone()),
        }
    }

    /// A setting in JSON that is an object. Reports no errors.
    pub(crate) fn object(&self, name: &str) -> Option<serde_json::Map<String, Value>> {
        match self.value(name)? {
            Value::String(text) => serde_json::from_str(text).ok(),
            Value::Object(members) => Some(members.clone()),
            _ => None,
        }
    }

    /// Any variable or secret that is text.
    pub(crate) fn any_text(&self, name: &str) -> Option<String> {
        let text = self.variables.get(name)?.as_str()?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// Whether a binding is a service.
    pub(crate) fn is_service(&self, binding: &str) -> bool {
        let value = self.variables.get(binding);
        value.is_some_and(|value| value.get("fetch") == Some(&Value::Bool(true)))
    }

    /// One of several words. The first is the default. A boolean stands for `on` or `off`.
    pub(crate) fn one_of<T: Copy, const N: usize>(&mut self, name: &str, words: &[(&str, T); N]) -> T {
        words[self.place(name, &words.map(|(word, _)| word))].1
    }

    /// The place of a setting among several words. Not part of the generic function, of which there are many copies.
    #[inline(never)]
    fn place(&mut self, name: &str, words: &[&str]) -> usize {
        if !self.is_set(name) {
            return 0;
        }
        let expected: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
        let expected = expected.join(" or ");
        let Some(text) = self.scalar(name, &expected) else {
            return 0;
        };
        let written = match text.as_str() {
            "true" => "on",
            "false" => "off",
            other => other,
        };
        words.iter().position(|word| *word == written).unwrap_or_else(|| {
            self.errors
                .push(format!("{name} is `{text}`; expected {expected}"));
            0
        })
    }

    /// A list: texts separated by commas, or a list of strings.
    pub(crate) fn parsed<T: FromStr<Err: Display>>(&mut self, name: &str, default: &str) -> Option<T> {
        let text = if self.is_set(name) {
            self.texts(name)?.join(",")
        } else {
            default.to_owned()
        };
        text.parse()
            .map_err(|error| self.errors.push(format!("{name}: {error}")))
            .ok()
    }

    /// Reports variables with names close to that of a setting. They would have no effect.
    pub(crate) fn misspelt(&mut self) {
        let is_library = self.variables.contains_key(LIBRARY);
        for (name, value) in self.variables {
            let is_empty = value.as_str().is_some_and(|text| text.trim().is_empty());
            if SETTINGS.contains(&name.as_str()) || is_empty {
                continue;
            }
            if is_library {
                // Variables without the prefix belong to other code.
                let own = name.strip_prefix("WEIR_").unwrap_or_default();
                if let Some(setting) = suggestion(own, SETTINGS) {
                    self.errors
                        .push(format!("{name} is not a setting; did you mean WEIR_{setting}?"));
                }
                continue;
            }
            let Some(setting) = suggestion(&name.to_ascii_uppercase(), SETTINGS) else {
                continue;
            };
            let mut error = format!("{name} is not a setting; did you mean {setting}?");
            if COMMON.contains(&setting) {
                if self.variables.contains_key(setting) {
                    continue;
                }
                error.push_str(&format!(
                    " If other code uses it, also set {setting}, even to an empty value."
                ));
            }
            self.errors.push(error);
        }
    }
}

/// Whether a value counts as not set.
pub(crate) fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty())
}

/// A string or a list of strings that are not empty, trimmed; `None` for another value.
pub(crate) fn texts_of(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.trim().to_owned()]),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map(|text| text.trim().to_owned()))
            .map(|text| text.filter(|text| !text.is_empty()))
            .collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_an_option_under_two_names() {
        for setting in SETTINGS {
            let names = format!("{setting}\n{}", option_name(setting));
            assert_eq!(unknown_options(&names), None, "{names}");
        }
        assert_eq!(option_name("IPV6_PREFIX"), "ipv6Prefix");
        assert_eq!(unknown_options(""), None);
    }

    #[test]
    fn unknown_options_are_listed_with_the_nearest_one() {
        assert_eq!(
            unknown_options("limits\nanonLimit\njwksURL").as_deref(),
            Some(
                "unknown options: limits (the nearest option is anonLimit), jwksURL (the nearest option is jwksUrl)"
            )
        );
    }
}

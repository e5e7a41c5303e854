//! The origins that requests are forwarded to.

use std::collections::BTreeMap;

use http::Uri;
use serde_json::Value;

use crate::settings::HANDLER;
use crate::url;

/// An origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A server on the network.
    Url {
        /// Scheme, host and port, without a trailing slash.
        base: String,
        /// The host, with a port unless it is the usual one, as in the URLs of requests.
        host: String,
    },
    /// A binding with a method `fetch`: another Worker, a service in a private network, or a client certificate.
    Service {
        binding: String,
        /// Scheme, host and port of the URLs that it gets. Default: those of the client's URL.
        base: Option<String>,
    },
}

impl Origin {
    /// An origin by its URL, which has no path: assertions name the path that the origin receives.
    ///
    /// # Errors
    /// The reason why the URL is invalid.
    pub(crate) fn from_url(text: &str) -> Result<Self, String> {
        let uri = url::parse_trusted(text).map_err(|error| error.to_string())?;
        Ok(Self::Url {
            host: url::usual_host(&uri),
            base: base(&uri, text)?,
        })
    }

    /// Whether requests to this host would come back to the edge.
    pub(crate) fn is_at(&self, requested_host: &str) -> bool {
        match self {
            Self::Url { host, .. } => host == requested_host,
            Self::Service { .. } => false,
        }
    }

    /// Whether it is the Worker's own handler.
    pub(crate) fn is_own_handler(&self) -> bool {
        matches!(self, Self::Service { binding, .. } if binding == HANDLER)
    }

    /// Whether the origin is on this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Url { host, .. } => url::is_loopback(host),
            Self::Service { .. } => false,
        }
    }
}

/// Scheme, host and port of a URL without a path or a query.
fn base(uri: &Uri, text: &str) -> Result<String, String> {
    if uri.path_and_query().is_some_and(|path| path != "/") || text.contains('#') {
        return Err("expected a URL without path and query".to_owned());
    }
    Ok(uri.to_string().trim_end_matches('/').to_owned())
}

/// Reads origins from a JSON object. Each member is a URL, or `{"service": BINDING}`, which may also have `url`.
/// `is_service` checks the name of a binding. `name` is that of the setting.
///
/// # Errors
/// All errors, each with the path of the faulty member.
// Isolates compile whole functions, and need this one only if the setting is set.
#[inline(never)]
pub(crate) fn from_json(
    name: &str,
    json: &Value,
    is_service: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, Origin>, Vec<String>> {
    let Value::Object(members) = json else {
        return Err(vec![format!(
            "{name}: expected an object, such as {{\"shop\": \"https://shop.example.com\"}}"
        )]);
    };
    let mut errors = Vec::new();
    let mut origins = BTreeMap::new();
    for (member, value) in members {
        match origin(value, &is_service) {
            Ok(origin) => {
                origins.insert(member.clone(), origin);
            }
            Err(error) => errors.push(format!("{name}.{member}{error}")),
        }
    }
    if errors.is_empty() {
        Ok(origins)
    } else {
        Err(errors)
    }
}

/// One origin, or the error with the rest of its path.
fn origin(value: &Value, is_service: impl Fn(&str) -> bool) -> Result<Origin, String> {
    match value {
        Value::String(text) => Origin::from_url(text.trim()).map_err(|error| format!(": {error}")),
        Value::Object(members)
            if members
                .keys()
                .all(|key| ["service", "url"].contains(&key.as_str())) =>
        {
            let binding = match members.get("service") {
                Some(Value::String(binding)) if is_service(binding) => binding.clone(),
                Some(Value::String(binding)) => {
                    return Err(format!(
                        ".service: `{binding}` is not a service binding; add it to [[services]]"
                    ));
                }
                _ => return Err(".service: expected the name of a binding in [[services]]".to_owned()),
            };
            let base = members.get("url").map(service_base).transpose();
            Ok(Origin::Service {
                binding,
                base: base.map_err(|error| format!(".url: {error}"))?,
            })
        }
        _ => Err(": expected a URL, or {\"service\": BINDING}".to_owned()),
    }
}

/// The base of a service's URLs. Plain HTTP is allowed, because the binding protects the request.
fn service_base(value: &Value) -> Result<String, String> {
    let expected = "expected an http:// or https:// URL, such as `http://api.internal`";
    let text = value.as_str().ok_or(expected)?.trim();
    let uri: Uri = text.parse().map_err(|_| expected)?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    if !is_http || text.contains('@') {
        return Err(expected.to_owned());
    }
    base(&uri, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_origin_is_a_url_or_a_service_binding() {
        let read = |json| from_json("ORIGINS", &json, |name| name == "SITE");
        let origins =
            read(json!({"shop": "https://Shop.example.com:443/", "site": {"service": "SITE"}})).unwrap();
        assert!(origins["shop"].is_at("shop.example.com"));
        let service = |base: Option<&str>| Origin::Service {
            binding: "SITE".to_owned(),
            base: base.map(str::to_owned),
        };
        assert_eq!(origins["site"], service(None));
        let origins = read(json!({"site": {"service": "SITE", "url": "http://api.internal:8080/"}})).unwrap();
        assert_eq!(origins["site"], service(Some("http://api.internal:8080")));
        assert_eq!(read(json!({})), Ok(BTreeMap::new()));

        let errors = read(json!({
            "a": "http://shop.example.com",
            "b": "https://shop.example.com/v1",
            "c": {"service": "OTHER"},
            "d": {"service": 1},
            "e": {"service": "SITE", "name": "x"},
            "f": 5,
            "g": {"url": "https://shop.example.com"},
            "h": {"service": "SITE", "url": "ftp://shop.example.com"},
            "i": {"service": "SITE", "url": "https://shop.example.com/v1"},
            "j": {"service": "SITE", "url": 1},
        }))
        .unwrap_err();
        let starts = [
            "ORIGINS.a: expected https://",
            "ORIGINS.b: expected a URL without path",
            "ORIGINS.c.service: `OTHER` is not a service binding",
            "ORIGINS.d.service: expected the name",
            "ORIGINS.e: expected a URL, or",
            "ORIGINS.f: expected a URL, or",
            "ORIGINS.g.service: expected the name",
            "ORIGINS.h.url: expected an http:// or",
            "ORIGINS.i.url: expected a URL without path",
            "ORIGINS.j.url: expected an http:// or",
        ];
        assert_eq!(errors.len(), starts.len(), "{errors:?}");
        for (error, start) in errors.iter().zip(starts) {
            assert!(error.starts_with(start), "{error}");
        }
        assert_eq!(read(json!(["https://shop.example.com"])).unwrap_err().len(), 1);
    }
}

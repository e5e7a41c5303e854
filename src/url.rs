//! URLs of the configuration, and hosts.

use std::net::IpAddr;

use http::Uri;
use http::uri::{Authority, Scheme};

/// Why a URL is not accepted. The messages contain no part of the URL, which may include credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UrlError {
    #[error("expected an absolute http:// or https:// URL")]
    Malformed,
    #[error("expected a URL without user name and password")]
    Credentials,
    #[error("expected https://; http:// is allowed only for this machine (127.0.0.1, [::1] or localhost)")]
    PlainHttp,
}

/// Parses a URL to which secrets are sent or from which keys are fetched: HTTPS, or HTTP to the loopback interface.
/// Other parsers agree on its host, since this one accepts no text that they normalise.
pub(crate) fn parse_trusted(text: &str) -> Result<Uri, UrlError> {
    let uri: Uri = text.parse().map_err(|_| UrlError::Malformed)?;
    let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
        return Err(UrlError::Malformed);
    };
    if authority.as_str().contains('@') {
        return Err(UrlError::Credentials);
    }
    if authority.host().is_empty() {
        return Err(UrlError::Malformed);
    }
    if *scheme == Scheme::HTTPS || (*scheme == Scheme::HTTP && is_loopback_host(authority.host())) {
        return Ok(uri);
    }
    Err(if *scheme == Scheme::HTTP {
        UrlError::PlainHttp
    } else {
        UrlError::Malformed
    })
}

/// The host as it is in a normalised URL: in lower case, and without the usual port of its scheme.
pub(crate) fn usual_host(uri: &Uri) -> String {
    let usual_port = match uri.scheme_str() {
        Some("http") => 80,
        _ => 443,
    };
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    match uri.port_u16().filter(|port| *port != usual_port) {
        Some(port) => format!("{host}:{port}"),
        None => host,
    }
}

/// Whether a host, with or without a port, is the loopback interface.
pub(crate) fn is_loopback(host: &str) -> bool {
    host.parse::<Authority>()
        .is_ok_and(|authority| is_loopback_host(authority.host()))
}

fn is_loopback_host(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_to_another_machine_is_not_accepted() {
        for url in [
            "http://origin.example.com",
            "http://10.0.0.1",
            "http://127.0.0.1.evil.example",
            "http://localhost.evil.example/jwks",
            "http://128.0.0.1",
            "http://[::2]",
            "http://0.0.0.0",
        ] {
            assert_eq!(parse_trusted(url), Err(UrlError::PlainHttp), "{url}");
        }
    }

    #[test]
    fn https_and_the_loopback_interface_are_accepted() {
        for url in [
            "https://origin.example.com",
            "http://127.0.0.1:8080",
            "http://127.8.8.8/jwks",
            "http://[::1]:8080",
            "http://LOCALHOST",
        ] {
            assert!(parse_trusted(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_url_that_parsers_read_differently_is_not_accepted() {
        for url in [
            "http://127.0.0.1\\@evil.example",
            "http://127.0.0.1\t.evil.example",
            "http:127.0.0.1",
            "http:///127.0.0.1",
            "https://",
            "//127.0.0.1",
            "127.0.0.1",
            "ftp://127.0.0.1",
            "",
        ] {
            assert!(parse_trusted(url).is_err(), "{url}");
        }
        for url in [
            "http://127.0.0.1@evil.example",
            "https://user:password@origin.example.com",
        ] {
            assert_eq!(parse_trusted(url), Err(UrlError::Credentials), "{url}");
        }
    }

    #[test]
    fn hosts_are_compared_without_the_default_port() {
        for (url, host) in [
            ("https://Edge.example.com", "edge.example.com"),
            ("https://edge.example.com:443/", "edge.example.com"),
            ("https://edge.example.com:80", "edge.example.com:80"),
            ("http://127.0.0.1:80", "127.0.0.1"),
            ("http://[::1]:8080", "[::1]:8080"),
        ] {
            assert_eq!(usual_host(&url.parse().unwrap()), host);
        }
    }

    #[test]
    fn a_loopback_host_may_have_a_port() {
        for (host, loopback) in [
            ("127.0.0.1:8787", true),
            ("localhost", true),
            ("[::1]:8787", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example:8787", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(host), loopback, "{host}");
        }
    }
}

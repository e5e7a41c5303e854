//! Restricts the console to operators, and keeps out websites that they have open.
//!
//! An operator is signed in with a service key, or uses this machine:
//! - The connection comes from this machine.
//! - No header shows that a proxy forwards the request of another client.
//! - The host name is this machine's, so that an attacker's name that resolves to this machine does not work.
//!
//! A change comes from one of the console's own pages.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};

use super::super::problem::ApiError;
use super::super::state::Api;
use super::page::ConsoleError;
use super::session;

/// Headers that proxies add. With a proxy on this machine, the whole network would look local.
const PROXY_HEADERS: [&str; 6] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-real-ip",
    "cf-connecting-ip",
];

/// The operator of a request, as in the audit log.
#[derive(Clone)]
pub(super) struct Operator(pub(super) String);

/// Lets operators pass, and sends others to the form. Without a key with the scope `admin`, the routes do not exist for
/// other machines.
pub(super) async fn guard(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let Some(host) = host(request.headers()) else {
        return ApiError::NoRoute.into_response();
    };
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let is_here = peer.is_some_and(|ConnectInfo(peer)| is_local(peer.ip()))
        && is_direct(request.headers())
        && names_this_machine(&host);
    let is_open = [session::SIGN_IN, "/console/style.css"].contains(&request.uri().path());
    let operator = if is_here {
        Some("console".to_owned())
    } else {
        match session::signed_in(&api, request.headers()).await {
            Ok(Some(key)) => Some(format!("key:{key}")),
            Ok(None) => match session::is_possible(&api).await {
                Ok(true) => None,
                Ok(false) => return ApiError::NoRoute.into_response(),
                Err(error) => return ConsoleError::from(error).into_response(),
            },
            Err(error) => return ConsoleError::from(error).into_response(),
        }
    };
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    // The cookie of a session needs HTTPS.
    let scheme = if is_here { "http" } else { "https" };
    if !is_safe && !is_from_console(request.headers(), scheme, &host) {
        return ConsoleError::Foreign.into_response();
    }
    match operator {
        Some(operator) => {
            request.extensions_mut().insert(Operator(operator));
        }
        None if is_open => {}
        None => return Redirect::to(session::SIGN_IN).into_response(),
    }
    next.run(request).await
}

fn is_local(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn is_direct(headers: &HeaderMap) -> bool {
    !PROXY_HEADERS.iter().any(|name| headers.contains_key(*name))
}

/// The `Host` of a request, if there is exactly one.
fn host(headers: &HeaderMap) -> Option<Authority> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    if hosts.next().is_some() || host.contains('@') {
        return None;
    }
    host.parse().ok()
}

fn names_this_machine(host: &Authority) -> bool {
    let name = host.host();
    let literal = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || literal.parse().is_ok_and(is_local)
}

/// Whether a browser would send this for one of the console's forms. Other programs send neither header, and a website
/// cannot misuse them.
fn is_from_console(headers: &HeaderMap, scheme: &str, host: &Authority) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    headers
        .get(header::ORIGIN)
        .is_none_or(|origin| origin.as_bytes() == format!("{scheme}://{host}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machines_host_names_are_accepted() {
        for (host, is_ours) in [
            ("localhost", true),
            ("LOCALHOST:8080", true),
            ("127.0.0.1:8080", true),
            ("127.8.8.8", true),
            ("[::1]:8080", true),
            ("[::ffff:127.0.0.1]", true),
            ("weir.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1:8080", false),
            ("0.0.0.0:8080", false),
            ("[::]:8080", false),
        ] {
            assert_eq!(names_this_machine(&host.parse().unwrap()), is_ours, "{host}");
        }
    }

    #[test]
    fn only_loopback_addresses_are_local() {
        for (address, local) in [
            ("127.0.0.1", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("::ffff:10.0.0.1", false),
            ("192.168.1.5", false),
            ("fe80::1", false),
        ] {
            assert_eq!(is_local(address.parse().unwrap()), local, "{address}");
        }
    }
}

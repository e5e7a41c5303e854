//! Requests to URLs that Weir's users configure: endpoints of handlers and receivers of webhooks.
//!
//! All of them share two rules:
//!
//! - A request goes only to its URL. Redirects are not followed and proxies are not used. Addresses inside private
//!   networks are refused unless they are allowed.
//! - The receiver can verify that Weir sent it, because it is signed by [Standard
//!   Webhooks](https://www.standardwebhooks.com).

mod address;
mod answer;
mod repeat;
mod signature;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};

use crate::http_client;
use address::is_public;

pub use answer::{reason, retry_after, start_of};
pub use repeat::send;
pub use signature::{InvalidSecret, Secret, headers};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The addresses that Weir may connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Addresses that the whole internet can reach.
    Public,
    /// Also private networks and this machine.
    Private,
}

impl Reach {
    /// From a setting that allows private networks or not.
    #[must_use]
    pub fn of(private: bool) -> Self {
        if private { Self::Private } else { Self::Public }
    }
}

/// Why Weir must not send requests to a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// Its scheme is not supported.
    #[error("the URL must start with https:// or http://")]
    Scheme,
    /// It contains a user name or a password, which logs and lists would show.
    #[error("the URL must not contain a user name or a password")]
    Credentials,
    /// It leads to a private network.
    #[error("the URL points to a private network, which is not allowed")]
    Private,
}

/// Whether Weir may send requests to a URL, judged by its text. [`client`] checks the addresses of a host name at each
/// connection. An address in the URL itself is checked only here.
///
/// # Errors
///
/// The problem with the URL.
pub fn check(url: &Url, reach: Reach) -> Result<(), Unreachable> {
    if !["https", "http"].contains(&url.scheme()) {
        return Err(Unreachable::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Unreachable::Credentials);
    }
    let host = url.host_str().unwrap_or_default();
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    match (host.parse::<IpAddr>(), reach) {
        (Ok(address), Reach::Public) if !is_public(address) => Err(Unreachable::Private),
        _ => Ok(()),
    }
}

/// A client that follows no redirects and connects only within `reach`. Every URL must have passed [`check`].
#[must_use]
pub fn client(reach: Reach) -> Client {
    http_client::build(|builder| {
        // A proxy would resolve names itself, and see the requests.
        let builder = builder
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .connector_layer(repeat::NoteConnections)
            .no_proxy();
        match reach {
            Reach::Private => builder,
            Reach::Public => builder.dns_resolver(PublicOnly),
        }
    })
}

/// Resolves as the platform does, and drops addresses that are not public. This happens at the connection and not
/// before the request, because a name may resolve differently the next time.
#[derive(Clone, Copy, Debug)]
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|address| is_public(address.ip())).collect();
            if public.is_empty() {
                return Err(io::Error::other(Unreachable::Private).into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test panics")]

    use super::*;

    fn checked(url: &str) -> Result<(), Unreachable> {
        check(&url.parse().unwrap(), Reach::Public)
    }

    #[test]
    fn literal_addresses_are_checked_in_every_spelling() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.0.0.1:8080/",
            "http://0177.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:10.0.0.1]/",
            "https://169.254.169.254/latest/meta-data",
        ] {
            assert_eq!(checked(url), Err(Unreachable::Private), "{url}");
            assert_eq!(check(&url.parse().unwrap(), Reach::Private), Ok(()), "{url}");
        }
        for url in [
            "https://example.com/hook",
            "http://93.184.215.14/",
            "https://[2606:4700::1111]/",
        ] {
            assert_eq!(checked(url), Ok(()), "{url}");
        }
    }

    #[test]
    fn schemes_and_credentials_are_refused() {
        assert_eq!(checked("ftp://example.com/"), Err(Unreachable::Scheme));
        assert_eq!(checked("file:///etc/passwd"), Err(Unreachable::Scheme));
        assert_eq!(
            checked("https://me:secret@example.com/"),
            Err(Unreachable::Credentials)
        );
        assert_eq!(checked("https://me@example.com/"), Err(Unreachable::Credentials));
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_a_private_address_is_refused() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let answer = client(Reach::Public).get(&url).send().await;
        let mut reason: &dyn std::error::Error = &answer.unwrap_err();
        while let Some(source) = reason.source() {
            reason = source;
        }
        assert_eq!(reason.to_string(), Unreachable::Private.to_string());
        let connected = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(connected.is_err(), "no connection was made");
    }
}

//! The HTTP client for outgoing requests. It trusts the machine's certificates and sends Weir's user agent.

use reqwest::{Client, ClientBuilder};
use weir_ledger::database::client_config;

/// A client with the additional settings of `more`.
pub(crate) fn build(more: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Client {
    let builder = Client::builder()
        .tls_backend_preconfigured(client_config())
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")));
    match more(builder).build() {
        Ok(client) => client,
        // reqwest rejects only an unknown TLS configuration.
        Err(error) => unreachable!("{error}"),
    }
}

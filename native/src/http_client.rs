//! The HTTP client of everything that calls out: it trusts what the machine trusts, and says who it is.

use reqwest::{Client, ClientBuilder};
use weir_ledger::database::client_config;

/// A client with what `more` adds.
pub(crate) fn build(more: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Client {
    let builder = Client::builder()
        .tls_backend_preconfigured(client_config())
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")));
    match more(builder).build() {
        Ok(client) => client,
        // Only a TLS configuration that reqwest does not know could be refused.
        Err(error) => unreachable!("{error}"),
    }
}

//! TLS for both drivers: the modes of `sslmode` mean what libpq documents.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::DatabaseError;

/// The values of `sslmode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SslMode {
    Disable,
    /// TLS if the server supports it. Nothing is verified.
    #[default]
    Prefer,
    /// TLS. Nothing is verified.
    Require,
    /// The certificate's chain is verified, but not its name.
    VerifyCa,
    /// Chain and name are verified.
    VerifyFull,
}

impl SslMode {
    pub(super) fn verifies(self) -> bool {
        matches!(self, Self::VerifyCa | Self::VerifyFull)
    }
}

/// The trusted authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Roots {
    /// The system's authorities.
    #[default]
    System,
    /// Only the authorities of a PEM file.
    File(String),
}

/// The TLS parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TlsOptions {
    pub(super) mode: SslMode,
    pub(super) roots: Roots,
    /// PEM files of the client's certificate and its key.
    pub(super) client: Option<(String, String)>,
}

/// Creates TLS sessions. A socket's server has no name and no TLS.
#[derive(Clone)]
pub(super) struct MakeTls(MakeRustlsConnect);

impl<S> MakeTlsConnect<S> for MakeTls
where
    MakeRustlsConnect: MakeTlsConnect<S>,
{
    type Stream = <MakeRustlsConnect as MakeTlsConnect<S>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<S>>::TlsConnect;
    type Error = <MakeRustlsConnect as MakeTlsConnect<S>>::Error;

    fn make_tls_connect(&mut self, name: &str) -> Result<Self::TlsConnect, Self::Error> {
        self.0
            .make_tls_connect(if name.is_empty() { "localhost" } else { name })
    }
}

impl TlsOptions {
    pub(super) fn for_tokio_postgres(&self) -> tokio_postgres::config::SslMode {
        use tokio_postgres::config::SslMode as Theirs;
        match self.mode {
            SslMode::Disable => Theirs::Disable,
            SslMode::Prefer => Theirs::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => Theirs::Require,
        }
    }

    pub(super) fn for_sqlx(&self) -> sqlx::postgres::PgSslMode {
        use sqlx::postgres::PgSslMode as Theirs;
        match self.mode {
            SslMode::Disable => Theirs::Disable,
            SslMode::Prefer => Theirs::Prefer,
            SslMode::Require => Theirs::Require,
            SslMode::VerifyCa => Theirs::VerifyCa,
            SslMode::VerifyFull => Theirs::VerifyFull,
        }
    }

    /// Whether SQLx behaves the same. It trusts the system's authorities in addition to those of a file.
    pub(super) fn matches_sqlx(&self) -> bool {
        self.client.is_none() && (self.roots == Roots::System || !self.mode.verifies())
    }

    pub(super) fn make(&self) -> Result<MakeTls, DatabaseError> {
        let verifier = self.verifier()?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| DatabaseError::Url(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match &self.client {
            Some((certificate, key)) if self.mode != SslMode::Disable => {
                let unusable = |what: &str, path: &str, reason: String| {
                    DatabaseError::Url(format!("{what} {path:?} cannot be used: {reason}"))
                };
                let of_certificate = |error: String| unusable("sslcert", certificate, error);
                let chain = CertificateDer::pem_file_iter(certificate)
                    .and_then(Iterator::collect)
                    .map_err(|error| of_certificate(error.to_string()))?;
                let private = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| unusable("sslkey", key, error.to_string()))?;
                config
                    .with_client_auth_cert(chain, private)
                    .map_err(|error| of_certificate(error.to_string()))?
            }
            _ => config.with_no_client_auth(),
        };
        Ok(MakeTls(MakeRustlsConnect::new(config)))
    }

    fn verifier(&self) -> Result<Arc<dyn ServerCertVerifier>, DatabaseError> {
        if !self.mode.verifies() {
            return Ok(Arc::new(AnyName {
                chain: None,
                provider: provider(),
            }));
        }
        let roots = match &self.roots {
            Roots::System => machine_roots(),
            Roots::File(path) => roots_in(path)?,
        };
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| DatabaseError::Url(format!("no root certificate can be used: {error}")))?;
        Ok(if self.mode == SslMode::VerifyCa {
            Arc::new(AnyName {
                chain: Some(verifier),
                provider: provider(),
            })
        } else {
            verifier
        })
    }
}

fn roots_in(path: &str) -> Result<RootCertStore, DatabaseError> {
    let unusable =
        |reason: String| DatabaseError::Url(format!("sslrootcert {path:?} cannot be used: {reason}"));
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| unusable(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("it contains no certificate".to_owned()));
    }
    Ok(roots)
}

/// A TLS configuration that trusts the system's authorities.
#[must_use]
pub fn client_config() -> ClientConfig {
    config_with(machine_roots())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn machine_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn config_with(roots: RootCertStore) -> ClientConfig {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_root_certificates(roots).with_no_client_auth());
    match config {
        Ok(config) => config,
        // ring's provider supports every default version.
        Err(error) => unreachable!("{error}"),
    }
}

/// Accepts any name (`verify-ca`). Without a chain to verify, accepts any certificate if the server has its key
/// (`prefer`, `require`).
#[derive(Debug)]
struct AnyName {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The chain is verified before the name.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

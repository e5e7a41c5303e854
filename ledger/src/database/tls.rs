//! TLS: what the URL's `sslmode` asks for, for both drivers alike.
//!
//! The modes mean what libpq says, except that `require` verifies like `verify-full`: a mode that encrypts and trusts
//! anybody protects a password from nobody who can answer in the server's place.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::error::DatabaseError;

/// The values of `sslmode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SslMode {
    Disable,
    #[default]
    Prefer,
    /// The certificate's chain is verified, its name is not.
    VerifyCa,
    /// Chain and name are verified.
    VerifyFull,
}

/// The TLS members of a database URL.
#[derive(Clone, Debug, Default)]
pub(super) struct TlsOptions {
    pub(super) mode: SslMode,
    /// `sslrootcert`: a PEM file that is trusted instead of what the machine trusts.
    pub(super) root_cert: Option<String>,
}

/// Takes the TLS members out of a URL. What is left is what `tokio_postgres` understands.
pub(super) fn split(text: &str) -> Result<(String, TlsOptions), DatabaseError> {
    let mut options = TlsOptions::default();
    let Ok(mut url) = url::Url::parse(text) else {
        // River's driver takes a URL only.
        return Err(DatabaseError::Url(
            "it must be a URL such as postgres://user@host:5432/name".to_owned(),
        ));
    };
    let mut rest = Vec::new();
    for (name, value) in url.query_pairs() {
        match &*name {
            "sslmode" => {
                options.mode = match &*value {
                    "disable" => SslMode::Disable,
                    "allow" | "prefer" => SslMode::Prefer,
                    "verify-ca" => SslMode::VerifyCa,
                    "require" | "verify-full" => SslMode::VerifyFull,
                    other => {
                        return Err(DatabaseError::Url(format!(
                            "sslmode is {other:?}, but must be disable, prefer, require, verify-ca or verify-full"
                        )));
                    }
                }
            }
            "sslrootcert" if value == "system" => {}
            "sslrootcert" => options.root_cert = Some(value.into_owned()),
            _ => rest.push((name.into_owned(), value.into_owned())),
        }
    }
    if rest.is_empty() {
        url.set_query(None);
    } else {
        url.query_pairs_mut().clear().extend_pairs(rest);
    }
    Ok((url.into(), options))
}

impl TlsOptions {
    pub(super) fn for_tokio_postgres(&self) -> tokio_postgres::config::SslMode {
        use tokio_postgres::config::SslMode as Theirs;
        match self.mode {
            SslMode::Disable => Theirs::Disable,
            SslMode::Prefer => Theirs::Prefer,
            SslMode::VerifyCa | SslMode::VerifyFull => Theirs::Require,
        }
    }

    /// SQLx verifies in these two modes only.
    pub(super) fn for_sqlx(&self) -> sqlx::postgres::PgSslMode {
        use sqlx::postgres::PgSslMode as Theirs;
        match self.mode {
            SslMode::Disable => Theirs::Disable,
            SslMode::Prefer => Theirs::Prefer,
            SslMode::VerifyCa => Theirs::VerifyCa,
            SslMode::VerifyFull => Theirs::VerifyFull,
        }
    }

    pub(super) fn config(&self) -> Result<ClientConfig, DatabaseError> {
        let roots = match &self.root_cert {
            None => machine_roots(),
            Some(path) => {
                let unusable = |reason: String| {
                    DatabaseError::Url(format!("sslrootcert {path:?} cannot be used: {reason}"))
                };
                let mut roots = RootCertStore::empty();
                let certificates =
                    CertificateDer::pem_file_iter(path).map_err(|error| unusable(error.to_string()))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
                    roots
                        .add(certificate)
                        .map_err(|error| unusable(error.to_string()))?;
                }
                if roots.is_empty() {
                    return Err(unusable("it holds no certificate".to_owned()));
                }
                roots
            }
        };
        if self.mode != SslMode::VerifyCa {
            return Ok(config_with(roots));
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| DatabaseError::Url(format!("no root certificate can be used: {error}")))?;
        let mut config = config_with(RootCertStore::empty());
        config
            .dangerous()
            .set_certificate_verifier(Arc::new(AnyName(verifier)));
        Ok(config)
    }
}

/// A TLS configuration that trusts what the machine trusts.
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

/// Verifies the chain and takes any name (`verify-ca`).
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self
            .0
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
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
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modes_of_libpq_are_understood_and_the_rest_of_the_url_stays() {
        for (text, mode) in [
            ("disable", SslMode::Disable),
            ("allow", SslMode::Prefer),
            ("prefer", SslMode::Prefer),
            ("require", SslMode::VerifyFull),
            ("verify-ca", SslMode::VerifyCa),
            ("verify-full", SslMode::VerifyFull),
        ] {
            let url =
                format!("postgres://weir:p%40ss@db.example:5432/weir?sslmode={text}&application_name=a");
            let (rest, options) = split(&url).unwrap();
            assert_eq!(options.mode, mode, "{text}");
            assert_eq!(
                rest,
                "postgres://weir:p%40ss@db.example:5432/weir?application_name=a"
            );
        }
        let (rest, options) = split("postgres://weir@db/weir?sslrootcert=/ca.pem").unwrap();
        assert_eq!(rest, "postgres://weir@db/weir");
        assert_eq!(options.root_cert.as_deref(), Some("/ca.pem"));
        assert_eq!(options.mode, SslMode::Prefer);
        assert!(split("postgres://weir@db/weir?sslmode=verify").is_err());
    }
}

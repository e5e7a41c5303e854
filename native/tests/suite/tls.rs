//! If the server is verified, no other server gets the database's password, neither from Weir's driver nor from
//! River's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};
use weir_ledger::database::Database;

/// Answers like a PostgreSQL server with TLS and another certificate, and counts the clients that send anything to it.
struct Impostor {
    address: SocketAddr,
    pem: String,
    trusted: Arc<AtomicUsize>,
}

impl Impostor {
    async fn start(name: &str) -> Self {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let trusted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&trusted);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let (acceptor, counter) = (acceptor.clone(), Arc::clone(&counter));
                tokio::spawn(async move {
                    let mut request = [0; 8];
                    client.read_exact(&mut request).await.unwrap();
                    client.write_all(b"S").await.unwrap();
                    let Ok(mut stream) = acceptor.accept(client).await else {
                        return;
                    };
                    let mut startup = [0; 4];
                    if stream.read_exact(&mut startup).await.is_ok() {
                        counter.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        Self {
            address,
            pem: cert.pem(),
            trusted,
        }
    }

    /// The number of drivers (of two) that trust it with this URL's options.
    async fn trusted_by(&self, options: &str) -> usize {
        self.trusted.store(0, Ordering::SeqCst);
        let url = format!(
            "postgres://weir:hunter2@localhost:{}/weir?{options}",
            self.address.port()
        );
        let database = Database::at(&url).unwrap();
        assert!(database.connect().await.is_err());
        let pool = database.river_pool(1).unwrap();
        let river = tokio::time::timeout(std::time::Duration::from_secs(10), pool.acquire()).await;
        assert!(!matches!(river, Ok(Ok(_))));
        pool.close().await;
        self.trusted.load(Ordering::SeqCst).min(2)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_self_signed_certificate_is_refused_by_every_verification() {
    let impostor = Impostor::start("other.example").await;
    for mode in ["verify-ca", "verify-full"] {
        assert_eq!(impostor.trusted_by(&format!("sslmode={mode}")).await, 0, "{mode}");
    }
    // As in libpq: encrypts, but verifies nothing.
    assert_eq!(impostor.trusted_by("sslmode=require").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_authority_is_trusted_and_verify_full_checks_the_name() {
    let file = std::env::temp_dir().join(format!("weir-ca-{}.pem", std::process::id()));
    for (name, mode, trusted) in [
        ("localhost", "verify-full", true),
        ("other.example", "verify-full", false),
        ("other.example", "require", true),
        ("other.example", "verify-ca", true),
    ] {
        let server = Impostor::start(name).await;
        std::fs::write(&file, &server.pem).unwrap();
        let options = format!("sslmode={mode}&sslrootcert={}", file.display());
        let by = server.trusted_by(&options).await;
        assert_eq!(by > 0, trusted, "{name} {mode}: {by}");
        if trusted {
            assert_eq!(by, 2, "both drivers alike: {name} {mode}");
        }
    }
    std::fs::remove_file(&file).unwrap();
}

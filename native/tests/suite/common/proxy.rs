//! A proxy in front of PostgreSQL that fails like networks and poolers, inside the process of the test. `bench/src/proxy.rs`
//! delays and counts instead, and `tests/drills/proxy.ts` fails the connections of a whole stack.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::Weir;

/// How a connection fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cut {
    /// The COMMIT never arrives.
    BeforeCommit,
    /// The COMMIT arrives, its answer does not.
    AfterCommit,
    /// The COMMIT takes effect, and every response is a pooler's error.
    PoolerErrorAfterCommit,
    /// The COMMIT takes effect, and the response is that the server is shutting down.
    ShutdownAfterCommit,
    /// It does not fail, unless it is frozen.
    Never,
}

impl Cut {
    /// An error response of the wire protocol.
    fn error(self) -> Option<Vec<u8>> {
        let (severity, code) = match self {
            Self::PoolerErrorAfterCommit => ("ERROR", "08P01"),
            Self::ShutdownAfterCommit => ("FATAL", "57P01"),
            _ => return None,
        };
        let fields = format!("S{severity}\0V{severity}\0C{code}\0Mthe connection is gone\0\0");
        let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
        Some([b"E", &length[..], fields.as_bytes()].concat())
    }
}

/// A proxy that breaks each of its first connections on COMMIT, and can be frozen.
pub struct Proxy {
    pub address: SocketAddr,
    left: Arc<AtomicUsize>,
    frozen: watch::Sender<bool>,
}

impl Proxy {
    pub async fn start(weir: &Weir, cut: Cut, times: usize) -> Self {
        let config: tokio_postgres::Config = weir.url().parse().unwrap();
        let target = SocketAddr::from(([127, 0, 0, 1], config.get_ports()[0]));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let left = Arc::new(AtomicUsize::new(times));
        let frozen = watch::Sender::new(false);
        let counter = Arc::clone(&left);
        let freezes = frozen.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (left, freezes) = (Arc::clone(&counter), freezes.clone());
                tokio::spawn(async move {
                    let server = TcpStream::connect(target).await.unwrap();
                    carry(client, server, cut, &left, freezes).await;
                });
            }
        });
        Self {
            address,
            left,
            frozen,
        }
    }

    /// The database's URL through the proxy.
    pub fn url(&self, weir: &Weir) -> String {
        let authority = weir.url().split('@').nth(1).unwrap().split('/').next().unwrap();
        weir.url().replace(authority, &self.address.to_string())
    }

    /// The number of connections that it will still break.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }

    /// Stops forwarding, but closes nothing.
    pub fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    pub fn thaw(&self) {
        self.frozen.send_replace(false);
    }
}

async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    cut: Cut,
    left: &AtomicUsize,
    mut frozen: watch::Receiver<bool>,
) {
    let (mut up, mut down) = (vec![0; 256 * 1024], vec![0; 256 * 1024]);
    loop {
        if frozen.wait_for(|frozen| !frozen).await.is_err() {
            return;
        }
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(read @ 1..) = read else { return };
                if frozen.wait_for(|frozen| !frozen).await.is_err() {
                    return;
                }
                let commits = up[..read].windows(7).any(|bytes| bytes == b"COMMIT\0");
                let cuts = commits && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
                if cuts && cut == Cut::BeforeCommit {
                    return;
                }
                if server.write_all(&up[..read]).await.is_err() {
                    return;
                }
                if cuts {
                    // Until PostgreSQL has answered, so that it has committed. The response is dropped.
                    while !matches!(server.read(&mut down).await, Ok(read) if down[..read].windows(6).any(|bytes| bytes == b"COMMIT")) {}
                    if let Some(error) = cut.error() {
                        let _ = client.write_all(&error).await;
                    }
                    return;
                }
            }
            read = server.read(&mut down) => {
                let Ok(read @ 1..) = read else { return };
                if frozen.wait_for(|frozen| !frozen).await.is_err() {
                    return;
                }
                if client.write_all(&down[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}

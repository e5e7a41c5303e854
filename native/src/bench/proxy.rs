//! A TCP proxy on loopback that delivers everything a while later, as a network does.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Forwards to `target` with this delay each way, until it is dropped.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn start(target: SocketAddr, delay: Duration) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(target).await else {
                        return;
                    };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let (client_read, client_write) = client.into_split();
                    let (server_read, server_write) = server.into_split();
                    tokio::select! {
                        () = carry(client_read, server_write, delay) => {}
                        () = carry(server_read, client_write, delay) => {}
                    }
                });
            }
        });
        Ok(Self { address, task })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is read at one moment is written `delay` later; reading goes on meanwhile, so only latency is added.
async fn carry(
    mut from: impl AsyncReadExt + Unpin + Send + 'static,
    mut to: impl AsyncWriteExt + Unpin,
    delay: Duration,
) {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            if sender
                .send((Instant::now() + delay, buffer[..read].to_vec()))
                .await
                .is_err()
            {
                return;
            }
        }
    });
    while let Some((due, bytes)) = receiver.recv().await {
        // Tokio's timer has a grain of a millisecond; the rest is waited out awake.
        let early = due - Duration::from_millis(1);
        tokio::time::sleep_until(early).await;
        while Instant::now() < due {
            tokio::task::yield_now().await;
        }
        if to.write_all(&bytes).await.is_err() {
            break;
        }
    }
    reader.abort();
}

//! A TCP proxy on loopback that delivers everything a while later, as a network does.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Forwards to `target` with this delay each way, until it is dropped.
///
/// It runs on threads of its own: they sleep to a fraction of a millisecond, where Tokio's timer has a grain of one,
/// and nothing of what is measured runs on them.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Proxy {
    pub(super) fn start(target: SocketAddr, delay: Duration) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        thread::spawn(move || {
            for client in listener.incoming() {
                if told.load(Ordering::Relaxed) {
                    return;
                }
                // A connection that cannot be forwarded is closed, which its client sees.
                let _ = client.and_then(|client| forward(client, target, delay));
            }
        });
        Ok(Self { address, ended })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn forward(client: TcpStream, target: SocketAddr, delay: Duration) -> std::io::Result<()> {
    let server = TcpStream::connect(target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    carry(client.try_clone()?, server.try_clone()?, delay);
    carry(server, client, delay);
    Ok(())
}

/// What is read at one moment is written `delay` later; reading goes on meanwhile, so only latency is added.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if sender
                .send((Instant::now() + delay, buffer[..read].to_vec()))
                .is_err()
            {
                return;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // The one side has ended; the other is to know.
        let _ = to.shutdown(Shutdown::Both);
    });
}

//! A TCP proxy on loopback in front of PostgreSQL. It delays everything, as a network does, and counts messages. It runs
//! on threads, so that it adds nothing to the measurement. `native/tests/suite/common/proxy.rs` cuts single connections
//! of a test, and `tests/drills/proxy.ts` fails those of a whole stack.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Forwards to `target` with this delay each way, until it is dropped.
///
/// It runs on separate threads, which run no measured code. They can sleep for fractions of a millisecond, the
/// resolution of Tokio's timer.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    pub(super) traffic: Arc<Traffic>,
    ended: Arc<AtomicBool>,
}

/// Counts of the messages from clients.
#[derive(Default)]
pub(super) struct Traffic {
    /// Statements that were executed.
    statements: AtomicU64,
    /// The number of times that a client started to wait for a response.
    turns: AtomicU64,
}

impl Traffic {
    /// Statements and round trips.
    pub(super) fn read(&self) -> [u64; 2] {
        [&self.statements, &self.turns].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Proxy {
    pub(super) fn start(target: SocketAddr, delay: Duration) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&ended);
        let traffic = Arc::new(Traffic::default());
        let counted = Arc::clone(&traffic);
        thread::spawn(move || {
            for client in listener.incoming() {
                if closed.load(Ordering::Relaxed) {
                    return;
                }
                // A failed connection is closed, which its client sees.
                let _ = client.and_then(|client| forward(client, target, delay, &counted));
            }
        });
        Ok(Self {
            address,
            traffic,
            ended,
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

fn forward(
    client: TcpStream,
    target: SocketAddr,
    delay: Duration,
    traffic: &Arc<Traffic>,
) -> std::io::Result<()> {
    let server = TcpStream::connect(target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let awaits_request = Arc::new(AtomicBool::new(true));
    let (awaits, counted) = (Arc::clone(&awaits_request), Arc::clone(traffic));
    let mut messages = Messages::default();
    let count = move |bytes: &[u8]| {
        if awaits.swap(false, Ordering::Relaxed) {
            counted.turns.fetch_add(1, Ordering::Relaxed);
        }
        counted
            .statements
            .fetch_add(messages.statements(bytes), Ordering::Relaxed);
    };
    carry(client.try_clone()?, server.try_clone()?, delay, count);
    carry(server, client, delay, move |_| {
        awaits_request.store(true, Ordering::Relaxed)
    });
    Ok(())
}

/// Writes all data `delay` after it was read. Reading continues during the delay, so the proxy only adds latency.
fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    delay: Duration,
    mut count: impl FnMut(&[u8]) + Send + 'static,
) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            count(&buffer[..read]);
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
            let wait = due.saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                thread::sleep(wait);
            }
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // One side has ended. Pass that on to the other.
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// The messages of one client, as far as they were read (PostgreSQL's protocol 3): a type, four bytes of length, and
/// the rest. The first ones have no type.
#[derive(Default)]
struct Messages {
    head: Vec<u8>,
    /// The rest of the message with the head that was read.
    left: usize,
    has_started: bool,
}

/// The code of a request for TLS, after which the client starts again.
const TLS_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();

impl Messages {
    /// The number of messages starting here that execute a statement.
    fn statements(&mut self, mut bytes: &[u8]) -> u64 {
        let mut statements = 0;
        while !bytes.is_empty() {
            let skipped = self.left.min(bytes.len());
            (self.left, bytes) = (self.left - skipped, &bytes[skipped..]);
            // The type and the length; for a first message the length and the code.
            let wanted = if self.has_started { 5 } else { 8 };
            while self.left == 0
                && self.head.len() < wanted
                && let [first, rest @ ..] = bytes
            {
                self.head.push(*first);
                bytes = rest;
            }
            if self.left > 0 || self.head.len() < wanted {
                continue;
            }
            let at = usize::from(self.has_started);
            let length = self.head[at..at + 4]
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            if self.has_started {
                statements += u64::from(matches!(self.head[0], b'E' | b'Q'));
                self.left = length.saturating_sub(4);
            } else {
                self.has_started = self.head[4..] != TLS_REQUEST;
                self.left = length.saturating_sub(8);
            }
            self.head.clear();
        }
        statements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: usize) -> Vec<u8> {
        let length = u32::try_from(body + 4).unwrap().to_be_bytes();
        [&[kind][..], &length, &vec![b'E'; body]].concat()
    }

    #[test]
    fn statements_are_counted_for_any_split_of_the_bytes() {
        let tls = [8_u32.to_be_bytes(), TLS_REQUEST].concat();
        let start = [&12_u32.to_be_bytes()[..], &[0, 3, 0, 0], b"EEEE"].concat();
        let all = [
            tls,
            start,
            message(b'P', 40),
            message(b'B', 0),
            message(b'E', 5),
            message(b'S', 0),
            message(b'Q', 70_000),
            message(b'E', 5),
        ]
        .concat();
        for cut in [1, 2, 3, 7, 64, all.len()] {
            let mut messages = Messages::default();
            let counted: u64 = all.chunks(cut).map(|bytes| messages.statements(bytes)).sum();
            assert_eq!(counted, 3, "cut into {cut}");
        }
    }
}

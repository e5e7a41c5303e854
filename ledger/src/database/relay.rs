//! A local proxy for connection parameters that SQLx lacks.
//!
//! SQLx has one server, trusts the system's authorities in addition to those of `sslrootcert`, and has no `hostaddr`.
//! If the parameters need more, it connects to this relay. The relay connects to the server as Weir's own driver does,
//! with Weir's TLS, and forwards bytes.
//!
//! It listens on a socket in Linux' abstract namespace, which needs no folder. Elsewhere, the socket is in a temporary
//! folder that only this user can enter. The relay serves only this process.

use std::io;
use std::net::SocketAddr;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpStream, UnixListener, UnixStream, lookup_host};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use uuid::Uuid;

use super::error::DatabaseError;
#[cfg(target_os = "linux")]
use super::parameters::TCP_USER_TIMEOUT;
use super::parameters::{Host, KEEPALIVE_IDLE, Server, Session, Target};
use super::tls::{MakeTls, SslMode};

/// Requests TLS from a server.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// The pause after a connection could not be accepted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A running relay.
pub(super) struct Relay {
    place: Place,
    task: tokio::task::JoinHandle<()>,
}

/// The settings for a connection of the relay.
struct Upstream {
    /// Each server, and the settings to check whether it accepts writes.
    servers: Vec<(Server, tokio_postgres::Config)>,
    tls: MakeTls,
    target: Arc<Target>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Relay {
    pub(super) fn start(
        servers: Vec<(Server, tokio_postgres::Config)>,
        tls: MakeTls,
        target: Arc<Target>,
    ) -> Result<Self, DatabaseError> {
        let failed =
            |error: io::Error| DatabaseError::Url(format!("cannot create a socket for the driver: {error}"));
        let place = Place::new().map_err(failed)?;
        // As the driver composes it.
        let port = servers.first().map_or(5432, |(server, _)| server.port);
        let address = place.address(port).map_err(failed)?;
        let listener = StdListener::bind_addr(&address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        let upstream = Arc::new(Upstream { servers, tls, target });
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                };
                let upstream = Arc::clone(&upstream);
                tokio::spawn(async move {
                    if let Err(error) = upstream.serve(stream).await {
                        tracing::debug!(%error, "a connection of the relay ended");
                    }
                });
            }
        });
        Ok(Self { place, task })
    }

    /// The folder of its socket, in the drivers' form.
    pub(super) fn folder(&self) -> String {
        self.place.folder()
    }

    /// Stops the relay when this future completes.
    pub(super) fn until(self, closed: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(async move {
            closed.await;
            drop(self);
        });
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The place of a relay's socket.
struct Place {
    #[cfg(target_os = "linux")]
    name: String,
    #[cfg(not(target_os = "linux"))]
    folder: std::path::PathBuf,
}

#[cfg(target_os = "linux")]
impl Place {
    #[expect(clippy::unnecessary_wraps, reason = "elsewhere it creates a folder")]
    fn new() -> io::Result<Self> {
        let name = format!("weir-{}", Uuid::from_u128(unique()));
        Ok(Self { name })
    }

    fn address(&self, port: u16) -> io::Result<UnixAddr> {
        UnixAddr::from_abstract_name(format!("{}/.s.PGSQL.{port}", self.name))
    }

    fn folder(&self) -> String {
        format!("\0{}", self.name)
    }
}

#[cfg(not(target_os = "linux"))]
impl Place {
    fn new() -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        // A socket's path has at most 104 bytes, and the usual temporary folder has a long one.
        let folder = std::path::PathBuf::from(format!("/tmp/weir-{}", Uuid::from_u128(unique()).simple()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self { folder })
    }

    fn address(&self, port: u16) -> io::Result<UnixAddr> {
        UnixAddr::from_pathname(self.folder.join(format!(".s.PGSQL.{port}")))
    }

    fn folder(&self) -> String {
        self.folder.display().to_string()
    }
}

#[cfg(not(target_os = "linux"))]
impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A number that no other relay on this machine has.
fn unique() -> u128 {
    use std::hash::{BuildHasher as _, RandomState};
    let random = || u128::from(RandomState::new().hash_one(std::process::id()));
    random() << 64 | random()
}

/// Connects with the limits that Weir's own driver has.
async fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(addresses).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT))?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_IDLE))?;
    Ok(stream)
}

impl Upstream {
    async fn serve(&self, mut driver: UnixStream) -> io::Result<()> {
        let is_own = driver.peer_cred()?.pid() == i32::try_from(std::process::id()).ok();
        if !is_own {
            return Err(io::Error::other("another process"));
        }
        // If there is no server, the driver sees the connection close.
        let mut server = self.open().await?;
        copy_bidirectional(&mut driver, &mut server).await.map(drop)
    }

    /// Connects to the first usable server.
    async fn open(&self) -> io::Result<Box<dyn Stream>> {
        let mut last = io::Error::other("no server");
        for (server, config) in &self.servers {
            let opened = tokio::time::timeout(self.target.connect_timeout, async {
                if self.target.session == Session::Writable {
                    drop(config.connect(self.tls.clone()).await.map_err(io::Error::other)?);
                }
                self.open_at(server).await
            });
            match opened.await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(last)
    }

    async fn open_at(&self, server: &Server) -> io::Result<Box<dyn Stream>> {
        let (name, address) = match &server.host {
            Host::Unix(folder) => {
                let path = folder.join(format!(".s.PGSQL.{}", server.port));
                return Ok(Box::new(UnixStream::connect(path).await?));
            }
            Host::Tcp(name, address) => (name, address),
        };
        let addresses = match address {
            Some(address) => vec![SocketAddr::new(*address, server.port)],
            None => lookup_host((name.as_str(), server.port)).await?.collect(),
        };
        let mut stream = connect(&addresses).await?;
        let mode = self.target.tls.mode;
        if mode == SslMode::Disable {
            return Ok(Box::new(stream));
        }
        stream.write_all(&SSL_REQUEST).await?;
        match (stream.read_u8().await?, mode) {
            (b'S', _) => {
                let mut tls = self.tls.clone();
                let session = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, name);
                let session = session.map_err(io::Error::other)?;
                Ok(Box::new(session.connect(stream).await?))
            }
            (_, SslMode::Prefer) => Ok(Box::new(stream)),
            _ => Err(io::Error::other("the server does not support TLS")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_to_servers_have_keepalives_and_a_timeout() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = connect(&[server.local_addr().unwrap()]).await.unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        assert_eq!(socket.tcp_user_timeout().unwrap(), Some(TCP_USER_TIMEOUT));
    }
}

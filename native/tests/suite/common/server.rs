//! A PostgreSQL server for one test, with other settings than the shared server.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use tokio_postgres::NoTls;

use super::process::free_port;
use super::template;

/// A running server with the superuser `postgres`; stopped and removed when dropped.
pub struct Server {
    program: Command,
    child: Child,
    folder: PathBuf,
    pub port: u16,
}

impl Server {
    /// Starts one with the defaults of its programs, these settings and these lines of `pg_hba.conf`. `files` are
    /// copied into its data folder. `None` if the programs of the shared server cannot be run.
    pub async fn start(settings: &[(&str, &str)], hba: &str, files: &[(&str, &str)]) -> Option<Self> {
        let programs = programs().await?;
        let folder = std::env::temp_dir().join(format!("weir-pg-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        let data = folder.join("data");
        // It does not run as root.
        let identity = geteuid().is_root().then(|| {
            let users = ["postgres", "nobody"].into_iter();
            let mut users = users.filter_map(|name| User::from_name(name).ok().flatten());
            users
                .next()
                .expect("no unprivileged user exists, such as postgres")
        });
        let own = |path: &Path| {
            if let Some(user) = &identity {
                chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw())).unwrap();
            }
        };
        own(&folder);
        let program = |name: &str| {
            let mut command = Command::new(programs.join(name));
            command
                .current_dir(&folder)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if let Some(user) = &identity {
                command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
            }
            command
        };
        let made = program("initdb")
            .arg("-D")
            .arg(&data)
            .args([
                "-U",
                "postgres",
                "-A",
                "trust",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ])
            .status();
        if !made.is_ok_and(|status| status.success()) {
            std::fs::remove_dir_all(&folder).unwrap();
            return None;
        }
        std::fs::write(data.join("pg_hba.conf"), hba).unwrap();
        for (name, text) in files {
            let path = data.join(name);
            std::fs::write(&path, text).unwrap();
            own(&path);
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, mode).unwrap();
        }
        let port = free_port();
        let mut command = program("postgres");
        command
            .arg("-D")
            .arg(&data)
            .args(["-p", &port.to_string(), "-c", "fsync=off"])
            .arg("-c")
            .arg(format!("unix_socket_directories={}", folder.display()));
        for (name, value) in settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let child = command.spawn().unwrap();
        let server = Self {
            program: command,
            child,
            folder,
            port,
        };
        server.accepts().await;
        Some(server)
    }

    /// Waits until it accepts connections.
    async fn accepts(&self) {
        for _ in 0..500 {
            if self.config().connect(NoTls).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("a server of one test does not start")
    }

    /// Ends all sessions, and starts it again after this time.
    pub async fn restart(&mut self, after: Duration) {
        self.signal(Signal::SIGINT);
        self.child.wait().unwrap();
        tokio::time::sleep(after).await;
        self.child = self.program.spawn().unwrap();
        self.accepts().await;
    }

    fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
    }

    fn config(&self) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config.host_path(&self.folder).port(self.port).user("postgres");
        config
    }

    /// For the superuser, without a password.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The folder of its socket.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A superuser's session.
    pub async fn admin(&self) -> tokio_postgres::Client {
        let (client, connection) = self.config().connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal(Signal::SIGQUIT);
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The folder of the shared server's programs.
async fn programs() -> Option<PathBuf> {
    let (client, connection) = tokio_postgres::connect(&template::server(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let folder = client
        .query_one("SELECT setting FROM pg_config WHERE name = 'BINDIR'", &[])
        .await
        .ok()?;
    Some(folder.get::<_, String>(0).into())
}

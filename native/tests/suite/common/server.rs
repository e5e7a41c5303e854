//! A PostgreSQL server for one test, with other settings than the shared server.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use tokio_postgres::NoTls;

use super::process::free_port;
use super::template;

/// A running server with the superuser `postgres`; stopped and removed when dropped.
pub struct Server {
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
        let server = Self { child, folder, port };
        let mut config = tokio_postgres::Config::new();
        config.host_path(&server.folder).port(port).user("postgres");
        for _ in 0..500 {
            if config.connect(NoTls).await.is_ok() {
                return Some(server);
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        panic!("a server of one test does not start")
    }

    /// The folder of its socket.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A superuser's session.
    pub async fn admin(&self) -> tokio_postgres::Client {
        let mut config = tokio_postgres::Config::new();
        config.host_path(&self.folder).port(self.port).user("postgres");
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill(
            Pid::from_raw(self.child.id().try_into().unwrap()),
            Signal::SIGQUIT,
        );
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

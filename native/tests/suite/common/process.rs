//! The binary `weir` itself, as an operator starts it.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{EDGE_SECRET, Weir, Who};

/// A program that ends with its test.
pub struct KilledOnDrop(pub Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running `weir`; killed when dropped.
pub struct Process {
    child: KilledOnDrop,
    port: u16,
    log: Arc<Mutex<Vec<String>>>,
}

/// A process of the real binary that will be killed with `kill -9`, with short jobs.
pub fn spawn(weir: &Weir, subcommand: &str) -> KilledOnDrop {
    let child = command(weir, &[subcommand])
        .env("WEIR_CONFIG", "native/tests/crash.toml")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    KilledOnDrop(child.unwrap())
}

/// The response to an HTTP request.
pub struct Reply {
    pub status: u16,
    pub text: String,
}

impl Process {
    /// Starts a subcommand on the test's database.
    pub fn start(weir: &Weir, arguments: &[&str], more: &[(&str, &str)]) -> Self {
        let (process, stderr) = Self::spawn(weir, arguments, more);
        let log = Arc::clone(&process.log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                log.lock().unwrap().push(line);
            }
        });
        process
    }

    /// Like [`Self::start`], with a closed log pipe.
    pub fn unheard(weir: &Weir, arguments: &[&str], more: &[(&str, &str)]) -> Self {
        Self::spawn(weir, arguments, more).0
    }

    fn spawn(weir: &Weir, arguments: &[&str], more: &[(&str, &str)]) -> (Self, ChildStderr) {
        let port = free_port();
        let mut child = command(weir, arguments)
            .env("WEIR_ORIGIN_PORT", port.to_string())
            .env("WEIR_METRICS_PORT", port.to_string())
            .envs(more.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let process = Self {
            child: KilledOnDrop(child),
            port,
            log: Arc::default(),
        };
        (process, stderr)
    }

    /// The whole log as JSON. A line that is not JSON fails the test.
    pub fn log(&self) -> Vec<Value> {
        let lines = self.log.lock().unwrap();
        lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not a JSON line: {line}")))
            .collect()
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Option<Reply> {
        ask(self.port, method, path, headers, body).await
    }

    pub async fn get(&self, path: &str) -> Option<Reply> {
        self.ask("GET", path, &[], "").await
    }

    /// A request as the edge would forward it.
    pub async fn call(&self, method: &str, path: &str, who: Who, request_id: &str, body: &str) -> Reply {
        let assertion = who.assertion(EDGE_SECRET, method, path, request_id);
        let headers = [(weir_policy::assertion::HEADER, assertion.as_str())];
        self.ask(method, path, &headers, body).await.unwrap()
    }

    /// The time until the process reported that it is ready.
    pub async fn ready(&self) -> Duration {
        let started = Instant::now();
        for _ in 0..1500 {
            if self.get("/readyz").await.is_some_and(|reply| reply.status == 200) {
                return started.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not ready: {:?}", self.log.lock().unwrap())
    }

    /// The samples of a scrape, without comments.
    pub async fn scrape(&self) -> Scrape {
        Scrape {
            text: self.get("/metrics").await.unwrap().text,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Stops it and waits for its end.
    pub async fn stop(self) -> Option<i32> {
        self.terminate();
        self.ended().await
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.pid()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }

    /// Waits until it has logged that it stops.
    pub async fn stopping(&self, weir: &Weir) {
        weir.until("it to log that it stops", async || {
            let mut lines = self.log().into_iter();
            lines.any(|line| line["message"] == "stopping").then_some(())
        })
        .await;
    }

    /// Waits for its end. Returns its exit code.
    pub async fn ended(mut self) -> Option<i32> {
        for _ in 0..1000 {
            if let Some(status) = self.child.0.try_wait().unwrap() {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("it does not stop");
    }
}

/// Sends a request to a server on this machine; `None` if nothing listens there.
pub async fn ask(port: u16, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Option<Reply> {
    let mut request = ureq::http::Request::builder()
        .method(method)
        .uri(format!("http://127.0.0.1:{port}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body.to_owned()).unwrap();
    tokio::task::spawn_blocking(move || {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(10)))
            .build()
            .into();
        let mut response = agent.run(request).ok()?;
        Some(Reply {
            status: response.status().as_u16(),
            text: response.body_mut().read_to_string().ok()?,
        })
    })
    .await
    .unwrap()
}

/// A scrape in Prometheus' text form.
pub struct Scrape {
    pub text: String,
}

impl Scrape {
    /// The value of the sample with these labels, in any order.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        self.samples()
            .find(|(sample, theirs, _)| {
                *sample == name
                    && labels
                        .iter()
                        .all(|(label, value)| theirs.contains(&format!("{label}=\"{value}\"").as_str()))
            })
            .map(|(_, _, value)| value.parse().unwrap())
    }

    /// Name, labels and value of every sample.
    pub fn samples(&self) -> impl Iterator<Item = (&str, Vec<&str>, &str)> {
        self.text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| {
                let (series, value) = line.rsplit_once(' ').unwrap();
                match series.split_once('{') {
                    Some((name, labels)) => (name, labels.trim_end_matches('}').split(',').collect(), value),
                    None => (series, Vec::new(), value),
                }
            })
    }
}

/// `weir` with the environment of the test's own Weir.
pub fn command(weir: &Weir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("WEIR_CONFIG", "native/tests/process.toml")
        .envs(weir.variables())
        .env_remove("RUST_LOG")
        .env("ACCESS_LOG", "all")
        .stdin(Stdio::null());
    command
}

/// A free port that no other test of this run gets, as in `tests/harness/ports.ts`. A file claims it, and it is below
/// the system's range for outgoing connections. Otherwise, another process could take a port that is free now before
/// the process under test opens it.
pub fn free_port() -> u16 {
    let folder = std::env::var_os("WEIR_TEST_FOLDER").map(PathBuf::from);
    let claims = folder.map(|folder| folder.join("ports"));
    if let Some(claims) = &claims {
        std::fs::create_dir_all(claims).unwrap();
    }
    let claim = |port: u16| match &claims {
        Some(claims) => File::create_new(claims.join(port.to_string())).is_ok(),
        None => true,
    };
    let mut tries = (0..1000).map(|_| rand::random_range(15_000..30_000));
    tries
        .find(|port| claim(*port) && TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("found no free port")
}

//! A separate database with a program that inserts and runs jobs in it.

use std::fmt::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use uuid::Uuid;
use weir_ledger::database::Database;

use super::super::report::BenchError;
use super::super::stage::{create_database, drop_database};
use super::program::{CALLERS, JOB_MS, Program, RESCUE, Rescue, Role, WORKERS};
use weir::config::Settings;

/// The number of concurrent inserts, and of connections per process.
pub(super) const CONNECTIONS: usize = 32;

/// The number of concurrent jobs per worker process.
pub(super) const AT_ONCE: usize = 10;

/// A program without an answer within this time has failed.
const PATIENCE: Duration = Duration::from_secs(300);

/// A user, and how many of their jobs may run at once.
pub(super) type User = (Uuid, i32);

/// A job started or ended.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) began: bool,
    pub(super) user: Uuid,
    pub(super) job: String,
    /// Microseconds of the clock that all processes of a machine share.
    pub(super) at: i64,
}

/// One database, for one measurement of one program.
pub(super) struct Arena<'a> {
    program: &'a Program,
    rescue: Rescue,
    server: String,
    name: String,
    url: String,
}

impl<'a> Arena<'a> {
    pub(super) async fn new(
        settings: &Settings,
        program: &'a Program,
        users: &[User],
        rescue: Rescue,
    ) -> Result<Self, BenchError> {
        let (server, name, url) = create_database(settings).await?;
        let arena = Self {
            program,
            rescue,
            server,
            name,
            url,
        };
        let client = arena.connect().await?;
        let (ids, slots): (Vec<Uuid>, Vec<i32>) = users.iter().copied().unzip();
        client
            .batch_execute("CREATE TABLE bench_users (id uuid PRIMARY KEY, slots integer NOT NULL)")
            .await?;
        client
            .execute(
                "INSERT INTO bench_users SELECT * FROM unnest($1::uuid[], $2::integer[])",
                &[&ids, &slots],
            )
            .await?;
        let setup = arena.start(Role::Setup, 0)?.wait_with_output().await?;
        if setup.status.success() {
            return Ok(arena);
        }
        Err(arena.failed(&setup.stderr))
    }

    pub(super) async fn connect(&self) -> Result<Client, BenchError> {
        Ok(Database::at(&self.url)?.connect().await?)
    }

    pub(super) async fn end(self) -> Result<(), BenchError> {
        drop_database(&self.server, &self.name).await
    }

    fn start(&self, role: Role, job_ms: u64) -> Result<Child, BenchError> {
        let mut command = self.program.command(role);
        if matches!(role, Role::Setup) {
            command.stdin(Stdio::null()).stderr(Stdio::piped());
        }
        let rescue = match self.rescue {
            Rescue::Default => "default",
            Rescue::Shortest => "shortest",
        };
        Ok(command
            .env("DATABASE_URL", &self.url)
            .env(CALLERS, CONNECTIONS.to_string())
            .env(WORKERS, AT_ONCE.to_string())
            .env(JOB_MS, job_ms.to_string())
            .env(RESCUE, rescue)
            .spawn()?)
    }

    fn failed(&self, output: &[u8]) -> BenchError {
        let output = String::from_utf8_lossy(output);
        BenchError::Missing(format!("{} failed: {}", self.program.name, output.trim()))
    }

    pub(super) fn producer(&self) -> Result<Producer, BenchError> {
        let mut child = self.start(Role::Produce, 0)?;
        let (input, output) = ends(&mut child)?;
        Ok(Producer {
            name: self.program.name,
            child,
            input,
            output,
        })
    }

    /// Runs jobs of this duration, and reports their starts and ends.
    pub(super) async fn worker(&self, job_ms: u64) -> Result<Worker, BenchError> {
        let mut child = self.start(Role::Work, job_ms)?;
        let (input, mut output) = ends(&mut child)?;
        let ready = tokio::time::timeout(PATIENCE, output.next_line()).await;
        if !matches!(ready, Ok(Ok(Some(_)))) {
            return Err(self.failed(b"its worker did not start, and output above why"));
        }
        let events = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&events);
        let reading = tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                if let Some(event) = parsed(&line) {
                    received.lock().push(event);
                }
            }
        });
        Ok(Worker {
            child,
            input,
            events,
            reading,
        })
    }
}

fn ends(child: &mut Child) -> Result<(ChildStdin, Lines<BufReader<ChildStdout>>), BenchError> {
    match (child.stdin.take(), child.stdout.take()) {
        (Some(input), Some(output)) => Ok((input, BufReader::new(output).lines())),
        _ => Err(std::io::Error::other("a program has no pipes").into()),
    }
}

fn parsed(line: &str) -> Option<Event> {
    let mut words = line.split(' ');
    Some(Event {
        began: match words.next()? {
            "+" => true,
            "-" => false,
            _ => return None,
        },
        user: words.next()?.parse().ok()?,
        job: words.next()?.to_owned(),
        at: words.next()?.parse().ok()?,
    })
}

/// A process that inserts jobs.
pub(super) struct Producer {
    name: &'static str,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Producer {
    pub(super) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Inserts a job for each of these users, and returns when the insertion started and ended.
    pub(super) async fn insert(
        &mut self,
        users: impl Iterator<Item = User>,
    ) -> Result<(i64, i64), BenchError> {
        let mut lines = String::new();
        for (user, slots) in users {
            let _ = writeln!(lines, "{user} {slots}");
        }
        lines.push('\n');
        self.input.write_all(lines.as_bytes()).await?;
        let answer = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
        let done = match &answer {
            Ok(Ok(Some(line))) => line
                .strip_prefix("done ")
                .and_then(|times| times.split_once(' '))
                .and_then(|(begun, ended)| Some((begun.parse().ok()?, ended.parse().ok()?))),
            _ => None,
        };
        done.ok_or_else(|| BenchError::Missing(format!("{} inserts nothing", self.name)))
    }
}

/// A process that runs jobs, killed as by `kill -9` when it goes out of scope.
pub(super) struct Worker {
    child: Child,
    input: ChildStdin,
    events: Arc<Mutex<Vec<Event>>>,
    reading: JoinHandle<()>,
}

impl Worker {
    pub(super) fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Its events so far.
    pub(super) fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }

    /// Its events since the last call.
    pub(super) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock())
    }

    pub(super) fn ended(&self) -> usize {
        self.events.lock().iter().filter(|event| !event.began).count()
    }

    /// When the first job of this user starts, if it starts within this time.
    pub(super) async fn begins(&self, user: Uuid, within: Duration) -> Option<i64> {
        let started = Instant::now();
        loop {
            let first = self
                .events
                .lock()
                .iter()
                .find(|event| event.began && event.user == user)
                .map(|event| event.at);
            if first.is_some() || started.elapsed() > within {
                return first;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Kills it as `kill -9` does, and returns all its events.
    pub(super) async fn kill(mut self) -> Result<Vec<Event>, BenchError> {
        self.child.kill().await?;
        // Its last output may not have been read yet.
        self.reading.await?;
        Ok(std::mem::take(&mut *self.events.lock()))
    }

    /// Stops it as its operator would.
    pub(super) async fn stop(mut self) -> Result<(), BenchError> {
        drop(self.input);
        let stopped = tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await;
        if stopped.is_err() {
            self.child.kill().await?;
        }
        Ok(())
    }
}

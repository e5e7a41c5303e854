//! `exec`: a program does the work.
//!
//! It gets the job's arguments as JSON on standard input, and prints the output as JSON. A number `used` in the output
//! is the amount to charge. Exit code 0 is success. Any other is a failure that is retried, with the end of standard
//! error as the message. A line `weir:progress 0.4 page 4 of 10` on standard error reports progress to the job's owner,
//! and is not part of that message.
//!
//! Its environment contains:
//!
//! - `WEIR_JOB_ID`, `WEIR_ATTEMPT`, and `TRACEPARENT` where traces are exported
//! - `WEIR_IDEMPOTENCY_KEY`, which all attempts of the job share and no other job has
//! - the variables that any program needs to run ([`PASSED_ON`])
//! - the variables that the services file lists in `env`
//!
//! It contains no other variable of this process, and so none of its secrets.
//!
//! The program runs in a separate process group. At the time limit, at a cancellation and when this process stops, the
//! group gets SIGTERM, and 10 s later SIGKILL. When the program exits, the rest of its group is killed a moment later.
//! When this process is killed, [`watcher`] kills its programs, which it finds by `WEIR_PROCESS` in their environment.

use std::collections::HashSet;
use std::ffi::OsString;
use std::pin::pin;
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::attempt::{Attempt, Handler, HandlerError, MAX_OUTPUT, Outcome, Refusal, Reporter, Worked};
use super::progress_lines::ProgressLines;
use super::watcher;
use crate::config::service::Amount;
use weir_ledger::holder::Holder;

/// The variables of this process that every program gets, in addition to those that the services file lists.
const PASSED_ON: [&str; 11] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
];

/// The maximum time to read the output after the program has exited. A process that it started may hold the pipe open.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

/// The maximum time for a program to stop after SIGTERM. Attempts are aborted a little later.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// The interval at which to check whether a program's whole group has stopped.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Maximum length of the message from standard error.
const MAX_MESSAGE: usize = 2_000;

pub(super) struct Exec {
    command: Vec<String>,
    env: Vec<String>,
    amount: Amount,
}

impl Exec {
    pub(super) fn new(command: Vec<String>, env: Vec<String>, amount: Amount) -> Self {
        Self { command, env, amount }
    }

    /// The variables of this process that the program gets.
    fn environment(&self) -> impl Iterator<Item = (&str, OsString)> {
        let names = PASSED_ON.into_iter().chain(self.env.iter().map(String::as_str));
        names.filter_map(|name| Some((name, std::env::var_os(name)?)))
    }
}

/// The process groups of the running programs.
static GROUPS: LazyLock<Mutex<HashSet<Pid>>> = LazyLock::new(Mutex::default);

/// Kills all running programs, for a process that ends immediately.
pub fn kill_programs() {
    let groups = GROUPS.lock();
    for group in &*groups {
        let _ = killpg(*group, Signal::SIGKILL);
    }
    watcher::dismiss();
    // Keeps the lock, so that no other program starts before the process ends.
    std::mem::forget(groups);
}

/// Kills the program's whole group when it goes out of scope, for every outcome of the attempt.
struct Group(Pid);

impl Group {
    /// Starts a program in a separate group. [`kill_programs`] waits until the program is registered, because an
    /// unregistered one would outlive this process.
    fn start(command: &mut Command) -> std::io::Result<(Child, Option<Self>)> {
        let mut groups = GROUPS.lock();
        let child = command.process_group(0).spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = id.map(Pid::from_raw).inspect(|group| {
            groups.insert(*group);
        });
        Ok((child, group.map(Self)))
    }
}

impl Group {
    /// Asks the whole group to stop. Returns when the group is empty or the grace period is over. `exited` completes
    /// when the program itself has exited.
    async fn stop(&self, exited: impl Future<Output = ()>) {
        let _ = killpg(self.0, Signal::SIGTERM);
        let stopped = async {
            exited.await;
            while killpg(self.0, None).is_ok() {
                tokio::time::sleep(STOP_CHECK).await;
            }
        };
        let _ = tokio::time::timeout(STOP_GRACE, stopped).await;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Fails when the group is gone already, which is fine.
        let _ = killpg(self.0, Signal::SIGKILL);
        GROUPS.lock().remove(&self.0);
    }
}

impl Exec {
    async fn run(&self, attempt: Attempt) -> Result<Outcome, HandlerError> {
        let [program, arguments @ ..] = self.command.as_slice() else {
            return Err(HandlerError::Permanent(
                "the service's command is empty".to_owned(),
            ));
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(self.environment())
            .env("WEIR_JOB_ID", attempt.job_id.to_string())
            .env("WEIR_ATTEMPT", attempt.attempt.to_string())
            .env("WEIR_IDEMPOTENCY_KEY", attempt.key.to_string())
            .envs(attempt.traceparent.iter().map(|parent| ("TRACEPARENT", parent)))
            .envs(watcher::mark().map(|mark| (watcher::MARK, mark)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (mut child, group) = Group::start(&mut command).map_err(|error| {
            tracing::error!(%error, program, "cannot start a handler's program");
            HandlerError::Failed("the handler's program cannot be started".to_owned())
        })?;
        let finished = {
            let mut talking = pin!(talk(&mut child, &attempt));
            tokio::select! {
                finished = &mut talking => finished,
                () = attempt.cancelled.cancelled() => {
                    if let Some(group) = &group {
                        // Its output is still read, because a program that cannot write cannot stop.
                        group.stop(async { drop(talking.await) }).await;
                    }
                    Err(HandlerError::Cancelled)
                }
            }
        };
        drop(group);
        // Reaps the process, so that no zombie remains.
        let _ = child.wait().await;
        finished
    }
}

#[async_trait]
impl Handler for Exec {
    async fn reserve(&self, _holder: Holder, args: &Map<String, Value>) -> Result<i64, Refusal> {
        self.amount.of(args).map_err(Refusal::Arguments)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        self.run(attempt).await.map(Worked::Done)
    }
}

async fn talk(child: &mut Child, attempt: &Attempt) -> Result<Outcome, HandlerError> {
    let failed = |error: std::io::Error| HandlerError::Failed(error.to_string());
    let (Some(mut stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        unreachable!("all three are piped")
    };
    let input =
        serde_json::to_vec(&attempt.args).map_err(|error| HandlerError::Permanent(error.to_string()))?;
    let write = async move {
        // A program need not read its input, so a closed pipe is not an error.
        let _ = stdin.write_all(&input).await;
        drop(stdin);
        Ok(())
    };
    let (mut output, mut message) = (Vec::new(), Vec::new());
    let status = {
        let mut streams = pin!(async {
            tokio::try_join!(
                write,
                start_of(stdout, &mut output),
                end_of(stderr, &mut message, &attempt.progress)
            )
        });
        tokio::select! {
            read = &mut streams => {
                read.map_err(failed)?;
                child.wait().await.map_err(failed)?
            }
            exited = child.wait() => {
                // A process that the program left behind holds the rest open.
                if let Ok(read) = tokio::time::timeout(OUTPUT_GRACE, streams).await {
                    read.map_err(failed)?;
                }
                exited.map_err(failed)?
            }
        }
    };
    if !status.success() {
        let message = String::from_utf8_lossy(&message);
        let tail: String = message.trim().chars().rev().take(MAX_MESSAGE).collect();
        let tail: String = tail.chars().rev().collect();
        return Err(HandlerError::Failed(format!("{status}: {tail}")));
    }
    if output.len() > MAX_OUTPUT {
        return Err(HandlerError::Permanent(format!(
            "the output is larger than {MAX_OUTPUT} bytes"
        )));
    }
    let output: Value = serde_json::from_slice(&output)
        .map_err(|error| HandlerError::Failed(format!("the output is not JSON: {error}")))?;
    Outcome::from_output(output)
}

/// Reads at most the maximum output size plus one byte, to detect larger output.
async fn start_of(mut stream: impl AsyncRead + Unpin, read: &mut Vec<u8>) -> std::io::Result<()> {
    (&mut stream)
        .take(MAX_OUTPUT as u64 + 1)
        .read_to_end(read)
        .await?;
    // The rest is discarded, so that the program does not block on a full pipe.
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    Ok(())
}

/// Reads the end of standard error up to the length of a message, without the lines about progress.
async fn end_of(
    mut stream: impl AsyncRead + Unpin,
    read: &mut Vec<u8>,
    progress: &Reporter,
) -> std::io::Result<()> {
    // A character has at most four bytes, and the first one may be truncated.
    const MAX_TAIL: usize = 4 * (MAX_MESSAGE + 1);
    let (mut lines, mut piece) = (ProgressLines::default(), Vec::with_capacity(4096));
    while stream.read_buf(&mut piece).await? > 0 {
        if let Some(reported) = lines.take(&piece, read) {
            progress.report(reported);
        }
        piece.clear();
        if read.len() > MAX_TAIL {
            read.drain(..read.len() - MAX_TAIL);
        }
    }
    lines.end(read);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;
    use tokio_util::sync::CancellationToken;
    use uuid::Uuid;

    use super::*;

    fn attempt(args: Value) -> Attempt {
        let Value::Object(args) = args else {
            panic!("arguments are an object")
        };
        Attempt {
            job_id: 7,
            attempt: 1,
            holder: None,
            key: Uuid::nil(),
            args,
            token: None,
            progress: Reporter::default(),
            traceparent: None,
            cancelled: CancellationToken::new(),
        }
    }

    fn shell(script: &str) -> Exec {
        Exec::new(
            vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()],
            vec!["CARGO_PKG_NAME".to_owned()],
            Amount::Fixed(1),
        )
    }

    #[tokio::test]
    async fn a_program_gets_the_arguments_and_returns_the_output() {
        let outcome = shell("cat")
            .run(attempt(json!({"a": [1, 2], "used": 3})))
            .await
            .unwrap();
        assert_eq!(outcome.output, json!({"a": [1, 2], "used": 3}));
        assert_eq!(outcome.used, Some(3));
    }

    #[tokio::test]
    async fn a_program_gets_only_listed_variables() {
        // Cargo sets both for this process.
        let outcome =
            shell("printf '\"%s %s %s\"' \"$CARGO_PKG_NAME\" \"$CARGO_PKG_VERSION\" \"$WEIR_JOB_ID\"")
                .run(attempt(json!({})))
                .await
                .unwrap();
        assert_eq!(outcome.output, json!("weir-native  7"));
    }

    #[tokio::test]
    async fn grandchildren_that_keep_the_output_open_are_killed_without_delay() {
        let file = std::env::temp_dir().join(format!("weir-exec-{}", uuid::Uuid::new_v4()));
        let script = format!("(sleep 3; touch {0}) & echo 7", file.display());
        let started = Instant::now();
        let outcome = shell(&script).run(attempt(json!({}))).await.unwrap();
        assert_eq!(outcome.output, json!(7));
        assert!(
            started.elapsed() < Duration::from_secs(3),
            "{:?}",
            started.elapsed()
        );
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(!file.exists(), "the grandchild lived on");
    }

    #[tokio::test]
    async fn the_error_of_a_failed_program_is_its_standard_error() {
        let error = shell("echo no such repository >&2; exit 3")
            .run(attempt(json!({})))
            .await
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("no such repository"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn an_output_up_to_the_limit_is_accepted() {
        let text_of = |bytes: usize| {
            shell(&format!(
                "printf '\"'; head -c {} /dev/zero | tr '\\0' x; printf '\"'",
                bytes - 2
            ))
        };
        let outcome = text_of(MAX_OUTPUT).run(attempt(json!({}))).await.unwrap();
        assert_eq!(outcome.output.as_str().unwrap().len(), MAX_OUTPUT - 2);
        let error = text_of(MAX_OUTPUT + 1).run(attempt(json!({}))).await.unwrap_err();
        assert!(matches!(error, HandlerError::Permanent(_)), "{error}");
    }

    #[tokio::test]
    async fn cancelling_kills_the_whole_process_group() {
        let file = std::env::temp_dir().join(format!("weir-exec-{}", uuid::Uuid::new_v4()));
        let script = format!("(sleep 1; touch {0}) & sleep 30", file.display());
        let attempt = attempt(json!({}));
        let cancelled = attempt.cancelled.clone();
        let started = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            cancelled.cancel();
        });
        let error = shell(&script).run(attempt).await.unwrap_err();
        assert!(matches!(error, HandlerError::Cancelled), "{error}");
        assert!(started.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!file.exists(), "a grandchild lived on");
    }
}

//! Kills the programs of a process that was killed itself.
//!
//! A process that gets SIGKILL cannot end its programs. So a process that runs programs starts `weir` a second time, as
//! its watcher, and keeps one end of a pipe to it. The kernel closes the pipe when the process ends for any reason. The
//! watcher then kills every process that has the process's mark in its environment: the programs, and the processes
//! that they started.
//!
//! The kernel can also send a signal when a parent ends (`PR_SET_PDEATHSIG`). It does so when the thread that started
//! the program ends, and it ignores processes that the program started.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use parking_lot::Mutex;
use uuid::Uuid;

/// The variable that contains the mark.
pub(super) const MARK: &str = "WEIR_PROCESS";

/// The watcher's first argument; the mark follows.
const ARGUMENT: &str = "watch-programs";

/// Sent to a watcher when the process has ended its programs, so that the watcher has nothing to do.
const DONE: &[u8] = b".";

/// The interval and the number of the watcher's scans. A program that was just starting may not have its environment
/// yet.
const SCAN_INTERVAL: Duration = Duration::from_millis(50);
const LOOKS: u32 = 20;

struct Watcher {
    mark: String,
    child: Mutex<Option<Child>>,
}

static WATCHER: OnceLock<Watcher> = OnceLock::new();

/// Starts the watcher of this process, which must be `weir`.
///
/// # Errors
///
/// When the system cannot start a process.
pub fn watch_programs() -> std::io::Result<()> {
    let mark = Uuid::new_v4().to_string();
    let child = Command::new(std::env::current_exe()?)
        .arg(ARGUMENT)
        .arg(&mark)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A signal to this process's group does not end it.
        .process_group(0)
        .spawn()?;
    let child = Mutex::new(Some(child));
    // A second watcher of a process would have no programs, and ends with the pipe.
    let _ = WATCHER.set(Watcher { mark, child });
    Ok(())
}

/// The mark of this process's programs; `None` without a watcher.
pub(super) fn mark() -> Option<&'static str> {
    WATCHER.get().map(|watcher| watcher.mark.as_str())
}

/// Ends the watcher of a process that has ended its programs.
pub(super) fn dismiss() {
    let Some(mut child) = WATCHER.get().and_then(|watcher| watcher.child.lock().take()) else {
        return;
    };
    if let Some(mut pipe) = child.stdin.take() {
        // Fails if the watcher was killed.
        let _ = pipe.write_all(DONE);
    }
    let _ = child.wait();
}

/// Runs the watcher, and returns its exit status. `None` in any other process.
#[must_use]
pub fn watch() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let mark = arguments.next().filter(|argument| argument == ARGUMENT);
    let mark = mark.and_then(|_| arguments.next())?;
    // It ends after the process, so it blocks the signals that would end both.
    let ending = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
    let _ = ending.into_iter().collect::<SigSet>().thread_block();
    if std::io::stdin().read_exact(&mut [0; DONE.len()]).is_err() {
        for _ in 0..LOOKS {
            kill_marked(&mark);
            std::thread::sleep(SCAN_INTERVAL);
        }
    }
    Some(ExitCode::SUCCESS)
}

/// Kills every process with this mark in its environment.
fn kill_marked(mark: &OsString) {
    let variable = [MARK.as_bytes(), b"=", mark.as_encoded_bytes()].concat();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return;
    };
    for process in processes.flatten() {
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The processes of other users cannot be read.
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        if !environment.split(|byte| *byte == 0).any(|one| one == variable) {
            continue;
        }
        let id = Pid::from_raw(id);
        // A program leads its group. Other processes in it may have another environment.
        if getpgid(Some(id)) == Ok(id) {
            let _ = killpg(id, Signal::SIGKILL);
        }
        let _ = kill(id, Signal::SIGKILL);
    }
}

//! The first process of a container adopts orphans, and must reap them when they end.
//!
//! So the first process does only that: it starts `weir` again as its child, forwards signals, and exits with the
//! child's status. Tokio alone then reaps the child's programs.
//!
//! A terminal sends Ctrl-C to both. The first process does not forward that, because a second signal would end the
//! child immediately.

use std::process::{Command, ExitCode};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

/// The signals forwarded to the child.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// The origin of a signal from the kernel, such as a terminal's (Linux: `SI_KERNEL`).
const FROM_KERNEL: i32 = 0x80;

/// Runs the first process until `weir` has ended. `None` in any other process.
pub(crate) fn run() -> Option<ExitCode> {
    let signals: SigSet = PASSED_ON.into_iter().chain([Signal::SIGCHLD]).collect();
    if getpid() != Pid::from_raw(1) {
        // The child inherits the first process's blocked signals.
        let _ = signals.thread_unblock();
        return None;
    }
    Some(supervise(&signals).unwrap_or_else(|error| {
        super::output::print_error(&format!("weir: cannot run as the first process: {error}"));
        ExitCode::from(2)
    }))
}

fn supervise(signals: &SigSet) -> std::io::Result<ExitCode> {
    // Programs of handlers run as the same user, and must not read the secrets in this process's environment.
    prctl::set_dumpable(false)?;
    // Before the child exists, so that signals that arrive now wait.
    signals.thread_block()?;
    let received = SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC)?;
    let child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .spawn()?;
    let child = Pid::from_raw(i32::try_from(child.id()).map_err(std::io::Error::other)?);
    loop {
        let info = match received.read_signal() {
            Ok(Some(info)) => info,
            Ok(None) | Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let signal = Signal::try_from(i32::try_from(info.ssi_signo).map_err(std::io::Error::other)?)?;
        match signal {
            Signal::SIGCHLD => {
                if let Some(code) = collect(child)? {
                    return Ok(code);
                }
            }
            // The child is in the terminal's foreground too.
            Signal::SIGINT | Signal::SIGQUIT if info.ssi_code == FROM_KERNEL => {}
            // The child may have ended.
            signal => drop(kill(child, signal)),
        }
    }
}

/// Reaps every process that has ended. Returns the child's exit status, once it has ended.
fn collect(child: Pid) -> std::io::Result<Option<ExitCode>> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => {
                return Ok(Some(ExitCode::from(u8::try_from(code).unwrap_or(1))));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => {
                // The same status as a shell's.
                return Ok(Some(ExitCode::from(
                    u8::try_from(128 + signal as i32).unwrap_or(1),
                )));
            }
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(None),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

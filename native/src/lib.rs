//! The native side of Weir: the origin's API, the workers and the scheduler, around the ledger.

pub mod api;
mod cli;
pub mod config;
pub mod context;
mod derived_keys;
pub mod handler;
mod http_client;
pub mod outbound;
pub mod river_control;
pub mod status;
pub mod telemetry;
pub mod token;
pub mod webhooks;
pub mod work;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

/// Handlers in Rust by their names in `weir.toml`. A process that serves or works creates each of them once.
pub type Handlers<'a> = &'a [(&'a str, fn(&context::Context) -> Arc<dyn handler::Handler>)];

/// Runs the command line of `weir`. Services with `handler = { type = "builtin", name = "…" }` use these handlers;
/// `examples/specvital` registers two.
#[must_use]
pub fn main(handlers: Handlers<'_>) -> ExitCode {
    // Containers run Linux.
    #[cfg(target_os = "linux")]
    if let Some(code) = cli::first_process::run() {
        return code;
    }
    if let Some(code) = handler::watch() {
        return code;
    }
    let cli = cli::Cli::parse();
    let ended = tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|runtime| {
            let ended = runtime.block_on(cli::run(cli, handlers));
            // A pending name lookup may still block the runtime. Its tasks are not awaited, so programs of handlers
            // would outlive this process.
            handler::kill_programs();
            runtime.shutdown_background();
            ended
        });
    match ended {
        Ok(code) => code,
        Err(error) => {
            cli::output::print_failure(&*error);
            cli::output::exit_code(&*error)
        }
    }
}

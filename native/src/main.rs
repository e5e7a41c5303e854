//! The binary `weir`.

mod cli;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Containers run Linux.
    #[cfg(target_os = "linux")]
    if let Some(code) = cli::first_process::run() {
        return code;
    }
    if let Some(code) = weir::handler::watch() {
        return code;
    }
    let cli = cli::Cli::parse();
    let ended = tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|runtime| {
            let ended = runtime.block_on(cli::run(cli));
            // A pending name lookup may still block the runtime. Its tasks are not awaited, so programs of handlers
            // would outlive this process.
            weir::handler::kill_programs();
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

//! The binary `weir`.

mod cli;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    match cli::run(cli::Cli::parse()).await {
        Ok(code) => code,
        Err(error) => {
            cli::output::tell(&format!("weir: {error}"));
            ExitCode::from(2)
        }
    }
}

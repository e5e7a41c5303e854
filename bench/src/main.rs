//! The binary `weir-bench`: the benchmarks behind the numbers in `docs/performance.md`.
//!
//! Each ratio compares two measurements of the same run, taken in turns, in a separate database on the server of
//! `DATABASE_URL`. Absolute numbers depend on the machine, so they are printed with the conditions.

mod cli;
mod cost;
mod crash;
mod fairness;
mod faults;
mod growth;
mod jobs;
mod languages;
mod literal;
mod path;
mod peers;
mod process;
mod progress;
mod proxy;
mod report;
mod reserve;
mod share;
mod stage;
mod work;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    match cli::run(cli::Cli::parse()).await {
        Ok(code) => code,
        Err(error) => {
            // `eprintln!` would panic if standard error is closed.
            let _ = writeln!(std::io::stderr(), "weir-bench: {error}");
            ExitCode::from(2)
        }
    }
}

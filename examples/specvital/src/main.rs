//! `weir` with two handlers in Rust, for the services of the default `weir.toml`. `npm start` runs it.

mod analysis;
mod specview;

use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    weir::main(&[
        ("analyze", |_| Arc::new(analysis::Analysis)),
        ("specview", |context| {
            Arc::new(specview::Specview::new(context.pool.clone()))
        }),
    ])
}

//! Creates `index.js` and `index_bg.wasm` from the compiled edge: `weir-bindgen COMPILED.wasm FOLDER`.
//!
//! This uses wasm-bindgen's library. Its command line does the same. But it also has a test runner, a web server and an
//! HTTP client, and takes three times as long to build.

use std::env::args_os;
use std::error::Error;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = args_os().skip(1);
    let (Some(compiled), Some(folder), None) = (args.next(), args.next(), args.next()) else {
        return Err("usage: weir-bindgen COMPILED.wasm FOLDER".into());
    };
    Bindgen::new()
        .input_path(compiled)
        .out_name("index")
        .typescript(false)
        // The runtime provides a compiled module, and does not allow compilation.
        .module(true)?
        // After a panic, the edge starts again with fresh memory (src/panics.rs).
        .reset_state_function(true)
        .force_enable_abort_handler(true)
        .generate(folder)?;
    Ok(())
}

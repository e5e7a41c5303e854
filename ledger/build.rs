//! Compiles the database's schema in: every file of `schema/` and `upgrades/`, by its path.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let mut code = String::new();
    for (folder, name) in [("schema", "FILES"), ("upgrades", "UPGRADES")] {
        println!("cargo:rerun-if-changed={folder}");
        let mut files = Vec::new();
        find(&root.join(folder), &mut files)?;
        files.sort();
        let _ = writeln!(code, "pub(super) static {name}: &[(&str, &str)] = &[");
        for file in files {
            let path = file.strip_prefix(root.join(folder)).map_err(io::Error::other)?;
            let path = path.to_string_lossy().replace('\\', "/");
            let _ = writeln!(
                code,
                "    ({path:?}, include_str!({:?})),",
                file.to_string_lossy()
            );
        }
        code.push_str("];\n");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("schema.rs"), code)
}

/// Collects the SQL files below a folder. Cargo builds again when one of them changes, or the folder's entries do.
fn find(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "sql") {
            files.push(path);
        }
    }
    Ok(())
}

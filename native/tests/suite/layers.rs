//! Imports between the modules of `native` point down. The borders of the crates ensure the rest.

use std::path::{Path, PathBuf};

use regex::Regex;

/// The modules of `native/src`, the lowest first.
const MODULES: [&str; 14] = [
    "derived_keys",
    "http_client",
    "outbound",
    "config",
    "token",
    "status",
    "webhooks",
    "handler",
    "telemetry",
    "river_control",
    "context",
    "work",
    "api",
    "cli",
];

pub fn files_under(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let (folders, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.extend(folders.iter().flat_map(|folder| files_under(folder)));
    files
}

#[test]
fn modules_import_only_lower_modules() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let import = Regex::new(r"\bcrate::(\w+)").unwrap();
    let rank = |name: &str| MODULES.iter().position(|module| *module == name);
    let mut imports = 0;
    for file in files_under(&source) {
        let path = file.strip_prefix(&source).unwrap().to_str().unwrap();
        let module = path.split(['/', '.']).next().unwrap();
        if ["lib", "main"].contains(&module) || !path.ends_with(".rs") {
            continue;
        }
        let own = rank(module).unwrap_or_else(|| panic!("{module} is not in the list"));
        let text = std::fs::read_to_string(&file).unwrap();
        for found in import.captures_iter(text.split("#[cfg(test)]").next().unwrap()) {
            let Some(other) = rank(&found[1]) else { continue };
            imports += 1;
            assert!(
                other <= own,
                "{path} imports {}, which is above {module}",
                &found[1]
            );
        }
    }
    assert!(imports > 100, "only {imports} imports were found");
}

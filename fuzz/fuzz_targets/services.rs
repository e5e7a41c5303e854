//! `weir.toml`: every error is reported with its line. An accepted file can run, keeps its meaning, and is also
//! accepted in another spelling.
#![no_main]

#[path = "services/fit.rs"]
mod fit;
#[path = "services/strangers.rs"]
mod strangers;

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use toml::{Table, Value};
use weir::config::{ConfigError, Settings, Variables};

static VARIABLES: LazyLock<Variables> = LazyLock::new(|| {
    [(
        "DATABASE_URL".to_owned(),
        "postgres://weir@127.0.0.1/weir".to_owned(),
    )]
    .into()
});

/// An unlinked file, so that nothing is left behind.
static FILE: LazyLock<(File, PathBuf)> = LazyLock::new(|| {
    let name = std::env::temp_dir().join(format!("weir-fuzz-{}.toml", std::process::id()));
    let file = File::create_new(&name).expect("a temporary file");
    std::fs::remove_file(&name).expect("it was just made");
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    (file, path)
});

fn read(text: &[u8]) -> Result<Settings, ConfigError> {
    let (file, path) = &*FILE;
    file.set_len(0).expect("it is open");
    file.write_all_at(text, 0).expect("it is open");
    Settings::read(&VARIABLES, path)
}

/// The line in an error.
fn line_of(fault: &str, path: &Path) -> Option<usize> {
    let rest = fault.strip_prefix(path.to_str()?)?.strip_prefix(", line ")?;
    rest.split(|other: char| !other.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// Whether each member is an array of tables, so that the tables are checked.
fn has_tables_only(document: &Table) -> bool {
    document.values().all(|member| {
        member
            .as_array()
            .is_some_and(|all| all.iter().all(Value::is_table))
    })
}

/// Checks an accepted file.
fn accepted(settings: &Settings, text: &str) {
    fit::check(settings);
    let document: Table = toml::from_str(text).expect("it was read");
    for (periodic, table) in settings.periodic.iter().zip(tables(&document, "periodic")) {
        let none = Value::Table(Table::new());
        let args = table.get("args").unwrap_or(&none);
        assert!(fit::is_same(args, &periodic.args.clone().into()), "{periodic:?}");
    }
    let spelt = |document: &Table| toml::to_string(document).expect("a document can be written");
    let again = read(spelt(&document).as_bytes()).expect("the same in another spelling");
    assert_eq!(format!("{again:?}"), format!("{settings:?}"));
    for other in strangers::with_one(&document) {
        let text = spelt(&other);
        assert!(read(text.as_bytes()).is_err(), "an unknown member is accepted:\n{text}");
    }
}

fn tables<'a>(document: &'a Table, name: &str) -> &'a [Value] {
    document
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fuzz_target!(|bytes: &[u8]| {
    let outcome = read(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        assert!(outcome.is_err(), "it is not text");
        return;
    };
    let lines = 1 + text.matches('\n').count();
    let faults = match &outcome {
        Ok(settings) => {
            accepted(settings, text);
            Vec::new()
        }
        Err(error) => error.faults.clone(),
    };
    assert_eq!(faults.is_empty(), outcome.is_ok(), "a refusal has a reason");
    for fault in &faults {
        if let Some(line) = line_of(fault, &FILE.1) {
            assert!((1..=lines).contains(&line), "{fault}");
        }
    }
    // With one more invalid table, the other errors are still reported, along with the new ones.
    let more = format!("{text}\n[[periodic]]\n");
    let extended = toml::from_str::<Table>(&more);
    if extended.is_ok_and(|document| has_tables_only(&document)) {
        let mut all = read(more.as_bytes()).expect_err("the last table is empty").faults;
        assert_eq!(all.len(), faults.len() + 3, "{all:#?}\n{faults:#?}");
        for fault in &faults {
            let place = all.iter().position(|other| other == fault);
            all.swap_remove(place.unwrap_or_else(|| panic!("{fault}: it is no longer reported")));
        }
    }
});

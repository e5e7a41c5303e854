//! Imports point down: a module imports only from modules below it, in its own crate and in others. So there are no
//! cycles, and a change of a module affects only the modules above.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

/// The crates, the lowest first: name in imports, folder of the sources, and the modules in their order.
const CRATES: [(&str, &str, &[&str]); 5] = [
    ("weir_policy", "policy/src", POLICY),
    ("weir_ledger", "ledger/src", LEDGER),
    ("weir_edge", "src", EDGE),
    ("weir", "native/src", NATIVE),
    ("weir_bench", "bench/src", BENCH),
];

/// Crates that a crate may not import although they are lower in the list.
const APART: [(&str, &str); 3] = [
    ("weir_edge", "weir_ledger"),
    ("weir", "weir_edge"),
    ("weir_bench", "weir_edge"),
];

const POLICY: &[&str] = &[
    "cidr",
    "circuit_breaker",
    "counts",
    "grants",
    "header",
    "jwt",
    "misspelling",
    "problem",
    "span",
    "subject",
    "admission",
    "address",
    "assertion",
    "lane",
    "namespace",
    "token",
    "window",
    "limit_set",
    "limit_cache",
    "route",
    "lib",
];
const EDGE: &[&str] = &[
    "access_log",
    "bindings",
    "clock",
    "cors",
    "credential_headers",
    "glue",
    "rate_limit_fields",
    "settings",
    "shard",
    "target",
    "trace",
    "url",
    "issuer",
    "origin",
    "config",
    "own",
    "panics",
    "response",
    "timeout",
    "counter",
    "tally",
    "events",
    "context",
    "reports",
    "forward",
    "jwks",
    "limiter",
    "verified_tokens",
    "caller",
    "edge",
    "weir",
    "lib",
];
const LEDGER: &[&str] = &[
    "access_log",
    "job_metadata",
    "json",
    "raw_json",
    "meter",
    "hold_off",
    "holder",
    "unique_key",
    "plans",
    "rules",
    "processes",
    "pass",
    "periodic",
    "database::error",
    "database::tls",
    "database::recent_commits",
    "database::parameters",
    "database::prepared",
    "database::notifier",
    "database::schemas",
    "database::settings",
    "database::connection_pool",
    "database::connect",
    "database::listener",
    "database",
    "maintenance",
    "attempts::outstanding",
    "attempts::claims",
    "attempts",
    "catalogue::definition",
    "catalogue::apply",
    "catalogue::services",
    "catalogue",
    "database::session",
    "committer::item",
    "committer::group",
    "committer::quarantine",
    "committer",
    "reservation::submission",
    "reservation::late_admission",
    "reservation::retry",
    "reservation::transaction",
    "reservation::queue",
    "reservation",
    "settlement::ended",
    "settlement::statements",
    "settlement::transaction",
    "settlement::promotion",
    "settlement::queue",
    "settlement::rebuild",
    "settlement",
    "specview_cache",
    "control::error",
    "control::log",
    "control::user",
    "control::requests",
    "control::keys",
    "control::plan",
    "control::overrides",
    "control::adjustments",
    "control::grants",
    "control::cancel",
    "control::jobs",
    "control::deletion",
    "control::usage_by_period",
    "control::usage_feed",
    "control::usage_archive",
    "control::import",
    "control::webhooks",
    "control::deliveries",
    "control",
    "read",
    "read::attempts",
    "read::check",
    "read::console",
    "read::feed",
    "read::gauges",
    "read::holders",
    "read::horizon",
    "read::jobs",
    "read::lanes",
    "read::overview",
    "read::probes",
    "read::usage",
    "reconciliation::adoption",
    "reconciliation",
    "audit",
    "middleware",
    "migrate::error",
    "migrate::known",
    "migrate::schema",
    "migrate::server",
    "migrate::inspection",
    "migrate::script",
    "migrate::uninstall",
    "migrate",
    "model::broken_rule",
    "model::rows",
    "model::world",
    "model::steps",
    "model",
    "lib",
];
const NATIVE: &[&str] = &[
    "derived_keys",
    "http_client",
    "outbound::address",
    "outbound::answer",
    "outbound::repeat",
    "outbound::signature",
    "outbound",
    "config::retry",
    "config::variables",
    "config::unknown",
    "config::wording",
    "config::schemas",
    "config::table",
    "config::catalogue",
    "config::fairness",
    "config::service",
    "config::traces",
    "config::periodic",
    "config::services_file",
    "config::stored",
    "config",
    "lane_pause",
    "status::look",
    "status::short",
    "status::vacuum",
    "status::user",
    "status::lanes",
    "status::held_back",
    "status::overview",
    "status::text",
    "status",
    "telemetry",
    "telemetry::logs",
    "telemetry::traces::span",
    "telemetry::vacuum",
    "telemetry::metrics",
    "telemetry::busy_holders",
    "telemetry::gauges",
    "telemetry::traces::export",
    "telemetry::traces",
    "handler::attempt",
    "handler::attempt_token",
    "handler::analysis::frameworks",
    "handler::analysis::find",
    "handler::analysis",
    "handler::progress_lines",
    "handler::watcher",
    "handler::exec",
    "handler::external",
    "handler::http",
    "handler::specview",
    "handler",
    "context",
    "work::internal",
    "work::attempt_error",
    "work::claim_pace",
    "work::claim_start",
    "work::lanes",
    "work::retry",
    "work::host",
    "work::settlements",
    "work::step",
    "work::elected",
    "work::unclaimed",
    "work::heartbeat",
    "work::under_way",
    "work::clean",
    "work::reconcile",
    "work::attempt_log",
    "work::progress",
    "work::deliveries",
    "work::worker",
    "work::notifications",
    "work::claimer",
    "work::periodic",
    "work",
    "token",
    "webhooks",
    "api::edge_reports",
    "api::holder_limiter",
    "api::feed",
    "api::live_view",
    "api::headers",
    "api::job_token",
    "api::sessions",
    "api::quota",
    "api::listen",
    "api::probes",
    "api::problem",
    "api::sending",
    "api::receiving",
    "api::live_keys",
    "api::wrong_keys",
    "api::answers",
    "api::job",
    "api::job_timing",
    "api::changes",
    "api::state",
    "api::service_key",
    "api::caller",
    "api::access",
    "api::edge",
    "api::jobs",
    "api::batch",
    "api::system",
    "api::usage",
    "api::check",
    "api::events",
    "api::admin::request",
    "api::admin::holder",
    "api::admin::booking",
    "api::admin::change",
    "api::admin::usage_by_period",
    "api::admin::check",
    "api::admin::usage_events",
    "api::admin::jobs",
    "api::admin::log",
    "api::admin::webhook",
    "api::admin",
    "api::attempts",
    "api::description",
    "api::shared_queue",
    "api::router",
    "api::console::page",
    "api::console::session",
    "api::console::guard",
    "api::console::overview",
    "api::console::holders",
    "api::console::holder",
    "api::console::job",
    "api::console::jobs",
    "api::console::act",
    "api::console::failures",
    "api::console::find",
    "api::console",
    "api",
    "api::serve",
    "lib",
    "cli::connection",
    "cli::output",
    "cli::values",
    "cli::audit",
    "cli::documents",
    "cli::first_process",
    "cli::import",
    "cli::key",
    "cli::migrate",
    "cli::plans",
    "cli::screen",
    "cli::signals",
    "cli::process",
    "cli::status",
    "cli::token",
    "cli::job",
    "cli::lane",
    "cli::uninstall",
    "cli::usage",
    "cli::user_text",
    "cli::user",
    "cli::webhook",
    "cli",
    "main",
];

const BENCH: &[&str] = &[
    "progress",
    "proxy",
    "report",
    "cost",
    "stage",
    "process",
    "reserve",
    "jobs",
    "literal",
    "work",
    "crash",
    "fairness",
    "share",
    "faults",
    "path::edge",
    "path::connection",
    "path::load",
    "path::parts",
    "path::open_loop",
    "path",
    "path::light",
    "path::snapshot",
    "growth",
    "languages",
    "peers::program",
    "peers::arena",
    "peers::own",
    "peers::measure",
    "peers::killed",
    "peers::table",
    "peers::snapshot",
    "peers",
    "cli",
    "main",
];

/// `mod a;`, `use …;` and inline paths.
static MODULE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?m)^\s*(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;").unwrap());
static PATH: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"\b((?:crate|super|self|weir_policy|weir_ledger|weir_edge|weir)(?:::\w+)*::(?:\w+|\{[^;{}]*(?:\{[^{}]*\}[^;{}]*)*\}))",
    )
    .unwrap()
});

/// The module files of a crate, by module path; the root is the empty path.
fn modules(root: &Path) -> BTreeMap<Vec<String>, PathBuf> {
    fn visit(folder: &Path, path: &[String], found: &mut BTreeMap<Vec<String>, PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
            if file.is_dir() {
                visit(&file, &[path, &[stem]].concat(), found);
            } else if file.extension().is_some_and(|extension| extension == "rs") {
                let module = match stem.as_str() {
                    "mod" | "lib" => path.to_vec(),
                    _ => [path, &[stem]].concat(),
                };
                found.insert(module, file);
            }
        }
    }
    let mut found = BTreeMap::new();
    visit(root, &[], &mut found);
    found
}

/// `a::{b, c::{d}}` as `a::b` and `a::c::d`.
fn expand(path: &str) -> Vec<Vec<String>> {
    let Some((head, group)) = path.split_once("::{") else {
        return vec![path.split("::").map(|part| part.trim().to_owned()).collect()];
    };
    let head: Vec<String> = head.split("::").map(|part| part.trim().to_owned()).collect();
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (index, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .flat_map(expand)
        .map(|tail| [head.clone(), tail].concat())
        .collect()
}

/// A source without its tests, comments and strings.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect();
    lines.join("\n")
}

/// Every import between modules: the importing and the imported one, as `crate::path`.
fn imports() -> BTreeSet<(String, String)> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let all: BTreeMap<&str, BTreeMap<Vec<String>, PathBuf>> = CRATES
        .iter()
        .map(|(name, folder, _)| (*name, modules(&top.join(folder))))
        .collect();
    let mut imports = BTreeSet::new();
    for (name, files) in &all {
        for (module, file) in files {
            let text = code(&std::fs::read_to_string(file).unwrap());
            // A folder's mod.rs re-exports the contents of the modules below it.
            let children: BTreeSet<&str> = MODULE
                .captures_iter(&text)
                .map(|found| found.get(1).unwrap().as_str())
                .collect();
            let is_binary = *name == "weir"
                && module
                    .first()
                    .is_some_and(|first| first == "main" || first == "cli");
            let mut paths: Vec<String> = PATH
                .captures_iter(&text)
                .map(|found| found.get(1).unwrap().as_str().replace('\n', " "))
                .collect();
            for child in children {
                let used = Regex::new(&format!(r"(?m)(^|[^:\w]){child}(::|;$)")).unwrap();
                let declared = Regex::new(&format!(r"mod\s+{child};")).unwrap();
                if used.find_iter(&text).count() > declared.find_iter(&text).count() {
                    paths.push(format!("self::{child}"));
                }
            }
            for path in paths.iter().flat_map(|path| expand(path)) {
                let (of, full) = match path[0].as_str() {
                    "crate" => (*name, path[1..].to_vec()),
                    "self" => (*name, [module, &path[1..]].concat()),
                    "super" => {
                        let ups = path.iter().take_while(|part| *part == "super").count();
                        let base = &module[..module.len().saturating_sub(ups)];
                        (*name, [base, &path[ups..]].concat())
                    }
                    other => match all.keys().find(|key| **key == other) {
                        Some(key) => (*key, path[1..].to_vec()),
                        None => continue,
                    },
                };
                let of = if is_binary && path[0] == "weir" {
                    "weir"
                } else {
                    of
                };
                // The deepest module on the path.
                let depth = (0..=full.len())
                    .rev()
                    .find(|depth| all[of].contains_key(&full[..*depth]))
                    .unwrap();
                let target = full[..depth].to_vec();
                if (of, &target) != (name, module) {
                    imports.insert((show(name, module), show(of, &target)));
                }
            }
        }
    }
    imports
}

fn show(name: &str, module: &[String]) -> String {
    std::iter::once(name)
        .chain(module.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join("::")
}

#[test]
fn modules_import_only_lower_layers() {
    let mut rank = BTreeMap::new();
    for (name, _, order) in CRATES {
        for module in order {
            let module = match *module {
                "lib" => name.to_owned(),
                path => format!("{name}::{path}"),
            };
            let next = rank.len();
            assert!(
                rank.insert(module.clone(), next).is_none(),
                "{module} is listed twice"
            );
        }
    }
    let mut faults = String::new();
    for (from, to) in imports() {
        let crate_of = |path: &str| path.split("::").next().unwrap().to_owned();
        if APART.contains(&(crate_of(&from).as_str(), crate_of(&to).as_str())) {
            writeln!(faults, "{from} may not import {to}: the two are apart").unwrap();
        }
        match (rank.get(&from), rank.get(&to)) {
            (Some(above), Some(below)) if above > below => {}
            (Some(_), Some(_)) => writeln!(faults, "{from} imports {to}, which is above it").unwrap(),
            _ => writeln!(
                faults,
                "{from} imports {to}: put both into the order of their crate"
            )
            .unwrap(),
        }
    }
    assert!(faults.is_empty(), "\n{faults}");
}

/// Files that may use the names of meters: the demonstration's services and texts, and the catalogue from before
/// weir.toml.
const NAMES_METERS: [&str; 5] = [
    "www/src/demonstration.ts",
    "www/src/text/",
    "www/src/generated/",
    // The columns that ADR-21 names, and the rows of a new database.
    "ledger/schema/tables/subscription_plans.sql",
    "ledger/schema/rows.sql",
];

#[test]
fn code_does_not_know_the_names_of_meters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()
        .unwrap();
    let shipped = std::fs::read_to_string(root.join("weir.toml")).unwrap();
    let shipped: toml::Table = shipped.parse().unwrap();
    let meters = shipped["meter"].as_array().unwrap().iter();
    let meters: Vec<&str> = meters.map(|meter| meter["name"].as_str().unwrap()).collect();
    assert_eq!(meters.len(), 2);
    let names = meters.join("|");
    // In quotes, or as a part of an identifier such as a column.
    let name = Regex::new(&format!(
        "[\"'`]({names})[\"'`]|\\b({names})_monthly|\\.({names})\\b"
    ))
    .unwrap();
    let mut found = Vec::new();
    let folders = [
        "policy/src",
        "ledger/src",
        "ledger/schema",
        "src",
        "native/src",
        "www/src",
    ];
    let mut looked_at = 0;
    for file in folders.iter().flat_map(|folder| files_under(&root.join(folder))) {
        let path = file.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        let is_code = [".rs", ".sql", ".ts"].iter().any(|ending| path.ends_with(ending));
        if !is_code || NAMES_METERS.iter().any(|named| path.starts_with(named)) {
            continue;
        }
        looked_at += 1;
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        for (number, line) in code.lines().enumerate() {
            let line = line.trim_start();
            if name.is_match(line)
                && !line.starts_with("//")
                && !line.starts_with("--")
                && !line.starts_with('*')
            {
                found.push(format!("{path}:{}: {line}", number + 1));
            }
        }
    }
    assert!(looked_at > 200, "{looked_at}");
    assert!(
        found.is_empty(),
        "a meter is data, not code:\n{}",
        found.join("\n")
    );
}

#[test]
fn queries_are_in_the_ledger() {
    let query = Regex::new(r#""(SELECT|INSERT|UPDATE|DELETE|WITH) |include_str!\("[^"]*\.sql"#).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in files_under(&folder) {
        if file.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&file).unwrap();
            let found = query.find(&text).map(|found| found.as_str());
            assert_eq!(found, None, "{}", file.display());
        }
    }
}

/// Statements of more than two lines are files, with a header that states the parameters and the cost.
#[test]
fn long_statements_are_sql_files() {
    let statement = Regex::new(r#""(?:SELECT|INSERT|UPDATE|DELETE|WITH|SET) (?:[^"\\]|\\[\s\S])*""#).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledger/src");
    let (mut statements, mut long) = (0, Vec::new());
    for file in files_under(&folder) {
        if file.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
            for found in statement.find_iter(code) {
                statements += 1;
                if found.as_str().lines().count() > 2 {
                    long.push(format!("{}: {}", file.display(), found.as_str()));
                }
            }
        }
    }
    assert!(statements > 50, "only {statements} statements were found");
    assert!(
        long.is_empty(),
        "move these statements to .sql files:\n{}",
        long.join("\n")
    );
}

/// A file of each name among a function's callers contains the function's name.
#[test]
fn headers_of_functions_name_their_callers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = Regex::new(r"[\w/]+\.(?:rs|sql)").unwrap();
    let sources = files_under(&root.join("ledger"));
    let (mut callers, mut wrong) = (0, Vec::new());
    for file in files_under(&root.join("ledger/schema/functions")) {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let word = Regex::new(&format!(r"\b{name}\b")).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let header = text.split("CREATE ").next().unwrap().replace("\n--", "");
        let Some((_, list)) = header.split_once("Callers:") else {
            continue;
        };
        for caller in path.find_iter(list.split(". ").next().unwrap()) {
            callers += 1;
            let calls = |path: &PathBuf| word.is_match(&std::fs::read_to_string(path).unwrap());
            if !sources
                .iter()
                .any(|path| path.ends_with(caller.as_str()) && calls(path))
            {
                wrong.push(format!("{name}: {} does not call it", caller.as_str()));
            }
        }
    }
    assert!(callers > 50, "only {callers} callers were found");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let (folders, mut files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.extend(folders.iter().flat_map(|folder| files_under(folder)));
    files
}

#[test]
fn names_of_tests_have_at_most_70_letters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let name = Regex::new(r"#\[(?:tokio::)?test(?:\([^)]*\))?\]\s+(?:async )?fn (\w+)").unwrap();
    let mut names = 0;
    for file in ["policy", "ledger", "native", "bench", "src"]
        .iter()
        .flat_map(|folder| files_under(&root.join(folder)))
    {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        for found in name.captures_iter(&text) {
            names += 1;
            assert!(found[1].len() <= 70, "{}: {}", file.display(), &found[1]);
        }
    }
    assert!(names > 500, "only {names} tests were found");
}

#[test]
fn each_function_of_the_schema_has_a_complete_header() {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledger/schema");
    let files = files_under(&schema.join("functions"));
    assert!(files.len() > 70, "only {} functions were found", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let (header, body) = text.split_once("CREATE ").unwrap();
        let has = |words: &[&str]| words.iter().any(|word| header.contains(word));
        let file = file.display();
        assert!(has(&["Cost:"]), "{file} states no cost");
        assert!(has(&["Callers:", "Trigger"]), "{file} names no callers");
        assert!(
            !body.contains("RAISE") || has(&["Errors:", "Raises", "Refuses"]),
            "{file} names no errors"
        );
        assert!(
            body.contains("SET search_path FROM CURRENT")
                || has(&["inlines it", "cannot pin its search_path"]),
            "{file} neither sets its search_path nor explains why"
        );
    }
}

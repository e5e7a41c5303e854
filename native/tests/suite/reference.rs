//! The reference pages are generated from the program, and these tests fail when they are stale. After a change:
//! `UPDATE_SNAPSHOTS=1 npm test -- reference.rs`, and check the difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Weir, Who};
use serde_json::Value;
use weir::config::Settings;
use weir::telemetry::metrics;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Compares a page with its generated contents.
fn is_current(page: &str, title: &str, body: &str) {
    let file = root().join("docs/reference").join(page);
    let text = format!(
        "# {title}\n\n<!-- Generated from the program with `UPDATE_SNAPSHOTS=1 npm test -- reference.rs`. -->\n\n{body}"
    );
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, &text).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        known == text,
        "docs/reference/{page} is stale; run UPDATE_SNAPSHOTS=1 npm test -- reference.rs and look at the difference"
    );
}

#[test]
fn the_page_of_the_settings_is_current() {
    let examples = ["deploy/weir.env.example", "deploy/serve.env.example"]
        .map(|file| std::fs::read_to_string(root().join(file)).unwrap());
    let defaults: BTreeMap<String, String> = examples
        .iter()
        .flat_map(|text| text.lines())
        .filter(|line| line.starts_with('#') && !line.starts_with("# "))
        .filter_map(|line| line.trim_start_matches('#').split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut body = "Settings of `weir` come from the environment. Weir refuses to start on invalid or misspelt settings, and lists every\n\
                    error. An empty variable counts as absent. `deploy/weir.env.example` describes each of them. `WEIR_CONFIG` names the\n\
                    file with the services and the catalogue (default: `weir.toml` in the current folder). `RUST_LOG` sets the level of\n\
                    the log.\n\n\
                    Each secret `NAME` can be in a file that `NAME_FILE` names. libpq's variables set what `DATABASE_URL` leaves out:\n\
                    [connect](../how-to/connect.md).\n\n\
                    | variable | default | must be |\n|---|---|---|\n"
        .to_owned();
    for (name, wants) in Settings::reference(&root().join("weir.toml")) {
        let default = defaults.get(&name).filter(|value| !value.is_empty());
        let default = default.map_or_else(String::new, |value| format!("`{value}`"));
        writeln!(body, "| `{name}` | {default} | {wants} |").unwrap();
    }
    is_current("settings.md", "Settings", &body);
}

#[test]
fn the_page_of_the_metrics_is_current() {
    let mut body =
        "Every process serves `/metrics`. All of these metrics exist from the first scrape on.\n\n\
                    | metric | type | description |\n|---|---|---|\n"
            .to_owned();
    for (kind, name, help) in metrics::reference() {
        writeln!(body, "| `{name}` | {kind} | {help} |").unwrap();
    }
    is_current("metrics.md", "Metrics", &body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_the_routes_is_current() {
    let weir = Weir::new().await;
    let document = weir
        .get("/api/openapi.json", Who::Address("198.51.100.9"))
        .await
        .body;
    let mut body = "`/api/openapi.json` describes the whole API in OpenAPI 3.1. Errors are problem details (RFC 9457).\n\n\
                    | route | description | responses |\n|---|---|---|\n"
        .to_owned();
    // In the order of the text, which a parsed document does not have.
    let text = weir.text_of("/api/openapi.json").await;
    let mut paths: Vec<_> = document["paths"].as_object().unwrap().iter().collect();
    paths.sort_by_key(|(path, _)| text.find(&format!("\"{path}\"")));
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            let statuses: Vec<&str> = operation["responses"]
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
                .collect();
            let summary = operation["summary"]
                .as_str()
                .or(operation["description"].as_str());
            let summary = summary.unwrap_or_default().lines().next().unwrap_or_default();
            writeln!(
                body,
                "| `{} {path}` | {summary} | {} |",
                method.to_uppercase(),
                statuses.join(" ")
            )
            .unwrap();
        }
    }
    is_current("routes.md", "Routes", &body);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_the_tables_is_current() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let tables = client
        .query(
            "SELECT c.oid, c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c \
             WHERE c.relkind IN ('r', 'v') AND c.relnamespace = current_schema()::regnamespace \
               AND c.relname NOT LIKE 'river\\_%' ORDER BY c.relname",
            &[],
        )
        .await
        .unwrap();
    let mut body =
        "Weir's own tables and views, as `ledger/schema/tables/` and `ledger/schema/views/` define them. River's, `river_*`, are as River's \
                    migrations make them.\n"
            .to_owned();
    for table in &tables {
        let oid: u32 = table.get(0);
        let comment: Option<&str> = table.get(2);
        let name: &str = table.get(1);
        let comment = comment.unwrap_or_else(|| panic!("the table {name} has no comment"));
        write!(
            body,
            "\n## {name}\n\n{comment}\n\n| column | type | |\n|---|---|---|\n"
        )
        .unwrap();
        let columns = client
            .query(
                "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, \
                        coalesce(col_description($1, a.attnum), '') \
                 FROM pg_attribute a WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
                &[&oid],
            )
            .await
            .unwrap();
        for row in columns {
            let (column, kind, not_null, comment): (&str, &str, bool, &str) =
                (row.get(0), row.get(1), row.get(2), row.get(3));
            let null = if not_null { "" } else { ", may be null" };
            writeln!(body, "| `{column}` | {kind}{null} | {comment} |").unwrap();
        }
        // One statement each, so that a reader needs no second page.
        for (title, query) in [
            (
                "Keys and checks",
                "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = $1 AND contype <> 'n' \
                 ORDER BY contype DESC, 1",
            ),
            (
                "Indexes",
                "SELECT replace(pg_get_indexdef(i.indexrelid), format('%I.', current_schema()), '') FROM pg_index i \
                 WHERE i.indrelid = $1 AND NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = i.indexrelid) \
                 ORDER BY 1",
            ),
            (
                "Triggers",
                "SELECT replace(pg_get_triggerdef(oid, true), format('%I.', current_schema()), '') FROM pg_trigger \
                 WHERE tgrelid = $1 AND NOT tgisinternal ORDER BY 1",
            ),
        ] {
            let rows = client.query(query, &[&oid]).await.unwrap();
            if !rows.is_empty() {
                write!(body, "\n{title}:\n\n").unwrap();
            }
            for row in rows {
                writeln!(body, "- `{}`", row.get::<_, &str>(0)).unwrap();
            }
        }
    }
    is_current("tables.md", "Tables", &body);
    weir.end().await;
}

/// Each function's text is the header of its file, up to the note on its callers.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_the_functions_is_current() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let mut body = "The functions run with the rights of the schema's owner, under any `search_path`. [Use Weir from any \
                    language](../how-to/any-language.md) shows how to call them. All but `weir_quota`, `weir_claim`, \
                    `weir_heartbeat`, `weir_progress`, `weir_holder` and `weir_version` require READ COMMITTED, and their \
                    writes take effect when the caller commits.\n\n\
                    Amounts are in the service's unit. A quota is `{\"used\", \"reserved\", \"limit\", \"ceiling\", \
                    \"overage\", \"remaining\", \"reset_at\"}` of the billing period, as in the API.\n\n\
                    Numbers in arguments and outputs keep their digits, as `jsonb` keeps them: 12345678901234567890123 and \
                    1.10 stay unchanged, and 1e-3 becomes 0.001. The API and Weir's workers accept numbers below 1.8e308 \
                    with exponents from -400 to 400; these functions accept whatever `jsonb` holds. `unique_by` compares \
                    numbers as doubles, as other River clients do, except whole numbers of 64 bits.\n"
        .to_owned();
    for name in [
        "weir_submit",
        "weir_submit_many",
        "weir_quota",
        "weir_charge",
        "weir_claim",
        "weir_heartbeat",
        "weir_complete",
        "weir_fail",
        "weir_settle_many",
        "weir_progress",
        "weir_extend",
        "weir_holder",
        "weir_version",
    ] {
        let signature = "SELECT pg_get_function_arguments(oid), pg_get_function_result(oid) FROM pg_proc WHERE oid = to_regproc($1)";
        let row = client.query_one(signature, &[&name]).await.unwrap();
        let (arguments, result): (&str, &str) = (row.get(0), row.get(1));
        let file = root().join(format!("ledger/schema/functions/api/{name}.sql"));
        let file = std::fs::read_to_string(file).unwrap();
        let header: Vec<&str> = file
            .lines()
            .map_while(|line| line.strip_prefix("--"))
            .map(|line| line.strip_prefix(' ').unwrap_or(line))
            .take_while(|line| !line.starts_with("Callers:"))
            .collect();
        let text = header.join("\n");
        let text = text.trim_end();
        assert!(text.contains("Errors:"), "{name} has no errors in its header");
        write!(
            body,
            "\n## {name}\n\n`{name}({arguments})` → `{result}`\n\n{text}\n"
        )
        .unwrap();
    }
    is_current("sql.md", "Functions in SQL", &body);
    weir.end().await;
}

#[test]
fn the_page_of_the_commands_is_current() {
    let help = |arguments: &[String]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(arguments)
            .arg("--help")
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let mut body = String::new();
    // Each command, followed by its subcommands.
    let mut paths = vec![Vec::<String>::new()];
    while let Some(path) = paths.pop() {
        let text = help(&path);
        if !path.is_empty() {
            let level = "#".repeat(1 + path.len());
            write!(body, "\n{level} weir {}\n\n", path.join(" ")).unwrap();
        }
        write!(body, "```\n{}\n```\n", text.trim_end()).unwrap();
        let commands = text.split("Commands:\n").nth(1).unwrap_or_default();
        let commands = commands.split("\n\n").next().unwrap_or_default().lines();
        let names = commands.filter_map(|line| line.split_whitespace().next());
        let below = names
            .filter(|name| *name != "help")
            .map(|name| [&path[..], &[name.to_owned()]].concat());
        paths.extend(below.collect::<Vec<_>>().into_iter().rev());
    }
    is_current("commands.md", "Commands", &body);
}

/// Every setting in a shipped configuration is described somewhere.
#[test]
fn every_setting_that_is_read_is_in_the_example_environment() {
    let examples = ["deploy/weir.env.example", "deploy/serve.env.example"]
        .map(|file| std::fs::read_to_string(root().join(file)).unwrap())
        .concat();
    // Settings of development and tests, of the units, and of OpenTelemetry.
    let other_settings = ["JWT_SECRET", "JWT_ISSUER", "JWT_AUDIENCE", "WEIR_METRICS_PORT"];
    let missing: Vec<String> = Settings::reference(&root().join("weir.toml"))
        .into_keys()
        .filter(|name| !name.starts_with("OTEL_") && !other_settings.contains(&name.as_str()))
        .filter(|name| !examples.contains(&format!("{name}=")))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A document describes every type that it names.
#[tokio::test(flavor = "multi_thread")]
async fn every_reference_of_the_description_resolves() {
    let weir = Weir::new().await;
    let document = weir
        .get("/api/openapi.json", Who::Address("198.51.100.9"))
        .await
        .body;
    fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        assert!(
            document.pointer(reference.trim_start_matches('#')).is_some(),
            "{reference}"
        );
    }
    weir.end().await;
}

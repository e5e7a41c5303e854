//! The files in deploy/ and docs/ match the program.

use crate::common::process::Process;
use crate::common::services_file::ServicesFile;
use crate::common::{GO_TESTS, Weir, Who, files, skip};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weir::config::{Settings, Variables};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All variables of the example, including the commented-out ones.
fn example() -> Variables {
    let both = read("deploy/weir.env.example") + &read("deploy/serve.env.example");
    both.lines()
        .filter_map(|line| line.trim_start_matches(['#', ' ']).split_once('='))
        .filter(|(name, _)| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'))
        .map(|(name, value)| {
            // The placeholder itself is refused.
            let value = value.replace(
                "replace-this-with-the-output-of",
                "0123456789-0123456789-0123456789",
            );
            (name.to_owned(), value)
        })
        .collect()
}

#[test]
fn the_examples_placeholder_is_refused_as_a_secret() {
    let mut variables = example();
    let placeholder = "replace-this-with-the-output-of-openssl-rand".to_owned();
    assert!(read("deploy/serve.env.example").contains(&placeholder));
    variables.insert("EDGE_SECRET".to_owned(), placeholder);
    let error = Settings::read(&variables, &root().join("weir.toml")).unwrap_err();
    assert!(
        error.to_string().contains("EDGE_SECRET is still the placeholder"),
        "{error}"
    );
}

#[test]
fn only_the_api_unit_has_the_assertion_secret() {
    assert!(!read("deploy/weir.env.example").contains("EDGE_SECRET"));
    for part in ["work", "schedule"] {
        let unit = read(&format!("deploy/systemd/weir-{part}.service"));
        assert!(!unit.contains("serve.env"), "{part}");
    }
    assert!(read("deploy/systemd/weir-serve.service").contains("EnvironmentFile=/etc/weir/serve.env"));
}

#[test]
fn the_example_environment_has_the_defaults() {
    let example = example();
    assert!(example.len() > 20, "{example:?}");
    let mut settings = Settings::read(&example, &root().join("weir.toml")).unwrap();
    // The catalogue's values are the defaults of these.
    for (plan, slots) in std::mem::take(&mut settings.fairness.limits.of_plans) {
        assert_eq!(
            settings.catalogue.plans[&plan].meters["analysis"].slots, slots,
            "{plan}"
        );
    }
    // Those without a default.
    let needed: Variables = ["DATABASE_URL", "EDGE_SECRET", "OTEL_EXPORTER_OTLP_ENDPOINT"]
        .map(|name| (name.to_owned(), example[name].clone()))
        .into();
    let defaults = Settings::read(&needed, &root().join("weir.toml")).unwrap();
    assert_eq!(format!("{settings:?}"), format!("{defaults:?}"));
}

#[test]
fn the_periodic_example_in_the_services_file_is_accepted() {
    let shipped = read("weir.toml");
    let (_, example) = shipped.split_once("# [[periodic]]").unwrap();
    let example: String = example
        .lines()
        .map(|line| line.trim_start_matches("# ").to_owned() + "\n")
        .collect();
    let file = ServicesFile::new(&format!("{shipped}\n[[periodic]]\n{example}"));
    let settings = Settings::read(&self::example(), file.path()).unwrap();
    assert_eq!(settings.periodic.len(), 1);
}

#[test]
fn every_variable_of_the_example_is_a_setting() {
    for name in example().keys() {
        // The port next to it determines whether it is read. The log's filter belongs to a library.
        if name == "RUST_LOG" {
            continue;
        }
        let mut variables = example();
        variables.insert(name.clone(), "?".to_owned());
        let Err(error) = Settings::read(&variables, &root().join("weir.toml")) else {
            panic!("an invalid value of {name} is accepted");
        };
        assert!(
            error.faults.iter().any(|fault| fault.contains(name)),
            "{name}: {error}"
        );
    }
}

/// The project's public address.
const HOME: &str = "https://github.com/weir-queue/weir";

/// The programs of a runbook's commands, and PostgreSQL's.
const PROGRAMS: [&str; 10] = [
    "weir",
    "systemctl",
    "journalctl",
    "curl",
    "psql",
    "npm",
    "npx",
    "SELECT",
    "GRANT",
    "VACUUM",
];

#[test]
fn every_section_of_the_runbook_has_a_command_that_exists() {
    let text = read("docs/operations.md");
    for section in text.split("\n### ").skip(1).filter(|one| one.starts_with("Weir")) {
        let (name, body) = section.split_once('\n').unwrap();
        let body = body.split("\n## ").next().unwrap();
        // Code in a line, and lines of blocks.
        let spans = body.split('`').skip(1).step_by(2);
        let commands: Vec<Vec<&str>> = spans
            .chain(body.lines().map(str::trim))
            .map(|code| code.split_whitespace().collect::<Vec<_>>())
            .filter(|words| words.len() > 1 && PROGRAMS.contains(&words[0]))
            .collect();
        assert!(!commands.is_empty(), "{name} has no command");
        for words in commands.iter().filter(|words| words[0] == "weir") {
            let is_name = |word: &&&str| word.chars().all(|letter| letter.is_ascii_lowercase());
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_weir"))
                .args(words[1..].iter().take_while(is_name))
                .arg("--help")
                .output()
                .unwrap();
            assert!(output.status.success(), "{name}: {words:?}");
        }
    }
}

#[test]
fn every_alert_has_a_section_in_the_runbook_and_vice_versa() {
    let alerts: Value = serde_yaml_ng::from_str(&read("deploy/prometheus/alerts.yml")).unwrap();
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    let named: BTreeSet<String> = rules
        .iter()
        .map(|rule| {
            let name = rule["alert"].as_str().unwrap();
            let runbook = rule["annotations"]["runbook_url"].as_str().unwrap();
            let chapter = format!("{HOME}/blob/main/docs/operations.md#{}", name.to_lowercase());
            assert_eq!(runbook, chapter);
            // Each installation must be evaluated separately.
            let expr = rule["expr"].as_str().unwrap();
            for aggregation in expr
                .match_indices("max")
                .chain(expr.match_indices("min"))
                .chain(expr.match_indices("sum"))
            {
                let rest = &expr[aggregation.0 + 3..];
                assert!(
                    rest.starts_with(" by (job")
                        || rest.starts_with(" by (le, job")
                        || !rest.starts_with(['(', ' ']),
                    "{name}: {expr}"
                );
            }
            assert!(
                expr.contains("by (job") || expr.contains("job)") || expr.starts_with("absent("),
                "{name}: {expr}"
            );
            name.to_owned()
        })
        .collect();
    let text = read("docs/operations.md");
    let chapters: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("### Weir"))
        .map(|rest| format!("Weir{rest}"))
        .collect();
    assert_eq!(named, chapters);
}

#[test]
fn every_metric_of_an_alert_is_on_the_dashboard() {
    let (alerts, dashboard) = (
        read("deploy/prometheus/alerts.yml"),
        read("deploy/grafana/weir.json"),
    );
    let metrics: BTreeSet<&str> = alerts
        .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("weir_"))
        .collect();
    assert!(metrics.len() > 10, "{metrics:?}");
    for name in metrics {
        assert!(dashboard.contains(&format!("{name}{{")), "{name}");
    }
}

#[test]
fn the_units_start_existing_subcommands_and_wait_for_the_drain() {
    let variables: Variables = [
        ("DATABASE_URL", "postgres://weir@127.0.0.1/weir"),
        ("WEIR_ENV", "production"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let drain = Settings::read(&variables, &root().join("weir.toml"))
        .unwrap()
        .drain_timeout;
    for part in ["serve", "work", "schedule"] {
        let unit = read(&format!("deploy/systemd/weir-{part}.service"));
        let value = |name: &str| {
            let mut lines = unit
                .lines()
                .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            lines.next().unwrap_or_else(|| panic!("{part} has no {name}"))
        };
        let (program, argument) = value("ExecStart").split_once(' ').unwrap();
        assert_eq!((program, argument), ("/usr/local/bin/weir", part));
        let help = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args([argument, "--help"])
            .output();
        assert!(help.unwrap().status.success(), "weir {argument}");
        let stop: u64 = value("TimeoutStopSec").parse().unwrap();
        assert!(stop > drain.as_secs(), "{part} is killed before it has drained");
    }
}

/// Only on machines with systemd.
#[test]
fn systemd_accepts_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        skip::skip("systemd-analyze is not installed");
        return;
    }
    let folder = std::env::temp_dir().join(format!("weir-units-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for part in ["serve", "work", "schedule"] {
        let name = format!("weir-{part}.service");
        // systemd checks that the program and the documentation exist.
        let unit = read(&format!("deploy/systemd/{name}"))
            .replace("/usr/local/bin/weir", env!("CARGO_BIN_EXE_weir"));
        let file = folder.join(&name);
        std::fs::write(&file, unit).unwrap();
        let verdict = Command::new("systemd-analyze")
            .arg("verify")
            .arg(&file)
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&verdict.stderr);
        let faults: Vec<_> = message.lines().filter(|line| line.contains(&name)).collect();
        assert!(verdict.status.success() && faults.is_empty(), "{message}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_on_the_schema_serves_works_and_schedules() {
    let weir = Weir::new().await;
    let owner = weir.client().await;
    owner.batch_execute(&read("deploy/roles.sql")).await.unwrap();
    let password = "ALTER ROLE weir_app PASSWORD 'a-password-of-a-test'";
    owner.batch_execute(password).await.unwrap();
    let url = &weir.variables()["DATABASE_URL"];
    let (_, place) = url.rsplit_once('@').unwrap();
    let url = format!("postgres://weir_app:a-password-of-a-test@{place}");
    let process = Process::start(&weir, &["up"], &[("DATABASE_URL", &url)]);
    process.ready().await;
    let who = Who::User(weir.user("free").await);
    let job = weir.analyse(who, "a_test.go", GO_TESTS).await;
    assert_eq!(weir.finished(job, who).await["status"], "completed");
    weir.maintenance_started().await;
    let submitted = process
        .call(
            "POST",
            "/api/jobs/analysis",
            who,
            "as-the-role",
            &files(&[("b_test.go", GO_TESTS)]).to_string(),
        )
        .await;
    assert_eq!(submitted.status, 202, "{}", submitted.text);
    process.stop().await;
    weir.end().await;
}

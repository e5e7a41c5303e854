//! The subcommands that do one thing and end, as an operator runs them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use crate::common::process::{Process, command};
use crate::common::receiver::Receiver;
use crate::common::{GO_TESTS, Weir, Who};
use serde_json::{Value, json};

fn run(weir: &Weir, arguments: &[&str], more: &[(&str, &str)]) -> Output {
    command(weir, arguments)
        .envs(more.iter().copied())
        .output()
        .unwrap()
}

fn message(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_migrations_apply_each_file_once() {
    let weir = Weir::made(&[], async |url| {
        let migrate = || {
            Command::new(env!("CARGO_BIN_EXE_weir"))
                .arg("migrate")
                .env("DATABASE_URL", url)
                .env("WEIR_CONFIG", "native/tests/process.toml")
                .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let at_once: Vec<_> = (0..4).map(|_| migrate()).collect();
        // One of them migrates. The next one may apply the catalogue before that one does.
        let mut done = Vec::new();
        for child in at_once {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
            done.extend(message(&output).lines().map(str::to_owned));
        }
        done.retain(|line| line != "nothing to do: the database is up to date");
        assert!(
            done.iter()
                .any(|line| line.starts_with("created Weir's schema: ")),
            "{done:?}"
        );
        let once: BTreeSet<&String> = done.iter().collect();
        assert_eq!(once.len(), done.len(), "{done:?}");
    })
    .await;
    let again = run(&weir, &["migrate"], &[]);
    assert_eq!(message(&again), "nothing to do: the database is up to date\n");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_alone_on_standard_output_and_needs_a_positive_ttl() {
    let weir = Weir::new().await;
    let create = |more: &[&str]| {
        let create = ["key", "create", "--name", "billing", "--scope", "admin"];
        run(&weir, &[&create[..], more].concat(), &[])
    };
    let refused = create(&["--ttl", "0d"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let made = create(&["--ttl", "1d"]);
    assert!(made.status.success(), "{made:?}");
    let key = message(&made);
    assert!(key.starts_with("weir_sk_") && key.lines().count() == 1, "{key}");
    assert!(
        String::from_utf8_lossy(&made.stderr).contains("will not be shown again"),
        "{made:?}"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_names_a_user_of_the_requested_tier() {
    let weir = Weir::new().await;
    let user = uuid::Uuid::new_v4();
    let output = run(
        &weir,
        &[
            "token",
            "--plan",
            "pro",
            "--user",
            &user.to_string(),
            "--ttl",
            "90s",
        ],
        &[("JWT_ISSUER", "https://issuer.example"), ("JWT_AUDIENCE", "weir")],
    );
    assert!(output.status.success(), "{output:?}");
    let token = message(&output);
    let claims = token.trim().split('.').nth(1).unwrap();
    let claims = base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, claims).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(
        (&claims["sub"], &claims["iss"], &claims["aud"]),
        (
            &json!(user.to_string()),
            &json!("https://issuer.example"),
            &json!("weir")
        )
    );
    assert_eq!(
        claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(),
        90
    );
    let usage = weir.get("/api/usage", Who::User(user)).await.body;
    assert_eq!((&usage["plan"], &usage["tier"]), (&json!("pro"), &json!("pro")));

    // Without a secret, nothing is signed and no user is created. `--tier` was the option's name.
    let output = command(&weir, &["token", "--tier", "free"])
        .env_remove("JWT_SECRET")
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("JWT_SECRET"), "{why}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_exits_with_one_on_violations_and_zero_after_repair() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let sound = run(&weir, &["audit"], &[]);
    assert_eq!(sound.status.code(), Some(0), "{}", message(&sound));

    weir.client()
        .await
        .execute("UPDATE holders SET used = used + 7 WHERE user_id = $1", &[&user])
        .await
        .unwrap();
    let broken = run(&weir, &["audit", "--json"], &[]);
    assert_eq!(broken.status.code(), Some(1), "{}", message(&broken));
    let findings: Value = serde_json::from_slice(&broken.stdout).unwrap();
    let named = findings.as_array().unwrap().iter().any(|finding| {
        let violations = finding["violations"].as_array().unwrap();
        violations
            .iter()
            .any(|one| one.as_str().unwrap().contains(&user.to_string()))
    });
    assert!(named, "{findings}");

    let repaired = run(&weir, &["audit", "--repair"], &[]);
    assert_eq!(repaired.status.code(), Some(0), "{}", message(&repaired));
    assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_text_on_a_terminal_and_json_elsewhere() {
    let weir = Weir::new().await;
    let nix::pty::OpenptyResult { master, slave } = nix::pty::openpty(None, None).unwrap();
    let port = [("WEIR_ORIGIN_PORT", "0"), ("NO_COLOR", "1")];
    let mut serving = command(&weir, &["serve"])
        .envs(port)
        .stderr(slave)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(std::fs::File::from(master))
        .read_line(&mut line)
        .unwrap();
    serving.kill().unwrap();
    serving.wait().unwrap();
    let pattern = regex::Regex::new(r"^\d\d:\d\d:\d\d  INFO \w[^{]*\r\n$").unwrap();
    assert!(pattern.is_match(&line), "{line:?}");
    assert!(line.len() <= 80, "{line:?}");

    let mut serving = command(&weir, &["serve"])
        .envs(port)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    line.clear();
    BufReader::new(serving.stderr.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    serving.kill().unwrap();
    serving.wait().unwrap();
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["level"], "INFO");
    weir.end().await;
}

#[test]
fn the_version_is_that_of_weir() {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .arg("--version")
        .output()
        .unwrap();
    assert_eq!(
        message(&output),
        concat!("weir ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_shown_as_text_and_as_json() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await.to_string();
    let granted = ["user", "grant", &user, "analysis", "100", "--reason", "a ticket"];
    let text = message(&run(&weir, &granted, &[]));
    assert!(
        text.starts_with("analysis, in analyses: granted 100 (grant "),
        "{text}"
    );
    let grant = text.trim_end().trim_end_matches(')').rsplit(' ').next().unwrap();
    let revoked = [
        "user", "revoke", &user, grant, "--keep", "40", "--reason", "a refund",
    ];
    assert_eq!(
        message(&run(&weir, &revoked, &[])),
        format!("analysis, in analyses: grant {grant} now has 40, of which 40 are left\n")
    );
    let shown = format!("  grant  40 of 40 left, never expires: a ticket ({grant})");
    let text = message(&run(&weir, &["user", "show", &user], &[]));
    assert_eq!(
        text.lines().next(),
        Some(&*format!("user {user}, plan pro")),
        "{text}"
    );
    for line in [
        "analysis, in analyses",
        "  slots  0 of 3 in use, 0 waiting",
        &shown,
        "no jobs",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let json: Value =
        serde_json::from_str(&message(&run(&weir, &["user", "show", &user, "--json"], &[]))).unwrap();
    assert_eq!((&json["subject"], &json["plan"]), (&json!(user), &json!("pro")));
    assert_eq!(message(&run(&weir, &["user", "usage", &user], &[])), "no usage\n");
    let none: Value =
        serde_json::from_str(&message(&run(&weir, &["user", "usage", &user, "--json"], &[]))).unwrap();
    assert_eq!(none, json!([]));
    let cancelled = message(&run(&weir, &["user", "cancel", &user], &[]));
    assert_eq!(cancelled, "cancelled 0 jobs\n");
    let adjusted = ["user", "adjust", &user, "analysis", "1", "--reason", "a ticket"];
    assert_eq!(
        message(&run(&weir, &adjusted, &[])),
        "analysis, in analyses: 1 used in this period\n"
    );
    let unknown = run(&weir, &["user", "show", "stranger"], &[]);
    assert_eq!(unknown.status.code(), Some(3));
    assert_eq!(
        String::from_utf8_lossy(&unknown.stderr),
        "weir: user \"stranger\" not found\n"
    );
    weir.end().await;
}

/// Without any setting, so that a package can be built anywhere.
#[test]
fn completions_and_manual_pages_name_every_command() {
    let weir = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(arguments)
            .env_clear()
            .env("DATABASE_URL", "not a url")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        message(&output)
    };
    let help = weir(&["--help"]);
    assert_eq!(help.lines().next(), Some("Fair background jobs for your API"));
    let commands = help
        .split("Commands:\n")
        .nth(1)
        .unwrap()
        .split("\n\n")
        .next()
        .unwrap();
    let commands: Vec<&str> = commands
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.contains(&"completions"), "{commands:?}");
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let script = weir(&["completions", shell]);
        for command in &commands {
            assert!(script.contains(command), "{shell}: {command}");
        }
        for hidden in ["check", "manual"] {
            let offered = match shell {
                "bash" => format!("weir,{hidden})"),
                "zsh" => format!("({hidden})"),
                "fish" => format!(" -a \"{hidden}\""),
                _ => format!("'weir;{hidden}'"),
            };
            assert!(!script.contains(&offered), "{shell}: {offered}");
        }
    }
    // Only the values that are files or folders complete to file names.
    let script = weir(&["completions", "bash"]);
    let options = regex::Regex::new(r"(--[a-z-]+)\)\s+COMPREPLY=\((.*)\)").unwrap();
    let values: Vec<_> = options
        .captures_iter(&script)
        .map(|found| (found[1].to_owned(), found[2].to_owned()))
        .collect();
    for (option, value) in &values {
        assert_eq!(
            value.contains("compgen -f"),
            option == "--to",
            "{option}: {value}"
        );
    }
    assert!(
        values
            .iter()
            .any(|(option, value)| option == "--scope" && value.contains("submit read admin")),
        "{values:?}"
    );
    let folder = std::env::temp_dir().join(format!("weir-manual-{}", std::process::id()));
    weir(&["manual", "--to", folder.to_str().unwrap()]);
    for command in &commands {
        let page = std::fs::read_to_string(folder.join(format!("weir-{command}.1"))).unwrap();
        assert!(page.contains(".TH"), "{command}: {page}");
    }
    // Each page has the version in its footer, and examples.
    for page in std::fs::read_dir(&folder).unwrap() {
        let path = page.unwrap().path();
        let page = std::fs::read_to_string(&path).unwrap();
        let title = page.lines().find(|line| line.starts_with(".TH")).unwrap();
        assert!(
            title.contains(concat!("weir ", env!("CARGO_PKG_VERSION"))),
            "{path:?}: {title}"
        );
        assert!(!page.contains(".SH EXTRA"), "{path:?}: {page}");
        let last = if path.ends_with("weir.1") {
            "ENVIRONMENT"
        } else {
            "EXAMPLES"
        };
        assert!(page.contains(&format!(".SH {last}\n")), "{path:?}: {page}");
    }
    std::fs::remove_dir_all(folder).unwrap();
    // Colour is for terminals.
    assert!(!help.contains('\x1b'), "{help}");
}

#[tokio::test(flavor = "multi_thread")]
async fn not_found_and_wrong_usage_have_different_exit_codes() {
    let weir = Weir::new().await;
    let id = uuid::Uuid::nil().to_string();
    let missing: [&[&str]; 7] = [
        &["user", "show", "nobody"],
        &["user", "delete", "nobody", "--yes"],
        &["webhook", "remove", &id],
        &["key", "revoke", "no-key"],
        &["lane", "pause", "no_lane"],
        &["job", "cancel", "999999999"],
        &["job", "cancel", "--service", "no-service"],
    ];
    for arguments in missing {
        let output = run(&weir, arguments, &[]);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {output:?}");
    }
    let wrong: [&[&str]; 3] = [
        &["user", "shwo", "nobody"],
        &["job", "cancel"],
        &["user", "override", "nobody", "analysis", "--limit", "much"],
    ];
    for arguments in wrong {
        let output = run(&weir, arguments, &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
    weir.end().await;
}

#[test]
fn a_wrong_value_is_answered_with_an_example() {
    let id = uuid::Uuid::nil().to_string();
    let (time, duration) = ("such as 2027-01-31T00:00:00Z", "such as 90s, 8h or 30d");
    let cases: [(&[&str], &str); 9] = [
        (&["usage", "archive", "--to", "x", "--before", "yesterday"], time),
        (
            &["webhook", "replay", &id, "--undelivered-since", "2027-01-31"],
            time,
        ),
        (
            &[
                "user",
                "grant",
                "ann",
                "analysis",
                "1",
                "--reason",
                "x",
                "--expires",
                "soon",
            ],
            time,
        ),
        (
            &[
                "user", "override", "ann", "analysis", "--slots", "1", "--until", "soon",
            ],
            time,
        ),
        (&["user", "plan", "ann", "pro", "--occurred-at", "now"], time),
        (&["job", "cancel", "--older-than", "long"], duration),
        (
            &[
                "key",
                "create",
                "--name",
                "x",
                "--scope",
                "read",
                "--ttl",
                "1 fortnight",
            ],
            duration,
        ),
        (&["token", "--plan", "pro", "--ttl", "8"], duration),
        (&["webhook", "test", "mine"], "`weir webhook list` shows the ids"),
    ];
    for (arguments, example) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(example), "{arguments:?}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_shows_what_goes_and_asks() {
    let weir = Weir::new().await;
    let who = Who::Subject("ann");
    for _ in 0..2 {
        weir.analyse(who, "a_test.go", GO_TESTS).await;
    }
    let delete = |answer: &str| {
        let nix::pty::OpenptyResult { master, slave } = nix::pty::openpty(None, None).unwrap();
        // The terminal keeps the line until the command reads it.
        std::fs::File::from(master.try_clone().unwrap())
            .write_all(answer.as_bytes())
            .unwrap();
        command(&weir, &["user", "delete", "ann"])
            .stdin(slave)
            .output()
            .unwrap()
    };
    let shows =
        "ann: 2 jobs will be deleted, 2 of them unfinished; 0 usage events will be kept anonymously\n";
    let unasked = run(&weir, &["user", "delete", "ann"], &[]);
    assert_eq!(unasked.status.code(), Some(2), "{unasked:?}");
    assert!(message(&unasked).contains(shows), "{unasked:?}");
    assert!(
        String::from_utf8_lossy(&unasked.stderr).contains("--yes"),
        "{unasked:?}"
    );

    let declined = delete("no\n");
    assert_eq!(declined.status.code(), Some(1), "{declined:?}");
    assert_eq!(
        message(&declined),
        format!("{shows}Delete ann? [y/N] nothing was deleted\n")
    );
    assert!(run(&weir, &["user", "show", "ann"], &[]).status.success());

    let confirmed = delete("y\n");
    assert!(confirmed.status.success(), "{confirmed:?}");
    assert!(
        message(&confirmed).contains("[y/N] deleted, with 2 jobs"),
        "{confirmed:?}"
    );
    assert!(!run(&weir, &["user", "show", "ann"], &[]).status.success());
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_show_prints_why_a_job_waits_its_attempts_and_its_output() {
    let weir = Weir::new().await;
    let who = Who::Subject("ann");
    let first = weir.analyse(who, "a_test.go", GO_TESTS).await.to_string();
    let second = weir.analyse(who, "b_test.go", GO_TESTS).await.to_string();
    let show = |id: &str| message(&run(&weir, &["job", "show", id], &[]));
    let has_line = |text: &str, line: &str| {
        assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
    };
    let text = show(&first);
    has_line(&text, "state        waits for a worker: no workers");
    has_line(&text, "holder       ann");
    has_line(&text, "attempt      0 of 3");
    has_line(&show(&second), "state        waits for a slot");

    let working = Process::start(&weir, &["work"], &[]);
    working.ready().await;
    weir.finished(first.parse().unwrap(), who).await;
    working.stop().await;
    let text = show(&first);
    has_line(&text, "state        completed");
    has_line(&text, "charged      1");
    assert!(
        text.contains("\nattempt 1 started ") && text.contains(", took "),
        "{text}"
    );
    assert!(
        text.contains("\noutput\n{") && text.contains("\narguments\n{"),
        "{text}"
    );
    let json: Value =
        serde_json::from_str(&message(&run(&weir, &["job", "show", &first, "--json"], &[]))).unwrap();
    assert_eq!(json["status"], "completed");
    assert_eq!(json["user"], "ann");
    assert_eq!(json["attempts"][0]["attempt"], 1);
    assert!(json["attempts"][0]["took_ms"].is_u64(), "{json}");
    assert!(json["output"]["count"].is_u64(), "{json}");
    let unknown = run(&weir, &["job", "show", "4711"], &[]);
    assert_eq!(unknown.status.code(), Some(3), "{unknown:?}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_about_the_database_need_no_services_file() {
    let weir = Weir::with(&[("FAIRNESS_FREE_LIMIT", "2")]).await;
    let job = weir
        .analyse(Who::Subject("ann"), "a_test.go", GO_TESTS)
        .await
        .to_string();
    let folder = std::env::temp_dir().join(format!("weir-elsewhere-{}", weir.name()));
    std::fs::create_dir(&folder).unwrap();
    let elsewhere = |arguments: &[&str]| {
        let mut command = command(&weir, arguments);
        let command = command.current_dir(&folder);
        // Those of another machine.
        command
            .env_remove("WEIR_CONFIG")
            .env_remove("FAIRNESS_FREE_LIMIT");
        command.output().unwrap()
    };
    let reads: [&[&str]; 7] = [
        &["job", "show", &job],
        &["status"],
        &["audit"],
        &["user", "show", "ann"],
        &["key", "list"],
        &["webhook", "list"],
        &["job", "retry", "--service", "analysis", "--dry-run"],
    ];
    for arguments in reads {
        let output = elsewhere(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    let status = message(&elsewhere(&["status"]));
    assert!(status.contains("analysis: 1 slot in use"), "{status}");
    assert!(status.contains("no workers"), "{status}");
    assert!(
        !status.contains("warning") && !status.contains("external"),
        "{status}"
    );
    let serving = elsewhere(&["serve"]);
    assert!(
        String::from_utf8_lossy(&serving.stderr).contains("cannot read weir.toml"),
        "{serving:?}"
    );
    std::fs::remove_dir(&folder).unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_of_a_developer_may_be_on_this_machine() {
    let weir = Weir::new().await;
    let receiver = Receiver::new();
    let url = receiver.url();
    let refused = run(&weir, &["webhook", "add", &url], &[]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let development = ("WEIR_ENV", "development");
    let added = run(&weir, &["webhook", "add", &url], &[development]);
    assert!(added.status.success(), "{added:?}");
    let working = Process::start(&weir, &["work"], &[development]);
    working.ready().await;
    let listed = run(&weir, &["webhook", "list", "--json"], &[development]);
    let listed: Value = serde_json::from_str(&message(&listed)).unwrap();
    let id = listed[0]["id"].as_str().unwrap();
    let tested = run(&weir, &["webhook", "test", id], &[development]);
    assert!(message(&tested).contains("was delivered: 204"), "{tested:?}");
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_released_binary_refuses_services_with_handlers_in_rust() {
    let weir = Weir::new().await;
    for subcommand in ["check", "up"] {
        let output = command(&weir, &[subcommand])
            .env("WEIR_CONFIG", "weir.toml")
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{subcommand}: {printed}");
        for fault in [
            "service \"analysis\": this binary has no handler \"analyze\"",
            "service \"specview\": this binary has no handler \"specview\"",
        ] {
            assert!(printed.contains(fault), "{subcommand}: {printed}");
        }
    }
    weir.end().await;
}

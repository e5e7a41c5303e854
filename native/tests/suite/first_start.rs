//! The error messages of a failed first start: every error, with its remedy.

use std::process::Command;

use crate::common::Weir;
use crate::common::services_file::ServicesFile;

/// Runs `weir` with only these environment variables, and returns its error message.
fn refused(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env_clear()
        .env("WEIR_CONFIG", "native/tests/process.toml")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The error message for a services file with these contents.
fn refused_file(text: &str) -> String {
    let file = ServicesFile::new(text);
    let variables = [
        ("DATABASE_URL", "postgres://weir@127.0.0.1/weir"),
        ("WEIR_CONFIG", file.name()),
    ];
    refused(&["status"], &variables).replace(file.name(), "weir.toml")
}

#[test]
fn ten_invalid_settings_are_reported_at_once() {
    let printed = refused(
        &["up"],
        &[
            ("DATABASE_URL", "mysql://root:hunter2@db/weir"),
            ("EDGE_SECRET", "too-short"),
            ("WEIR_ENV", "prod"),
            ("WEIR_ORIGIN_PORT", "http"),
            ("WEIR_DRAIN_TIMOUT", "30s"),
            ("FAIRNESS_FREE_LIMIT", "0"),
            ("FAIRNES_PRO_LIMIT", "3"),
            ("FAIRNESS_SNOOZE_DURATION", "soon"),
            ("ANALYZER_QUEUE_PRIORITY_WORKERS", "many"),
            ("ANALYSER_QUEUE_DEFAULT_WORKERS", "3"),
            ("WEIR_SERVICE_HOST", "10.0.0.1"),
            ("PATH", "/usr/bin"),
        ],
    );
    assert_eq!(
        printed,
        "\
weir: the configuration has 10 errors:
  - WEIR_ENV is \"prod\", but must be production or development
  - DATABASE_URL: it must be a URL such as postgres://user@host:5432/name, or keywords such as host=/run/postgresql dbname=name
  - EDGE_SECRET has 9 characters, but must have at least 32
  - WEIR_ORIGIN_PORT is \"http\", but must be a port number
  - FAIRNESS_FREE_LIMIT is \"0\", but must be a whole number from 1 to 10000
  - FAIRNESS_SNOOZE_DURATION is \"soon\", but must be a duration such as 30s or 1h, at least 1s
  - ANALYZER_QUEUE_PRIORITY_WORKERS is \"many\", but must be a whole number from 1 to 10000
  - ANALYSER_QUEUE_DEFAULT_WORKERS is not a setting; did you mean ANALYZER_QUEUE_DEFAULT_WORKERS?
  - FAIRNES_PRO_LIMIT is not a setting; did you mean FAIRNESS_PRO_LIMIT?
  - WEIR_DRAIN_TIMOUT is not a setting; did you mean WEIR_DRAIN_TIMEOUT?
correct them and restart
"
    );
}

#[test]
fn weirs_job_kinds_are_reserved() {
    let printed = refused_file(
        r#"
[[service]]
name = "mail"
event_type = "analysis"
kind = "weir:webhook"
workers = "MAIL"
priority_workers = 1
default_workers = 1
scheduled_workers = 1
timeout = "10s"
max_attempts = 3
handler = { type = "exec", command = ["mail"] }
"#,
    );
    assert!(
        printed.contains("kinds that start with weir: are reserved for Weir"),
        "{printed}"
    );
}

const INVALID_SERVICES: &str = r#"
[[service]]
name = "render"
event_type = "renders"
kind = "render"
workers = "RENDER"
priority_workers = "five"
default_workers = 0
scheduled_workers = 1
timout = "10s"
max_attempts = 3
handler = { type = "exec", command = [] }

[[service]]
name = "Mail"
event_type = "analysis"
kind = "render"
workers = "MAIL"
priority_workers = 1
default_workers = 1
scheduled_workers = 1
timeout = "soon"
max_attempts = 0
handler = { type = "http", url = "example.com" }

[[periodic]]
id = "nightly"
service = "male"
schedule = "every night"

[[worker]]
"#;

const INVALID_PLANS: &str = r#"
[[meter]]
name = "Renders"
unit = " "

[[meter]]
name = "meters"

[[plan]]
name = "hobby"
lane = "scheduled"
slots = 0
burst = 10001
services = { render = { slots = 2, burst = 1 }, mail = 1 }
limits = { Renders = { month = -1, day = 1000000000000000 }, videos = 3 }
retention_days = 0

[[plan]]
name = "anonymous"
lane = "priority"
slots = 1
burst = 0
limits = { Renders = { fortnight = 1 } }
soft = { Renders = 9 }

[[service]]
name = "render"
meter = "Renders"
event_type = "Renders"
kind = "render"
workers = "RENDER"
priority_workers = 1
default_workers = 1
scheduled_workers = 1
headroom = 10001
wake = "5ms"
timeout = "1m"
max_attempts = 1
handler = { type = "exec", command = ["true"] }

[[service]]
name = "draft"
meter = "Renders"
kind = "draft"
workers = "DRAFT"
priority_workers = 1
default_workers = 1
scheduled_workers = 1
timeout = "1m"
max_attempts = 1
handler = { type = "exec", command = ["true"] }
"#;

#[test]
fn every_error_in_the_services_file_is_listed_with_its_line() {
    let printed = refused_file(INVALID_SERVICES);
    insta::assert_snapshot!(printed);
    let printed = refused_file(INVALID_PLANS);
    insta::assert_snapshot!(printed);
    let printed = refused_file("[[service]\nname = \"a\"\n");
    insta::assert_snapshot!(printed);
    let service = |name: &str, kind: &str, timeout: &str, handler: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nevent_type = \"analysis\"\nkind = \"{kind}\"\nworkers = \"A\"\n\
             priority_workers = 1\ndefault_workers = 1\nscheduled_workers = 1\ntimeout = \"{timeout}\"\n\
             max_attempts = 1\nhandler = {{ {handler} }}\n"
        )
    };
    let (exec, http) = (
        "type = \"exec\", command = [\"true\"]",
        "type = \"http\", url = \"https://a.example\"",
    );
    // Errors that only a running process would notice.
    let all = [
        service("a", "", "0s", exec),
        service(
            "b",
            &"x".repeat(128),
            "367days",
            "type = \"exec\", command = [\"\"]",
        ),
        service("c", "c", "10s", &format!("{http}, amount = 1000000000000001")),
        service(
            "d",
            "d\\u0000",
            "10s",
            &format!("{exec}, amount = 1000000000000001"),
        ),
        service(
            "e",
            &"\u{e9}".repeat(127),
            "366days",
            &format!("{exec}, amount = 1000000000000000"),
        ),
        "[[periodic]]\nid = \"n\"\nservice = \"e\"\nevery = \"1h\"\nargs = { \"\\u0000\" = 1 }\n".to_owned(),
    ];
    let printed = refused_file(&all.concat());
    insta::assert_snapshot!(printed);
}

/// `postgres://user:password@host:port/name` with other parts.
fn changed(url: &str, change: impl FnOnce(&mut reqwest::Url)) -> String {
    let mut url = reqwest::Url::parse(url).unwrap();
    change(&mut url);
    url.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_database_is_reported_with_a_reason_and_a_fix() {
    let weir = Weir::new().await;
    let url = weir.url().to_owned();
    let server = reqwest::Url::parse(&url).unwrap();
    let place = format!("{}:{}", server.host_str().unwrap(), server.port().unwrap());
    let printed = |url: &str| refused(&["status"], &[("DATABASE_URL", url)]);

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed_port = free.local_addr().unwrap().port();
    drop(free);
    let away = format!("postgres://weir:hunter2@127.0.0.1:{closed_port}/jobs");
    assert_eq!(
        printed(&away),
        format!(
            "weir: the database \"jobs\" at 127.0.0.1:{closed_port} (user \"weir\") cannot be used: Connection refused (os \
             error 111); start it, or correct DATABASE_URL\n"
        )
    );

    let nowhere = changed(&url, |url| url.set_path("no_such_database"));
    let user = server.username();
    assert_eq!(
        printed(&nowhere),
        format!(
            "weir: the database \"no_such_database\" at {place} (user \"{user}\") cannot be used: database \
             \"no_such_database\" does not exist (3D000); create it, or correct DATABASE_URL\n"
        )
    );

    let admin = weir.admin().await;
    let role = format!("weir_{}", uuid::Uuid::new_v4().simple());
    admin
        .batch_execute(&format!("CREATE ROLE {role} NOLOGIN PASSWORD 'right'"))
        .await
        .unwrap();
    let as_role = |password: &str| {
        changed(&url, |url| {
            url.set_username(&role).unwrap();
            url.set_password(Some(password)).unwrap();
        })
    };
    let wrong = printed(&as_role("hunter2"));
    // A server that trusts all clients checks no password, and reports that the role may not log in.
    let trusts = wrong.contains("is not permitted to log in (28000)");
    let (reason, mend) = if trusts {
        (
            format!("role \"{role}\" is not permitted to log in (28000)"),
            "correct the user in DATABASE_URL, or the server's access rules (pg_hba.conf)",
        )
    } else {
        (
            format!("password authentication failed for user \"{role}\" (28P01)"),
            "correct the password in DATABASE_URL",
        )
    };
    let name = weir.name();
    assert_eq!(
        wrong,
        format!(
            "weir: the database \"{name}\" at {place} (user \"{role}\") cannot be used: {reason}; {mend}\n"
        )
    );
    assert!(!wrong.contains("hunter2"));
    admin.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_weirs_tables_the_error_names_the_command() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client.batch_execute("DROP TABLE weir_schema").await.unwrap();
    let secret = "a secret that is only for this one test";
    let variables = [
        ("DATABASE_URL", weir.url()),
        ("EDGE_SECRET", secret),
        ("JWT_SECRET", secret),
        ("WEIR_ORIGIN_PORT", "0"),
    ];
    for arguments in [
        &["status"][..],
        &["audit"],
        &["token", "--plan", "free"],
        &["up"],
        &["work"],
    ] {
        let printed = refused(arguments, &variables);
        let last = printed.lines().last().unwrap();
        assert_eq!(
            last,
            "weir: the database does not have the schema of this release; run `weir migrate` first, or set WEIR_SCHEMA \
             if Weir's tables are in another schema",
            "{arguments:?}: {printed}"
        );
    }
    weir.abandon().await;
}

/// A service and, from line 12 on, any other text.
fn with_service(handler: &str, more: &str) -> String {
    format!(
        "[[service]]\nname = \"a\"\nevent_type = \"analysis\"\nkind = \"a\"\nworkers = \"A\"\npriority_workers = 1\n\
         default_workers = 1\nscheduled_workers = 1\ntimeout = \"10s\"\nmax_attempts = 1\nhandler = {{ {handler} }}\n{more}"
    )
}

#[test]
fn misleading_ticks_or_arguments_of_a_periodic_job_are_refused() {
    let exec = "type = \"exec\", command = [\"true\"]";
    for (members, fault) in [
        // Ticks of two schedulers would differ, like those of an @every without a zone.
        (
            "schedule = \"CRON_TZ=UTC @every 90s\"",
            "schedule is \"CRON_TZ=UTC @every 90s\"; write every = \"90s\" instead",
        ),
        // River panics on these, or reads them differently.
        (
            "schedule = \"* * */4294967295 * *\"",
            "schedule is \"* * */4294967295 * *\", which has a step larger than its field",
        ),
        (
            "schedule = \"@every 99999999999999999999999999999999999999h\"",
            "schedule is \"@every 99999999999999999999999999999999999999h\"; \
             write every = \"99999999999999999999999999999999999999h\" instead",
        ),
        (
            "schedule = \"0 0 30 2 *\"",
            "schedule is \"0 0 30 2 *\", which never occurs",
        ),
        (
            "schedule = \", * * * *\"",
            "schedule is \", * * * *\", which never occurs",
        ),
        (
            "every = \"1h\"\nargs = { rates = [nan] }",
            "args: JSON cannot represent NaN",
        ),
    ] {
        let printed = refused_file(&with_service(
            exec,
            &format!("[[periodic]]\nid = \"p\"\nservice = \"a\"\n{members}\n"),
        ));
        assert!(
            printed.starts_with("weir: the configuration has an error:\n  - weir.toml, line 1"),
            "{printed}"
        );
        assert!(
            printed.contains(&format!(", periodic \"p\": {fault}\n")),
            "{fault}\n{printed}"
        );
    }
}

#[test]
fn unknown_members_of_an_amount_are_refused() {
    let handler = "type = \"exec\", command = [\"true\"], amount = { member = \"pages\", default = 1 }";
    let printed = refused_file(&with_service(handler, ""));
    assert!(
        printed.contains("weir.toml, line 11, service \"a\": handler: an amount is a number, or { member = "),
        "{printed}"
    );
}

#[test]
fn a_wrong_type_is_reported_in_toml_terms() {
    let service = |name: &str, more: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\nevent_type = \"analysis\"\nkind = \"{name}\"\n\
             workers = \"A\"\n{more}\n"
        )
    };
    let pools = "priority_workers = 1\ndefault_workers = 1\nscheduled_workers = 1\ntimeout = \"10s\"\nmax_attempts = 1\n";
    let handlers = [
        "\"sh\"",
        "{}",
        "{ type = 3 }",
        "{ type = \"ex\" }",
        "{ type = \"exec\" }",
        "{ type = \"exec\", command = \"true\" }",
        "{ type = \"exec\", command = [1] }",
        "{ type = \"exec\", command = [\"true\"], cmd = 1 }",
        "{ type = \"http\", url = 3 }",
        "{ type = \"http\", url = \"https://a.example\", private = 1 }",
        "{ type = \"external\", url = \"https://a.example\" }",
        "{ type = \"external\", amount = 0 }",
        "{ type = \"builtin\", name = \"x\" }",
        "{ type = \"builtin\", name = 3 }",
        "{ type = \"builtin\", name = {} }",
    ];
    let retries = [
        "3",
        "[]",
        "{}",
        "{ base = 1 }",
        "{ base = \"1s\", factor = \"2\" }",
        "{ base = \"1s\", power = \"2\" }",
        "{ base = \"1s\", factor = 2, power = 2 }",
        "{ base = \"1s\", power = 11 }",
    ];
    let mut file = service(
        "a",
        "priority_workers = -1\ndefault_workers = 1.5\nscheduled_workers = [1]\ntimeout = 3\nmax_attempts = 100000\n\
         unique_by = \"a\"\nhandler = { type = \"exec\", command = [\"true\"] }",
    );
    for (number, handler) in handlers.iter().enumerate() {
        file += &service(&format!("h{number}"), &format!("{pools}handler = {handler}"));
    }
    for (number, retry) in retries.iter().enumerate() {
        let exec = "handler = { type = \"exec\", command = [\"true\"] }";
        file += &service(&format!("r{number}"), &format!("{pools}{exec}\nretry = {retry}"));
    }
    file += "[[meter]]\nname = \"analysis\"\nunit = 3\n\
             [[plan]]\nname = \"free\"\ndefault = \"yes\"\nlane = true\nslots = \"1\"\nservices = 3\n\
             retention_days = 1.5\n\
             [[periodic]]\nid = \"p\"\nservice = []\nevery = 3\nargs = 3\n";
    let printed = refused_file(&file);
    let rust = regex::Regex::new(
        r"\b([iuf](16|32|64)|struct|enum|variant|field|sequence|map|boolean|floating point|Retry|HandlerSpec)\b|`",
    )
    .unwrap();
    let leaks: Vec<&str> = printed.lines().filter(|line| rust.is_match(line)).collect();
    assert_eq!(leaks, [""; 0]);
    insta::assert_snapshot!(printed);
    for (text, fault) in [
        ("service = 3\n", "expected an array, not the number 3"),
        ("[service]\nname = \"a\"\n", "expected an array, not a table"),
        ("plan = [\"free\"]\n", "expected a table, not the string \"free\""),
    ] {
        assert_eq!(
            refused_file(text),
            format!(
                "weir: the configuration has an error:\n  - weir.toml, line 1: {fault}; expected [[service]], [[periodic]], \
                 [[meter]] or [[plan]]\ncorrect them and restart\n"
            )
        );
    }
}

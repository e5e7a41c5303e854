//! The operator's view: probes, metrics, the dashboard, the logs, `weir status`. All of them from the real binary.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

use crate::common::process::{Process, command};
use crate::common::{GO_TESTS, Weir, Who, files};
use promql_parser::label::MatchOp;
use promql_parser::parser::{self, Expr};
use serde_json::Value;

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_and_alerts_use_existing_metrics() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["up"], &[]);
    let ready = process.ready().await;
    assert!(ready < Duration::from_secs(10), "ready after {ready:?}");
    let scrape = process.scrape().await;

    // By metric: the labels, with all their values.
    let mut shown: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for (name, labels, _) in scrape.samples() {
        let there = shown.entry(name).or_default();
        for label in labels {
            let (label, value) = label.split_once('=').unwrap();
            there.entry(label).or_default().insert(value.trim_matches('"'));
        }
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
    let read = |path: &str| std::fs::read_to_string(format!("{folder}/{path}")).unwrap();
    let dashboard: Value = serde_json::from_str(&read("grafana/weir.json")).unwrap();
    let alerts: Value = serde_yaml_ng::from_str(&read("prometheus/alerts.yml")).unwrap();
    let mut asked = Vec::new();
    expressions(&dashboard, &mut asked);
    expressions(&alerts, &mut asked);
    assert!(asked.len() > 30, "{} expressions", asked.len());
    let mut used = BTreeSet::new();
    for text in asked {
        // Grafana replaces these before a query.
        let text = text.replace("$__rate_interval", "5m").replace("$job", ".*");
        let parsed = parser::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut selectors = Vec::new();
        selected(&parsed, &mut selectors);
        assert!(!selectors.is_empty(), "{text}");
        for selector in selectors {
            let name = selector.name.clone().unwrap();
            let labels = shown
                .get(name.as_str())
                .unwrap_or_else(|| panic!("{text}: no scrape has {name}"));
            for matcher in &selector.matchers.matchers {
                // Prometheus itself adds `job` and `instance`.
                if ["job", "instance", "__name__"].contains(&matcher.name.as_str()) {
                    continue;
                }
                let values = labels
                    .get(matcher.name.as_str())
                    .unwrap_or_else(|| panic!("{text}: {name} has no label {}", matcher.name));
                if matches!(matcher.op, MatchOp::Equal | MatchOp::NotEqual) {
                    assert!(
                        values.contains(matcher.value.as_str()),
                        "{text}: {name} has no {}={:?}",
                        matcher.name,
                        matcher.value
                    );
                }
            }
            used.insert(name);
        }
    }
    // The other direction: every collected metric is shown.
    for name in shown.keys() {
        let base = name
            .trim_end_matches("_bucket")
            .trim_end_matches("_sum")
            .trim_end_matches("_count");
        let looked_at = used.iter().any(|used| used.starts_with(base));
        assert!(looked_at, "neither the dashboard nor an alert uses {name}");
        assert!(
            scrape.text.contains(&format!("# HELP {base} ")),
            "{name} has no help"
        );
    }
    assert_eq!(process.stop().await, Some(0));
    weir.end().await;
}

/// The text of every member `expr`, at any depth.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                match value {
                    Value::String(text) if name == "expr" => found.push(text.clone()),
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

fn selected<'a>(expression: &'a Expr, found: &mut Vec<&'a parser::VectorSelector>) {
    match expression {
        Expr::VectorSelector(selector) => found.push(selector),
        Expr::MatrixSelector(matrix) => found.push(&matrix.vs),
        Expr::Aggregate(aggregate) => selected(&aggregate.expr, found),
        Expr::Unary(unary) => selected(&unary.expr, found),
        Expr::Paren(paren) => selected(&paren.expr, found),
        Expr::Subquery(query) => selected(&query.expr, found),
        Expr::Binary(binary) => {
            selected(&binary.lhs, found);
            selected(&binary.rhs, found);
        }
        Expr::Call(call) => call.args.args.iter().for_each(|one| selected(one, found)),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_shows_depth_slots_and_parked_jobs_by_tier() {
    let weir = Weir::new().await;
    let (free, pro) = (weir.user("free").await, weir.user("pro").await);
    for who in [Who::User(free), Who::User(pro)] {
        for _ in 0..5 {
            weir.analyse(who, "a_test.go", GO_TESTS).await;
        }
    }
    weir.analyse(Who::Address("198.51.100.1"), "a_test.go", GO_TESTS)
        .await;
    // Without workers, they stay unchanged.
    let process = Process::start(&weir, &["schedule"], &[]);
    process.ready().await;
    let scrape = weir
        .until("a leader, and a scrape that could count", async || {
            let scrape = process.scrape().await;
            let known = ["weir_leader_known", "weir_jobs_counted"];
            known
                .iter()
                .all(|name| scrape.value(name, &[]) == Some(1.0))
                .then_some(scrape)
        })
        .await;
    let lane = |lane: &str, plan: &str, state: &str| {
        let labels = [
            ("service", "analysis"),
            ("lane", lane),
            ("plan", plan),
            ("state", state),
        ];
        scrape.value("weir_lane_jobs", &labels)
    };
    assert_eq!(lane("default", "free", "queued"), Some(1.0));
    assert_eq!(lane("priority", "pro", "queued"), Some(3.0));
    assert_eq!(lane("default", "anonymous", "queued"), Some(1.0));
    assert_eq!(lane("default", "pro", "queued"), Some(0.0));
    assert_eq!(lane("priority", "pro", "running"), Some(0.0));
    let of = |name: &str, plan: &str| scrape.value(name, &[("meter", "analysis"), ("plan", plan)]);
    assert_eq!(of("weir_parked_jobs", "free"), Some(4.0));
    assert_eq!(of("weir_parked_jobs", "pro"), Some(2.0));
    assert_eq!(of("weir_slots_in_use", "free"), Some(1.0));
    assert_eq!(of("weir_slots_in_use", "pro"), Some(3.0));
    assert_eq!(of("weir_slots_in_use", "anonymous"), Some(1.0));
    let state = |state: &str| {
        scrape.value(
            "weir_open_reservations",
            &[("meter", "analysis"), ("state", state)],
        )
    };
    assert_eq!(
        [state("admitted"), state("parked"), state("between_attempts")],
        [Some(5.0), Some(6.0), Some(0.0)]
    );
    let oldest = [("service", "analysis"), ("lane", "priority"), ("plan", "pro")];
    assert!(scrape.value("weir_oldest_wait_seconds", &oldest).unwrap() > 0.0);
    assert_eq!(scrape.value("weir_worker_processes", &[]), Some(0.0));
    assert_eq!(scrape.value("weir_database_up", &[]), Some(1.0));
    assert_eq!(process.stop().await, Some(0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_needs_a_database_and_reports_a_missing_leader() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    let readiness = async || {
        let reply = process.get("/readyz").await.unwrap();
        (reply.status, serde_json::from_str::<Value>(&reply.text).unwrap())
    };
    let (status, body) = readiness().await;
    assert_eq!(
        (status, &body["leader"]),
        (200, &Value::from("none: start `weir schedule`"))
    );
    assert_eq!(process.scrape().await.value("weir_leader_known", &[]), Some(0.0));

    let name = weir.name().to_owned();
    let admin = weir.admin().await;
    let close = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false");
    let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
    admin.batch_execute(&format!("{close}; {end}")).await.unwrap();
    weir.until("the outage to show", async || {
        (readiness().await.0 == 503).then_some(())
    })
    .await;
    let (_, body) = readiness().await;
    assert_eq!(body["database"], "cannot be reached");
    let scrape = weir
        .until("the outage to be measured", async || {
            let scrape = process.scrape().await;
            (scrape.value("weir_database_up", &[]) == Some(0.0)).then_some(scrape)
        })
        .await;
    let waiting = [
        ("service", "analysis"),
        ("lane", "default"),
        ("plan", "free"),
        ("state", "queued"),
    ];
    assert!(
        scrape.value("weir_lane_jobs", &waiting).unwrap().is_nan(),
        "an unknown value is not zero"
    );
    assert_eq!(
        process.get("/healthz").await.unwrap().status,
        200,
        "alive all the same"
    );

    let open = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true");
    admin.batch_execute(&open).await.unwrap();
    process.ready().await;
    weir.until("the metrics to heal", async || {
        (process.scrape().await.value("weir_database_up", &[]) == Some(1.0)).then_some(())
    })
    .await;
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_not_ready_while_the_disk_is_full() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$; \
             CREATE TRIGGER full_disk AFTER INSERT ON weir_jobs FOR EACH STATEMENT EXECUTE FUNCTION full_disk()",
        )
        .await
        .unwrap();
    let who = Who::User(weir.user("pro").await);
    let body = files(&[("a_test.go", GO_TESTS)]).to_string();
    let submit = async |id: &str| {
        process
            .call("POST", "/api/jobs/analysis", who, id, &body)
            .await
            .status
    };
    let readiness = async || {
        let reply = process.get("/readyz").await.unwrap();
        (reply.status, serde_json::from_str::<Value>(&reply.text).unwrap())
    };
    // A slow machine may take longer for the probe than a failure counts.
    let (_, body) = weir
        .until("a process that is not ready", async || {
            assert_eq!(submit("full").await, 503);
            Some(readiness().await).filter(|(status, _)| *status == 503)
        })
        .await;
    assert_eq!(body["database"], "lacks disk or memory: the last write failed");
    client
        .batch_execute("DROP TRIGGER full_disk ON weir_jobs")
        .await
        .unwrap();
    assert_eq!(submit("free").await, 202);
    assert_eq!(readiness().await.0, 200, "a write succeeded");
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_count_does_not_mean_the_database_is_down() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    open.batch_execute("LOCK TABLE quota_reservations").await.unwrap();
    let waiting = [("meter", "analysis"), ("plan", "free")];
    let scrape = weir
        .until("a scrape that could not count", async || {
            let scrape = process.scrape().await;
            scrape
                .value("weir_parked_jobs", &waiting)?
                .is_nan()
                .then_some(scrape)
        })
        .await;
    assert_eq!(scrape.value("weir_database_up", &[]), Some(1.0));
    assert_eq!(scrape.value("weir_jobs_counted", &[]), Some(0.0));
    assert_eq!(scrape.value("weir_worker_processes", &[]), Some(0.0));
    open.rollback().await.unwrap();
    weir.until("the next count", async || {
        let scrape = process.scrape().await;
        (scrape.value("weir_parked_jobs", &waiting) == Some(0.0)).then_some(())
    })
    .await;
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_id_finds_all_log_lines_and_the_wake_is_measured() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    let process = Process::start(&weir, &["up"], &[]);
    process.ready().await;
    let body = files(&[("a_test.go", GO_TESTS)]).to_string();
    let mut jobs = Vec::new();
    for n in 1..=20 {
        let reply = process
            .call(
                "POST",
                "/api/jobs/analysis",
                who,
                &format!("story-{n}-end"),
                &body,
            )
            .await;
        assert_eq!(reply.status, 202, "{}", reply.text);
        let answer: Value = serde_json::from_str(&reply.text).unwrap();
        jobs.push(answer["job"]["id"].as_i64().unwrap());
    }
    let story = |id: &str| -> Vec<Value> {
        let lines = process.log();
        lines
            .into_iter()
            .filter(|line| line["request_id"] == id)
            .collect()
    };
    for (n, job) in jobs.iter().enumerate() {
        let id = format!("story-{}-end", n + 1);
        let lines = weir
            .until(&format!("the story of {id}"), async || {
                let lines = story(&id);
                (lines.len() >= 5).then_some(lines)
            })
            .await;
        let logged: BTreeSet<_> = lines
            .iter()
            .map(|line| line["message"].as_str().unwrap())
            .collect();
        assert_eq!(
            logged,
            BTreeSet::from([
                "reserved",
                "request",
                "attempt started",
                "attempt ended",
                "settled"
            ])
        );
        for line in &lines {
            assert_eq!(line["user"], user.to_string(), "{line}");
            if line["message"] == "request" {
                assert_eq!(line["route"], "/api/jobs/{id}");
                assert_eq!((&line["method"], &line["status"]), (&"POST".into(), &202.into()));
                assert!(line["duration_ms"].as_f64().unwrap() > 0.0, "{line}");
            } else {
                assert_eq!(line["job"], *job, "{line}");
            }
        }
        let ended = lines
            .iter()
            .find(|line| line["message"] == "attempt ended")
            .unwrap();
        assert_eq!(
            (&ended["outcome"], &ended["charged"]),
            (&"completed".into(), &1.into())
        );
    }
    let scrape = process.scrape().await;
    let value = |name: &str, labels: &[(&str, &str)]| scrape.value(name, labels).unwrap();
    let promoted = value("weir_promotions_total", &[]);
    assert!(promoted >= 1.0, "nothing was parked");
    // Exactly the promoted jobs were measured.
    assert_eq!(value("weir_wake_duration_seconds_count", &[]), promoted);
    assert!(
        value("weir_wake_duration_seconds_sum", &[]) < promoted,
        "a second each"
    );
    let completed = [("service", "analysis"), ("outcome", "completed")];
    assert_eq!(value("weir_attempts_total", &completed), 20.0);
    assert_eq!(
        value("weir_attempt_duration_seconds_count", &completed[..1]),
        20.0
    );
    let requests = [("method", "POST"), ("route", "/api/jobs/{id}"), ("status", "202")];
    assert_eq!(value("weir_http_requests_total", &requests), 20.0);
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_the_log_has_failures_only() {
    let weir = Weir::with(&[(
        "WEIR_CONFIG",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs.toml"),
    )])
    .await;
    let who = Who::User(weir.user("pro").await);
    let process = Process::start(&weir, &["up"], &[("ACCESS_LOG", "")]);
    process.ready().await;
    let submit = async |service: &str, request_id: &str| -> i64 {
        let path = format!("/api/jobs/{service}");
        let body = files(&[("a_test.go", GO_TESTS)]).to_string();
        let reply = process.call("POST", &path, who, request_id, &body).await;
        assert_eq!(reply.status, 202, "{}", reply.text);
        let answer: Value = serde_json::from_str(&reply.text).unwrap();
        answer["job"]["id"].as_i64().unwrap()
    };
    let job = submit("analysis", "good").await;
    assert_eq!(weir.finished(job, who).await["status"], "completed");
    let job = submit("broken", "bad").await;
    assert_eq!(weir.finished(job, who).await["status"], "failed");
    let of = |request_id: &str| {
        let mut lines = process.log();
        lines.retain(|line| line["request_id"] == request_id);
        lines
    };
    weir.until("the lines of the failure", async || {
        (of("bad").len() >= 2).then_some(())
    })
    .await;
    let logged: Vec<Value> = of("bad")
        .into_iter()
        .map(|line| line["message"].clone())
        .collect();
    assert_eq!(logged, ["attempt ended", "settled"]);
    assert_eq!(of("good"), Vec::<Value>::new());
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_do_not_hold_addresses_assertions_or_refused_request_ids() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    let forged = [("X-Request-Id", "forged"), ("Weir-Assertion", "forged")];
    let reply = process.ask("GET", "/api/usage", &forged, "").await.unwrap();
    assert_eq!(reply.status, 401);
    let line = weir
        .until("the line", async || {
            process
                .log()
                .into_iter()
                .find(|line| line["message"] == "request")
        })
        .await;
    assert_eq!(line["status"], 401);
    assert_ne!(line["request_id"], "forged");
    let body = files(&[("a_test.go", GO_TESTS)]).to_string();
    let anonymous = Who::Address("198.51.100.77");
    let reply = process
        .call("POST", "/api/jobs/analysis", anonymous, "anonymous", &body)
        .await;
    assert_eq!(reply.status, 202);
    let line = |message: &str| {
        let lines = process.log();
        lines
            .into_iter()
            .find(|line| line["message"] == message && line["request_id"] == "anonymous")
    };
    weir.until("its lines", async || line("reserved").and(line("request")))
        .await;
    for line in process.log() {
        let text = line.to_string();
        assert!(!text.contains("198.51.100.77") && !text.contains("eyJ"), "{text}");
    }
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_connection_has_an_application_name() {
    let weir = Weir::new().await;
    let [serve, work] = ["serve", "work"].map(|command| Process::start(&weir, &[command], &[]));
    serve.ready().await;
    work.ready().await;
    // River's client connects when the API first needs it, to cancel.
    let user = weir.user("free").await;
    let job = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let path = format!("/api/jobs/{job}");
    let reply = serve.call("DELETE", &path, Who::User(user), "cancels", "").await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let names = async || -> BTreeSet<String> {
        // An autovacuum or a connection that is being opened has no name.
        let select = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE datname = current_database() \
                      AND backend_type = 'client backend' AND state IS NOT NULL";
        let rows = weir.client().await.query(select, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    // The test's own connections have the name without a subcommand.
    let expected = [
        "weir",
        "weir, River",
        "weir serve",
        "weir serve, River",
        "weir work",
    ];
    let names = weir
        .until("each to be connected", async || {
            let names = names().await;
            expected[2..]
                .iter()
                .all(|name| names.contains(*name))
                .then_some(names)
        })
        .await;
    let strangers: Vec<_> = names
        .iter()
        .filter(|name| !expected.contains(&name.as_str()))
        .collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    // The worker ends jobs that were cancelled while they ran, and settles them. After it is stopped, nothing does.
    weir.finished(job, Who::User(user)).await;
    weir.is_clean().await;
    assert_eq!(serve.stop().await, Some(0));
    assert_eq!(work.stop().await, Some(0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn help_describes_settings_and_services() {
    let weir = Weir::new().await;
    let output = command(&weir, &["--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for word in [
        "DATABASE_URL",
        "WEIR_METRICS",
        "[[periodic]]",
        "`http`",
        "`retry`",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ] {
        assert!(help.contains(word), "no {word} in {help}");
    }
    let longest = help.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(120), "{longest:?}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn user_show_says_why_a_users_jobs_wait() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    for _ in 0..3 {
        weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    }
    weir.use_up(user, "specview", 7).await;
    let run = |more: &[&str]| {
        let id = user.to_string();
        let output = command(&weir, &[&["user", "show", &id], more].concat())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let shown: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    assert_eq!(shown["plan"], "free");
    for (meter, slots, parked, [reserved, used, limit]) in
        [("analysis", 1, 2, [3, 0, 50]), ("specview", 0, 0, [0, 7, 5000])]
    {
        let of = &shown["meters"][meter];
        assert_eq!(of["slots"]["in_use"], slots, "{of}");
        assert_eq!(of["slots"]["limit"], 1, "{of}");
        assert_eq!(of["parked"], parked, "{of}");
        let month = &of["windows"][0];
        for (member, value) in [("reserved", reserved), ("used", used), ("limit", limit)] {
            assert_eq!(month[member], value, "{member}: {of}");
        }
    }
    let text = run(&[]);
    for expected in [
        ", plan free\n",
        "\nanalysis, in analyses\n  month  0 used, 3 reserved, of 50, until ",
        "\n  slots  1 of 1 in use, 2 waiting\n",
        "\n  month  7 used, 0 reserved, of 5000, until ",
        "\n  slots  0 of 1 in use, 0 waiting\n",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_rerun_by_an_operator_is_charged_once() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    assert_eq!(weir.finished(id, who).await["charged"], 1);
    // As River UI does.
    weir.river().jobs().retry(id).await.unwrap();
    weir.until("the second run", async || {
        let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
        (job["attempt"] == 2 && job["status"] == "completed").then_some(())
    })
    .await;
    weir.until("its settlement", async || {
        (weir.quota(who, "analysis").await["reserved"] == 0).then_some(())
    })
    .await;
    assert_eq!(weir.quota(who, "analysis").await["used"], 1);
    working.stop().await;
    // If the operator was faster than the first attempt's end, River's client wrote that end over the second attempt.
    weir.reconcile().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_ends_quietly_when_its_output_is_closed() {
    let weir = Weir::new().await;
    let mut child = command(&weir, &["status", "--watch"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    weir.end().await;
}

//! `weir status` during work.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use crate::common::gate::Gate;
use crate::common::process::{KilledOnDrop, Process, command};
use crate::common::{GO_TESTS, Weir, Who};
use serde_json::{Value, json};
use tokio_postgres::IsolationLevel;
use weir::work::Role;

fn status(weir: &Weir, more: &[&str]) -> Value {
    let output = command(weir, &[&["status", "--json"], more].concat())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Its output as text.
fn text(weir: &Weir, more: &[&str]) -> String {
    let output = command(weir, &[&["status"], more].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_come_from_the_database_and_differences_are_shown() {
    let weir = Weir::new().await;
    let who = Who::Subject("anne");
    for _ in 0..2 {
        weir.analyse(who, "a_test.go", GO_TESTS).await;
    }
    let parked = "UPDATE quota_reservations SET parked_at = parked_at - interval '1 minute'";
    weir.client().await.batch_execute(parked).await.unwrap();
    let run = |arguments: &[&str]| {
        let mut command = command(&weir, arguments);
        let output = command.env("FAIRNESS_FREE_LIMIT", "5").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        text
    };
    run(&["audit"]);
    let user = run(&["user", "show", "anne", "--json"]);
    let user: Value = serde_json::from_str(&user).unwrap();
    assert_eq!(user["meters"]["analysis"]["slots"]["limit"], 1, "{user}");
    let overview = run(&["status"]);
    assert!(
        overview.contains("warning: FAIRNESS_..._LIMIT by plan"),
        "{overview}"
    );
    assert!(!text(&weir, &[]).contains("warning"));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_counts_running_queued_and_parked_jobs() {
    let weir = Weir::with(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "1")]).await;
    let submit = async |plan, jobs| {
        let user = weir.user(plan).await;
        for _ in 0..jobs {
            weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        }
        user
    };
    // One job and two parked behind it, then two that wait for the lane's only worker; and one in another lane.
    submit("free", 3).await;
    submit("free", 1).await;
    submit("free", 1).await;
    submit("pro", 1).await;
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    gate.until_running(&weir, 2).await;

    let lanes = status(&weir, &[]);
    let analysis = &lanes["services"]["analysis"];
    let lane = |name: &str| {
        let lane = &analysis[name];
        [&lane["queued"], &lane["running"], &lane["workers"]].map(|number| number.as_i64().unwrap())
    };
    assert_eq!(lane("default"), [2, 1, 1], "{lanes}");
    assert_eq!(lane("priority"), [0, 1, 5], "{lanes}");
    assert_eq!(lane("scheduled"), [0, 0, 2], "{lanes}");
    assert_eq!(
        (&analysis["slots_in_use"], &analysis["parked"]),
        (&json!(4), &json!(2)),
        "{lanes}"
    );
    assert!(
        analysis["default"]["oldest_wait_ms"].as_i64().unwrap() > 0,
        "{lanes}"
    );
    assert_eq!(analysis["priority"]["oldest_wait_ms"], 0, "no job waits there");
    assert_eq!(lanes["oldest_wait_ms"], analysis["default"]["oldest_wait_ms"]);
    assert_eq!(
        lanes["held_back"],
        json!({
            "analysis": {"priority": "nothing_waits", "default": "workers_busy", "scheduled": "nothing_waits"},
            "specview": {"priority": "nothing_waits", "default": "nothing_waits", "scheduled": "nothing_waits"},
        })
    );
    assert!(lanes["oldest_turn_ms"].as_i64().unwrap() > 0, "{lanes}");
    assert_eq!(
        lanes["last_minute"],
        json!({"completed": 0, "cancelled": 0, "failed": 0})
    );

    gate.open();
    weir.all_finished().await;
    weir.client()
        .await
        .batch_execute(
            "INSERT INTO river_job (args, kind, max_attempts, queue, state, finalized_at) \
             VALUES ('{}', 'weir:webhook', 1, 'weir_webhooks', 'completed', now())",
        )
        .await
        .unwrap();
    let done = status(&weir, &[]);
    assert_eq!(
        done["last_minute"]["completed"], 6,
        "a delivery has no holder: {done}"
    );
    working.stop().await;
    weir.end().await;
}

#[tokio::test]
async fn services_of_one_meter_show_only_their_own_slots() {
    let weir = Weir::with(&[(
        "WEIR_CONFIG",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs.toml"),
    )])
    .await;
    let user = weir.user("free").await;
    for service in ["flaky", "flaky", "flaky", "slow", "slow"] {
        let answer = weir
            .post(&format!("/api/jobs/{service}"), Who::User(user), &json!({}))
            .await;
        assert_eq!(answer.status, 202, "{}", answer.body);
    }
    let lanes = status(&weir, &[]);
    let slots = |service: &str| {
        let service = &lanes["services"][service];
        [&service["slots_in_use"], &service["parked"]].map(|number| number.as_i64().unwrap())
    };
    assert_eq!(slots("flaky"), [1, 2], "{lanes}");
    assert_eq!(slots("slow"), [0, 2], "{lanes}");
    assert_eq!(slots("analysis"), [0, 0], "{lanes}");
    assert_eq!(
        (&lanes["slots_in_use"], &lanes["parked"]),
        (&json!(1), &json!(4)),
        "{lanes}"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_the_leaders_and_why_each_lane_waits() {
    let weir = Weir::with(&[]).await;
    let held_back = |lane: &str| status(&weir, &[])["held_back"]["analysis"][lane].clone();
    assert_eq!(held_back("default"), "nothing_waits");
    assert_eq!(status(&weir, &[])["leader"], Value::Null);
    assert!(
        text(&weir, &[]).contains("leader       none"),
        "{}",
        text(&weir, &[])
    );

    let user = weir.user("free").await;
    let ids = [0, 1].map(|_| weir.analyse(Who::User(user), "a_test.go", GO_TESTS));
    for id in ids {
        id.await;
    }
    assert_eq!(held_back("default"), "no_workers");
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    weir.until("one to run", async || (gate.running().len() == 1).then_some(()))
        .await;
    assert_eq!(held_back("default"), "holders_at_limit");
    weir.until("a leader", async || {
        status(&weir, &[])["leader"].is_object().then_some(())
    })
    .await;

    let client = weir.client().await;
    let pause = "UPDATE river_queue SET paused_at = now() WHERE name = 'analysis_default'";
    weir.until("its queue", async || {
        (client.execute(pause, &[]).await.unwrap() == 1).then_some(())
    })
    .await;
    assert_eq!(held_back("default"), "paused");
    client
        .execute("UPDATE river_queue SET paused_at = NULL", &[])
        .await
        .unwrap();
    gate.open();
    weir.all_finished().await;
    assert_eq!(held_back("default"), "nothing_waits");
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_lanes_share_a_line_and_paused_ones_stand_out() {
    let weir = Weir::new().await;
    let idle = text(&weir, &[]);
    assert!(
        idle.ends_with("\n\nidle: analysis (0 workers), specview (0 workers)\n"),
        "{idle}"
    );
    let pause = "INSERT INTO river_queue (name, created_at, updated_at, paused_at) \
                 VALUES ('analysis_scheduled', now(), now(), now())";
    weir.client().await.batch_execute(pause).await.unwrap();
    let paused = text(&weir, &[]);
    let (_, services) = paused.split_once("\n\n").unwrap();
    let lines: Vec<&str> = services.lines().collect();
    assert_eq!(
        lines,
        [
            "analysis: 0 slots in use, 0 waiting for a slot",
            " lane       queued  running  oldest  held back by",
            " scheduled       0      0/0       –  PAUSED",
            " idle: priority (0), default (0)",
            "",
            "idle: specview (0 workers)",
        ]
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_fits_sixty_columns_on_a_database_with_long_numbers() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "INSERT INTO river_job (kind, queue, args, max_attempts, scheduled_at) \
                 SELECT 'analysis:analyze', 'analysis_priority', '{}', 3, now() - interval '11111 hours' \
                 FROM generate_series(1, 100001); \
             INSERT INTO processes (client_id, pools, beat_at) \
                 VALUES ('away', '{\"analysis_priority\": 1234567890}', now() + interval '10 minutes'); \
             INSERT INTO river_leader (name, leader_id, elected_at, expires_at) \
                 VALUES ('default', repeat('leader', 20), now() - interval '30 hours', now() + interval '1 hour')",
        )
        .await
        .unwrap();
    let text = text(&weir, &[]);
    assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    assert!(text.contains("100k") && text.contains("0/1.2G"), "{text}");
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_status_without_a_terminal_is_plain_text() {
    let weir = Weir::new().await;
    let mut watching = command(&weir, &["status", "--watch"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(watching.stdout.take().unwrap());
    let (mut seen, mut line) = (String::new(), String::new());
    while seen.matches("leader ").count() < 2 {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "{seen}");
        seen.push_str(&line);
    }
    watching.kill().unwrap();
    watching.wait().unwrap();
    assert!(!seen.contains('\x1b'), "{seen:?}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_status_is_drawn_over_itself_on_a_terminal_until_q() {
    let weir = Weir::new().await;
    weir.analyse(Who::Subject("ann"), "a_test.go", GO_TESTS).await;
    let nix::pty::OpenptyResult { master, slave } = nix::pty::openpty(None, None).unwrap();
    let spawned = command(&weir, &["status", "--watch"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(slave.try_clone().unwrap())
        .stdout(slave)
        .spawn();
    // It has both ends of its terminal, and would survive a failing test.
    let mut watching = KilledOnDrop(spawned.unwrap());
    let mut terminal = std::fs::File::from(master);
    let mut seen = String::new();
    let mut read = |until: &str, times: usize| {
        let mut bytes = [0; 4096];
        while seen.matches(until).count() < times {
            let count = terminal.read(&mut bytes).unwrap();
            seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        (seen.clone(), terminal.try_clone().unwrap())
    };
    let (seen, mut terminal) = read("q quits", 3);
    assert_eq!(seen.matches("\x1b[?1049h").count(), 1, "one screen: {seen:?}");
    assert!(seen.contains("\x1b[31mno workers"), "{seen:?}");
    assert!(
        !seen.contains("\x1b[2J"),
        "nothing is cleared before it is drawn: {seen:?}"
    );

    // The command waits for a database that is unavailable.
    let (admin, name) = (weir.admin().await, weir.name());
    let away = format!("ALTER DATABASE {name} RENAME TO {name}_away");
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
    weir.until("all connections to the database to end", async || {
        admin.execute(end, &[&name]).await.unwrap();
        admin.batch_execute(&away).await.ok()
    })
    .await;
    let (seen, _) = read("trying again", 1);
    let before = seen.matches("held back by").count();
    let back = format!("ALTER DATABASE {name}_away RENAME TO {name}");
    admin.batch_execute(&back).await.unwrap();
    read("held back by", before + 1);

    terminal.write_all(b"q").unwrap();
    let (seen, _) = read("\x1b[?1049l", 1);
    assert!(seen.contains("held back by"), "{seen:?}");
    assert_eq!(watching.0.wait().unwrap().code(), Some(0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_jobs_of_a_lane_are_read_from_an_index() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "INSERT INTO river_job (args, kind, max_attempts, state, queue) \
                 SELECT '{}', 'analysis:analyze', 3, 'pending', 'analysis_default' FROM generate_series(1, 20000); \
             ANALYZE river_job",
        )
        .await
        .unwrap();
    // One queue with such jobs, and one without.
    let sql = include_str!("../../../ledger/src/read/sql/lane_waiting.sql")
        .replace("$1::text[]", "ARRAY['analysis_default', 'analysis_priority']");
    let plan: Value = client
        .query_one(&format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}"), &[])
        .await
        .unwrap()
        .get(0);
    let blocks =
        ["Shared Hit Blocks", "Shared Read Blocks"].map(|name| plan[0]["Plan"][name].as_i64().unwrap());
    assert!(blocks.iter().sum::<i64>() < 100, "{plan}");
    client.batch_execute("DELETE FROM river_job").await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_leader_the_status_suggests_a_fix() {
    let weir = Weir::new().await;
    for (leads, help) in [
        ("true", "none; start `weir schedule`"),
        ("false", "set RIVER_LEADER=true for `weir schedule`"),
    ] {
        let output = crate::common::process::command(&weir, &["status"])
            .env("RIVER_LEADER", leads)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let leader = text
            .split("\nleader ")
            .nth(1)
            .and_then(|rest| rest.split("\nmaintenance ").next());
        assert!(leader.is_some_and(|leader| leader.contains(help)), "{text}");
    }
    let process = crate::common::process::Process::start(&weir, &["serve"], &[("RIVER_LEADER", "false")]);
    process.ready().await;
    let readiness = process.get("/readyz").await.unwrap().text;
    assert!(readiness.contains("set RIVER_LEADER=true"), "{readiness}");
    assert_eq!(process.stop().await, Some(0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_metrics_name_the_holder_of_the_oldest_snapshot() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["schedule"], &[]);
    process.ready().await;
    let mut backup = weir.client().await;
    backup
        .batch_execute("SET application_name = 'nightly'")
        .await
        .unwrap();
    let snapshot = backup
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead);
    let open = snapshot.start().await.unwrap();
    let pid: i32 = open
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .unwrap()
        .get(0);
    let other = weir.client().await;
    for _ in 0..20 {
        other
            .batch_execute("UPDATE weir_settings SET one = true")
            .await
            .unwrap();
    }
    let found = status(&weir, &[]);
    let held = &found["vacuum"]["snapshots"][0];
    assert_eq!(
        (
            &held["kind"],
            &held["pid"],
            &held["application"],
            &held["state"],
            &held["query"]
        ),
        (
            &json!("session"),
            &json!(pid),
            &json!("nightly"),
            &json!("idle in transaction"),
            &json!("SELECT pg_backend_pid()")
        ),
        "{found}"
    );
    assert!(held["transactions"].as_i64().unwrap() >= 20, "{held}");
    assert!(held["seconds"].as_f64().unwrap() > 0.0, "{held}");
    assert_eq!(found["vacuum"]["sees_all"], true);
    assert!(text(&weir, &[]).contains("\nvacuum       oldest snapshot: "));
    let of_sessions = [("holder", "session")];
    weir.until("the snapshot in a scrape", async || {
        let scrape = process.scrape().await;
        let age = scrape.value("weir_oldest_snapshot_transactions", &of_sessions)?;
        (age >= 20.0).then_some(())
    })
    .await;
    let scrape = process.scrape().await;
    assert!(
        scrape
            .value("weir_oldest_snapshot_seconds", &of_sessions)
            .unwrap()
            > 0.0
    );
    assert_eq!(scrape.value("weir_snapshots_visible", &[]), Some(1.0));
    assert!(scrape.value("weir_wraparound_transactions", &[]).unwrap() > 0.0);
    open.rollback().await.unwrap();
    assert_eq!(process.stop().await, Some(0));
    weir.end().await;
}

/// The role of most managed servers.
#[tokio::test(flavor = "multi_thread")]
async fn status_reports_missing_rights_to_see_snapshots() {
    let weir = Weir::new().await;
    let role = format!("{}_role", weir.name());
    let admin = weir.client().await;
    admin
        .batch_execute(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 'secret'; \
             GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}; \
             GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {role}"
        ))
        .await
        .unwrap();
    let mut dump = weir.client().await;
    let snapshot = dump
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead);
    let open = snapshot.start().await.unwrap();
    open.query_one("SELECT 1", &[]).await.unwrap();
    let (_, place) = weir.url().split_once('@').unwrap();
    let url = format!("postgres://{role}:secret@{place}");
    let output = command(&weir, &["status"])
        .env("DATABASE_URL", &url)
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        shown.contains("oldest visible snapshot: ") && shown.contains("GRANT pg_monitor TO Weir's role"),
        "{shown}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    open.rollback().await.unwrap();
    admin
        .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .unwrap();
    weir.end().await;
}

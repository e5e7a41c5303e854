//! River's leader is another program's client. That does not affect Weir's jobs and maintenance.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::beside::Beside;
use crate::common::gate::Gate;
use crate::common::process::command;
use crate::common::{GO_TESTS, Weir, Who};
use serde_json::{Value, json};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use weir::handler::Handler;
use weir::work::{Role, Working, reconcile};
use weir_ledger::attempts;
use weir_ledger::maintenance;

/// River's rescuer runs every 30 s. This is how long a test waits for it.
const RESCUED_WITHIN: Duration = Duration::from_secs(90);

async fn status(weir: &Weir) -> Value {
    let output = command(weir, &["status", "--json"])
        .env("WEIR_CONFIG", "native/tests/beside.toml")
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Inserts two jobs without a living worker, older than the leader allows, and waits until it rescues them. Then the
/// rescuer has checked all jobs.
async fn rescuer_has_run(client: &Client) {
    client
        .batch_execute(
            "INSERT INTO river_job (kind, queue, args, max_attempts, state, attempt, attempted_at, attempted_by) \
             SELECT kind, 'elsewhere', '{}', 3, 'running', 1, now() - interval '10 seconds', '{elsewhere}' \
             FROM unnest(ARRAY['elsewhere:strange', 'test:known']) kind",
        )
        .await
        .unwrap();
    let started = Instant::now();
    loop {
        let rescued: Vec<String> = client
            .query(
                "SELECT state::text FROM river_job WHERE queue = 'elsewhere' ORDER BY id",
                &[],
            )
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        if rescued[0] == "discarded" && rescued[1] != "running" {
            break;
        }
        assert!(started.elapsed() < RESCUED_WITHIN, "{rescued:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The other client leads, and this process does Weir's maintenance.
async fn check_division_of_work(weir: &Weir, client: &Client, who: Who) {
    let now = status(weir).await;
    assert_eq!(now["leader"]["foreign"], true, "{now}");
    assert!(
        now["maintenance"]["process"]
            .as_str()
            .unwrap()
            .ends_with(&format!(":{}", std::process::id()))
    );
    let scrape = weir.get("/metrics", who).await.body;
    assert!(scrape.is_string(), "{scrape}");
    let ready = weir.get("/readyz", who).await.body;
    assert_eq!(
        (&ready["leader"], &ready["maintenance"]),
        (&json!("another River client"), &json!("running"))
    );
    let ticks = client
        .query_one(
            "SELECT count(*), count(DISTINCT scheduled_at), \
                    extract(epoch FROM max(scheduled_at) - min(scheduled_at))::bigint + 1 \
             FROM river_job WHERE kind = 'test:sweep'",
            &[],
        )
        .await
        .unwrap();
    let ticks: [i64; 3] = [0, 1, 2].map(|n| ticks.get(n));
    assert!(
        ticks[0] >= 6 && ticks[0] == ticks[1] && ticks[1] == ticks[2],
        "{ticks:?}"
    );
}

/// The job ran once, and other programs read the same start of the attempt as the API's clients.
async fn check_attempt(client: &Client, job_id: i64, started_at: &Value) {
    let row = client
        .query_one(
            "SELECT attempt, to_jsonb(attempted_at) FROM river_job WHERE id = $1",
            &[&job_id],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, i16>(0), 1);
    let (theirs, ours): (Value, jiff::Timestamp) =
        (row.get(1), started_at.as_str().unwrap().parse().unwrap());
    let theirs: jiff::Timestamp = theirs.as_str().unwrap().parse().unwrap();
    assert_eq!(theirs, ours, "others see the start of the attempt again");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_leaders_do_not_rescue_running_jobs_or_lose_ticks() {
    let Some(other) = Beside::built().await else {
        return;
    };
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/beside.toml")]).await;
    let client = weir.client().await;
    let leads = other.start(weir.url(), &["-rescue-after", "5s", "-kinds", "test:known"]);
    weir.until("the other one to lead", async || {
        client
            .query_opt(
                "SELECT 1 FROM river_leader WHERE leader_id LIKE 'beside\\_%'",
                &[],
            )
            .await
            .unwrap()
    })
    .await;

    let gate = Gate::new();
    let context = ["test:strange", "test:known"]
        .into_iter()
        .fold(weir.another(&[]), |context, kind| {
            context.with_handler(kind, Arc::clone(&gate) as Arc<dyn Handler>)
        });
    let services = &context.settings.services;
    let working = Working::start(&context, Role::Both, services).await.unwrap();
    let stopped = CancellationToken::new();
    let reconciling = tokio::spawn(reconcile::run(context.clone(), stopped.clone()));

    let who = Who::User(weir.user("free").await);
    let mut jobs = Vec::new();
    for service in ["strange", "known"] {
        let answer = weir.post(&format!("/api/jobs/{service}"), who, &json!({})).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        let id = answer.body["job"]["id"].as_i64().unwrap();
        weir.running(id, who).await;
        let started = weir.get(&format!("/api/jobs/{id}"), who).await.body["started_at"].clone();
        jobs.push((id, started));
    }
    let running: BTreeSet<i64> = jobs.iter().map(|(id, _)| *id).collect();
    gate.until_running(&weir, 2).await;
    tokio::time::sleep(Duration::from_secs(6)).await;

    rescuer_has_run(&client).await;
    for (id, started) in &jobs {
        let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
        assert_eq!(
            (&job["status"], &job["attempt"]),
            (&json!("running"), &json!(1)),
            "{job}"
        );
        assert_eq!(job["started_at"], *started, "{job}");
    }
    assert_eq!(gate.running(), running, "once each");
    weir.is_clean().await;

    check_division_of_work(&weir, &client, who).await;

    gate.open();
    for (id, started) in &jobs {
        let job = weir.finished(*id, who).await;
        assert_eq!(
            (&job["status"], &job["charged"]),
            (&json!("completed"), &json!(1)),
            "{job}"
        );
        check_attempt(&client, *id, started).await;
    }
    stopped.cancel();
    reconciling.await.unwrap();
    working.stop().await;
    drop(leads);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn river_leader_false_runs_jobs_and_maintenance_without_election() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/beside.toml"), ("RIVER_LEADER", "false")]).await;
    let services = &weir.context.settings.services;
    let working = Working::start(&weir.context, Role::Both, services).await.unwrap();
    let scheduling = Working::start(&weir.another(&[]), Role::Lead, &[]).await.unwrap();
    let stopped = CancellationToken::new();
    let reconciling = tokio::spawn(reconcile::run(weir.another(&[]), stopped.clone()));
    // Periodic jobs and maintenance continue.
    let client = weir.client().await;
    weir.until("some ticks", async || {
        let done = "SELECT count(*) FROM river_job WHERE kind = 'test:sweep' AND state = 'completed'";
        (client.query_one(done, &[]).await.unwrap().get::<_, i64>(0) >= 3).then_some(())
    })
    .await;
    assert_eq!(weir.count("river_leader").await, 0);
    let now = status(&weir).await;
    assert!(now["leader"].is_null() && now["maintenance"].is_object(), "{now}");
    let may_lead = weir.another(&[("RIVER_LEADER", "true")]);
    let leading = Working::start(&may_lead, Role::Lead, &[]).await.unwrap();
    weir.until("the one that may lead to lead", async || {
        let now = status(&weir).await;
        (now["leader"]["id"] == leading.id()).then_some(())
    })
    .await;
    stopped.cancel();
    reconciling.await.unwrap();
    for one in [working, scheduling, leading] {
        one.stop().await;
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_is_per_attempt_and_keeps_the_start_time() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    // Claimed as River claims, this long ago.
    let claim = async |ago: f64| {
        let claim = "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() - make_interval(secs => $2), \
                     attempted_by = array_append(attempted_by, 'weir_mine') WHERE id = $1";
        client.execute(claim, &[&id, &ago]).await.unwrap();
    };
    // The start in the API, and the one that other clients see, in seconds ago.
    let started = async || -> (f64, f64) {
        let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
        let message: jiff::Timestamp = job["started_at"].as_str().unwrap().parse().unwrap();
        let row = client
            .query_one(
                "SELECT clock_timestamp(), attempted_at FROM river_job WHERE id = $1",
                &[&id],
            )
            .await
            .unwrap();
        let (now, seen): (jiff::Timestamp, jiff::Timestamp) = (row.get(0), row.get(1));
        (
            now.duration_since(message).as_secs_f64(),
            now.duration_since(seen).as_secs_f64(),
        )
    };
    // Whether the attempt has its job.
    let check = async |by: &str, attempt: i16| {
        let ended = attempts::check(&weir.context.pool, by, &[(id, attempt)], false)
            .await
            .unwrap();
        ended.is_empty()
    };

    claim(1000.0).await;
    assert_eq!(
        [check("weir_another", 1).await, check("weir_mine", 2).await],
        [false, false],
        "another attempt's"
    );
    assert!(started().await.1 >= 1000.0);
    for _ in 0..2 {
        assert!(check("weir_mine", 1).await);
        let (message, seen) = started().await;
        assert!(message >= 1000.0 && seen < 500.0, "{message} {seen}");
    }

    // Returned without the loss of an attempt, and claimed again: the same number, another start.
    client
        .execute(
            "UPDATE river_job SET state = 'available', attempt = 0 WHERE id = $1",
            &[&id],
        )
        .await
        .unwrap();
    claim(100.0).await;
    for _ in 0..2 {
        let (message, _) = started().await;
        assert!((100.0..1000.0).contains(&message), "{message}");
        assert!(check("weir_mine", 1).await);
    }

    // A locked row is skipped without waiting.
    let mut locking = weir.client().await;
    let lock = locking.transaction().await.unwrap();
    lock.execute("SELECT 1 FROM river_job WHERE id = $1 FOR UPDATE", &[&id])
        .await
        .unwrap();
    assert!(check("weir_mine", 1).await);
    lock.rollback().await.unwrap();

    weir.ended_by_other_client(id, "completed").await;
    assert!(!check("weir_mine", 1).await, "it is over");
    weir.reconcile().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_during_long_work_and_lost_with_its_session() {
    let weir = Weir::new().await;
    let [mine, theirs] = [weir.writer_session().await, weir.writer_session().await];
    mine.batch_execute("SET idle_session_timeout = '2s'")
        .await
        .unwrap();
    let often = Duration::from_millis(100);
    assert!(maintenance::acquire_lease(&mine, "mine", true).await.unwrap());
    // Longer than the session may be idle.
    let work = tokio::time::sleep(Duration::from_secs(4));
    assert_eq!(
        maintenance::run_under_lease(&mine, "mine", often, work).await,
        Some(())
    );
    assert!(!maintenance::acquire_lease(&theirs, "theirs", true).await.unwrap());
    assert!(maintenance::acquire_lease(&mine, "mine", true).await.unwrap());

    // Like a frozen process: its session ends, and its lease with it.
    weir.until("the idle session to end", async || mine.is_closed().then_some(()))
        .await;
    assert!(maintenance::acquire_lease(&theirs, "theirs", true).await.unwrap());
    maintenance::release(&theirs).await.unwrap();
    assert_eq!(weir.count("maintenance_lease WHERE expires_at > now()").await, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_its_lease_stops_maintenance() {
    let weir = Weir::new().await;
    let client = weir.writer_session().await;
    let stopped = CancellationToken::new();
    let reconciling = tokio::spawn(reconcile::run(weir.another(&[]), stopped.clone()));
    weir.maintenance_started().await;
    // Its lease expired, and another process, represented by this session, has acquired it.
    client
        .batch_execute("UPDATE maintenance_lease SET expires_at = '-infinity', backend = NULL")
        .await
        .unwrap();
    let acquire = async || {
        maintenance::acquire_lease(&client, "another", true)
            .await
            .unwrap()
    };
    weir.until("the lease", async || acquire().await.then_some(()))
        .await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    // As long as a renewal of the lease takes.
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let holder = "SELECT process FROM maintenance_lease WHERE process = 'another'";
        client.query_one(holder, &[]).await.unwrap();
        // Renewed, because the lease is shorter than these rounds on a busy machine.
        assert!(acquire().await, "the lease is lost");
    }
    weir.ended_by_other_client(id, "cancelled").await;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(weir.quota(who, "analysis").await["reserved"], 1, "it settles on");
        assert!(acquire().await, "the lease is lost");
    }
    maintenance::release(&client).await.unwrap();
    weir.released(who, "analysis").await;
    stopped.cancel();
    reconciling.await.unwrap();
    let held = weir.count("maintenance_lease WHERE expires_at > now()").await;
    assert_eq!(held, 0, "the lease is released");
    weir.end().await;
}

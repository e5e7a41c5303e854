//! ADR-10's middleware in River's own clients for Go and Rust: the jobs need neither Weir's submission nor quota.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use riverqueue::{Client, QueueConfig};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use weir_ledger::middleware::{FairnessMiddleware, FairnessOptions};

use crate::common::fleet::Maintenance;
use crate::common::programs::{GO_MODULE, GoProgram, end_by_input};
use crate::common::{PLANS, Weir, river_worker};

/// The running jobs of a user and the plan's slots, by the table of ADR-10.
const SLOTS: [(&str, i64); 4] = [("free", 1), ("pro", 3), ("pro_plus", 3), ("enterprise", 5)];

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
struct Render(Value);

impl riverqueue::JobArgs for Render {
    const KIND: &'static str = "product:render";
}

async fn insert(weir: &Weir, user: &str, count: usize, takes_ms: u64) {
    let river = weir.river();
    for number in 0..count {
        let args = json!({ "number": number, "user_id": user, "takes_ms": takes_ms });
        river.insert(Render(args)).await.unwrap();
    }
}

async fn admit(weir: &Weir, job: i64, attempt: i32, user: Option<&str>) -> (String, Option<String>) {
    let sql = "SELECT outcome, plan FROM weir_admit($1, $2, $3, 'analysis')";
    let row = weir
        .client()
        .await
        .query_one(sql, &[&job, &attempt, &user])
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

async fn release(weir: &Weir, job: i64, attempt: i32) -> String {
    let sql = "SELECT weir_release($1, $2)";
    weir.client()
        .await
        .query_one(sql, &[&job, &attempt])
        .await
        .unwrap()
        .get(0)
}

/// Jobs of a user that another client's workers run, at their first attempt.
async fn running(weir: &Weir, user: &str, count: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    for _ in 0..count {
        let args = Render(json!({ "user_id": user }));
        let id = weir.river().insert(args).await.unwrap().job.row.id;
        weir.start_elsewhere(id).await;
        ids.push(id);
    }
    ids
}

async fn slots_in_use(weir: &Weir, user: Uuid) -> i32 {
    let sql = "SELECT coalesce(sum(slots_in_use), 0)::int FROM holders WHERE holder = $1";
    weir.client().await.query_one(sql, &[&user]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_as_many_slots_as_the_table_of_adr_10_says() {
    let weir = Weir::new().await;
    for (plan, slots) in SLOTS {
        let user = weir.user(plan).await;
        let mut admitted = 0;
        for job in running(&weir, &user.to_string(), 7).await {
            match admit(&weir, job, 1, Some(&user.to_string())).await {
                (outcome, Some(of)) if outcome == "admitted" => {
                    assert_eq!(of, plan);
                    admitted += 1;
                    assert_eq!(
                        admit(&weir, job, 1, Some(&user.to_string())).await.0,
                        "admitted",
                        "repeated"
                    );
                }
                (outcome, of) => assert_eq!((outcome.as_str(), of.as_deref()), ("wait", Some(plan))),
            }
        }
        assert_eq!(admitted, slots, "{plan}");
    }
    assert_eq!(SLOTS.map(|(plan, _)| plan), PLANS);
    // An unknown user is on the default plan, and a job without a user has no limit.
    let unknown = running(&weir, "somebody", 2).await;
    assert_eq!(
        admit(&weir, unknown[0], 1, Some("somebody")).await,
        ("admitted".into(), Some("free".into()))
    );
    assert_eq!(
        admit(&weir, unknown[1], 1, Some("somebody")).await,
        ("wait".into(), Some("free".into()))
    );
    let without = running(&weir, "", 1).await;
    assert_eq!(
        admit(&weir, without[0], 1, None).await,
        ("unlimited".into(), None)
    );
    assert_eq!(
        admit(&weir, without[0], 2, Some("somebody")).await.0,
        "fenced_out"
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freed_slot_starts_a_snoozed_job_of_the_same_user_at_once() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let name = user.to_string();
    let jobs = running(&weir, &name, 2).await;
    assert_eq!(admit(&weir, jobs[0], 1, Some(&name)).await.0, "admitted");
    assert_eq!(admit(&weir, jobs[1], 1, Some(&name)).await.0, "wait");
    let client = weir.client().await;
    let snooze = "UPDATE river_job SET state = 'scheduled', attempt = 0, scheduled_at = now() + interval '30 seconds' WHERE id = $1";
    client.execute(snooze, &[&jobs[1]]).await.unwrap();
    assert_eq!(release(&weir, jobs[0], 2).await, "kept", "of another attempt");
    assert_eq!(release(&weir, jobs[0], 1).await, "released");
    assert_eq!(release(&weir, jobs[0], 1).await, "kept");
    let state = "SELECT state::text, scheduled_at <= now() FROM river_job WHERE id = $1";
    let row = client.query_one(state, &[&jobs[1]]).await.unwrap();
    assert_eq!(
        (row.get::<_, &str>(0), row.get::<_, bool>(1)),
        ("available", true)
    );
    assert_eq!(slots_in_use(&weir, user).await, 1);
    // A job that was submitted through Weir has its slot, and keeps it.
    let sql = "SELECT job_id FROM weir_submit('anne', 'analysis', '{}')";
    let submitted: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    weir.start_elsewhere(submitted).await;
    assert_eq!(admit(&weir, submitted, 1, Some("anne")).await.0, "admitted");
    assert_eq!(release(&weir, submitted, 1).await, "kept");
    for job in [jobs[0], jobs[1], submitted] {
        weir.ended_by_other_client(job, "completed").await;
    }
    weir.reconcile().await;
    assert_eq!(slots_in_use(&weir, user).await, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_submission_takes_its_own_users_slot_whoever_is_named() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let sql =
        "SELECT job_id, weir_holder('anne'), weir_holder('bea') FROM weir_submit('anne', 'analysis', '{}')";
    let row = client.query_one(sql, &[]).await.unwrap();
    let (job, anne, bea): (i64, Uuid, Uuid) = (row.get(0), row.get(1), row.get(2));
    let claim = "SELECT weir_fail(c.job_id, c.attempt, 'no') FROM weir_claim('analysis_default', 'w') c";
    assert_eq!(client.query(claim, &[]).await.unwrap().len(), 1);
    // Another client runs the retry, which has no slot yet.
    let start = "UPDATE river_job SET state = 'running', attempt = 2, attempted_at = now(), attempted_by = '{elsewhere}' WHERE id = $1";
    client.execute(start, &[&job]).await.unwrap();
    assert_eq!(
        admit(&weir, job, 2, Some("bea")).await,
        ("admitted".into(), Some("free".into()))
    );
    assert_eq!(
        (slots_in_use(&weir, anne).await, slots_in_use(&weir, bea).await),
        (1, 0)
    );
    weir.ended_by_other_client(job, "completed").await;
    weir.reconcile().await;
    weir.end().await;
}

/// A process of River's client for Go with the middleware. Counts its snoozes.
fn go_process(weir: &Weir, program: &GoProgram, snoozes: &Arc<Mutex<Vec<String>>>) -> Child {
    let mut child = Command::new(&program.path)
        .env("DATABASE_URL", weir.url())
        .env("FAIRNESS_SNOOZE_DURATION", "2s")
        .env("FAIRNESS_SNOOZE_JITTER", "500ms")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (lines, snoozes) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(snoozes));
    std::thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            snoozes.lock().unwrap().push(line);
        }
    });
    child
}

/// The most running jobs of each user, sampled every 5 ms until the token is cancelled.
async fn most_at_once(weir: &Weir, users: &[Uuid], stop: CancellationToken) -> Vec<i64> {
    let client = weir.client().await;
    let names: Vec<String> = users.iter().map(Uuid::to_string).collect();
    let sql = "SELECT (SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                       WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.granted \
                         AND l.classid::int8 = (hashtext(u.name)::int8 & 4294967295)) \
               FROM unnest($1::text[]) WITH ORDINALITY AS u (name, n) ORDER BY u.n";
    let mut most = vec![0; users.len()];
    while !stop.is_cancelled() {
        for (most, row) in most.iter_mut().zip(client.query(sql, &[&names]).await.unwrap()) {
            *most = row.get::<_, i64>(0).max(*most);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn three_go_processes_never_exceed_the_plans_and_lose_no_job() {
    let Some(program) = GoProgram::built(GO_MODULE, "./fair").await else {
        return;
    };
    let weir = Weir::new().await;
    let users = [
        weir.user("free").await,
        weir.user("pro").await,
        weir.user("enterprise").await,
    ];
    for user in users {
        insert(&weir, &user.to_string(), 25, 60).await;
    }
    let maintenance = Maintenance::of(&weir);
    let snoozes = Arc::default();
    let mut processes: Vec<Child> = (0..3).map(|_| go_process(&weir, &program, &snoozes)).collect();
    let stop = CancellationToken::new();
    let sampling = async { most_at_once(&weir, &users, stop.clone()).await };
    let events = async {
        let done = "SELECT count(*) FROM river_job WHERE state = 'completed'";
        let client = weir.client().await;
        let completed = async |count: i64| {
            weir.until("jobs to complete", async || {
                (client.query_one(done, &[]).await.unwrap().get::<_, i64>(0) >= count).then_some(())
            })
            .await;
        };
        completed(20).await;
        // A process is killed while it runs jobs, and another one takes its place.
        let mut killed = std::mem::replace(&mut processes[0], go_process(&weir, &program, &snoozes));
        killed.kill().unwrap();
        killed.wait().unwrap();
        let cancel = "SELECT min(id) FROM river_job WHERE state = 'scheduled'";
        let cancelled: Option<i64> = client.query_one(cancel, &[]).await.unwrap().get(0);
        if let Some(cancelled) = cancelled {
            weir.river().jobs().cancel(cancelled).await.unwrap();
        }
        weir.all_finished().await;
        stop.cancel();
    };
    let (most, ()) = tokio::join!(sampling, events);
    for (most, slots) in most.iter().zip([1, 3, 5]) {
        assert!((1..=slots).contains(most), "{most} of {slots}");
    }
    for process in processes {
        end_by_input(process).await;
    }
    assert!(
        snoozes
            .lock()
            .unwrap()
            .iter()
            .any(|line: &String| line == "snoozed free")
    );
    weir.until("the last slot to be free", async || {
        (weir.count("quota_reservations").await == 0).then_some(())
    })
    .await;
    maintenance.end().await;
    weir.end().await;
}

/// The module of the example.
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/river-middleware");

#[tokio::test(flavor = "multi_thread")]
async fn the_example_runs_one_job_of_a_free_user_at_a_time() {
    let Some(program) = GoProgram::built(EXAMPLE, ".").await else {
        return;
    };
    let weir = Weir::new().await;
    let maintenance = Maintenance::of(&weir);
    let mut example = tokio::process::Command::new(&program.path);
    example.arg("auth0|anne").env("DATABASE_URL", weir.url());
    let output = example.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        printed
            .lines()
            .filter(|line| line.ends_with(": 1 at once"))
            .count(),
        4,
        "{printed}"
    );
    weir.all_finished().await;
    maintenance.end().await;
    weir.abandon().await;
}

/// A client of `riverqueue` with the middleware. Returns the most jobs that ran at once.
async fn work_in_rust(weir: &Weir, options: FairnessOptions, pool: sqlx::PgPool) -> usize {
    let (workers, running) = river_worker::counting::<Render>();
    let client = Client::builder(weir.context.database.river_pool(6).unwrap())
        .workers(workers)
        .work_middleware(FairnessMiddleware::new(pool, options))
        .queue("default", QueueConfig::new(10))
        .build()
        .unwrap();
    let mut run = client.start().unwrap();
    weir.all_finished().await;
    run.stop().await.unwrap();
    river_worker::most(&running)
}

#[tokio::test(flavor = "multi_thread")]
async fn rivers_client_for_rust_keeps_the_limit_and_may_fail_open() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await;
    insert(&weir, &user.to_string(), 20, 0).await;
    let options = FairnessOptions {
        meter: Some("analysis".to_owned()),
        snooze: Duration::from_secs(2),
        jitter: Duration::from_millis(100),
        ..FairnessOptions::default()
    };
    let pool = weir.context.database.river_pool(4).unwrap();
    let maintenance = Maintenance::of(&weir);
    let most = work_in_rust(&weir, options.clone(), pool.clone()).await;
    assert!((1..=3).contains(&most), "{most}");
    maintenance.end().await;

    // Without an answer of Weir's function, jobs run if the options say so.
    insert(&weir, &user.to_string(), 10, 0).await;
    pool.close().await;
    let open = FairnessOptions {
        fail_open: true,
        ..options
    };
    let most = work_in_rust(&weir, open, pool).await;
    assert!(most > 3, "{most}");
    weir.reconcile().await;
    weir.end().await;
}

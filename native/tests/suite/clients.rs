//! The clients in other languages, by their examples. Orders and their jobs exist together or not at all, and workers
//! complete jobs in their own transactions.

use crate::common::programs::{self, GO_MODULE, GoProgram, end_by_input};
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::fleet::{CLIENTS, Maintenance, go, holders_over_their_slots, output, row_count, wakes};
use crate::common::{Weir, Who};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;

const TABLES: &str = "CREATE TABLE IF NOT EXISTS orders (number int NOT NULL); CREATE TABLE IF NOT EXISTS results (number int NOT NULL)";

/// The quota has ten orders left. Of 32 concurrent ones, ten are accepted with a job each, and the others leave
/// nothing.
async fn orders_and_jobs_commit_together(weir: &Weir, client: &Client, program: &[PathBuf]) -> Uuid {
    client.batch_execute(TABLES).await.unwrap();
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 40).await;
    assert_eq!(
        output(weir, program, &["order", &user.to_string(), "32"]).await,
        "10 22"
    );
    for table in ["orders", "river_job", "quota_reservations", "weir_jobs"] {
        assert_eq!(row_count(client, table).await, 10, "{table}");
    }
    user
}

/// A worker in this language completes the jobs, including one that fails once.
async fn a_worker_completes_in_its_own_transactions(
    weir: &Weir,
    client: &Client,
    user: Uuid,
    program: &[PathBuf],
) {
    let other = weir.user("pro").await;
    let submit = "SELECT outcome FROM weir_submit($1, 'analysis', '{\"order\": 77, \"fails\": 1}')";
    client.query_one(submit, &[&other.to_string()]).await.unwrap();
    let maintenance = Maintenance::of(weir);
    // Eleven jobs, and the failed attempt.
    output(weir, program, &["work", "12"]).await;
    weir.all_finished().await;
    maintenance.end().await;
    assert_eq!(
        row_count(client, "results").await,
        11,
        "the failed attempt wrote nothing"
    );
    assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 50);
    assert_eq!(weir.quota(Who::User(other), "analysis").await["used"], 1);
}

async fn in_language(program: &[PathBuf]) {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = orders_and_jobs_commit_together(&weir, &client, program).await;
    a_worker_completes_in_its_own_transactions(&weir, &client, user, program).await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_and_their_jobs_in_python() {
    let made = tokio::task::spawn_blocking(|| programs::python("psycopg-3.3.9", &["psycopg[binary]==3.3.9"]));
    let Some(python) = made.await.unwrap() else { return };
    in_language(&[python, PathBuf::from(CLIENTS).join("python/example.py")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_and_their_jobs_in_typescript() {
    let Some(node) = programs::node() else { return };
    in_language(&[node, PathBuf::from(CLIENTS).join("typescript/example.ts")]).await;
}

const COUNTING_PYTHON: &str = r#"
import os, sys
sys.path.insert(0, sys.argv[1] + "/python")
from weir import Weir

handled = []

def handle(connection, job):
    handled.append(job.id)
    print(connection.execute("SELECT count(*) FROM river_job WHERE state = 'running'").fetchone()[0])

queues = ["analysis_priority", "analysis_default"]
Weir().work(os.environ["DATABASE_URL"], queues, handle, poll=0.2, until=lambda: len(handled) >= 2)
"#;

const COUNTING_TYPESCRIPT: &str = r#"
import postgres from "postgres";
const { Weir } = await import(process.argv[1] + "/typescript/weir.ts");
const sql = postgres(process.env.DATABASE_URL, { onnotice: () => {} });
const enough = new AbortController();
let handled = 0;
const handle = async (transaction) => {
  if (++handled >= 2) enough.abort();
  const [row] = await transaction`SELECT count(*) FROM river_job WHERE state = 'running'`;
  console.log(row.count);
  return {};
};
await new Weir().work(sql, ["analysis_priority", "analysis_default"], handle, { signal: enough.signal, poll: 200 });
await sql.end();
"#;

/// The error ends the worker.
const MISSPELT_TYPESCRIPT: &str = r#"
import postgres from "postgres";
const { Weir } = await import(process.argv[1] + "/typescript/weir.ts");
const sql = postgres(process.env.DATABASE_URL, { onnotice: () => {} });
await new Weir()
  .work(sql, ["analysis_defualt"], async () => ({}), { poll: 100 })
  .catch((error) => console.log(error.message));
await sql.end();
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_typescript_worker_names_a_queue_that_no_service_has() {
    let Some(node) = programs::node() else { return };
    let program = ["--input-type=module", "--eval", MISSPELT_TYPESCRIPT].map(PathBuf::from);
    let weir = Weir::new().await;
    let printed = output(&weir, &[&[node], &program[..]].concat(), &[CLIENTS]).await;
    assert_eq!(printed, "no service has the queue analysis_defualt");
    weir.end().await;
}

/// A claimed job that waits for another one's work holds a slot, and may be taken over before it starts.
async fn claims_what_it_works_in_language(program: &[PathBuf]) {
    let weir = Weir::new().await;
    let client = weir.client().await;
    for plan in ["pro", "free"] {
        let user = weir.user(plan).await.to_string();
        let submit = "SELECT outcome FROM weir_submit($1, 'analysis', '{}')";
        client.query_one(submit, &[&user]).await.unwrap();
    }
    assert_eq!(output(&weir, program, &[CLIENTS]).await, "1\n1");
    weir.end().await;
}

/// A worker without headroom, or with several handlers, works jobs over their user's slots.
async fn works_parked_jobs_in_language(program: &[PathBuf]) {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let submit = "UPDATE plan_limits SET burst = 5; \
                  SELECT weir_submit('alice', 'analysis', '{}') FROM generate_series(1, 3); \
                  SELECT weir_claim('analysis_default', 'another')";
    client.batch_execute(submit).await.unwrap();
    assert_eq!(output(&weir, program, &[CLIENTS]).await, "2\n2");
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_without_headroom_works_parked_jobs() {
    let made = tokio::task::spawn_blocking(|| programs::python("psycopg-3.3.9", &["psycopg[binary]==3.3.9"]));
    let Some(python) = made.await.unwrap() else { return };
    let program = COUNTING_PYTHON.replace("poll=0.2", "poll=0.2, headroom=0");
    works_parked_jobs_in_language(&[python, "-c".into(), program.into()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typescript_worker_without_headroom_works_parked_jobs() {
    let Some(node) = programs::node() else { return };
    let program = COUNTING_TYPESCRIPT.replace("poll: 200", "poll: 200, headroom: 0");
    let program = ["--input-type=module", "--eval", &program].map(PathBuf::from);
    works_parked_jobs_in_language(&[&[node], &program[..]].concat()).await;
}

/// One of two handlers works the parked jobs, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_typescript_worker_keeps_one_handler_for_jobs_with_a_slot() {
    let Some(node) = programs::node() else { return };
    let program = COUNTING_TYPESCRIPT.replace("poll: 200", "poll: 200, concurrency: 2");
    let program = ["--input-type=module", "--eval", &program].map(PathBuf::from);
    works_parked_jobs_in_language(&[&[node], &program[..]].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_of_two_queues_claims_only_jobs_it_can_work() {
    let made = tokio::task::spawn_blocking(|| programs::python("psycopg-3.3.9", &["psycopg[binary]==3.3.9"]));
    let Some(python) = made.await.unwrap() else { return };
    claims_what_it_works_in_language(&[python, "-c".into(), COUNTING_PYTHON.into()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_typescript_worker_of_two_queues_claims_only_what_it_can_work() {
    let Some(node) = programs::node() else { return };
    let program = ["--input-type=module", "--eval", COUNTING_TYPESCRIPT].map(PathBuf::from);
    claims_what_it_works_in_language(&[&[node], &program[..]].concat()).await;
}

const FENCED_TYPESCRIPT: &str = r#"
import postgres from "postgres";
const { Weir } = await import(process.argv[1] + "/typescript/weir.ts");
const sql = postgres(process.env.DATABASE_URL, { onnotice: () => {} });
const weir = new Weir();
const [job] = await weir.claim(sql, "analysis_default", "test");
for (const attempt of [job.attempt, job.attempt + 1]) console.log(await weir.progress(sql, { ...job, attempt }, 0.5));
await sql.begin((transaction) => weir.complete(transaction, job));
await sql.end();
"#;

#[tokio::test(flavor = "multi_thread")]
async fn progress_reports_a_lost_attempt_in_typescript() {
    let Some(node) = programs::node() else { return };
    let program = ["--input-type=module", "--eval", FENCED_TYPESCRIPT].map(PathBuf::from);
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await.to_string();
    let submit = "SELECT outcome FROM weir_submit($1, 'analysis', '{}')";
    client.query_one(submit, &[&user]).await.unwrap();
    let printed = output(&weir, &[&[node], &program[..]].concat(), &[CLIENTS]).await;
    assert_eq!(printed, "done\nfenced_out");
    weir.end().await;
}

/// One job of each kind, and when the next attempt is due, in minutes.
const RETRIES: [(&str, &str, Option<f64>); 4] = [
    ("worker's time", "retryable", Some(40.0)),
    ("client's policy", "retryable", Some(90.0)),
    ("handler cancels", "cancelled", None),
    ("succeeds", "completed", None),
];

#[tokio::test(flavor = "multi_thread")]
async fn rivers_retry_settings_apply_in_go_with_the_simple_protocol() {
    let Some(program) = GoProgram::built(GO_MODULE, "./retries").await else {
        return;
    };
    let weir = Weir::new().await;
    let client = weir.client().await;
    // One slot: each job waits until the one before it has failed.
    let user = weir.user("free").await;
    let maintenance = Maintenance::of(&weir);
    let fleet = Command::new(&program.path)
        .arg(user.to_string())
        .env("DATABASE_URL", weir.url())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let ended = "river_job WHERE state IN ('retryable', 'cancelled', 'completed')";
    while row_count(&client, ended).await < 4 {
        assert!(started.elapsed() < Duration::from_secs(120), "jobs are left");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    end_by_input(fleet).await;
    maintenance.end().await;
    for (how, state, minutes) in RETRIES {
        let job = "SELECT state::text, extract(epoch FROM scheduled_at - attempted_at)::float8 / 60 AS minutes \
                   FROM river_job WHERE args ->> 'how' = $1";
        let row = client.query_one(job, &[&how]).await.unwrap();
        assert_eq!(row.get::<_, &str>("state"), state, "{how}");
        if let Some(minutes) = minutes {
            let due: f64 = row.get("minutes");
            assert!(
                (minutes - 1.0..minutes + 5.0).contains(&due),
                "{how}: {due} minutes"
            );
        }
    }
    let expiring = "river_job WHERE metadata -> 'weir:expires_in' = '7200'";
    assert_eq!(row_count(&client, expiring).await, 4);
    // Two jobs still hold the amount that they reserved, the third one nothing. The last one reserved three.
    let quota = weir.quota(Who::User(user), "analysis").await;
    assert_eq!(
        (&quota["used"], &quota["reserved"]),
        (&json!(3), &json!(2)),
        "{quota}"
    );
    weir.end().await;
}

/// River may report the end of an attempt some time after Weir has recorded it. If the next attempt runs by then, River
/// reports on that one.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_report_of_an_attempt_that_failed_does_not_complete_the_next_one() {
    let Some(program) = go().await else { return };
    let weir = Weir::new().await;
    let client = weir.client().await;
    client.batch_execute(TABLES).await.unwrap();
    let user = weir.user("enterprise").await;
    for order in 0..5 {
        let submit = "SELECT outcome FROM weir_submit($1, 'analysis', $2)";
        let args = json!({ "order": order, "fails": 1 });
        client
            .query_one(submit, &[&user.to_string(), &args])
            .await
            .unwrap();
    }
    let fleet = Command::new(&program.path)
        .args(["-takes", "300ms", "work"])
        .env("DATABASE_URL", weir.url())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(i32::try_from(fleet.id()).unwrap());
    // The fleet is frozen between the record of a failure and River's report, and another worker starts the next
    // attempt.
    let began = "UPDATE river_job SET state = 'running', attempt = attempt + 1, attempted_at = now(), \
                 attempted_by = array_append(attempted_by, 'elsewhere') \
                 WHERE attempt = 1 AND state IN ('available', 'retryable')";
    let failed = "river_job WHERE attempt = 1 AND cardinality(errors) > 0";
    let started = Instant::now();
    while row_count(&client, failed).await == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "no attempt fails");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    kill(pid, Signal::SIGSTOP).unwrap();
    assert!(client.execute(began, &[]).await.unwrap() > 0);
    kill(pid, Signal::SIGCONT).unwrap();
    // Once it has ended, it has reported everything.
    end_by_input(fleet).await;
    assert_eq!(
        row_count(&client, "river_job WHERE state = 'completed'").await,
        row_count(&client, "results").await,
        "completed jobs have their work done"
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_in_go_keeps_every_limit_and_takes_a_freed_slot_immediately() {
    let Some(program) = go().await else { return };
    let weir = Weir::new().await;
    let client = weir.client().await;
    let ordered = orders_and_jobs_commit_together(&weir, &client, std::slice::from_ref(&program.path)).await;
    let (mut slots, mut ids) = (HashMap::from([(ordered, 1)]), Vec::new());
    for (plan, jobs) in [("free", 40), ("pro", 60), ("enterprise", 60)] {
        let user = weir.user(plan).await;
        slots.insert(user, i64::from(weir.slots_of(plan)));
        for order in 0..jobs {
            // Some fail once, and are retried with a slot.
            let args = json!({ "order": order, "fails": i32::from(order % 20 == 7) });
            let submit = "SELECT job_id FROM weir_submit($1, 'analysis', $2)";
            let row = client
                .query_one(submit, &[&user.to_string(), &args])
                .await
                .unwrap();
            ids.push(row.get::<_, i64>(0));
        }
    }
    let maintenance = Maintenance::of(&weir);
    let fleet = Command::new(&program.path)
        .args(["-takes", "10ms", "work"])
        .env("DATABASE_URL", weir.url())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut samples = 0;
    let started = std::time::Instant::now();
    while row_count(&client, "river_job WHERE finalized_at IS NULL").await > 0 {
        let over = holders_over_their_slots(&client, &slots).await;
        assert!(over.is_empty(), "{over:?}");
        samples += 1;
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "the fleet does not get on"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    end_by_input(fleet).await;
    let wake = wakes(&client, &slots, &[0.5, 0.9], Duration::ZERO).await;
    eprintln!(
        "{samples} samples; freed slot to next start: p50 {:.1} ms, p90 {:.1} ms",
        wake[0], wake[1]
    );
    // 5 ms on an idle machine. A fleet without notifications polls once a second.
    assert!(wake[0] <= 250.0, "a freed slot is idle for {wake:?} ms");
    let charged: i64 = client
        .query_one(
            "SELECT count(*) FROM usage_events WHERE job_id = ANY ($1) AND quota_amount = 1",
            &[&ids],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(
        (charged, row_count(&client, "results").await),
        (160, 170),
        "each once"
    );
    assert_eq!(weir.quota(Who::User(ordered), "analysis").await["used"], 50);
    maintenance.end().await;
    weir.end().await;
}

const BRIEF_ASYNC_PYTHON: &str = r#"
import asyncio, os, sys
sys.path.insert(0, sys.argv[1] + "/python")
from weir import AsyncWeir

handled = []

async def handle(connection, job):
    handled.append(job.attempt)
    print(job.attempt)

asyncio.run(AsyncWeir().work(os.environ["DATABASE_URL"], ["analysis_default"], handle, until=lambda: len(handled) >= 1))
"#;

/// The completion waits for the user's account for longer than the answer to a claim may take.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_waits_is_no_lost_claim_in_python() {
    let made = tokio::task::spawn_blocking(|| programs::python("psycopg-3.3.9", &["psycopg[binary]==3.3.9"]));
    let Some(python) = made.await.unwrap() else { return };
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let (mut client, watch) = (weir.client().await, weir.client().await);
    let submit = "SELECT job_id FROM weir_submit($1, 'analysis', '{}')";
    let job: i64 = client
        .query_one(submit, &[&user.to_string()])
        .await
        .unwrap()
        .get(0);
    let lock = client.transaction().await.unwrap();
    lock.execute("SELECT FROM holders FOR UPDATE", &[]).await.unwrap();
    let program = [python, "-c".into(), BRIEF_ASYNC_PYTHON.into()];
    let work = output(&weir, &program, &[CLIENTS]);
    let release = async {
        weir.until("the completion to wait", async || {
            let waits = "SELECT FROM pg_stat_activity WHERE query LIKE '%weir_complete%' AND wait_event_type = 'Lock' \
                         AND datname = current_database()";
            watch.query_opt(waits, &[]).await.unwrap().map(drop)
        })
        .await;
        tokio::time::sleep(Duration::from_secs(14)).await;
        lock.commit().await.unwrap();
    };
    let (printed, ()) = tokio::join!(work, release);
    assert_eq!(printed, "1");
    let done = weir.finished(job, Who::User(user)).await;
    assert_eq!(
        (&done["status"], &done["attempt"]),
        (&json!("completed"), &json!(1)),
        "{done}"
    );
    weir.end().await;
}

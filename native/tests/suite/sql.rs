//! The database as an API: submission and settlement by SQL functions, inside the caller's transactions.

use crate::common;
use std::time::{Duration, Instant};

use crate::common::process::Process;
use crate::common::{GO_TESTS, Weir, Who};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio_postgres::{AsyncMessage, Client, NoTls};
use weir_ledger::control;
use weir_ledger::holder::Holders;
use weir_ledger::settlement::{Ended, Settler, Success};

const SUBMIT: &str = "SELECT outcome, job_id, quota FROM weir_submit($1, 'analysis', $2)";

async fn submit(client: &Client, subject: &str) -> (String, Option<i64>) {
    let args = json!({ "files": [{ "path": "a_test.go", "content": common::GO_TESTS }] });
    let row = client.query_one(SUBMIT, &[&subject, &args]).await.unwrap();
    (row.get("outcome"), row.get("job_id"))
}

async fn outcome(client: &Client, sql: &str) -> String {
    client.query_one(sql, &[]).await.unwrap().get("outcome")
}

/// The error message of a statement that must be refused.
async fn refusal(client: &Client, sql: &str) -> String {
    let error = client.batch_execute(sql).await.unwrap_err();
    error.as_db_error().unwrap().message().to_owned()
}

async fn state_of(client: &Client, id: i64) -> String {
    let sql = "SELECT state::text FROM river_job WHERE id = $1";
    client.query_one(sql, &[&id]).await.unwrap().get(0)
}

async fn row_count(client: &Client, table: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM {table}");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

/// The notifications of claimable jobs that River's clients get, while the client exists.
async fn listen(weir: &Weir) -> (Client, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let (listener, mut connection) = tokio_postgres::connect(weir.url(), NoTls).await.unwrap();
    let (sender, notifications) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification.payload().to_owned());
            }
        }
    });
    listener
        .batch_execute("LISTEN \"public.river_insert\"")
        .await
        .unwrap();
    (listener, notifications)
}

/// Notifies the listeners of [`listen`], so that they need not wait for a notification that is not sent.
async fn mark(client: &Client) {
    let mark = "NOTIFY \"public.river_insert\", 'mark'";
    client.batch_execute(mark).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn submissions_by_sql_notify_only_with_the_option_wake() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let (_listener, mut notifications) = listen(&weir).await;
    let submit = |options: &str| {
        let user = uuid::Uuid::new_v4();
        format!("SELECT outcome FROM weir_submit('{user}', 'analysis', '{{}}', 1, '{options}')")
    };
    for (options, expected) in [
        ("{}", "mark"),
        (r#"{"wake": false}"#, "mark"),
        (r#"{"wake": true}"#, r#"{"queue" : "analysis_default"}"#),
    ] {
        assert_eq!(outcome(&client, &submit(options)).await, "admitted");
        mark(&client).await;
        assert_eq!(notifications.recv().await.unwrap(), expected, "{options}");
    }
    assert_eq!(notifications.recv().await.unwrap(), "mark");
    let refused = refusal(&client, &submit(r#"{"wake": "yes"}"#)).await;
    assert_eq!(refused, "wake must be true or false");
    weir.end().await;
}

/// The process that runs maintenance notifies workers of jobs whose transactions did not.
#[tokio::test(flavor = "multi_thread")]
async fn maintenance_wakes_workers_for_jobs_submitted_by_sql() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let (_listener, mut notifications) = listen(&weir).await;
    let stopped = tokio_util::sync::CancellationToken::new();
    let maintenance = weir::work::reconcile::run(weir.context.clone(), stopped.clone());
    let maintenance = tokio::spawn(maintenance);
    assert_eq!(submit(&client, "anne").await.0, "admitted");
    let notified = tokio::time::timeout(Duration::from_secs(20), notifications.recv()).await;
    let notified: Value = serde_json::from_str(&notified.unwrap().unwrap()).unwrap();
    assert_eq!(notified, json!({ "queue": "analysis_default" }));
    stopped.cancel();
    maintenance.await.unwrap();
    weir.end().await;
}

/// PostgreSQL keeps a lock of the whole cluster from a notification until its transaction is flushed.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_write_do_not_notify() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let (listener, mut connection) = tokio_postgres::connect(weir.url(), NoTls).await.unwrap();
    let (sender, mut notified_by) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = sender.send(notification.process_id());
            }
        }
    });
    listener
        .batch_execute("LISTEN \"public.river_insert\"")
        .await
        .unwrap();
    let who = Who::User(weir.user("free").await);
    weir.analyse(who, "a_test.go", GO_TESTS).await;
    let process = notified_by.recv().await.unwrap();
    let last = "SELECT query FROM pg_stat_activity WHERE pid = $1";
    let last: String = client.query_one(last, &[&process]).await.unwrap().get(0);
    assert!(last.contains("wake_queue"), "its session also ran: {last}");
    weir.end().await;
}

/// A trigger that delays commits, as a slow disk or a synchronous standby does.
const SLOW_COMMITS: &str = "CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS \
    'BEGIN PERFORM pg_sleep(0.15); RETURN NULL; END'; \
    CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON weir_jobs DEFERRABLE INITIALLY DEFERRED \
    FOR EACH ROW EXECUTE FUNCTION slow_commit(); \
    CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON usage_events DEFERRABLE INITIALLY DEFERRED \
    FOR EACH ROW EXECUTE FUNCTION slow_commit()";

#[tokio::test(flavor = "multi_thread")]
async fn slow_commits_are_not_reported_as_locks() {
    let weir = Weir::new().await;
    weir.client().await.batch_execute(SLOW_COMMITS).await.unwrap();
    let process = Process::start(&weir, &["up"], &[]);
    process.ready().await;
    let who = Who::User(weir.user("enterprise").await);
    let body = json!({ "files": [{ "path": "a_test.go", "content": GO_TESTS }] }).to_string();
    for _ in 0..12 {
        let accepted = process
            .call("POST", "/api/jobs/analysis", who, "request", &body)
            .await;
        assert_eq!(accepted.status, 202, "{}", accepted.text);
    }
    weir.all_finished().await;
    let scrape = process.scrape().await;
    assert_eq!(scrape.value("weir_blocked_holders_total", &[]), Some(0.0));
    assert!(scrape.value("weir_commit_seconds_sum", &[]).unwrap() > 12.0 * 0.15);
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quota_ends_at_the_same_moment_in_sql_as_in_http() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    for fraction in ["0", "0.25", "0.000001", "0.1234"] {
        client
            .execute(
                "UPDATE user_subscriptions \
                 SET current_period_start = date_trunc('day', now()) + ($1::text || ' s')::interval WHERE user_id = $2",
                &[&fraction, &user],
            )
            .await
            .unwrap();
        let args = json!({ "files": [{ "path": "a_test.go", "content": common::GO_TESTS }] });
        let submitted = "SELECT quota FROM weir_submit($1, 'analysis', $2)";
        let row = client
            .query_one(submitted, &[&user.to_string(), &args])
            .await
            .unwrap();
        let quota: serde_json::Value = row.get("quota");
        let shown = weir.quota(Who::User(user), "analysis").await;
        assert_eq!(quota["reset_at"], shown["reset_at"], "{fraction}");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_of_32_submissions_fit_and_the_others_leave_no_trace() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute("CREATE TABLE orders (id serial PRIMARY KEY, job_id bigint NOT NULL)")
        .await
        .unwrap();
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 40).await;
    let order = async |rolls_back: bool| {
        let mut client = weir.client().await;
        let transaction = client.transaction().await.unwrap();
        let (outcome, job) = submit(transaction.client(), &user.to_string()).await;
        let insert = "INSERT INTO orders (job_id) VALUES ($1)";
        match job {
            Some(job) if !rolls_back => {
                transaction.execute(insert, &[&job]).await.unwrap();
                transaction.commit().await.unwrap();
            }
            _ => transaction.rollback().await.unwrap(),
        }
        outcome
    };
    join_all((0..8).map(|_| order(true))).await;
    assert_eq!(
        (
            row_count(&client, "river_job").await,
            row_count(&client, "quota_reservations").await
        ),
        (0, 0)
    );
    let outcomes = join_all((0..32).map(|_| order(false))).await;
    let refused = outcomes.iter().filter(|outcome| *outcome == "over_quota").count();
    assert_eq!(refused, 22, "{outcomes:?}");
    let both: i64 = client
        .query_one(
            "SELECT count(*) FROM orders o JOIN river_job j ON j.id = o.job_id",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(
        (
            both,
            row_count(&client, "orders").await,
            row_count(&client, "river_job").await
        ),
        (10, 10, 10)
    );
    let working = weir.work().await;
    weir.all_finished().await;
    weir.released(Who::User(user), "analysis").await;
    assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 50);
    working.stop().await;
    client.batch_execute("DROP TABLE orders").await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_the_page_works_unchanged() {
    let page = include_str!("../../../docs/how-to/any-language.md");
    let mut examples = page.split("```sql\n").filter_map(|part| part.split("```").next());
    let example = examples.find(|text| text.contains("weir_submit(")).unwrap();
    let weir = Weir::new().await;
    let client = weir.client().await;
    client.batch_execute(example).await.unwrap();
    let working = weir.work().await;
    weir.all_finished().await;
    let sql = "SELECT state::text, errors::text FROM river_job";
    let job = client.query_one(sql, &[]).await.unwrap();
    assert_eq!(job.get::<_, Option<String>>("errors"), None);
    assert_eq!(job.get::<_, String>("state"), "completed");
    working.stop().await;
    weir.end().await;
}

/// Calls and their error messages.
const INVALID_CALLS: &[(&str, &str)] = &[
    (
        "SELECT weir_submit('anne', 'analysis', '{}', options => '{\"runat\": 1, \"prio\": 2}')",
        "unknown options: prio, runat",
    ),
    (
        "SELECT weir_submit('anne', 'analysis', '[]')",
        "the arguments must be a JSON object of at most 256 KiB",
    ),
    (
        "SELECT weir_submit('anne', 'analysis', NULL)",
        "the arguments must be a JSON object of at most 256 KiB",
    ),
    (
        "SELECT weir_submit('anne', 'video', '{}')",
        "unknown service video",
    ),
    (
        "SELECT weir_submit('', 'analysis', '{}')",
        "a subject must have 1 to 255 bytes and no control characters",
    ),
    (
        "SELECT weir_submit(E'a\\tb', 'analysis', '{}')",
        "a subject must have 1 to 255 bytes and no control characters",
    ),
    (
        r"SELECT weir_submit(U&'a\202Eb', 'analysis', '{}')",
        "a subject must have 1 to 255 bytes and no control characters",
    ),
    (
        "SELECT weir_submit(NULL, 'analysis', '{}')",
        "a subject must have 1 to 255 bytes and no control characters",
    ),
    (
        "SELECT weir_submit('anne', 'specview', '{}')",
        "service specview has no default amount; pass the amount",
    ),
    ("SELECT weir_quota('anne', 'video')", "unknown service video"),
    (
        "SELECT weir_quota('', 'analysis')",
        "a subject must have 1 to 255 bytes and no control characters",
    ),
    (
        "SELECT weir_quota('anne', 'specview')",
        "the service specview has no fixed amount; pass an amount",
    ),
    (
        "SELECT weir_quota('anne', 'analysis', -1)",
        "amount must be from 0 to 1000000000000000",
    ),
    (
        "SELECT weir_submit('anne', 'specview', '{}', -1)",
        "amount must be from 0 to 1000000000000000",
    ),
    (
        "SELECT weir_submit('anne', 'analysis', '{}', options => '{\"priority\": 5}')",
        "priority must be a number from 1 (first) to 4",
    ),
    (
        "SELECT weir_submit('anne', 'analysis', '{}', options => '{\"run_at\": \"soon\"}')",
        "run_at must be a time with an offset, such as 2027-01-31T08:00:00Z",
    ),
    (
        "SELECT weir_submit('anne', 'analysis', '{}', options => '{\"run_at\": \"infinity\"}')",
        "run_at must be a time with an offset, such as 2027-01-31T08:00:00Z",
    ),
    (
        "SELECT weir_submit('anne', 'analysis', '{}', options => '{\"run_at\": \"9999-01-01T00:00:00Z\"}')",
        "run_at must be within 366 days",
    ),
    (
        "SELECT weir_settle_many('[{\"job_id\": 1, \"attempt\": 1, \"error\": \"x\", \"retry_at\": \"tomorrow\"}]')",
        "retry_at must be a time with an offset, such as 2027-01-31T08:00:00Z",
    ),
    (
        "SELECT weir_settle_many('[{\"job_id\": 1, \"attempt\": 1, \"created_at\": \"2027-01-31T08:00:00\"}]')",
        "created_at must be a time with an offset, such as 2027-01-31T08:00:00Z",
    ),
    (
        "SELECT weir_submit('anne', 'analysis', '{}', options => '{\"idempotency_key\": \"\"}')",
        "idempotency_key must be text of 1 to 255 bytes",
    ),
    (
        "SELECT weir_progress(1, 1, 1.5)",
        "progress needs a fraction from 0 to 1 and a message of at most 1000 bytes",
    ),
    ("SELECT weir_complete(1, 1, used => -1)", "used must be 0 or more"),
    (
        "SELECT weir_extend(1, 1, 0)",
        "more must be from 1 to 1000000000000000",
    ),
    (
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT weir_submit('anne', 'analysis', '{}')",
        "weir_submit needs READ COMMITTED, but this transaction is REPEATABLE READ",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn invalid_calls_are_refused_with_a_fix() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    for (sql, reason) in INVALID_CALLS {
        assert_eq!(refusal(&client, sql).await, *reason, "{sql}");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    for sql in [
        "SELECT * FROM weir_complete(77, 1)",
        "SELECT * FROM weir_fail(77, 1, 'no')",
        "SELECT * FROM weir_progress(77, 1, 0.5)",
        "SELECT * FROM weir_extend(77, 1, 5)",
    ] {
        assert_eq!(outcome(&client, sql).await, "fenced_out", "{sql}");
    }
    assert_eq!(
        (
            row_count(&client, "users").await,
            row_count(&client, "river_job").await
        ),
        (0, 0)
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_are_the_same_holders_in_sql_and_in_rust() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let holders = Holders::load(&client).await.unwrap();
    let id = "2b0c5d9e-5ad9-4f43-9f0a-0d4b4e0d3a55";
    let mut subjects: Vec<String> = [
        "anne",
        "Zo\u{eb}",
        "Zoe\u{308}",
        "auth0|5",
        "17",
        " ",
        "李",
        "a'b\\",
        "{}",
        "urn:uuid:x",
    ]
    .map(str::to_owned)
    .to_vec();
    subjects.extend([
        id.to_owned(),
        id.to_uppercase(),
        id.replace('-', ""),
        format!("{{{id}}}"),
        format!("urn:uuid:{id}"),
        format!("URN:UUID:{id}"),
        format!("uRn:Uuid:{id}"),
        format!("{{{}}}", id.replace('-', "")),
        format!("{id} "),
        id.replacen('-', "", 1),
    ]);
    for subject in subjects {
        let row = client
            .query_one("SELECT weir_holder($1)", &[&subject])
            .await
            .unwrap();
        assert_eq!(
            row.get::<_, uuid::Uuid>(0),
            holders.user_id(&subject).id,
            "{subject:?}"
        );
    }
    // A user who submits in SQL is the same user in the API.
    let who = Who::Subject("auth0|anne");
    let (_, id) = submit(&client, "auth0|anne").await;
    let job = weir.get(&format!("/api/jobs/{}", id.unwrap()), who).await.body;
    assert_eq!(
        (&job["status"], &job["plan"]),
        (&json!("queued"), &json!("free")),
        "{job}"
    );
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 1);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_in_the_workers_transaction_promotes_at_commit() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let (client, mut other) = (weir.client().await, weir.client().await);
    let subject = user.to_string();
    let (first, second) = (submit(&client, &subject).await, submit(&client, &subject).await);
    assert_eq!((first.0.as_str(), second.0.as_str()), ("admitted", "parked"));
    let (first, second) = (first.1.unwrap(), second.1.unwrap());
    let (_listener, mut notifications) = listen(&weir).await;
    weir.start_elsewhere(first).await;

    let transaction = other.transaction().await.unwrap();
    let complete = "SELECT outcome, charged FROM weir_complete($1, 1, '{\"count\": 2}', 5)";
    let done = transaction.query_one(complete, &[&first]).await.unwrap();
    assert_eq!(
        (done.get::<_, &str>(0), done.get::<_, i64>(1)),
        ("done", 1),
        "at most what was reserved"
    );
    transaction.rollback().await.unwrap();
    assert_eq!(state_of(&client, first).await, "running");
    assert_eq!(state_of(&client, second).await, "pending");

    let transaction = other.transaction().await.unwrap();
    let fenced = "SELECT * FROM weir_complete($1, 2)";
    assert_eq!(
        transaction
            .query_one(fenced, &[&first])
            .await
            .unwrap()
            .get::<_, &str>("outcome"),
        "fenced_out"
    );
    transaction.query_one(complete, &[&first]).await.unwrap();
    transaction.commit().await.unwrap();
    mark(&client).await;
    let notified = notifications.recv().await.unwrap();
    assert_eq!(notified, "mark", "a caller's transaction does not notify");
    assert_eq!(state_of(&client, second).await, "available");
    // No other attempt can finish it, and nothing is charged twice.
    let again = client.query_one(complete, &[&first]).await.unwrap();
    assert_eq!(
        (again.get::<_, &str>(0), again.get::<_, i64>(1)),
        ("fenced_out", 0)
    );
    let job = weir
        .get(&format!("/api/jobs/{first}"), Who::User(user))
        .await
        .body;
    assert_eq!(
        (&job["output"], &job["charged"]),
        (&json!({ "count": 2 }), &json!(1)),
        "{job}"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promotion_by_the_ledger_wakes_idle_workers_however_many_jobs_wait() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let subject = weir.user("free").await.to_string();
    let mut jobs = Vec::new();
    for _ in 0..2 {
        jobs.push(submit(&client, &subject).await.1.unwrap());
    }
    for _ in 0..25 {
        submit(&client, &weir.user("free").await.to_string()).await;
    }
    let long_ago =
        "UPDATE river_job SET scheduled_at = now() - interval '1 second' WHERE state = 'available'";
    assert_eq!(client.execute(long_ago, &[]).await.unwrap(), 26);
    let (_listener, mut notifications) = listen(&weir).await;
    let mut notified = async || {
        let payload = tokio::time::timeout(Duration::from_secs(5), notifications.recv()).await;
        let payload = payload.ok().flatten()?;
        serde_json::from_str::<Value>(&payload).ok()
    };
    let queue = json!({ "queue": "analysis_default" });

    weir.start_elsewhere(jobs[0]).await;
    let settler = Settler::start(&weir.context.database);
    let success = Some(Success {
        attempt: 1,
        job_created_at: None,
        output: Value::Null,
        used: None,
    });
    let ended = Ended {
        job_id: jobs[0],
        holder: None,
        success,
    };
    settler.settle(ended).await.unwrap();
    assert_eq!(state_of(&client, jobs[1]).await, "available");
    assert_eq!(notified().await.as_ref(), Some(&queue), "by the ledger");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_without_the_meter_completes_jobs_and_keeps_one_slot() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let subject = weir.user("free").await.to_string();
    let mut jobs = Vec::new();
    for _ in 0..4 {
        jobs.push(submit(&client, &subject).await.1.unwrap());
    }
    weir.start_elsewhere(jobs[0]).await;
    let gone = "DELETE FROM plan_limits l USING subscription_plans p WHERE l.plan_id = p.id AND p.tier::text = 'free'";
    client.execute(gone, &[]).await.unwrap();
    let complete = format!("SELECT outcome FROM weir_complete({}, 1)", jobs[0]);
    assert_eq!(outcome(&client, &complete).await, "done");
    let mut available = 0;
    for job in &jobs[1..] {
        available += i32::from(state_of(&client, *job).await == "available");
    }
    assert_eq!(available, 1);
    weir.end().await;
}

/// Another program's session, with PostgreSQL's own settings.
async fn stranger(weir: &Weir) -> Client {
    let (client, connection) = tokio_postgres::connect(weir.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Makes jobs run, as River's claims do.
async fn claimed(client: &Client, ids: &[i64]) {
    let claim = "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now(), attempted_by = '{stranger}' \
                 WHERE id = ANY ($1)";
    client.execute(claim, &[&ids]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_completes_while_a_waiting_one_has_the_same_key() {
    let weir = Weir::new().await;
    let client = stranger(&weir).await;
    let (_, running) = submit(&client, "anne").await;
    let (_, waiting) = submit(&client, "anne").await;
    let (running, waiting) = (running.unwrap(), waiting.unwrap());
    claimed(&client, &[running]).await;
    // Another client's key: it counts for available and running jobs, but not for pending ones. The index checks the
    // lower id first.
    let swap = "UPDATE river_job SET unique_key = 'k', unique_states = B'01000001' WHERE id = ANY ($1)";
    client.execute(swap, &[&vec![running, waiting]]).await.unwrap();
    let lower = format!("UPDATE weir_jobs SET job_id = 0 WHERE job_id = {waiting}");
    client.batch_execute(&lower).await.unwrap();
    let lower = "UPDATE river_job SET id = 0 WHERE id = $1";
    client.execute(lower, &[&waiting]).await.unwrap();
    client
        .batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        .await
        .unwrap();
    let complete = format!("SELECT outcome FROM weir_complete({running}, 1)");
    assert_eq!(outcome(&client, &complete).await, "done");
    assert_eq!(state_of(&client, 0).await, "available");
    weir.end().await;
}

/// The number of pages of tables and indexes that a statement reads. Those of the catalog are read again whenever another
/// session changes it.
const PAGES: &str =
    "SELECT sum(pg_stat_get_xact_blocks_fetched(oid))::bigint FROM pg_class WHERE oid >= 16384";

/// The number of entries of parked jobs.
const PARKED: &str = "SELECT pg_stat_get_xact_tuples_returned('weir_jobs_parked'::regclass)";

/// How many of them a statement reads.
async fn read_by(client: &Client, sql: &str, what: &str) -> i64 {
    let read = async || client.query_one(what, &[]).await.unwrap().get::<_, i64>(0);
    // In one transaction, so that the statistics are not written in between.
    client.batch_execute("BEGIN").await.unwrap();
    let before = read().await;
    client.execute(sql, &[]).await.unwrap();
    let after = read().await;
    client.batch_execute("COMMIT").await.unwrap();
    after - before
}

/// A report or a dump keeps every version of a row. Look-ups of an account find the live one without the others.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_does_not_slow_down_look_ups_of_accounts() {
    let weir = Weir::new().await;
    let user = weir.user("enterprise").await;
    // The pages that a submission and a settlement read. The fewest of some runs: the first one makes plans, and one change
    // in fifty moves the row to another page, which reads its earlier versions. In new sessions, which plan with the
    // tables' current sizes.
    let look = async || {
        let client = weir.client().await;
        let mut pages = [i64::MAX; 2];
        for _ in 0..4 {
            let submit = format!("SELECT weir_submit('{user}', 'analysis', '{{\"files\": []}}')");
            pages[0] = pages[0].min(read_by(&client, &submit, PAGES).await);
            let newest = "SELECT max(job_id) FROM quota_reservations";
            let id: i64 = client.query_one(newest, &[]).await.unwrap().get(0);
            weir.start_elsewhere(id).await;
            let complete = format!("SELECT weir_complete({id}, 1)");
            pages[1] = pages[1].min(read_by(&client, &complete, PAGES).await);
        }
        pages
    };
    let before = look().await;
    let report = weir.snapshot().await;
    let busy = format!(
        "DO $$ BEGIN FOR n IN 1..8000 LOOP \
             UPDATE holders SET changes = changes + 1 WHERE holder = '{user}' AND event_type = 'analysis'; \
             COMMIT; \
         END LOOP; END $$"
    );
    weir.client().await.batch_execute(&busy).await.unwrap();
    let after = look().await;
    for (name, (before, after)) in ["weir_submit", "weir_complete"]
        .into_iter()
        .zip(before.into_iter().zip(after))
    {
        // The versions of either row take up more than a hundred pages.
        assert!(
            after < before + 40,
            "{name}: {before} pages before, {after} after"
        );
    }
    report.batch_execute("ROLLBACK").await.unwrap();
    weir.end().await;
}

/// The same for claims that lend workers, while one job keeps its user's slot.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_does_not_slow_down_lending() {
    let weir = Weir::new().await;
    let (client, user) = (weir.client().await, weir.user("free").await);
    let fill = format!(
        "UPDATE plan_limits SET burst = 1000, month = NULL; \
         DO $$ BEGIN FOR n IN 1..700 LOOP \
             PERFORM weir_submit('{user}', 'analysis', '{{\"files\": []}}'); \
         END LOOP; END $$"
    );
    client.batch_execute(&fill).await.unwrap();
    let claim = "SELECT FROM weir_claim('analysis_default', 'w', 1, 0)";
    assert_eq!(client.execute(claim, &[]).await.unwrap(), 1);
    let look = async || {
        let mut pages = i64::MAX;
        for _ in 0..4 {
            pages = pages.min(read_by(&client, claim, PAGES).await);
        }
        (pages, read_by(&client, claim, PARKED).await)
    };
    let (before, _) = look().await;
    let report = weir.snapshot().await;
    let lend = "DO $$ DECLARE one bigint; BEGIN FOR n IN 1..500 LOOP \
                    SELECT job_id INTO STRICT one FROM weir_claim('analysis_default', 'w', 1, 0); \
                    PERFORM weir_complete(one, 1); \
                    COMMIT; \
                END LOOP; END $$";
    client.batch_execute(lend).await.unwrap();
    let (after, parked) = look().await;
    assert!(after < before + 30, "{before} pages before, {after} after");
    assert!((1..10).contains(&parked), "read {parked} entries of parked jobs");
    report.batch_execute("ROLLBACK").await.unwrap();
    weir.end().await;
}

/// The entries of promoted jobs stay in the index of parked ones while a session holds an old snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_does_not_slow_down_promotion() {
    let weir = Weir::new().await;
    let user = weir.user("enterprise").await;
    let (client, report) = (weir.client().await, weir.snapshot().await);
    let submit = format!(
        "DO $$ BEGIN FOR n IN 1..600 LOOP \
             PERFORM weir_submit('{user}', 'analysis', '{{\"files\": []}}'); \
         END LOOP; END $$"
    );
    client.batch_execute(&submit).await.unwrap();
    // Completes a job. Returns the number of parked jobs' entries that this reads.
    let complete = async || {
        let next = "SELECT min(id) FROM river_job WHERE state = 'available'";
        let id: i64 = client.query_one(next, &[]).await.unwrap().get(0);
        weir.start_elsewhere(id).await;
        read_by(&client, &format!("SELECT FROM weir_complete({id}, 1)"), PARKED).await
    };
    let startable = async || {
        let count = "SELECT count(*) FROM river_job WHERE state = 'available'";
        client.query_one(count, &[]).await.unwrap().get::<_, i64>(0)
    };
    let many = "DO $$ DECLARE one bigint; BEGIN FOR n IN 1..500 LOOP \
                    UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now(), \
                                         attempted_by = '{elsewhere}' \
                    WHERE id = (SELECT min(id) FROM river_job WHERE state = 'available') RETURNING id INTO one; \
                    PERFORM weir_complete(one, 1); \
                    COMMIT; \
                END LOOP; END $$";
    client.batch_execute(many).await.unwrap();
    let read = complete().await;
    assert!((1..10).contains(&read), "read {read} entries");
    report.batch_execute("ROLLBACK").await.unwrap();

    // After a wrong value, jobs are promoted a round later.
    assert_eq!(startable().await, 5);
    let wrong = "UPDATE holders SET parked_from = 9223372036854775807";
    client.batch_execute(wrong).await.unwrap();
    complete().await;
    assert_eq!(startable().await, 4);
    weir.reconcile().await;
    assert_eq!(startable().await, 5);
    complete().await;
    assert_eq!(startable().await, 5);

    // Another program parks a job that was promoted earlier.
    let park = "WITH earlier AS ( \
                    UPDATE river_job SET state = 'pending' \
                    WHERE id = (SELECT min(id) FROM river_job WHERE state = 'available') RETURNING id \
                ) \
                UPDATE quota_reservations SET admitted_at = NULL, parked_at = now() \
                WHERE job_id = (SELECT id FROM earlier)";
    client.batch_execute(park).await.unwrap();
    weir.recount().await;
    assert_eq!(startable().await, 4);
    weir.reconcile().await;
    assert_eq!(startable().await, 5);
    weir.is_clean().await;
    weir.end().await;
}

/// Unless it can inline a function in the language SQL, PostgreSQL parses and plans it at each call. This takes a tenth
/// of a millisecond. A function in PL/pgSQL keeps its plans for the session. One without arguments is called once, when
/// a statement is planned.
#[tokio::test(flavor = "multi_thread")]
async fn functions_of_the_job_path_do_not_replan_at_each_call() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let count_calls = format!(
        "ALTER DATABASE {} SET track_functions = 'all'; \
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND pid <> pg_backend_pid()",
        weir.name()
    );
    client.batch_execute(&count_calls).await.unwrap();
    let user = weir.user("pro").await;
    let client = weir.client().await;
    let submitted = async |options: &str| {
        let submit = format!(
            "SELECT job_id FROM weir_submit('{user}', 'specview', '{{\"document\": \"x\"}}', 1, '{options}')"
        );
        client.query_one(&submit, &[]).await.unwrap().get::<_, i64>(0)
    };
    let id = submitted(r#"{"idempotency_key": "a"}"#).await;
    submitted("{}").await;
    client
        .batch_execute(&format!(
            "SELECT weir_claim(queue, 'elsewhere') FROM river_job WHERE id = {id}; \
             SELECT weir_progress({id}, 1, 0.5); SELECT weir_extend({id}, 1, 1); SELECT weir_complete({id}, 1);"
        ))
        .await
        .unwrap();
    let working = weir.work().await;
    for n in 0..5 {
        let who = Who::User(user);
        let id = weir.analyse(who, "a_test.rs", &format!("fn a{n}() {{}}")).await;
        weir.finished(id, who).await;
    }
    working.stop().await;
    let called = "SELECT pg_stat_clear_snapshot(), (SELECT count(*) FROM pg_stat_user_functions), \
                  (SELECT string_agg(p.proname, ', ' ORDER BY p.proname) \
                   FROM pg_stat_user_functions f JOIN pg_proc p ON p.oid = f.funcid \
                   JOIN pg_language l ON l.oid = p.prolang WHERE l.lanname = 'sql' AND p.pronargs > 0)";
    drop(client);
    let client = weir.client().await;
    let (counted, planned): (i64, Option<String>) = weir
        .until("the calls to be counted", async || {
            let row = client.query_one(called, &[]).await.unwrap();
            (row.get::<_, i64>(1) > 10).then(|| (row.get(1), row.get(2)))
        })
        .await;
    assert_eq!(planned, None, "{counted} functions were called");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_uses_the_primary_key_after_growth() {
    let weir = Weir::new().await;
    let mut client = stranger(&weir).await;
    client
        .batch_execute("ALTER TABLE river_job SET (autovacuum_enabled = false)")
        .await
        .unwrap();
    let mut ids = Vec::new();
    for user in 0..4 {
        ids.push(submit(&client, &format!("user-{user}")).await.1.unwrap());
    }
    claimed(&client, &ids).await;
    client.batch_execute("ANALYZE river_job").await.unwrap();
    let (last, first) = ids.split_last().unwrap();
    for id in first {
        outcome(&client, &format!("SELECT outcome FROM weir_complete({id}, 1)")).await;
    }
    client
        .batch_execute(
            "INSERT INTO river_job (args, kind, max_attempts, queue, state) \
             SELECT '{}', 'elsewhere', 3, 'elsewhere', 'pending' FROM generate_series(1, 20000)",
        )
        .await
        .unwrap();
    let transaction = client.transaction().await.unwrap();
    // PostgreSQL may include the session's work before the transaction.
    let scans = async || -> i64 {
        let scans = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'river_job'";
        transaction.query_one(scans, &[]).await.unwrap().get(0)
    };
    let before = scans().await;
    let complete = format!("SELECT outcome FROM weir_complete({last}, 1)");
    let row = transaction.query_one(&complete, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>("outcome"), "done");
    assert_eq!(scans().await, before);
    transaction.commit().await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_matches_rivers_and_its_retry_gets_a_slot_when_due() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let subject = weir.user("free").await.to_string();
    let (first, second) = (
        submit(&client, &subject).await.1.unwrap(),
        submit(&client, &subject).await.1.unwrap(),
    );
    weir.start_elsewhere(first).await;
    let fail = |attempt: i16| format!("SELECT outcome FROM weir_fail({first}, {attempt}, 'no disk')");
    assert_eq!(outcome(&client, &fail(2)).await, "fenced_out");
    assert_eq!(outcome(&client, &fail(1)).await, "retry");
    assert_eq!(state_of(&client, first).await, "retryable");
    assert_eq!(
        state_of(&client, second).await,
        "available",
        "the slot is passed on immediately"
    );
    let row = client
        .query_one(
            "SELECT errors[1] AS error, extract(epoch FROM scheduled_at - (errors[1] ->> 'at')::timestamptz)::float8 AS pause FROM river_job WHERE id = $1",
            &[&first],
        )
        .await
        .unwrap();
    let error: Value = row.get("error");
    assert_eq!(
        (&error["attempt"], &error["error"], &error["trace"]),
        (&json!(1), &json!("no disk"), &json!(""))
    );
    assert!(
        error["at"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(),
        "{error}"
    );
    assert!(
        (0.8..1.2).contains(&row.get::<_, f64>("pause")),
        "River's policy: a second"
    );
    // It is due while the other one runs, so it is parked and not claimable.
    weir.start_elsewhere(second).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    weir.reconcile().await;
    assert_eq!(state_of(&client, first).await, "pending");
    let job = weir
        .get(&format!("/api/jobs/{first}"), Who::User(subject.parse().unwrap()))
        .await
        .body;
    assert_eq!(job["waiting_for"], "slot");
    assert_eq!(
        outcome(
            &client,
            &format!("SELECT outcome FROM weir_complete({second}, 1)")
        )
        .await,
        "done"
    );
    assert_eq!(state_of(&client, first).await, "available");
    // The last attempt ends it: nothing is charged, and its quota and slot are free.
    client
        .execute(
            "UPDATE river_job SET state = 'running', attempt = 3, attempted_at = now() WHERE id = $1",
            &[&first],
        )
        .await
        .unwrap();
    assert_eq!(outcome(&client, &fail(3)).await, "discarded");
    let job = weir
        .get(&format!("/api/jobs/{first}"), Who::User(subject.parse().unwrap()))
        .await
        .body;
    assert_eq!(
        (&job["status"], &job["charged"], &job["error"]["message"]),
        (&json!("failed"), &json!(0), &json!("no disk"))
    );
    let quota = weir.quota(Who::User(subject.parse().unwrap()), "analysis").await;
    assert_eq!((&quota["used"], &quota["reserved"]), (&json!(1), &json!(0)));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_job_reserves_quota_and_starts_when_due() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let working = weir.work().await;
    let stopped = tokio_util::sync::CancellationToken::new();
    let reconciling = tokio::spawn(weir::work::reconcile::run(weir.context.clone(), stopped.clone()));
    weir.maintenance_started().await;
    let run_at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(4);
    let options = json!({ "run_at": run_at.to_string(), "priority": 3 });
    let args = json!({ "files": [{ "path": "a_test.go", "content": common::GO_TESTS }] });
    let row = client
        .query_one(
            "SELECT outcome, job_id FROM weir_submit($1, 'analysis', $2, options => $3)",
            &[&user.to_string(), &args, &options],
        )
        .await
        .unwrap();
    let later: i64 = row.get("job_id");
    assert_eq!(row.get::<_, &str>("outcome"), "parked");
    let job = weir
        .get(&format!("/api/jobs/{later}"), Who::User(user))
        .await
        .body;
    assert_eq!(
        (&job["waiting_for"], &job["reserved"]),
        (&json!("schedule"), &json!(1)),
        "{job}"
    );
    // It does not delay others.
    assert_eq!(submit(&client, &user.to_string()).await.0, "admitted");
    let job = weir.finished(later, Who::User(user)).await;
    let started: jiff::Timestamp = job["started_at"].as_str().unwrap().parse().unwrap();
    let late = started.duration_since(run_at).as_secs_f64();
    assert!((0.0..3.0).contains(&late), "started {late} s after its time");
    let priority: i16 = client
        .query_one("SELECT priority FROM river_job WHERE id = $1", &[&later])
        .await
        .unwrap()
        .get(0);
    assert_eq!(priority, 3);
    weir.all_finished().await;
    stopped.cancel();
    reconciling.await.unwrap();
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_visible_and_extend_stays_within_the_limit() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 40).await;
    let id = submit(&client, &user.to_string()).await.1.unwrap();
    weir.start_elsewhere(id).await;
    let path = format!("/api/jobs/{id}");
    assert_eq!(
        weir.get(&path, Who::User(user)).await.body["progress"],
        Value::Null
    );
    let report =
        |attempt: i32| format!("SELECT outcome FROM weir_progress({id}, {attempt}, 0.25, 'two of eight')");
    assert_eq!(outcome(&client, &report(2)).await, "fenced_out");
    assert_eq!(outcome(&client, &report(1)).await, "done");
    let job = weir.get(&path, Who::User(user)).await.body;
    assert_eq!(
        job["progress"],
        json!({ "fraction": 0.25, "message": "two of eight" }),
        "{job}"
    );

    let more = |n: i64| format!("SELECT outcome, quota FROM weir_extend({id}, 1, {n})");
    assert_eq!(outcome(&client, &more(10)).await, "over_quota");
    assert_eq!(weir.quota(Who::User(user), "analysis").await["reserved"], 1);
    let row = client.query_one(&more(9), &[]).await.unwrap();
    let quota: Value = row.get("quota");
    assert_eq!(
        (
            row.get::<_, &str>("outcome"),
            &quota["reserved"],
            &quota["remaining"]
        ),
        ("extended", &json!(10), &json!(0))
    );
    assert_eq!(outcome(&client, &more(1)).await, "over_quota");
    let charged: i64 = client
        .query_one("SELECT charged FROM weir_complete($1, 1, used => 7)", &[&id])
        .await
        .unwrap()
        .get(0);
    assert_eq!(charged, 7);
    let quota = weir.quota(Who::User(user), "analysis").await;
    assert_eq!((&quota["used"], &quota["reserved"]), (&json!(47), &json!(0)));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_always_uses_the_default_lane() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute("UPDATE subscription_plans SET lane = 'priority'")
        .await
        .unwrap();
    let who = Who::Address("198.51.100.9");
    let first = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let next = weir.analyse(who, "b_test.go", GO_TESTS).await;
    weir.start_elsewhere(first).await;
    client
        .query_one("SELECT weir_complete($1, 1)", &[&first])
        .await
        .unwrap();
    let row = client
        .query_one("SELECT state::text, queue FROM river_job WHERE id = $1", &[&next])
        .await
        .unwrap();
    assert_eq!((row.get(0), row.get(1)), ("available", "analysis_default"));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_roles_may_call_the_functions_but_not_touch_tables() {
    let pairs = [("WEIR_SCHEMA", "weir"), ("RIVER_SCHEMA", "jobs")];
    let weir = Weir::with(&pairs).await;
    let admin = weir.client().await;
    let name = format!("caller_{}", uuid::Uuid::new_v4().simple());
    let as_caller = async |grant: &str| {
        admin.batch_execute(grant).await.unwrap();
        let mut config: tokio_postgres::Config = weir.url().parse().unwrap();
        config.user(&name).password("secret");
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    };
    let client = as_caller(&format!("CREATE ROLE {name} LOGIN PASSWORD 'secret'")).await;
    let submits = "SELECT outcome FROM weir.weir_submit('anne', 'analysis', '{}')";
    assert_eq!(
        refusal(&client, submits).await,
        "permission denied for schema weir"
    );
    let client = as_caller(&format!("GRANT weir_submitter TO {name}")).await;
    // The caller's own tables with the names of Weir's are not mistaken for them.
    client
        .batch_execute("CREATE TEMPORARY TABLE holders (x int); CREATE TEMPORARY TABLE river_job (x int); SET search_path = pg_temp")
        .await
        .unwrap();
    assert_eq!(outcome(&client, submits).await, "admitted");
    assert_eq!(
        refusal(&client, "SELECT * FROM weir.weir_complete(1, 1)").await,
        "permission denied for function weir_complete"
    );
    for table in ["weir.holders", "weir.weir_services", "weir.users"] {
        let denied = refusal(&client, &format!("SELECT * FROM {table}")).await;
        assert!(denied.starts_with("permission denied"), "{denied}");
    }
    let client = as_caller(&format!(
        "REVOKE weir_submitter FROM {name}; GRANT weir_worker TO {name}"
    ))
    .await;
    admin
        .batch_execute("UPDATE jobs.river_job SET state = 'running', attempt = 1, attempted_at = now(), attempted_by = '{x}'")
        .await
        .unwrap();
    assert_eq!(
        refusal(&client, submits).await,
        "permission denied for function weir_submit"
    );
    assert_eq!(
        outcome(&client, "SELECT outcome FROM weir.weir_progress(1, 1, 0.5)").await,
        "done"
    );
    assert_eq!(
        outcome(&client, "SELECT outcome FROM weir.weir_complete(1, 1)").await,
        "done"
    );
    let version = client
        .query_one("SELECT channel FROM weir.weir_version()", &[])
        .await
        .unwrap();
    assert_eq!(version.get::<_, &str>("channel"), "jobs.river_insert");
    drop(client);
    admin
        .batch_execute(&format!("DROP OWNED BY {name}; DROP ROLE {name}"))
        .await
        .unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_completions_settle_within_a_tenth_of_a_second() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let subject = weir.user("free").await.to_string();
    let stopped = tokio_util::sync::CancellationToken::new();
    let reconciling = tokio::spawn(weir::work::reconcile::run(weir.context.clone(), stopped.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (mut waits, mut reads) = (Vec::new(), Vec::new());
    let mut current = submit(&client, &subject).await.1.unwrap();
    for _ in 0..15 {
        let next = submit(&client, &subject).await.1.unwrap();
        weir.start_elsewhere(current).await;
        weir.ended_by_other_client(current, "completed").await;
        let ended = Instant::now();
        loop {
            let read = Instant::now();
            let state = state_of(&client, next).await;
            reads.push(read.elapsed());
            if state == "available" {
                break;
            }
            assert!(ended.elapsed() < Duration::from_secs(10), "never settled");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        waits.push(ended.elapsed());
        current = next;
    }
    waits.sort_unstable();
    reads.sort_unstable();
    // Glances take at most a tenth of the time, so they are rarer where queries are slow. Each costs as much as some four
    // reads of a state. Without glances, the median on an idle machine is that of rounds, 470 ms.
    let read = reads[reads.len() / 2];
    let longest = Duration::from_millis(150) + 40 * read;
    assert!(
        waits[7] <= longest,
        "the median of {waits:?} exceeds {longest:?}; a read takes {read:?}"
    );
    weir.start_elsewhere(current).await;
    weir.ended_by_other_client(current, "completed").await;
    weir.released(Who::User(subject.parse().unwrap()), "analysis")
        .await;
    stopped.cancel();
    reconciling.await.unwrap();
    weir.end().await;
}

/// Makes a job run again as River's retry does, from every state but running.
async fn retry(client: &Client, id: i64) {
    let retried = "UPDATE river_job SET state = 'available', scheduled_at = now(), finalized_at = NULL, \
                       max_attempts = greatest(max_attempts, attempt + 1) WHERE id = $1";
    assert_eq!(client.execute(retried, &[&id]).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_other_clients_wait_for_a_slot_before_a_claim() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let subject = weir.user("free").await.to_string();
    let submitted = submit(&client, &subject).await.1.unwrap();
    let mut foreign = Vec::new();
    for _ in 0..3 {
        foreign.push(
            weir.insert_by_river(json!({ "user_id": subject }), "analysis_default")
                .await,
        );
    }
    let nobodys = weir.insert_by_river(json!({}), "analysis_default").await;
    let claim = async || -> Vec<i64> {
        let rows = client
            .query(
                "SELECT * FROM weir_claim('analysis_default', 'elsewhere', 10)",
                &[],
            )
            .await
            .unwrap();
        rows.iter().map(|row| row.get("job_id")).collect()
    };
    weir.reconcile().await;
    for id in &foreign {
        assert_eq!(state_of(&client, *id).await, "pending");
    }
    let mut claimed = claim().await;
    claimed.sort_unstable();
    assert_eq!(claimed, [submitted, nobodys]);
    assert!(claim().await.is_empty());
    for (mut running, next) in [submitted, foreign[0], foreign[1]].into_iter().zip(&foreign) {
        let done = client
            .query_one("SELECT * FROM weir_complete($1, 1)", &[&running])
            .await
            .unwrap();
        assert_eq!(
            done.get::<_, i64>("charged"),
            i64::from(running == submitted),
            "only what was submitted"
        );
        running = claim().await[0];
        assert_eq!(running, *next);
    }
    for id in [foreign[2], nobodys] {
        assert_eq!(
            outcome(&client, &format!("SELECT outcome FROM weir_complete({id}, 1)")).await,
            "done"
        );
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_unknown_kinds_do_not_hide_parked_jobs() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let subject = weir.user("free").await.to_string();
    submit(&client, &subject).await.1.unwrap();
    let unknown = "INSERT INTO river_job (args, kind, max_attempts, priority, queue, scheduled_at) \
                   SELECT '{}', 'report', 3, 1, 'analysis_default', now() - interval '1 hour' \
                   FROM generate_series(1, 1000)";
    client.batch_execute(unknown).await.unwrap();
    let foreign = weir
        .insert_by_river(json!({ "user_id": subject }), "analysis_default")
        .await;
    weir.reconcile().await;
    assert_eq!(state_of(&client, foreign).await, "pending");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_an_unknown_kind_still_waits_for_its_slot() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let subject = weir.user("free").await.to_string();
    let first = submit(&client, &subject).await.1.unwrap();
    let second = submit(&client, &subject).await.1.unwrap();
    weir.ended_by_other_client(first, "discarded").await;
    weir.reconcile().await;
    assert_eq!(state_of(&client, second).await, "available");
    let renamed = "UPDATE river_job SET kind = 'analysis:before' WHERE id = $1";
    assert_eq!(client.execute(renamed, &[&first]).await.unwrap(), 1);
    retry(&client, first).await;
    weir.reconcile().await;
    assert_eq!(state_of(&client, first).await, "pending", "one at a time");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_from_river_ui_gets_a_slot_and_is_charged_once() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let subject = weir.user("free").await.to_string();
    let claim = async || -> Vec<i64> {
        let rows = client
            .query(
                "SELECT * FROM weir_claim('analysis_default', 'elsewhere', 10)",
                &[],
            )
            .await
            .unwrap();
        rows.iter().map(|row| row.get("job_id")).collect()
    };
    let complete = async |id: i64| {
        let done = "SELECT outcome, charged FROM weir_complete($1, (SELECT attempt::int FROM river_job WHERE id = $1))";
        let done = client.query_one(done, &[&id]).await.unwrap();
        assert_eq!(done.get::<_, String>("outcome"), "done");
        done.get::<_, i64>("charged")
    };
    let first = submit(&client, &subject).await.1.unwrap();
    let second = submit(&client, &subject).await.1.unwrap();
    // One job is parked, and River makes it available.
    retry(&client, second).await;
    weir.reconcile().await;
    assert_eq!(claim().await, [first], "one at a time");
    weir.ended_by_other_client(first, "discarded").await;
    weir.reconcile().await;
    assert_eq!(claim().await, [second]);
    assert_eq!(complete(second).await, 1);
    // The other one ended, and released its quota and slot.
    retry(&client, first).await;
    weir.reconcile().await;
    assert_eq!(claim().await, [first]);
    assert_eq!(complete(first).await, 1, "it reserved again");
    // An amount that was charged already is not charged again.
    retry(&client, first).await;
    retry(&client, second).await;
    weir.reconcile().await;
    let [running] = claim().await[..] else {
        panic!("one at a time");
    };
    assert_eq!(complete(running).await, 0);
    let [running] = claim().await[..] else {
        panic!("one at a time");
    };
    assert_eq!(complete(running).await, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_with_a_non_text_user_have_no_holder() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let subject = weir.user("free").await.to_string();
    submit(&client, &subject).await.1.unwrap();
    let claim = "SELECT count(*) FROM weir_claim('analysis_default', 'elsewhere', 1000)";
    assert_eq!(client.query_one(claim, &[]).await.unwrap().get::<_, i64>(0), 1);
    for _ in 0..110 {
        weir.insert_by_river(json!({ "user_id": 42 }), "analysis_default")
            .await;
        // Without it, the worker would lose its job on a slow machine.
        client
            .execute("SELECT weir_heartbeat('elsewhere')", &[])
            .await
            .unwrap();
    }
    let foreign = weir
        .insert_by_river(json!({ "user_id": subject }), "analysis_default")
        .await;
    weir.reconcile().await;
    assert_eq!(state_of(&client, foreign).await, "pending");
    assert_eq!(client.query_one(claim, &[]).await.unwrap().get::<_, i64>(0), 110);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reusing_a_key_for_another_meter_does_not_abort() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await.to_string();
    let submit =
        "SELECT outcome, job_id, quota FROM weir_submit($1, $2, $3, 1, '{\"idempotency_key\": \"k\"}')";
    let files = json!({ "files": [{ "path": "a_test.go", "content": common::GO_TESTS }] });
    let (mut first, second) = (weir.client().await, weir.client().await);
    let transaction = first.transaction().await.unwrap();
    let row = transaction
        .query_one(submit, &[&user, &"analysis", &files])
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>("outcome"), "admitted");
    let analysis: i64 = row.get("job_id");
    let args = json!({ "analysis_id": analysis });
    second.batch_execute("BEGIN").await.unwrap();
    let beside = async {
        second
            .query_one(submit, &[&user, &"specview", &args])
            .await
            .unwrap()
    };
    let committed = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        transaction.commit().await.unwrap();
    };
    let (row, ()) = tokio::join!(beside, committed);
    assert_eq!(
        (
            row.get::<_, &str>("outcome"),
            row.get::<_, Option<i64>>("job_id"),
            row.get::<_, Option<Value>>("quota")
        ),
        ("key_reused", None, None)
    );
    second.batch_execute("COMMIT").await.unwrap();
    assert_eq!(row_count(&second, "weir_jobs").await, 1);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folded_key_is_not_reused_for_another_meter_at_once() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await.to_string();
    let submit = "SELECT outcome, job_id FROM weir_submit($1, $2, $3, 1, jsonb_build_object('idempotency_key', $4::text))";
    let args = json!({ "owner": "o", "repo": "r", "commit_sha": "c", "files": [{ "path": "a_test.go", "content": "" }] });
    let (mut first, second) = (weir.client().await, weir.client().await);
    let fold = "UPDATE weir_services SET unique_by = '{owner}' WHERE name = 'analysis'";
    first.execute(fold, &[]).await.unwrap();
    let analysis = first
        .query_one(submit, &[&user, &"analysis", &args, &"first"])
        .await
        .unwrap();
    let specview = json!({ "analysis_id": analysis.get::<_, i64>("job_id") });
    let requests = [("analysis", &args), ("specview", &specview)];
    for (key, [before, after], expected) in [
        ("a", requests, "folded"),
        ("b", [requests[1], requests[0]], "admitted"),
    ] {
        let transaction = first.transaction().await.unwrap();
        let row = transaction
            .query_one(submit, &[&user, &before.0, before.1, &key])
            .await
            .unwrap();
        assert_eq!(row.get::<_, &str>("outcome"), expected);
        let beside = async {
            second
                .query_one(submit, &[&user, &after.0, after.1, &key])
                .await
                .unwrap()
        };
        let committed = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            transaction.commit().await.unwrap();
        };
        let (row, ()) = tokio::join!(beside, committed);
        assert_eq!(row.get::<_, &str>("outcome"), "key_reused", "{key}");
    }
    assert_eq!(row_count(&second, "river_job").await, 2);
    assert_eq!(row_count(&second, "weir_jobs").await, 2);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_a_holder_is_outstanding_until_it_ends() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let id = weir.insert_by_river(json!({}), "analysis_default").await;
    client
        .query_one("SELECT * FROM weir_claim('analysis_default', 'elsewhere')", &[])
        .await
        .unwrap();
    let progress = |attempt: i32| format!("SELECT outcome FROM weir_progress({id}, {attempt}, 0.5)");
    let extend = |attempt: i32| format!("SELECT outcome FROM weir_extend({id}, {attempt}, 5)");
    assert_eq!(outcome(&client, &progress(1)).await, "done");
    assert_eq!(outcome(&client, &extend(1)).await, "extended");
    assert_eq!(outcome(&client, &progress(2)).await, "fenced_out");
    assert_eq!(outcome(&client, &extend(2)).await, "fenced_out");
    let complete = format!("SELECT outcome FROM weir_complete({id}, 1)");
    assert_eq!(outcome(&client, &complete).await, "done");
    assert_eq!(outcome(&client, &progress(1)).await, "fenced_out");
    assert_eq!(outcome(&client, &extend(1)).await, "fenced_out");
    weir.end().await;
}

/// Workers in other languages: one that beats, one that reports progress, one that claims again, and two silent ones.
#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_silent_worker_run_again_and_those_of_a_living_one_do_not() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let workers = ["beats", "reports", "claims", "silent", "late"];
    for worker in workers {
        let user = weir.user("free").await.to_string();
        let id = submit(&client, &user).await.1.unwrap();
        let claim = "SELECT job_id FROM weir_claim('analysis_default', $1)";
        let claimed: i64 = client.query_one(claim, &[&worker]).await.unwrap().get(0);
        assert_eq!(claimed, id);
    }
    client
        .batch_execute(
            "UPDATE processes SET beat_at = beat_at - interval '11 seconds'; \
             UPDATE river_job SET attempted_at = attempted_at - interval '11 seconds'; \
             SELECT weir_progress(id, 1, 0.5) FROM river_job WHERE 'reports' = ANY (attempted_by)",
        )
        .await
        .unwrap();
    let beat = "SELECT * FROM weir_heartbeat($1)";
    assert_eq!(client.query(beat, &[&"beats"]).await.unwrap().len(), 1);
    let user = weir.user("free").await.to_string();
    submit(&client, &user).await;
    let claim = "SELECT count(*) FROM weir_claim('analysis_default', 'claims')";
    assert_eq!(client.query_one(claim, &[]).await.unwrap().get::<_, i64>(0), 1);
    weir.reconcile().await;
    let states = "SELECT attempted_by[1], state::text FROM river_job ORDER BY id";
    let rows = client.query(states, &[]).await.unwrap();
    let states: Vec<(&str, &str)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let running = |worker| (worker, "running");
    let taken = |worker| (worker, "available");
    assert_eq!(
        states,
        [
            running("beats"),
            running("reports"),
            running("claims"),
            taken("silent"),
            taken("late"),
            running("claims")
        ]
    );
    // It learns that its job no longer belongs to it.
    assert!(client.query(beat, &[&"late"]).await.unwrap().is_empty());
    let error = refusal(&client, "SELECT weir_heartbeat('weir_x')").await;
    assert!(error.starts_with("a worker name must have"), "{error}");
    weir.end().await;
}

/// The states of the attempts that a worker knows, or of all attempts of its name.
async fn beat(client: &Client, worker: &str, known: Option<&[(i64, i32)]>) -> Vec<(i64, String)> {
    let known: Option<Value> = known.map(|known| {
        let known = known.iter();
        known
            .map(|(id, attempt)| json!({ "job_id": id, "attempt": attempt }))
            .collect()
    });
    let sql = "SELECT job_id, state FROM weir_heartbeat($1, $2) ORDER BY job_id";
    let rows = client.query(sql, &[&worker, &known]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// A worker with a job of each of so many users.
async fn claimed_by(weir: &Weir, client: &Client, worker: &str, jobs: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    for _ in 0..jobs {
        let user = weir.user("free").await.to_string();
        ids.push(submit(client, &user).await.1.unwrap());
    }
    let claim = "SELECT job_id FROM weir_claim('analysis_default', $1, 100)";
    assert_eq!(client.query(claim, &[&worker]).await.unwrap().len(), jobs);
    ids
}

async fn shift_start(client: &Client, id: i64, by: &str) {
    let shift = format!("UPDATE river_job SET attempted_at = now() - interval '{by}' WHERE id = {id}");
    client.batch_execute(&shift).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_tells_what_has_become_of_the_workers_attempts() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let ids = claimed_by(&weir, &client, "w", 4).await;
    let known: Vec<(i64, i32)> = ids.iter().map(|id| (*id, 1)).collect();
    let running: Vec<(i64, String)> = ids.iter().map(|id| (*id, "running".to_owned())).collect();
    assert_eq!(beat(&client, "w", None).await, running);
    assert_eq!(beat(&client, "w", Some(&known)).await, running);

    // The service's timeout is 20 minutes.
    shift_start(&client, ids[1], "20 minutes 5 seconds").await;
    shift_start(&client, ids[2], "21 minutes").await;
    let cancel = "UPDATE river_job SET metadata = metadata || '{\"cancel_attempted_at\": \"2026-11-28T00:00:00Z\"}' WHERE id = $1";
    client.execute(cancel, &[&ids[0]]).await.unwrap();
    client
        .execute("UPDATE river_job SET attempt = 2 WHERE id = $1", &[&ids[3]])
        .await
        .unwrap();
    let states = ["cancelled", "overdue", "taken_over", "taken_over"];
    let expected: Vec<(i64, String)> = std::iter::zip(&ids, states)
        .map(|(id, state)| (*id, state.to_owned()))
        .collect();
    for _ in 0..2 {
        assert_eq!(beat(&client, "w", Some(&known)).await, expected);
    }
    assert_eq!(state_of(&client, ids[2]).await, "available");
    let error = "SELECT errors[1] ->> 'error' AS outcome FROM river_job WHERE errors IS NOT NULL";
    let error = outcome(&client, error).await;
    assert!(error.contains("longer than the timeout"), "{error}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_lost_claim_run_again_without_the_loss_of_an_attempt() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let ids = claimed_by(&weir, &client, "w", 2).await;
    // A job of another program, whose client has the same name.
    let foreign = "INSERT INTO river_job (args, kind, max_attempts, state, attempt, attempted_at, attempted_by) \
                   VALUES ('{}', 'foreign', 3, 'running', 1, now() - interval '1 hour', '{w}') RETURNING id";
    let foreign: i64 = client.query_one(foreign, &[]).await.unwrap().get(0);
    // The answer may be on its way.
    let known = [(ids[0], 1)];
    assert_eq!(beat(&client, "w", Some(&known)).await.len(), 1);
    assert_eq!(state_of(&client, ids[1]).await, "running");
    for id in &ids {
        shift_start(&client, *id, "11 seconds").await;
    }
    let states = [(ids[0], "running".to_owned()), (ids[1], "taken_over".to_owned())];
    assert_eq!(beat(&client, "w", Some(&known)).await, states);
    assert_eq!(state_of(&client, ids[1]).await, "available");
    assert_eq!(state_of(&client, foreign).await, "running");
    assert_eq!(beat(&client, "w", None).await.len(), 1);
    let left = "SELECT (max_attempts - attempt)::text AS outcome FROM river_job WHERE state = 'available'";
    assert_eq!(outcome(&client, left).await, "3");
    let claim = "SELECT attempt FROM weir_claim('analysis_default', 'w')";
    assert_eq!(client.query_one(claim, &[]).await.unwrap().get::<_, i32>(0), 2);
    client
        .execute("DELETE FROM river_job WHERE id = $1", &[&foreign])
        .await
        .unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_attempt_is_charged_at_most_what_it_reserved() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let id = submit(&client, &user.to_string()).await.1.unwrap();
    client
        .batch_execute(&format!(
            "SELECT weir_claim('analysis_default', 'w'); SELECT weir_extend({id}, 1, 4)"
        ))
        .await
        .unwrap();
    let answer = weir
        .call(
            "DELETE",
            &format!("/api/jobs/{id}"),
            Who::User(user),
            &[],
            Vec::new(),
        )
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(beat(&client, "w", None).await, [(id, "cancelled".to_owned())]);
    let calls = [
        format!("SELECT outcome FROM weir_progress({id}, 1, 0.5)"),
        format!("SELECT outcome FROM weir_extend({id}, 1, 1)"),
    ];
    for call in calls {
        assert_eq!(outcome(&client, &call).await, "cancelled", "{call}");
    }
    let charged: i64 = client
        .query_one("SELECT charged FROM weir_complete($1, 1, used => 9)", &[&id])
        .await
        .unwrap()
        .get(0);
    assert_eq!(charged, 5);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_with_unreadable_attempts_is_refused() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    for attempts in [
        "null",
        "{}",
        "7",
        "[7]",
        "[{}]",
        "[{\"job_id\": -1, \"attempt\": 1}]",
    ] {
        let error = refusal(&client, &format!("SELECT weir_heartbeat('w', '{attempts}')")).await;
        assert!(
            error.starts_with("attempts must be a JSON array"),
            "{attempts}: {error}"
        );
    }
    assert_eq!(beat(&client, "w", Some(&[])).await, []);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_returns_the_holder_and_one_key_for_all_attempts() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let id = submit(&client, &user.to_string()).await.1.unwrap();
    let claim = "SELECT holder, key FROM weir_claim('analysis_default', 'w')";
    let first = client.query_one(claim, &[]).await.unwrap();
    let holder = client
        .query_one("SELECT weir_holder($1)", &[&user.to_string()])
        .await
        .unwrap();
    assert_eq!(first.get::<_, uuid::Uuid>(0), holder.get::<_, uuid::Uuid>(0));
    client
        .execute("UPDATE river_job SET state = 'available' WHERE id = $1", &[&id])
        .await
        .unwrap();
    let second = client.query_one(claim, &[]).await.unwrap();
    assert_eq!(first.get::<_, uuid::Uuid>(1), second.get::<_, uuid::Uuid>(1));
    weir.end().await;
}

/// A worker that was silent for an hour claims again, and its transaction stays open.
#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_workers_open_claim_does_not_delay_take_over() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    for worker in ["dead", "idle"] {
        let user = weir.user("free").await.to_string();
        submit(&client, &user).await.1.unwrap();
        let claim = format!("SELECT * FROM weir_claim('analysis_default', '{worker}')");
        client.query_one(&claim, &[]).await.unwrap();
    }
    client
        .batch_execute(
            "UPDATE processes SET beat_at = beat_at - interval '2 hours'; \
             UPDATE river_job SET attempted_at = attempted_at - interval '11 seconds'; \
             SELECT weir_complete(id, 1) FROM river_job WHERE 'idle' = ANY (attempted_by)",
        )
        .await
        .unwrap();
    let user = weir.user("free").await.to_string();
    submit(&client, &user).await.1.unwrap();
    let open = weir.client().await;
    open.batch_execute("BEGIN; SELECT weir_claim('analysis_default', 'idle')")
        .await
        .unwrap();
    weir.reconcile().await;
    let taken = "SELECT state::text FROM river_job WHERE 'dead' = ANY (attempted_by)";
    assert_eq!(
        client.query_one(taken, &[]).await.unwrap().get::<_, &str>(0),
        "available"
    );
    open.batch_execute("COMMIT").await.unwrap();
    weir.end().await;
}

/// A replica that lacks the last commits gives their ids to new jobs, which are claimed like the lost ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_the_id_of_a_lost_one_is_fenced_out() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/programs.toml")]).await;
    let client = weir.client().await;
    let submit = "SELECT job_id FROM weir_submit('ann', 'analysis', '{\"owner\": \"o\", \"repo\": \"r\", \
                  \"commit_sha\": \"c\", \"files\": []}')";
    let id: i64 = client.query_one(submit, &[]).await.unwrap().get(0);
    let claim = "SELECT created_at::text FROM weir_claim('analysis_default', 'elsewhere')";
    let lost: String = client.query_one(claim, &[]).await.unwrap().get(0);
    let replace = "UPDATE river_job SET created_at = created_at + interval '1 millisecond' WHERE id = $1 \
                   RETURNING created_at::text";
    let new: String = client.query_one(replace, &[&id]).await.unwrap().get(0);
    let calls = |created_at: &str| {
        [
            format!("SELECT outcome FROM weir_progress({id}, 1, 0.5, created_at => '{created_at}')"),
            format!("SELECT outcome FROM weir_extend({id}, 1, 1, '{created_at}')"),
            format!("SELECT outcome FROM weir_fail({id}, 1, 'no', created_at => '{created_at}')"),
            format!("SELECT outcome FROM weir_complete({id}, 1, created_at => '{created_at}')"),
        ]
    };
    for call in calls(&lost) {
        assert_eq!(outcome(&client, &call).await, "fenced_out", "{call}");
    }
    assert_eq!(row_count(&client, "usage_events").await, 0);
    let [progress, extend, _, complete] = calls(&new);
    for (call, expected) in [(progress, "done"), (extend, "extended"), (complete, "done")] {
        assert_eq!(outcome(&client, &call).await, expected, "{call}");
    }
    weir.end().await;
}

/// Months of payment providers are those of the events' times.
#[tokio::test(flavor = "multi_thread")]
async fn a_charge_has_the_time_of_its_completion() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let id = client.query_one(SUBMIT, &[&"anne", &json!({})]).await.unwrap();
    let id: i64 = id.get("job_id");
    client
        .batch_execute("SELECT weir_claim('analysis_default', 'elsewhere'); BEGIN; SELECT pg_sleep(0.2)")
        .await
        .unwrap();
    let before: jiff::Timestamp = client
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    let complete = format!("SELECT outcome FROM weir_complete({id}, 1)");
    assert_eq!(outcome(&client, &complete).await, "done");
    client.batch_execute("COMMIT").await.unwrap();
    // Open transactions of other databases delay the feed.
    let charged = weir
        .until("the event", async || {
            let since = control::UsageCursor::since(before);
            let (events, _) = control::usage_after(&client, since, 10).await.unwrap();
            events.first().and_then(|event| event.job_id)
        })
        .await;
    assert_eq!(charged, id);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_submissions_fold_per_holder() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/programs.toml")]).await;
    let client = weir.client().await;
    let args = json!({ "owner": "o", "repo": "r", "commit_sha": "c", "files": [{ "path": "a_test.go", "content": "" }] });
    // Another River client has inserted the same job, with the same key.
    let foreign = "INSERT INTO river_job (args, kind, max_attempts, queue, state, unique_key, unique_states) \
                   SELECT $1, 'analysis:analyze', 3, 'analysis_default', 'available', \
                          sha256(convert_to('&kind=analysis:analyze&args=' || go_json($1::jsonb - 'files', 0), 'UTF8')), B'11110001'";
    client.execute(foreign, &[&args]).await.unwrap();
    for through_http in [false, true] {
        let mut answers = Vec::new();
        for subject in ["a", "b", "b", "a"] {
            let subject = format!("{subject}-{through_http}");
            let (id, is_folded): (i64, bool) = if through_http {
                let who = Who::Subject(subject.clone().leak());
                let answer = weir.post("/api/jobs/analysis", who, &args).await.body;
                (answer["job"]["id"].as_i64().unwrap(), answer["folded"] == true)
            } else {
                let row = client.query_one(SUBMIT, &[&subject, &args]).await.unwrap();
                (row.get("job_id"), row.get::<_, &str>("outcome") == "folded")
            };
            answers.push((subject, id, is_folded));
        }
        let folded: Vec<bool> = answers.iter().map(|answer| answer.2).collect();
        assert_eq!(folded, [false, false, true, true], "{answers:?}");
        assert_eq!(answers[1].1, answers[2].1);
        assert_eq!(answers[0].1, answers[3].1);
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_unique_by_that_is_nested_too_deep_is_refused() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/programs.toml")]).await;
    let client = weir.client().await;
    let submit = async |depth: usize| {
        let nested = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        let args = format!(r#"{{"owner": "o", "repo": "r", "commit_sha": {nested}, "files": []}}"#);
        let sql = "SELECT outcome FROM weir_submit('anne', 'analysis', $1::text::jsonb)";
        let row = client.query_one(sql, &[&args]).await;
        row.map(|row| row.get::<_, String>("outcome"))
    };
    assert_eq!(submit(100).await.unwrap(), "admitted");
    let of_member = "a member of unique_by must be nested at most 100 deep";
    let of_arguments = "the arguments must be nested at most 127 levels deep";
    for (depth, message) in [
        (101, of_member),
        (126, of_member),
        (127, of_arguments),
        (2_000, of_arguments),
    ] {
        let error = submit(depth).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(
            (error.code().code(), error.message()),
            ("22023", message),
            "{depth}"
        );
    }
    let nested = format!("{}1{}", "[".repeat(101), "]".repeat(101));
    let body = format!(r#"{{"nested": {nested}}}"#);
    let who = Who::Subject("anne");
    let answer = weir
        .call("POST", "/api/jobs/flaky", who, &[], body.into_bytes())
        .await;
    assert_eq!(answer.status, 422, "{}", answer.body);
    assert_eq!(
        answer.body["detail"],
        "A member of unique_by must be nested at most 100 deep."
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_learns_that_no_service_has_its_queue() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let registered = "SELECT FROM weir_heartbeat('program-1', '[]')";
    client.execute(registered, &[]).await.unwrap();
    let claim = "SELECT FROM weir_claim($1, 'program-1')";
    for queue in ["analysis_priority", "analysis_default", "analysis_scheduled"] {
        assert_eq!(client.execute(claim, &[&queue]).await.unwrap(), 0);
    }
    for queue in ["analysis", "analysis_defualt", "weir_webhooks"] {
        let error = client.execute(claim, &[&queue]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "22023");
        assert_eq!(error.message(), format!("no service has the queue {queue}"));
        let hint = error.hint().unwrap();
        assert!(
            hint.contains("the queues are analysis_default, analysis_priority"),
            "{hint}"
        );
    }
    client.execute("DELETE FROM weir_services", &[]).await.unwrap();
    let error = client.execute(claim, &[&"mail_default"]).await.unwrap_err();
    let hint = error.as_db_error().unwrap().hint().unwrap().to_owned();
    assert!(hint.contains("the queues are none"), "{hint}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_between_attempts_grow_with_a_power_of_the_attempt() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "UPDATE weir_services SET retry_base = 10, retry_factor = 1, retry_power = 2, retry_max = 100 \
             WHERE kind = 'specview:generate'",
        )
        .await
        .unwrap();
    for (failures, expected) in [(0, 10.0), (1, 40.0), (2, 90.0), (3, 100.0), (5000, 100.0)] {
        let pause: f64 = client
            .query_one("SELECT retry_pause('specview:generate', $1)", &[&failures])
            .await
            .unwrap()
            .get(0);
        // The spread is a tenth.
        assert!((pause / expected - 1.0).abs() <= 0.1, "{failures}: {pause}");
    }
    weir.end().await;
}

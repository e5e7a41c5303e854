//! A failure of one holder, or of one connection, does not affect others.

use crate::common::gate;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::gate::Gate;
use crate::common::proxy::{Cut, Proxy};
use crate::common::submissions::submission;
use crate::common::{GO_TESTS, Weir, Who, files, lock_holder};
use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::work::reconcile::Reconciler;
use weir::work::{Role, Working, reconcile};
use weir_ledger::attempts::AttemptError;
use weir_ledger::database::DatabaseError;
use weir_ledger::holder::Holder;

/// Long enough for a busy machine, and far below the 36 s that all others used to wait.
const MAX_WAIT_OF_OTHERS: Duration = Duration::from_secs(8);

async fn users(weir: &Weir, plan: &str, count: usize) -> Vec<Uuid> {
    let mut users = Vec::new();
    for _ in 0..count {
        users.push(weir.user(plan).await);
    }
    users
}

/// Makes new sessions of the database read-only, or writable again. Open sessions stay unchanged.
async fn make_read_only(weir: &Weir, on: bool) {
    let alter = format!(
        "ALTER DATABASE {} SET default_transaction_read_only = {on}",
        weir.name()
    );
    weir.admin().await.batch_execute(&alter).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operators_open_transaction_delays_only_its_user() {
    let weir = Weir::new().await;
    let gate = Gate::new();
    let locked = weir.user("pro").await;
    let others = users(&weir, "pro", 20).await;
    let working = gate.work(weir.another(&[]), Role::Both).await;
    // All of them have a running job before.
    let mut jobs = Vec::new();
    for user in others.iter().chain([&locked]) {
        jobs.push((*user, weir.analyse(Who::User(*user), "a_test.go", GO_TESTS).await));
    }
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    open.execute(
        "SELECT weir_charge($1::uuid::text, 'analysis', 1, gen_random_uuid()::text, now())",
        &[&locked],
    )
    .await
    .unwrap();

    let started = Instant::now();
    let body = files(&[("a_test.go", GO_TESTS)]).to_string().into_bytes();
    let blocked = weir.call("POST", "/api/jobs/analysis", Who::User(locked), &[], body.clone());
    let submissions = others
        .iter()
        .map(|user| weir.call("POST", "/api/jobs/analysis", Who::User(*user), &[], body.clone()));
    let (answers, blocked) = tokio::join!(futures_util::future::join_all(submissions), async {
        let blocked = blocked.await;
        (blocked, started.elapsed())
    });
    let (blocked, waited) = blocked;
    assert!(answers.iter().all(|answer| answer.status == 202));
    assert_eq!(blocked.status, 503, "{}", blocked.body);
    assert!(
        waited > Duration::from_secs(3),
        "the wait has a limit: {waited:?}"
    );

    // Their jobs end and are settled while the lock is held.
    gate.open();
    let settled = Instant::now();
    for (user, id) in jobs.iter().filter(|(user, _)| *user != locked) {
        assert_eq!(weir.finished(*id, Who::User(*user)).await["status"], "completed");
    }
    assert!(settled.elapsed() < MAX_WAIT_OF_OTHERS, "{:?}", settled.elapsed());
    open.rollback().await.unwrap();
    let (_, id) = jobs.last().unwrap();
    assert_eq!(weir.finished(*id, Who::User(locked)).await["status"], "completed");
    weir.all_finished().await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_users_batches_do_not_delay_reads_or_other_batches() {
    let weir = Weir::new().await;
    let locked = weir.user("pro").await;
    let other = weir.user("pro").await;
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    open.execute("SELECT 1 FROM users WHERE id = $1 FOR UPDATE", &[&locked])
        .await
        .unwrap();
    let batch = Value::from(vec![files(&[("a_test.go", GO_TESTS)])])
        .to_string()
        .into_bytes();
    let submit = |user| {
        weir.call(
            "POST",
            "/api/jobs/analysis/batch",
            Who::User(user),
            &[],
            batch.clone(),
        )
    };
    // More than the process's connections.
    let blocked = futures_util::future::join_all((0..30).map(|_| submit(locked)));
    let observer = weir.client().await;
    let waiting = async || {
        let sql =
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        observer.query(sql, &[]).await.unwrap().len()
    };
    let others = async {
        weir.until("one that waits for the lock", async || {
            (waiting().await > 0).then_some(())
        })
        .await;
        let read = weir.get("/api/jobs", Who::User(other)).await;
        let submitted = submit(other).await;
        assert_eq!((read.status.as_u16(), submitted.status.as_u16()), (200, 202));
        assert!(waiting().await <= 1, "the rest waits without a connection");
        open.rollback().await.unwrap();
    };
    let (blocked, ()) = tokio::join!(blocked, others);
    for answer in blocked {
        assert!([202, 503].contains(&answer.status.as_u16()), "{}", answer.body);
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_timed_out_on_a_lock_succeeds_after_its_release() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await;
    weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    let lock = "SELECT 1 FROM holders WHERE holder = $1 FOR UPDATE";
    assert_eq!(open.execute(lock, &[&user]).await.unwrap(), 1);
    let observer = weir.client().await;
    let waits = async || {
        let sql =
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        !observer.query(sql, &[]).await.unwrap().is_empty()
    };
    let batch = Value::from(vec![files(&[("b_test.go", GO_TESTS)])]);
    let submitted = weir.post("/api/jobs/analysis/batch", Who::User(user), &batch);
    let unlocked = async {
        weir.until("a change that waits for the lock", async || {
            waits().await.then_some(())
        })
        .await;
        weir.until("its end, which leaves its connection to others", async || {
            (!waits().await).then_some(())
        })
        .await;
        open.rollback().await.unwrap();
    };
    let (submitted, ()) = tokio::join!(submitted, unlocked);
    assert_eq!(submitted.status, 202, "{}", submitted.body);
    assert_eq!(weir.count("quota_reservations").await, 2);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_blocked_holders_do_not_delay_other_changes() {
    let weir = Weir::new().await;
    let other = weir.user("pro").await;
    let blocked = users(&weir, "pro", 8).await;
    for user in &blocked {
        weir.analyse(Who::User(*user), "a_test.go", GO_TESTS).await;
    }
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    let lock = "SELECT 1 FROM holders WHERE holder = ANY ($1) FOR UPDATE";
    assert_eq!(open.execute(lock, &[&blocked]).await.unwrap(), 8);
    let batch = Value::from(vec![files(&[("a_test.go", GO_TESTS)])]);
    let submit = async |user: Uuid| {
        let answer = weir
            .post("/api/jobs/analysis/batch", Who::User(user), &batch)
            .await;
        answer.status.as_u16()
    };
    let over = CancellationToken::new();
    let repeating = futures_util::future::join_all(blocked.iter().map(async |user| {
        while !over.is_cancelled() {
            assert!([202, 503].contains(&submit(*user).await));
        }
    }));
    let others = async {
        for _ in 0..5 {
            assert_eq!(submit(other).await, 202);
        }
        open.rollback().await.unwrap();
        over.cancel();
    };
    tokio::join!(repeating, others);
    weir.until("their turn", async || {
        (submit(blocked[0]).await == 202).then_some(())
    })
    .await;
    weir.end().await;
}

/// Ends when the gate opens, with an output that PostgreSQL refuses if the arguments ask for it.
struct Refused(Arc<Gate>);

#[async_trait]
impl Handler for Refused {
    async fn reserve(&self, holder: Holder, args: &Map<String, Value>) -> Result<i64, Refusal> {
        self.0.reserve(holder, args).await
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let poisons = attempt.args["files"][0]["path"] == "poison_test.go";
        let outcome = Handler::work(&*self.0, attempt).await?;
        Ok(if poisons {
            Outcome {
                output: json!("a NUL character: \u{0}"),
                used: None,
            }
            .into()
        } else {
            outcome
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drifted_counter_and_a_refused_output_fail_alone() {
    let weir = Weir::new().await;
    let gate = Gate::new();
    let (drifted, poisoned) = (weir.user("pro").await, weir.user("pro").await);
    let others = users(&weir, "pro", 5).await;
    let context = weir
        .another(&[("ANALYZER_QUEUE_PRIORITY_WORKERS", "10")])
        .with_handler(gate::KIND, Arc::new(Refused(Arc::clone(&gate))));
    let working = Working::start(&context, Role::Both, &context.settings.services)
        .await
        .unwrap();
    let mut jobs = Vec::new();
    for user in others.iter().chain([&drifted]) {
        jobs.push((*user, weir.analyse(Who::User(*user), "a_test.go", GO_TESTS).await));
    }
    let poison = weir
        .analyse(Who::User(poisoned), "poison_test.go", GO_TESTS)
        .await;
    gate.until_running(&weir, 7).await;
    weir.client()
        .await
        .execute(
            "UPDATE holders SET slots_in_use = 0 WHERE holder = $1",
            &[&drifted],
        )
        .await
        .unwrap();
    // All of them end together, in one group.
    gate.open();
    for (user, id) in jobs {
        let job = weir.finished(id, Who::User(user)).await;
        assert_eq!(
            (&job["status"], &job["charged"]),
            (&json!("completed"), &json!(1)),
            "{job}"
        );
    }
    let job = weir.finished(poison, Who::User(poisoned)).await;
    assert_eq!(job["status"], "failed", "{job}");
    let message = job["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("cannot be stored"),
        "its owner sees the reason: {message}"
    );
    weir.released(Who::User(poisoned), "analysis").await;
    working.stop().await;
    weir.end().await;
}

/// A settlement of a running job.
async fn settlement(weir: &Weir, user: Uuid, output: Value) -> weir_ledger::settlement::Ended {
    let job_id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    weir.start_elsewhere(job_id).await;
    weir_ledger::settlement::Ended {
        job_id,
        holder: Some(user),
        success: Some(weir_ledger::settlement::Success {
            attempt: 1,
            job_created_at: None,
            output,
            used: None,
        }),
    }
}

/// Counts the statements that update jobs in a sequence, which also counts rolled-back ones.
async fn count_updates(client: &tokio_postgres::Client) {
    client
        .batch_execute(
            "CREATE SEQUENCE updates; \
             CREATE FUNCTION count_update() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN PERFORM nextval('updates'); RETURN NULL; END $$; \
             CREATE TRIGGER counted AFTER UPDATE ON river_job FOR EACH STATEMENT EXECUTE FUNCTION count_update()",
        )
        .await
        .unwrap();
}

// On one thread, so that simultaneous settlements form one group.
#[tokio::test]
async fn a_full_disk_does_not_put_holders_into_quarantine() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    count_updates(&client).await;
    client
        .batch_execute(
            "CREATE TABLE disk (is_full boolean); INSERT INTO disk VALUES (false); \
             CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                 IF (SELECT is_full FROM disk) THEN RAISE EXCEPTION 'disk full' USING ERRCODE = '53100'; END IF; \
                 RETURN NULL; END $$; \
             CREATE TRIGGER full_disk AFTER INSERT ON usage_events FOR EACH STATEMENT EXECUTE FUNCTION full_disk()",
        )
        .await
        .unwrap();
    let everybody = users(&weir, "enterprise", 8).await;
    let settle_all = async |is_full: bool| -> (Vec<bool>, i64) {
        let mut group = Vec::new();
        for user in &everybody {
            group.push(settlement(&weir, *user, json!({})).await);
        }
        client
            .execute("UPDATE disk SET is_full = $1", &[&is_full])
            .await
            .unwrap();
        let count = async || -> i64 {
            let row = client.query_one("SELECT nextval('updates')", &[]).await.unwrap();
            row.get(0)
        };
        let before = count().await;
        let settled = group.into_iter().map(|ended| weir.context.settler.settle(ended));
        let settled = futures_util::future::join_all(settled).await;
        let cost = count().await - before;
        (settled.iter().map(Result::is_ok).collect(), cost)
    };
    let (settled, sound) = settle_all(false).await;
    assert!(settled.iter().all(|is_ok| *is_ok));
    let (settled, _) = settle_all(true).await;
    assert!(settled.iter().all(|is_ok| !is_ok));
    let (settled, after) = settle_all(false).await;
    assert!(settled.iter().all(|is_ok| *is_ok));
    assert_eq!(after, sound, "they are one group again");
    weir.abandon().await;
}

// On one thread, so that simultaneous settlements form one group.
#[tokio::test]
async fn a_repeatedly_refused_item_splits_its_group_once() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    count_updates(&client).await;
    let updates = async || -> i64 {
        let row = client.query_one("SELECT nextval('updates')", &[]).await.unwrap();
        row.get(0)
    };
    let poisoner = weir.user("enterprise").await;
    let others = users(&weir, "enterprise", 7).await;
    let mut cost = Vec::new();
    for is_poisoned in [false, true, true, true] {
        let mut group = Vec::new();
        for user in &others {
            group.push(settlement(&weir, *user, json!({})).await);
        }
        let poison = settlement(&weir, poisoner, json!("a NUL character: \u{0}")).await;
        let mut poisoned = Vec::from_iter(is_poisoned.then_some(poison));
        let before = updates().await;
        let of_others = group
            .iter()
            .map(|ended| weir.context.settler.settle(ended.clone()));
        let of_poisoner = poisoned.drain(..).map(|ended| weir.context.settler.settle(ended));
        let (refused, settled) = tokio::join!(
            futures_util::future::join_all(of_poisoner),
            futures_util::future::join_all(of_others)
        );
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
        assert!(settled.iter().all(Result::is_ok), "{settled:?}");
        cost.push(updates().await - before);
    }
    let [sound, first, rest @ ..] = &cost[..] else {
        unreachable!("four rounds")
    };
    assert!(first > sound, "refused items are found by halving: {cost:?}");
    assert!(
        rest.iter().all(|one| one == sound),
        "and is known from then on: {cost:?}"
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_holders_settlement_is_not_retried_in_every_round() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let locked = weir.user("pro").await;
    let job = weir.analyse(Who::User(locked), "a_test.go", GO_TESTS).await;
    client
        .execute(
            "UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = $1",
            &[&job],
        )
        .await
        .unwrap();
    let mut operator = weir.client().await;
    let open = lock_holder(&mut operator, locked).await;
    let writer = weir.writer_session().await;
    let mut reconciler = Reconciler::new(&weir.context);
    let started = Instant::now();
    for _ in 0..10 {
        assert!(reconciler.round(&writer).await);
    }
    assert!(started.elapsed() < MAX_WAIT_OF_OTHERS, "{:?}", started.elapsed());
    open.rollback().await.unwrap();
    weir.until("the settlement", async || {
        reconciler.round(&writer).await;
        (weir.count("quota_reservations").await == 0).then_some(())
    })
    .await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_be_settled_does_not_stop_reconciliation() {
    let weir = Weir::new().await;
    let (blocked, waits) = (weir.user("free").await, weir.user("free").await);
    let stuck = weir.analyse(Who::User(blocked), "a_test.go", GO_TESTS).await;
    weir.analyse(Who::User(waits), "a_test.go", GO_TESTS).await;
    let parked = weir.analyse(Who::User(waits), "b_test.go", GO_TESTS).await;
    let client = weir.client().await;
    // One job ends elsewhere and can never be settled while its row is locked. The other user is upgraded.
    weir.ended_by_other_client(stuck, "cancelled").await;
    let mut operator = weir.client().await;
    let open = lock_holder(&mut operator, blocked).await;
    client
        .execute(
            "UPDATE user_subscriptions SET plan_id = (SELECT id FROM subscription_plans WHERE tier = 'pro') \
             WHERE user_id = $1",
            &[&waits],
        )
        .await
        .unwrap();
    let stopped = tokio_util::sync::CancellationToken::new();
    let reconciling = tokio::spawn(weir::work::reconcile::run(weir.another(&[]), stopped.clone()));
    weir.until("the upgraded user's job to get a slot", async || {
        let row = client
            .query_one(
                "SELECT state::text AS state FROM river_job WHERE id = $1",
                &[&parked],
            )
            .await
            .unwrap();
        (row.get::<_, String>("state") == "available").then_some(())
    })
    .await;
    open.rollback().await.unwrap();
    weir.released(Who::User(blocked), "analysis").await;
    stopped.cancel();
    reconciling.await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_and_submissions_agree_while_the_server_is_read_only() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let admin = weir.admin().await;
    let read_only = async |on: bool| {
        make_read_only(&weir, on).await;
        // A failover does this to the open connections.
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
        admin.execute(sql, &[&weir.name()]).await.unwrap();
    };
    read_only(true).await;
    let body = files(&[("a_test.go", GO_TESTS)]);
    weir.until("submissions and readiness to agree", async || {
        let submitted = weir.post("/api/jobs/analysis", who, &body).await.status;
        let ready = weir.get("/readyz", who).await.status;
        (submitted == 503 && ready == 503).then_some(())
    })
    .await;
    // The server is writable again, and no connection is cut. Connections opened during this time are still read-only.
    make_read_only(&weir, false).await;
    weir.until("the next submission", async || {
        (weir.post("/api/jobs/analysis", who, &body).await.status == 202).then_some(())
    })
    .await;
    weir.until("readiness", async || {
        (weir.get("/readyz", who).await.status == 200).then_some(())
    })
    .await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_drop_connections_made_while_the_server_was_read_only() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let working = weir.work().await;
    let admin = weir.admin().await;
    make_read_only(&weir, true).await;
    // A failover does this to the open connections.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
    admin.execute(end, &[&weir.name()]).await.unwrap();
    // River reconnects, at most once a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    make_read_only(&weir, false).await;
    let body = files(&[("a_test.go", GO_TESTS)]);
    let answer = weir
        .until("a submission", async || {
            let answer = weir.post("/api/jobs/analysis", who, &body).await;
            (answer.status == 202).then_some(answer)
        })
        .await;
    let id = answer.body["job"]["id"].as_i64().unwrap();
    assert_eq!(weir.finished(id, who).await["status"], "completed");
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_connection_is_dropped_and_submissions_continue() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await;
    let proxy = Proxy::start(&weir, Cut::Never, 0).await;
    let database = weir_ledger::database::Database::at(&proxy.url(&weir)).unwrap();
    let reserver = weir_ledger::reservation::Reserver::start(&database);
    let submission = || submission(user, 1);
    reserver.submit(submission()).await.unwrap();
    proxy.freeze();
    let answered = tokio::time::timeout(Duration::from_secs(30), reserver.submit(submission())).await;
    assert!(answered.expect("there is an answer").is_err());
    proxy.thaw();
    weir.until("submissions to continue", async || {
        reserver.submit(submission()).await.ok()
    })
    .await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_over_a_stalled_connection_ends_and_drops_it() {
    let weir = Weir::new().await;
    let proxy = Proxy::start(&weir, Cut::Never, 0).await;
    let pool = weir_ledger::database::Database::at(&proxy.url(&weir))
        .unwrap()
        .pool(1);
    let backend = async || -> Result<i32, weir_ledger::database::DatabaseError> {
        let patience = Duration::from_secs(2);
        let asked = pool.within(patience, async |client| {
            Ok(client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0))
        });
        asked.await
    };
    let before = backend().await.unwrap();
    proxy.freeze();
    let late = tokio::time::timeout(Duration::from_secs(30), backend()).await;
    assert!(late.expect("there is an answer").is_err());
    proxy.thaw();
    let after = weir.until("a connection", async || backend().await.ok()).await;
    assert_ne!(after, before, "no query waits for an earlier caller's query");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_ends_its_transaction_and_keeps_the_connection() {
    let weir = Weir::new().await;
    let pool = weir_ledger::database::Database::at(weir.url()).unwrap().pool(1);
    let over = async || {
        let refused = pool.with(async |client| {
            client.batch_execute("BEGIN; CREATE TABLE left_behind ()").await?;
            let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
            Err::<(), _>(AttemptError::Invalid(pid.to_string()))
        });
        match refused.await {
            Err(AttemptError::Invalid(pid)) => pid,
            other => panic!("{other:?}"),
        }
    };
    let before = over().await;
    for _ in 0..3 {
        assert_eq!(over().await, before, "the same connection");
    }
    let left = pool
        .query("SELECT to_regclass('left_behind') IS NULL AS gone", &[])
        .await;
    assert!(left.unwrap()[0].get::<_, bool>("gone"));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_reads_do_not_delay_others() {
    let weir = Weir::new().await;
    let pool = weir_ledger::database::Database::at(weir.url()).unwrap().pool(2);
    let sleep = async |seconds: f64| -> Result<(), weir_ledger::database::DatabaseError> {
        pool.with(async |client| {
            client
                .query_one("SELECT 1 FROM pg_sleep($1)", &[&seconds])
                .await?;
            Ok(())
        })
        .await
    };
    sleep(0.0).await.unwrap();
    for _ in 0..20 {
        // Like a client that disconnects.
        let _ = tokio::time::timeout(Duration::from_millis(20), sleep(5.0)).await;
    }
    let started = Instant::now();
    sleep(0.0).await.unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    let client = weir.client().await;
    weir.until("the server to stop abandoned queries", async || {
        let row = client
            .query_one(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' \
                 AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()",
                &[],
            )
            .await
            .unwrap();
        (row.get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    weir.end().await;
}

/// Fails twice within milliseconds, and counts concurrent jobs.
#[derive(Default)]
struct Hasty {
    now: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait]
impl Handler for Hasty {
    async fn reserve(&self, _: Holder, _: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        if attempt.attempt <= 2 {
            return Err(HandlerError::Failed("as the test wants it".to_owned()));
        }
        Ok(Outcome {
            output: json!({}),
            used: None,
        }
        .into())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_falls_due_during_release_respects_the_slot() {
    let services = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hasty.toml");
    let weir = Weir::with(&[
        ("WEIR_CONFIG", services),
        ("FAIRNESS_SNOOZE_DURATION", "1s"),
        ("FAIRNESS_SNOOZE_JITTER", "0s"),
    ])
    .await;
    let hasty = Arc::new(Hasty::default());
    let user = weir.user("free").await;
    let context = weir
        .another(&[])
        .with_handler(gate::KIND, Arc::clone(&hasty) as Arc<dyn Handler>);
    let working = Working::start(&context, Role::Both, &context.settings.services)
        .await
        .unwrap();
    for _ in 0..25 {
        weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    }
    weir.all_finished().await;
    assert_eq!(hasty.most.load(Ordering::SeqCst), 1, "a Free user has one slot");
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_submission_is_described_as_a_reader_sees_it() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await;
    let answer = weir
        .post(
            "/api/jobs/analysis",
            Who::User(user),
            &files(&[("a_test.go", GO_TESTS)]),
        )
        .await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let described = answer.body["job"].clone();
    let id = described["id"].as_i64().unwrap();
    let read = weir.get(&format!("/api/jobs/{id}"), Who::User(user)).await.body;
    assert_eq!(described, read, "it is what a reader sees");
    let other = weir
        .post(
            "/api/jobs/analysis",
            Who::Address("192.0.2.77"),
            &files(&[("a_test.go", GO_TESTS)]),
        )
        .await;
    let id = other.body["job"]["id"].as_i64().unwrap();
    let read = weir
        .get(&format!("/api/jobs/{id}"), Who::Address("192.0.2.77"))
        .await
        .body;
    assert_eq!(other.body["job"], read);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_job_delays_only_its_own_settlement() {
    let weir = Weir::new().await;
    let gate = Gate::new();
    let users = users(&weir, "pro", 12).await;
    let working = gate
        .work(
            weir.another(&[("ANALYZER_QUEUE_PRIORITY_WORKERS", "12")]),
            Role::Both,
        )
        .await;
    let mut jobs = Vec::new();
    for user in &users {
        jobs.push((*user, weir.analyse(Who::User(*user), "a_test.go", GO_TESTS).await));
    }
    gate.until_running(&weir, jobs.len()).await;
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    let (locked, others) = jobs.split_at(4);
    let ids: Vec<i64> = locked.iter().map(|(_, id)| *id).collect();
    open.execute("UPDATE river_job SET priority = 2 WHERE id = ANY ($1)", &[&ids])
        .await
        .unwrap();
    gate.open();
    let started = Instant::now();
    for (user, id) in others {
        assert_eq!(weir.finished(*id, Who::User(*user)).await["status"], "completed");
    }
    assert!(started.elapsed() < MAX_WAIT_OF_OTHERS, "{:?}", started.elapsed());
    open.commit().await.unwrap();
    for (user, id) in locked {
        let job = weir.finished(*id, Who::User(*user)).await;
        assert_eq!(
            (&job["status"], &job["charged"]),
            (&json!("completed"), &json!(1)),
            "{job}"
        );
    }
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_elected_on_a_read_only_server_maintains_it_afterwards() {
    let weir = Weir::new().await;
    make_read_only(&weir, true).await;
    let stopped = CancellationToken::new();
    let leading = tokio::spawn(reconcile::run(weir.context.clone(), stopped.clone()));
    // It connects immediately, and again in each round.
    tokio::time::sleep(Duration::from_secs(2)).await;
    make_read_only(&weir, false).await;
    weir.maintenance_started().await;
    stopped.cancel();
    leading.await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_errors_drop_the_connection_and_statement_errors_do_not() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    for (code, keeps) in [
        ("22023", true),
        ("40001", true),
        ("55P03", true),
        ("57014", true),
        ("0A000", true),
        ("26000", false),
        ("08006", false),
        ("08P01", false),
        ("25006", false),
        ("57P01", false),
        ("57P05", false),
    ] {
        let raise = format!("DO $$ BEGIN RAISE 'on purpose' USING ERRCODE = '{code}'; END $$");
        let error = DatabaseError::from(client.batch_execute(&raise).await.unwrap_err());
        assert_eq!(error.keeps_connection(), keeps, "{code}: {error}");
    }
    client
        .batch_execute("CREATE TABLE changed (a int)")
        .await
        .unwrap();
    let prepared = client.prepare("SELECT * FROM changed").await.unwrap();
    client.query(&prepared, &[]).await.unwrap();
    client
        .batch_execute("ALTER TABLE changed ADD b int")
        .await
        .unwrap();
    let outdated = DatabaseError::from(client.query(&prepared, &[]).await.unwrap_err());
    assert!(!outdated.keeps_connection(), "{outdated}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_job_delays_only_its_own_cancellation() {
    let weir = Weir::new().await;
    let mut paths = Vec::new();
    for user in users(&weir, "free", 2).await {
        let id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        paths.push((format!("/api/jobs/{id}"), Who::User(user), id));
    }
    let [(locked, owner, id), (other, other_owner, _)] = &paths[..] else {
        unreachable!("two jobs")
    };
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    open.execute("UPDATE river_job SET priority = 2 WHERE id = $1", &[id])
        .await
        .unwrap();
    let cancel = |path, who| weir.call("DELETE", path, who, &[], Vec::new());
    // More than the API's connections for River.
    let of_locked = futures_util::future::join_all((0..6).map(|_| cancel(locked, *owner)));
    let of_other = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        cancel(other, *other_owner).await
    };
    let (refused, cancelled) =
        tokio::time::timeout(MAX_WAIT_OF_OTHERS, async { tokio::join!(of_locked, of_other) })
            .await
            .expect("cancels wait for the lock");
    assert_eq!(cancelled.status, 200, "{:?}", cancelled.body);
    for answer in refused {
        assert_eq!(answer.status, 503);
        assert!(answer.headers.contains_key("retry-after"));
    }
    open.rollback().await.unwrap();
    assert_eq!(cancel(locked, *owner).await.status, 200);
    weir.end().await;
}

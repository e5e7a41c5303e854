//! Reconciliation: stuck jobs continue, other clients' jobs stay theirs, and one process runs it.

use std::time::Duration;

use crate::common::{GO_TESTS, Weir, Who, lock_holder};
use tokio_util::sync::CancellationToken;
use weir::work::reconcile::Reconciler;
use weir_ledger::control::{self, User};
use weir_ledger::processes;
use weir_ledger::reconciliation::MAX_ENDED;

/// A job that another client inserted into the default lane.
async fn insert(client: &tokio_postgres::Client, kind: &str) -> i64 {
    client
        .query_one(
            "INSERT INTO river_job (args, kind, max_attempts, queue) VALUES ('{}', $1, 1, 'analysis_default') RETURNING id",
            &[&kind],
        )
        .await
        .unwrap()
        .get(0)
}

async fn state(client: &tokio_postgres::Client, id: i64) -> (String, i16) {
    let row = client
        .query_one("SELECT state::text, attempt FROM river_job WHERE id = $1", &[&id])
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_unknown_kinds_are_left_to_other_clients() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let foreign = insert(&client, "foo:bar").await;
    let who = Who::User(weir.user("free").await);
    let ours = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let working = weir.work().await;
    assert_eq!(weir.finished(ours, who).await["status"], "completed");
    assert_eq!(state(&client, foreign).await, ("available".to_owned(), 0));
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_job_of_another_client_is_not_rescued() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let mut ids = Vec::new();
    for (kind, hours) in [
        ("analysis:analyze", 2.0),
        ("analysis:analyze", 0.5),
        ("foo:bar", 2.0),
    ] {
        let id = insert(&client, kind).await;
        client
            .execute(
                "UPDATE river_job SET state = 'running', attempt = 1, max_attempts = 3, attempted_by = '{another}', \
                        attempted_at = now() - make_interval(secs => $2) WHERE id = $1",
                &[&id, &(hours * 3600.0)],
            )
            .await
            .unwrap();
        ids.push(id);
    }
    weir.reconcile().await;
    let mut states = Vec::new();
    for id in ids {
        states.push(state(&client, id).await.0);
    }
    assert_eq!(states, ["available", "running", "running"]);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_reconciles_and_another_takes_over() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let holders = async || -> Vec<i32> {
        let rows = client
            .query(
                "SELECT d.backend FROM maintenance_lease d JOIN pg_stat_activity a ON a.pid = d.backend",
                &[],
            )
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let mut processes = Vec::new();
    for _ in 0..3 {
        let stopped = CancellationToken::new();
        let run = weir::work::reconcile::run(weir.another(&[]), stopped.clone());
        processes.push((stopped, tokio::spawn(run)));
    }
    let first = weir
        .until("a process to take over maintenance", async || {
            holders().await.first().copied()
        })
        .await;
    // Some rounds of all three.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(holders().await, [first]);
    }
    // The test cannot find the leaseholder, so it stops each process in turn.
    while let Some((stopped, running)) = processes.pop() {
        stopped.cancel();
        running.await.unwrap();
        if processes.is_empty() {
            break;
        }
        weir.until("a living process to run maintenance", async || {
            (holders().await.len() == 1).then_some(())
        })
        .await;
    }
    weir.until("maintenance to end with the last process", async || {
        holders().await.is_empty().then_some(())
    })
    .await;
    weir.end().await;
}

/// The number of reservations after one round, on a machine of any speed.
async fn left_by_a_round(weir: &Weir) -> i64 {
    let client = weir.writer_session().await;
    let mut reconciler = Reconciler::new(&weir.context).waiting(Duration::from_secs(60));
    assert!(reconciler.round(&client).await);
    let left = "SELECT count(*) FROM quota_reservations";
    client.query_one(left, &[]).await.unwrap().get(0)
}

/// One job for each of three users, so that they do not wait for each other.
async fn of_three_users(weir: &Weir) -> Vec<i64> {
    let mut jobs = Vec::new();
    for _ in 0..3 {
        let who = Who::User(weir.user("free").await);
        jobs.push(weir.analyse(who, "a_test.go", GO_TESTS).await);
    }
    jobs
}

/// Jobs of a user, inserted in bulk as reservations insert them: `pending` ones wait for a slot, `retryable` ones for
/// their next attempt.
async fn many(weir: &Weir, user: uuid::Uuid, state: &str, count: i64) {
    weir.client()
        .await
        .execute(
            "WITH jobs AS (INSERT INTO river_job (args, kind, max_attempts, queue, state) \
                 SELECT jsonb_build_object('user_id', $1::text), 'analysis:analyze', 3, 'analysis_default', \
                        $3::text::river_job_state \
                 FROM generate_series(1, $2::bigint) RETURNING id) \
             INSERT INTO quota_reservations \
                 (holder, user_id, event_type, reserved_amount, job_id, period_start, admitted_at, parked_at) \
             SELECT $1::text::uuid, $1::text::uuid, 'analysis', 0, id, period_start_of($1::text::uuid, now()), NULL, \
                    CASE WHEN $3 = 'pending' THEN now() END \
             FROM jobs",
            &[&user.to_string(), &count, &state],
        )
        .await
        .unwrap();
    let row = "INSERT INTO holders (holder, event_type, user_id) VALUES ($1, 'analysis', $1) ON CONFLICT DO NOTHING";
    weir.client().await.execute(row, &[&user]).await.unwrap();
    weir.recount().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_jobs_ended_by_sql_settle_in_a_few_rounds() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let client = weir.client().await;
    // More than that round's sweep finds. Parked jobs end together with the others of their holder.
    many(&weir, user, "retryable", MAX_ENDED + 3000).await;
    client
        .batch_execute(
            "UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE finalized_at IS NULL",
        )
        .await
        .unwrap();
    let mut left = i64::MAX;
    // On a slow machine, a look takes several rounds. Their sweeps alone would leave most jobs.
    for _ in 0..3 {
        if left > 3000 {
            left = left_by_a_round(&weir).await;
        }
    }
    assert!(left <= 3000, "{left}");
    // The next round continues, and so do settlements that waited too long for the holder.
    for _ in 0..10 {
        if left == 0 {
            break;
        }
        left = left_by_a_round(&weir).await;
    }
    assert_eq!(left, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_that_is_deleted_is_released_by_the_next_round() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let client = weir.client().await;
    let running = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let parked = weir.analyse(who, "b_test.go", GO_TESTS).await;
    client
        .execute(
            "DELETE FROM river_job WHERE id = ANY ($1)",
            &[&vec![running, parked]],
        )
        .await
        .unwrap();
    assert_eq!(left_by_a_round(&weir).await, 0);
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_users_waiting_jobs_are_cancelled_with_a_reason() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let first = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let parked = weir.analyse(Who::User(user), "b_test.go", GO_TESTS).await;
    let client = weir.client().await;
    client
        .execute("DELETE FROM users WHERE id = $1", &[&user])
        .await
        .unwrap();
    weir.reconcile().await;
    assert_eq!(state(&client, parked).await.0, "cancelled");
    assert_eq!(
        state(&client, first).await.0,
        "cancelled",
        "it would not be charged"
    );
    let reason: String = client
        .query_one(
            "SELECT metadata ->> 'weir:reason' FROM river_job WHERE id = $1",
            &[&parked],
        )
        .await
        .unwrap()
        .get(0);
    assert!(reason.contains("deleted"), "{reason}");
    weir.end().await;
}

/// Its reservation would have no account, so it could never be parked or started.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_account_was_just_deleted_is_not_adopted() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let job = weir
        .insert_by_river(serde_json::json!({ "user_id": user }), "analysis_default")
        .await;
    let adopt = include_str!("../../../ledger/src/reconciliation/sql/adopt.sql");
    let adopted = async || {
        let (jobs, users, meters) = (
            vec![job],
            vec![user],
            vec![weir_ledger::meter::Meter::of("analysis")],
        );
        client
            .execute(adopt, &[&jobs, &users, &users, &meters, &3600.0_f64])
            .await
            .unwrap()
    };
    assert_eq!(adopted().await, 0);
    let account = "INSERT INTO holders (holder, event_type, user_id) VALUES ($1, 'analysis', $1)";
    client.execute(account, &[&user]).await.unwrap();
    assert_eq!(adopted().await, 1);
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_that_lost_its_reservation_reserves_again() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let first = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let parked = weir.analyse(who, "b_test.go", GO_TESTS).await;
    let address = Who::Address("203.0.113.9");
    let first_of_address = weir.analyse(address, "a_test.go", GO_TESTS).await;
    let parked_of_address = weir.analyse(address, "b_test.go", GO_TESTS).await;
    let client = weir.client().await;
    let lost = [parked, parked_of_address];
    let end = "UPDATE weir_jobs SET ended_at = now(), admitted_at = NULL, parked_at = NULL, due_at = NULL WHERE job_id = ANY ($1)";
    assert_eq!(client.execute(end, &[&&lost[..]]).await.unwrap(), 2);
    weir.recount().await;
    weir.reconcile().await;
    for id in lost {
        let reason = "SELECT metadata ->> 'weir:reason' FROM river_job WHERE id = $1";
        let reason: Option<String> = client.query_one(reason, &[&id]).await.unwrap().get(0);
        assert_eq!((state(&client, id).await.0 == "cancelled", reason), (false, None));
    }
    weir.until("the reservations", async || {
        weir.reconcile().await;
        let held = "SELECT 1 FROM quota_reservations WHERE job_id = ANY ($1) AND parked_at IS NOT NULL";
        (client.query(held, &[&&lost[..]]).await.unwrap().len() == 2).then_some(())
    })
    .await;
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 2);
    let working = weir.work().await;
    for (id, who) in [
        (first, who),
        (parked, who),
        (first_of_address, address),
        (parked_of_address, address),
    ] {
        assert_eq!(weir.finished(id, who).await["status"], "completed");
    }
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lifted_limits_free_a_backlog_in_transactions_of_bounded_size() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    many(&weir, user, "pending", 3_500).await;
    let client = weir.client().await;
    let lift = "UPDATE weir_settings SET counts_slots = false";
    client.batch_execute(lift).await.unwrap();
    let waiting = async || -> i64 {
        client
            .query_one(
                "SELECT count(*) FROM quota_reservations WHERE parked_at IS NOT NULL",
                &[],
            )
            .await
            .unwrap()
            .get(0)
    };
    let mut promoter = weir.context.settler.promoter();
    assert_eq!(promoter.promote().await.unwrap(), 1000);
    assert_eq!(waiting().await, 2500);
    promoter.promote_all().await.unwrap();
    assert_eq!(waiting().await, 0);
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_without_free_slots_are_skipped() {
    let weir = Weir::new().await;
    for _ in 0..20 {
        let who = Who::User(weir.user("free").await);
        weir.analyse(who, "a_test.go", GO_TESTS).await;
        weir.analyse(who, "b_test.go", GO_TESTS).await;
    }
    let client = weir.client().await;
    let locks = async || -> String {
        client
            .query_one(
                "SELECT string_agg(xmin::text || xmax::text, ' ' ORDER BY holder) FROM holders",
                &[],
            )
            .await
            .unwrap()
            .get(0)
    };
    let before = locks().await;
    let writer = weir.writer_session().await;
    let mut reconciler = Reconciler::new(&weir.context);
    for _ in 0..3 {
        assert!(reconciler.round(&writer).await);
    }
    assert_eq!(locks().await, before, "a lock writes a row's xmax");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_jobs_does_not_deregister() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let client = weir.client().await;
    processes::register(
        &client,
        "weir_stopping",
        &serde_json::json!({}),
        &serde_json::json!({}),
    )
    .await
    .unwrap();
    client
        .execute(
            "UPDATE river_job SET state = 'running', attempt = 1, attempted_by = '{weir_stopping}', \
                 attempted_at = now() - interval '11 seconds' \
             WHERE id = $1",
            &[&id],
        )
        .await
        .unwrap();
    assert!(!processes::sign_off(&client, "weir_stopping").await.unwrap());
    client
        .execute(
            "UPDATE processes SET beat_at = now() - interval '11 seconds'",
            &[],
        )
        .await
        .unwrap();
    weir.reconcile().await;
    assert_eq!(state(&client, id).await.0, "available");
    assert!(processes::sign_off(&client, "weir_stopping").await.unwrap());
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_set_back_does_not_delay_detection_of_a_dead_process() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let client = weir.client().await;
    client
        .batch_execute(
            "INSERT INTO processes (client_id, beat_at) \
             VALUES ('weir_ahead', now() + interval '1 hour'), ('weir_alive', now() - interval '1 second'); \
             UPDATE river_job SET state = 'running', attempt = 1, attempted_by = '{weir_ahead}', \
                 attempted_at = now() + interval '1 hour'",
        )
        .await
        .unwrap();
    let age = async |process: &str| -> f64 {
        client
            .query_one(
                "SELECT extract(epoch FROM clock_timestamp() - beat_at)::float8 FROM processes WHERE client_id = $1",
                &[&process],
            )
            .await
            .unwrap()
            .get(0)
    };
    weir.reconcile().await;
    // The process may be alive, and has the usual time to send a heartbeat.
    assert_eq!(state(&client, id).await.0, "running");
    assert!(age("weir_ahead").await >= 0.0);
    assert!(age("weir_alive").await >= 1.0);
    assert!(processes::beat(&client, "weir_ahead").await.unwrap().is_some());
    client
        .execute(
            "UPDATE processes SET beat_at = beat_at - interval '11 seconds'",
            &[],
        )
        .await
        .unwrap();
    weir.reconcile().await;
    assert_eq!(state(&client, id).await.0, "available");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_after_the_last_heartbeat_is_not_taken_over_immediately() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let jobs = of_three_users(&weir).await;
    client
        .batch_execute(
            "INSERT INTO processes (client_id, beat_at) VALUES ('weir_jumped', now() - interval '1 minute')",
        )
        .await
        .unwrap();
    let claim = "UPDATE river_job SET state = 'running', attempt = 1, attempted_by = '{weir_jumped}', \
                 attempted_at = now() - make_interval(secs => $2) WHERE id = $1";
    // Heartbeats from before and after the database's clock jumped ahead by a minute, and from before it was set back.
    for (id, age) in jobs.iter().zip([61.0, 1.0, -60.0]) {
        client.execute(claim, &[id, &age]).await.unwrap();
    }
    weir.reconcile().await;
    let mut states = Vec::new();
    for id in &jobs {
        states.push(state(&client, *id).await.0);
    }
    assert_eq!(states, ["available", "running", "available"]);
    client
        .execute(
            "UPDATE river_job SET attempted_at = now() - interval '11 seconds' WHERE id = $1",
            &[&jobs[1]],
        )
        .await
        .unwrap();
    weir.reconcile().await;
    assert_eq!(state(&client, jobs[1]).await.0, "available");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_client_addresses_and_old_submissions_are_deleted() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let working = weir.work().await;
    for who in [Who::Address("192.0.2.50"), Who::User(user)] {
        let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
        weir.finished(id, who).await;
    }
    working.stop().await;
    weir.is_clean().await;
    client
        .batch_execute(
            "UPDATE weir_jobs SET submitted_at = now() - interval '26 hours'; DELETE FROM river_job",
        )
        .await
        .unwrap();
    // The first pass deletes the submissions, the next one the address without any.
    weir.reconcile().await;
    weir.reconcile().await;
    let left = client
        .query_one(
            "SELECT (SELECT count(*) FROM weir_jobs), (SELECT count(*) FROM holders WHERE user_id IS NULL), \
                    (SELECT count(*) FROM holders WHERE user_id IS NOT NULL)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        (
            left.get::<_, i64>(0),
            left.get::<_, i64>(1),
            left.get::<_, i64>(2)
        ),
        (0, 0, 1)
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discarded_job_retried_by_an_operator_is_charged() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let client = weir.client().await;
    client
        .execute(
            "UPDATE river_job SET state = 'discarded', finalized_at = now(), attempt = 1, attempted_at = now() WHERE id = $1",
            &[&id],
        )
        .await
        .unwrap();
    weir.reconcile().await;
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 0);
    // As River's clients and River UI do.
    client
        .execute(
            "UPDATE river_job SET state = 'available', finalized_at = NULL, scheduled_at = now(), \
                    max_attempts = greatest(max_attempts, attempt + 1) WHERE id = $1",
            &[&id],
        )
        .await
        .unwrap();
    let working = weir.work().await;
    let job = weir.finished(id, who).await;
    assert_eq!(
        (&job["status"], &job["charged"]),
        (&"completed".into(), &1.into()),
        "{job}"
    );
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_job_does_not_block_other_takeovers() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let jobs = of_three_users(&weir).await;
    client
        .batch_execute(
            "INSERT INTO processes (client_id, beat_at) VALUES ('weir_dead', now() - interval '1 minute'); \
             UPDATE river_job SET state = 'running', attempt = 1, attempted_by = '{weir_dead}', \
                 attempted_at = now() - interval '1 minute'",
        )
        .await
        .unwrap();
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    open.execute("SELECT 1 FROM river_job WHERE id = $1 FOR UPDATE", &[&jobs[1]])
        .await
        .unwrap();
    let writer = weir.writer_session().await;
    let mut reconciler = Reconciler::new(&weir.context);
    reconciler.round(&writer).await;
    assert_eq!(state(&client, jobs[0]).await.0, "available");
    assert_eq!(state(&client, jobs[2]).await.0, "available");
    open.rollback().await.unwrap();
    reconciler.round(&writer).await;
    assert_eq!(state(&client, jobs[1]).await.0, "available");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_without_a_holder_row_is_settled() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let client = weir.client().await;
    client
        .batch_execute(&format!(
            "DELETE FROM holders; UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = {id}"
        ))
        .await
        .unwrap();
    weir.reconcile().await;
    assert_eq!(weir.quota(Who::User(user), "analysis").await["reserved"], 0);
    weir.end().await;
}

/// Users on the free plan, each with one job in the slot and two parked jobs.
async fn users_with_parked_jobs<const N: usize>(weir: &Weir) -> [(uuid::Uuid, [i64; 3]); N] {
    let mut users = Vec::new();
    for _ in 0..N {
        let user = weir.user("free").await;
        let mut jobs = [0; 3];
        for job in &mut jobs {
            *job = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        }
        users.push((user, jobs));
    }
    users.try_into().unwrap()
}

/// Gives these users the plan `pro`.
async fn upgrade(client: &tokio_postgres::Client, users: &[uuid::Uuid]) {
    let change = "UPDATE user_subscriptions s SET plan_id = p.id, updated_at = now() FROM subscription_plans p \
                  WHERE s.user_id = ANY ($1) AND p.tier::text = 'pro'";
    let changed = client.execute(change, &[&users]).await.unwrap();
    assert_eq!(changed, users.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_without_the_meter_does_not_stop_reconciliation() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let [(_, lost), (other, others)] = users_with_parked_jobs(&weir).await;
    upgrade(&client, &[other]).await;
    let gone = "DELETE FROM plan_limits l USING subscription_plans p WHERE l.plan_id = p.id AND p.tier::text = 'free'";
    client.execute(gone, &[]).await.unwrap();
    // A missed change that frees a slot.
    client
        .batch_execute(&format!(
            "UPDATE holders SET slots_in_use = 0; UPDATE weir_jobs SET ended_at = now(), admitted_at = NULL WHERE job_id = {}; \
             UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = {}",
            lost[0], lost[0]
        ))
        .await
        .unwrap();
    let mut promoter = weir.context.settler.promoter();
    promoter.promote_all().await.unwrap();
    assert_eq!(state(&client, lost[1]).await.0, "available");
    assert_eq!(
        state(&client, lost[2]).await.0,
        "pending",
        "one slot, as an address has"
    );
    assert_eq!(state(&client, others[1]).await.0, "available");
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_parked_job_does_not_block_other_promotions() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let users = users_with_parked_jobs::<4>(&weir).await;
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    let locked: Vec<i64> = users[1].1[1..].to_vec();
    open.execute(
        "UPDATE river_job SET priority = 2 WHERE id = ANY ($1)",
        &[&locked],
    )
    .await
    .unwrap();
    upgrade(&client, &users.map(|(user, _)| user)).await;
    let mut promoter = weir.context.settler.promoter();
    assert_eq!(promoter.promote().await.unwrap(), 6);
    for (_, jobs) in [&users[0], &users[2], &users[3]] {
        assert_eq!(state(&client, jobs[1]).await.0, "available");
    }
    open.commit().await.unwrap();
    promoter.promote_all().await.unwrap();
    assert_eq!(state(&client, locked[1]).await.0, "available");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_users_due_jobs_do_not_delay_other_due_jobs() {
    many_due_jobs_behind_a_lock_do_not_delay_others(
        "SELECT 1 FROM holders WHERE holder = $1::text::uuid FOR UPDATE",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_locked_due_jobs_do_not_delay_others() {
    let lock = "SELECT 1 FROM river_job WHERE args ->> 'user_id' = $1::text FOR UPDATE";
    many_due_jobs_behind_a_lock_do_not_delay_others(lock).await;
}

/// A user has many due jobs, and another transaction has locked the rows that this statement selects.
async fn many_due_jobs_behind_a_lock_do_not_delay_others(lock: &str) {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let [busy, other] = [weir.user("free").await, weir.user("free").await];
    many(&weir, busy, "pending", 600).await;
    let theirs = weir.analyse(Who::User(other), "a_test.go", GO_TESTS).await;
    // All are due, and those of the busy user for longer.
    client
        .batch_execute(&format!(
            "UPDATE quota_reservations SET parked_at = NULL, admitted_at = NULL, \
                    due_at = now() - CASE WHEN job_id = {theirs} THEN interval '1 s' ELSE interval '1 hour' END; \
             UPDATE holders SET parked = 0, slots_in_use = 0; \
             UPDATE river_job SET state = 'pending'"
        ))
        .await
        .unwrap();
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    assert!(open.execute(lock, &[&busy.to_string()]).await.unwrap() > 0);
    let mut promoter = weir.context.settler.promoter();
    for _ in 0..3 {
        promoter.start_due().await.unwrap();
    }
    assert_eq!(state(&client, theirs).await.0, "available");
    open.rollback().await.unwrap();
    weir.until("the others' turn", async || {
        promoter.start_due().await.unwrap();
        let due = weir.count("quota_reservations WHERE due_at IS NOT NULL").await;
        (due == 0).then_some(())
    })
    .await;
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_users_ended_jobs_do_not_delay_other_settlements() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let [busy, other] = [weir.user("free").await, weir.user("free").await];
    many(&weir, busy, "retryable", MAX_ENDED + 10).await;
    // Also beyond the range of one round's sweep.
    let theirs = weir.analyse(Who::User(other), "a_test.go", GO_TESTS).await;
    let mut operator = weir.client().await;
    let open = lock_holder(&mut operator, busy).await;
    // One query finds them, even if it takes long.
    let end = format!(
        "UPDATE river_job SET state = 'cancelled', \
                finalized_at = now() + CASE WHEN id = {theirs} THEN interval '2 min' ELSE interval '1 min' END"
    );
    client.execute(&end, &[]).await.unwrap();
    let writer = weir.writer_session().await;
    let held = format!("quota_reservations WHERE job_id = {theirs}");
    let mut reconciler = Reconciler::new(&weir.context);
    // On a slow machine, the look takes several rounds. In as many, sweeps do not reach the job.
    for _ in 0..5 {
        if weir.count(&held).await > 0 {
            assert!(reconciler.round(&writer).await);
        }
    }
    assert_eq!(weir.count(&held).await, 0);
    open.rollback().await.unwrap();
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_installation_notices_jobs_of_other_clients() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let stopped = CancellationToken::new();
    let reconciling = tokio::spawn(weir::work::reconcile::run(weir.context.clone(), stopped.clone()));
    weir.maintenance_started().await;
    // After ten seconds without reservations, most steps run more rarely.
    tokio::time::sleep(Duration::from_secs(11)).await;
    for _ in 0..3 {
        let args = serde_json::json!({ "user_id": user });
        weir.insert_by_river(args, "analysis_default").await;
    }
    // The plan has one slot.
    weir.until("the other jobs to wait for a slot", async || {
        let parked = weir.count("quota_reservations WHERE parked_at IS NOT NULL").await;
        (parked == 2).then_some(())
    })
    .await;
    let first = "SELECT id FROM river_job WHERE state = 'available'";
    let first: i64 = client.query_one(first, &[]).await.unwrap().get(0);
    weir.start_elsewhere(first).await;
    weir.ended_by_other_client(first, "completed").await;
    weir.until("the next job", async || {
        let next = "SELECT FROM river_job WHERE state = 'available'";
        client.query_opt(next, &[]).await.unwrap().map(drop)
    })
    .await;
    stopped.cancel();
    reconciling.await.unwrap();
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_step_does_not_affect_other_steps_of_maintenance() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let [(user, jobs)] = users_with_parked_jobs(&weir).await;
    upgrade(&client, &[user]).await;
    // A pooler's error when it loses the server, on a statement of the promoter's connection.
    client
        .batch_execute(
            "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS \
                 $$BEGIN RAISE 'the server was lost' USING ERRCODE = '08P01'; END$$; \
             CREATE TRIGGER lose BEFORE UPDATE ON weir_jobs FOR EACH ROW \
                 WHEN (OLD.parked_at IS NOT NULL) EXECUTE FUNCTION lose()",
        )
        .await
        .unwrap();
    let writer = weir.writer_session().await;
    let mut reconciler = Reconciler::new(&weir.context);
    assert!(reconciler.round(&writer).await, "the connection is sound");
    assert_eq!(state(&client, jobs[1]).await.0, "pending", "the promotion failed");
    client.batch_execute("DROP FUNCTION lose CASCADE").await.unwrap();
    weir.reconcile().await;
    assert_eq!(state(&client, jobs[1]).await.0, "available");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_ended_without_a_leader_are_settled_by_the_next() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let [busy, other] = [weir.user("free").await, weir.user("free").await];
    // Beyond the range of one round's sweep.
    many(&weir, busy, "pending", 1500).await;
    let theirs = weir.analyse(Who::User(other), "a_test.go", GO_TESTS).await;
    client
        .batch_execute(&format!(
            "INSERT INTO maintenance_lease (process, done_at) VALUES ('gone', now() - interval '40 s'); \
             UPDATE river_job SET state = 'cancelled', finalized_at = now() - interval '30 s' WHERE id = {theirs}"
        ))
        .await
        .unwrap();
    let writer = weir.writer_session().await;
    assert!(Reconciler::new(&weir.context).round(&writer).await);
    let held = format!("quota_reservations WHERE job_id = {theirs}");
    assert_eq!(weir.count(&held).await, 0);
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_cancellation_is_logged_up_to_its_abort() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    many(&weir, user, "pending", 1200).await;
    let mut client = weir.client().await;
    client
        .batch_execute(
            "CREATE FUNCTION break_off() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN RAISE 'broken off'; END $$; \
             CREATE TRIGGER break_off BEFORE UPDATE ON river_job FOR EACH ROW \
                 WHEN (NEW.state = 'cancelled' AND NEW.id > 1100) EXECUTE FUNCTION break_off()",
        )
        .await
        .unwrap();
    let holders = weir.context.holders().await.unwrap();
    let account = User::of(holders, user.to_string().parse().unwrap());
    let aborted = control::cancel_waiting(&mut client, "shell:test", &account, None).await;
    assert!(aborted.is_err());
    let logged =
        "SELECT (after ->> 'cancelled')::bigint AS cancelled FROM admin_log WHERE action = 'jobs.cancel'";
    let logged = client.query(logged, &[]).await.unwrap();
    let logged: Vec<i64> = logged.iter().map(|row| row.get("cancelled")).collect();
    assert_eq!(logged, [1000]);
    assert_eq!(weir.count("river_job WHERE state = 'cancelled'").await, 1000);
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_is_of_the_last_attempt_and_a_due_plan_applies() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let client = weir.client().await;
    let discard = async |attempt: i16, error: &str| {
        let discard = "UPDATE river_job \
             SET state = 'discarded', finalized_at = now(), attempt = $2, \
                 errors = errors || jsonb_build_object('at', now(), 'attempt', $2::smallint, 'error', $3::text, 'trace', ''), \
                 metadata = metadata || '{\"weir:reason\": \"no such file\", \"weir:reason_attempt\": 1}' \
             WHERE id = $1";
        client.execute(discard, &[&id, &attempt, &error]).await.unwrap();
        let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
        job["error"]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(discard(1, "job discarded by worker").await, "no such file");
    // River's own text has no value while the next attempt runs.
    let again = "UPDATE river_job SET state = 'running', finalized_at = NULL, attempt = 2 WHERE id = $1";
    client.execute(again, &[&id]).await.unwrap();
    let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
    assert_eq!(job["error"]["message"], "no such file", "{job}");
    assert_eq!(discard(2, "out of paper").await, "out of paper");
    client
        .execute(
            "UPDATE user_subscriptions SET next_plan_at = now() - interval '1 s', \
                    next_plan_id = (SELECT id FROM subscription_plans WHERE tier::text = 'pro') WHERE user_id = $1",
            &[&user],
        )
        .await
        .unwrap();
    let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
    assert_eq!(job["plan"], "pro");
    weir.abandon().await;
}

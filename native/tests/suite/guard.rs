//! The attempt guard (ADR-10): which attempts it sends back, for how long, and which it lets pass.

use std::collections::BTreeSet;

use crate::common::gate::Gate;
use crate::common::{GO_TESTS, Weir, Who, lock_holder};
use serde_json::json;
use uuid::Uuid;
use weir::work::Role;
use weir_ledger::holder::Holders;
use weir_ledger::meter::Meter;
use weir_ledger::reservation::{LateAdmission, LateJob, admit_late};

/// The number of jobs that match this condition.
async fn count(client: &tokio_postgres::Client, which: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM river_job WHERE {which}");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_waits_for_a_taken_slot_and_keeps_its_attempt() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let gate = Gate::new();
    let failing = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let next = weir.analyse(who, "a_test.go", GO_TESTS).await;
    gate.fail_at_first(failing);
    let working = gate.work(weir.another(&[]), Role::Both).await;
    // The failure gave the slot to the other job, which keeps it until the gate opens.
    weir.until("the other job to run", async || {
        (gate.running() == BTreeSet::from([next])).then_some(())
    })
    .await;
    let job = async || weir.get(&format!("/api/jobs/{failing}"), who).await.body;
    // A second later, River claims the retry, and the guard refuses it.
    let refused = weir
        .until("the retry to be refused", async || {
            let job = job().await;
            (job["waiting_for"] == "slot").then_some(job)
        })
        .await;
    weir.until("the retry to be snoozed", async || {
        let job = job().await;
        (job["status"] == "queued" && job["attempt"] == 1).then_some(())
    })
    .await;
    assert_eq!(refused["error"]["message"], "as the test wants it", "{refused}");
    assert_eq!(gate.running(), BTreeSet::from([next]));
    weir.is_clean().await;
    gate.open();
    let job = weir.finished(failing, who).await;
    assert_eq!(
        (&job["status"], &job["attempt"], &job["charged"]),
        (&json!("completed"), &json!(2), &json!(1)),
        "{job}"
    );
    assert_eq!(gate.most(), 1, "never two at once");
    weir.finished(next, who).await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_jobs_return_after_thirty_to_forty_seconds_with_jitter() {
    // With this many workers, all jobs are claimed before the first is refused, and none is left to park.
    let weir = Weir::with(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "12")]).await;
    let client = weir.client().await;
    let gate = Gate::new();
    for _ in 0..3 {
        let user = weir.user("free").await;
        for _ in 0..4 {
            weir.insert_by_river(json!({ "user_id": user }), "analysis_default")
                .await;
        }
    }
    let now = async || -> jiff::Timestamp {
        let row = client.query_one("SELECT clock_timestamp()", &[]).await.unwrap();
        row.get(0)
    };
    let before = now().await;
    let working = gate.work(weir.another(&[]), Role::Both).await;
    gate.until_running(&weir, 3).await;
    weir.until("the others to be refused", async || {
        let refused = "state = 'pending' OR state = 'scheduled' AND metadata ? 'snoozes'";
        (count(&client, refused).await == 9).then_some(())
    })
    .await;
    let after = now().await;
    let times: Vec<jiff::Timestamp> = client
        .query(
            "SELECT scheduled_at FROM river_job WHERE state = 'scheduled' ORDER BY 1",
            &[],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(times.len() >= 6, "only {} of 9 were snoozed", times.len());
    // Whenever exactly they were refused, it was between these two times.
    let fairness = &weir.context.settings.fairness;
    let (first, last) = (times[0], times[times.len() - 1]);
    assert!(
        first >= before + fairness.snooze && last <= after + fairness.snooze + fairness.jitter,
        "{before} .. {after}: {times:?}"
    );
    // Six or more over ten seconds. They are this close to each other once in millions of runs.
    assert!(
        last.duration_since(first).as_secs_f64() > 0.25,
        "all return at the same time: {times:?}"
    );
    let untouched = "state <> 'running' AND attempt = 0 AND errors IS NULL";
    assert_eq!(count(&client, untouched).await, 9, "a refusal costs no attempt");
    gate.open();
    weir.all_finished().await;
    assert_eq!(count(&client, "attempt = 1 AND state = 'completed'").await, 12);
    working.stop().await;
    weir.end().await;
}

/// The guard parks a refused job before River has written the snooze. Until then, it cannot be promoted.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_freed_during_a_snooze_goes_to_the_snoozed_job() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS \
                 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END'; \
             CREATE TRIGGER wait BEFORE UPDATE ON river_job FOR EACH ROW \
                 WHEN (NEW.state = 'scheduled') EXECUTE FUNCTION wait_for_the_test(); \
             SELECT pg_advisory_lock(1)",
        )
        .await
        .unwrap();
    let user = weir.user("free").await;
    for _ in 0..2 {
        weir.insert_by_river(json!({ "user_id": user }), "analysis_default")
            .await;
    }
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    weir.until("one of two to be refused", async || {
        let refused =
            "state = 'running' AND id IN (SELECT job_id FROM quota_reservations WHERE parked_at IS NOT NULL)";
        (count(&client, refused).await == 1).then_some(())
    })
    .await;
    gate.open();
    weir.until("the slot to be free", async || {
        let free = "SELECT 1 FROM holders WHERE slots_in_use = 0 AND parked = 1";
        client.query_opt(free, &[]).await.unwrap()
    })
    .await;
    client.execute("SELECT pg_advisory_unlock(1)", &[]).await.unwrap();
    weir.all_finished().await;
    assert_eq!(gate.most(), 1, "never two at once");
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_with_an_empty_user_id_have_no_holder() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let gate = Gate::new();
    for _ in 0..3 {
        weir.insert_by_river(json!({ "user_id": "" }), "analysis_default")
            .await;
    }
    let working = gate.work(weir.another(&[]), Role::Both).await;
    gate.until_running(&weir, 3).await;
    assert_eq!(gate.holders(), [None; 3]);
    gate.open();
    weir.all_finished().await;
    working.stop().await;
    // Reservations would be deleted by now. A holder's row stays.
    let traces: i64 = client
        .query_one(
            "SELECT (SELECT count(*) FROM holders) + (SELECT count(*) FROM quota_reservations) \
                  + (SELECT count(*) FROM usage_events)",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(traces, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_has_the_anonymous_slot_limit() {
    let weir = Weir::with(&[("FAIRNESS_ANONYMOUS_LIMIT", "2")]).await;
    let client = weir.client().await;
    let gate = Gate::new();
    for _ in 0..5 {
        weir.analyse(Who::Address("198.51.100.7"), "a_test.go", GO_TESTS)
            .await;
    }
    let working = gate.work(weir.another(&[]), Role::Both).await;
    gate.until_running(&weir, 2).await;
    assert_eq!(count(&client, "state = 'pending'").await, 3);
    gate.open();
    weir.all_finished().await;
    assert_eq!(gate.most(), 2);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_users_have_the_default_plans_slots() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let (unknown, known) = (Uuid::new_v4(), weir.user("free").await);
    for user in [unknown, known] {
        for _ in 0..3 {
            weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        }
    }
    assert_eq!(
        count(&client, "queue = 'analysis_default'").await,
        6,
        "all in the default lane"
    );
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    gate.until_running(&weir, 2).await;
    let running: BTreeSet<_> = gate.holders().into_iter().flatten().collect();
    assert_eq!(running, BTreeSet::from([unknown, known]), "one of each");
    assert_eq!(count(&client, "state = 'pending'").await, 4);
    gate.open();
    weir.all_finished().await;
    assert_eq!(gate.most(), 2);
    assert_eq!(
        weir.quota(Who::User(unknown), "analysis").await["limit"],
        50,
        "the Free plan's"
    );
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_users_foreign_jobs_do_not_lose_an_attempt() {
    let weir = Weir::with(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "40")]).await;
    let (locked, other) = (weir.user("free").await, weir.user("free").await);
    // Their row exists once they have submitted something.
    weir.analyse(Who::User(locked), "a_test.go", GO_TESTS).await;
    let mut operator = weir.client().await;
    let open = lock_holder(&mut operator, locked).await;
    for _ in 0..60 {
        weir.insert_by_river(json!({ "user_id": locked }), "analysis_default")
            .await;
    }
    let gate = Gate::new();
    gate.open();
    let working = gate.work(weir.another(&[]), Role::Work).await;
    let theirs = weir
        .insert_by_river(json!({ "user_id": other }), "analysis_default")
        .await;
    let client = weir.client().await;
    weir.until("the other user's job to run", async || {
        let done = format!("id = {theirs} AND state = 'completed'");
        (count(&client, &done).await == 1).then_some(())
    })
    .await;
    // Longer than a job waits for the lock.
    tokio::time::sleep(std::time::Duration::from_secs(7)).await;
    assert_eq!(
        count(&client, "errors IS NOT NULL").await,
        0,
        "no attempt is lost"
    );
    open.rollback().await.unwrap();
    working.stop().await;
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_another_client_count_in_their_meters_windows() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let by_day = "UPDATE plan_limits SET day = 10 WHERE event_type = 'analysis'";
    client.batch_execute(by_day).await.unwrap();
    let user = weir.user("free").await;
    let insert = || weir.insert_by_river(json!({ "user_id": user }), "analysis_default");
    // Without workers, it is parked.
    insert().await;
    weir.reconcile().await;
    let adopted = "SELECT windows FROM quota_reservations";
    let adopted: i16 = client.query_one(adopted, &[]).await.unwrap().get(0);
    assert_eq!(adopted, 1, "by the sweep");
    // The first claimed job asks for a slot, and the rest is parked with it.
    for _ in 0..3 {
        insert().await;
    }
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Work).await;
    let held = "SELECT count(*), min(windows), max(windows) FROM quota_reservations";
    weir.until("all of them to be held", async || {
        let row = client.query_one(held, &[]).await.unwrap();
        (row.get::<_, i64>(0) == 4).then(|| assert_eq!((row.get::<_, i16>(1), row.get::<_, i16>(2)), (1, 1)))
    })
    .await;
    gate.open();
    working.stop().await;
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_prevented_by_an_outage_is_not_counted() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let client = weir.client().await;
    client
        .batch_execute("UPDATE river_job SET max_attempts = 1")
        .await
        .unwrap();
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    open.batch_execute("LOCK TABLE quota_reservations").await.unwrap();
    let working = weir.work().await;
    weir.until("a claim that waits", async || {
        let sql = "SELECT FROM pg_stat_activity WHERE query LIKE '%claim_jobs(%' AND wait_event_type = 'Lock' \
                   AND datname = current_database()";
        (!client.query(sql, &[]).await.unwrap().is_empty()).then_some(())
    })
    .await;
    open.rollback().await.unwrap();
    assert_eq!(weir.finished(id, who).await["status"], "completed");
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_counts_by_the_meter_at_submission() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let client = weir.client().await;
    // As between two attempts, at a service that had another meter then.
    client
        .batch_execute(&format!(
            "UPDATE weir_jobs SET event_type = 'specview', admitted_at = NULL WHERE job_id = {id}"
        ))
        .await
        .unwrap();
    weir.recount().await;
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Work).await;
    gate.until_running(&weir, 1).await;
    let rows = client
        .query(
            "SELECT event_type::text, slots_in_use FROM holders ORDER BY 1",
            &[],
        )
        .await
        .unwrap();
    let slots: Vec<(&str, i32)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(slots, [("analysis", 0), ("specview", 1)]);
    gate.open();
    weir.all_finished().await;
    weir.released(who, "specview").await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_parked_without_jobs_that_another_meter_counts() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    let running = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.start_elsewhere(running).await;
    let other = weir.analyse(who, "b_test.go", GO_TESTS).await;
    let client = weir.client().await;
    client
        .batch_execute(&format!(
            "UPDATE quota_reservations SET event_type = 'specview', admitted_at = NULL, parked_at = NULL WHERE job_id = {other}; \
             UPDATE river_job SET state = 'available' WHERE id = {other}"
        ))
        .await
        .unwrap();
    weir.recount().await;
    let insert = "INSERT INTO river_job (args, kind, max_attempts, queue, state, attempt, attempted_at, attempted_by) \
                  VALUES (jsonb_build_object('user_id', $1::text), 'analysis:analyze', 3, 'analysis_default', 'running', 1, \
                          now(), '{elsewhere}') RETURNING id";
    let row = client.query_one(insert, &[&user.to_string()]).await.unwrap();
    let late = LateJob {
        id: row.get("id"),
        attempt: Some(1),
        holder: Holders::user(user),
        subject: None,
        meter: Meter::named("analysis"),
        backlog: Some((&user.to_string(), &["analysis:analyze"])),
    };
    let admission = admit_late(&mut weir.client().await, late).await.unwrap();
    assert!(matches!(admission, LateAdmission::Parked(_)), "{admission:?}");
    let parked = "quota_reservations WHERE parked_at IS NOT NULL AND event_type = 'specview'";
    assert_eq!(weir.count(parked).await, 0);
    assert_eq!(weir.count("river_job WHERE state = 'available'").await, 1);
    weir.abandon().await;
}

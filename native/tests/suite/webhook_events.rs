//! The events for webhooks: which ones, once each, in the transaction of the change. No worker delivers them here.

use crate::common::{GO_TESTS, Weir, Who};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;
use weir::webhooks;
use weir_ledger::control::{self, Credit, Effective, NewAdjustment, Override, PlanChange, User};
use weir_ledger::holder::Holders;
use weir_policy::span::Span;

const SILENT: [(&str, &str); 1] = [("WEBHOOK_WORKERS", "0")];

async fn add(weir: &Weir, url: &str, events: &[&str], thresholds: &[i16]) -> Uuid {
    let events: Vec<String> = events.iter().map(|event| (*event).to_owned()).collect();
    let (mut client, settings) = (weir.client().await, &weir.context.settings);
    let made = webhooks::add(&mut client, settings, "shell:test", url, &events, thresholds).await;
    made.unwrap().webhook.id
}

/// The events that wait for delivery, in the order of emission.
async fn emitted(weir: &Weir) -> Vec<Value> {
    let deliveries = "SELECT (args ->> 'body')::jsonb AS event, queue, state::text AS state, max_attempts FROM river_job \
                      WHERE kind = 'weir:webhook' ORDER BY id";
    let rows = weir.client().await.query(deliveries, &[]).await.unwrap();
    rows.iter()
        .map(|row| {
            assert!(row.get::<_, &str>("queue").starts_with("weir_webhook_"));
            assert_eq!(
                (row.get::<_, &str>("state"), row.get::<_, i16>("max_attempts")),
                ("available", 10)
            );
            row.get("event")
        })
        .collect()
}

async fn events_of_job(weir: &Weir, job_id: i64) -> Vec<String> {
    let events = emitted(weir).await;
    let of_job = events.iter().filter(|event| event["data"]["job_id"] == job_id);
    of_job
        .map(|event| event["type"].as_str().unwrap().to_owned())
        .collect()
}

/// A user's emitted thresholds, as "window percent".
async fn thresholds(weir: &Weir, user: Uuid) -> Vec<String> {
    let events = emitted(weir).await;
    let of_user = events
        .iter()
        .filter(|event| event["type"] == "quota.threshold" && event["data"]["subject"] == json!(user));
    of_user
        .map(|event| {
            format!(
                "{} {}",
                event["data"]["window"].as_str().unwrap(),
                event["data"]["percent"]
            )
        })
        .collect()
}

fn adjustment(amount: i64) -> NewAdjustment<'static> {
    NewAdjustment {
        meter: "analysis",
        amount,
        reason: "a test",
        credit: Credit::default(),
    }
}

async fn user_of(weir: &Weir, user: Uuid) -> User {
    User::of(Holders::load(&weir.client().await).await.unwrap(), user.into())
}

async fn set_plan(weir: &Weir, user: Uuid, plan: &str, effective: Effective) {
    let event_id = Uuid::new_v4().to_string();
    let change = PlanChange {
        subscription: None,
        period: None,
        plan,
        event_id: &event_id,
        occurred_at: Timestamp::now(),
        effective,
    };
    let (mut client, account) = (weir.client().await, user_of(weir, user).await);
    control::set_plan(&mut client, "shell:test", &account, &change)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_job_end_emits_one_event_and_a_rollback_does_not() {
    let weir = Weir::with(&SILENT).await;
    add(&weir, "https://example.com/a", &[], &[]).await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    let client = weir.client().await;

    // By one of Weir's workers.
    let working = weir.work().await;
    let worked = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.finished(worked, who).await;
    weir.released(who, "analysis").await;
    working.stop().await;
    assert_eq!(events_of_job(&weir, worked).await, ["job.completed"]);

    // In SQL: first rolled back, then failed, then completed.
    let begin = async |id: i64| weir.start_elsewhere(id).await;
    let failing = weir.analyse(who, "b_test.go", GO_TESTS).await;
    begin(failing).await;
    let rolled_back =
        "BEGIN; SELECT weir_complete($1, 1, NULL); ROLLBACK".replace("$1", &failing.to_string());
    client.batch_execute(&rolled_back).await.unwrap();
    assert_eq!(events_of_job(&weir, failing).await, [""; 0]);
    let last = "UPDATE river_job SET max_attempts = 1 WHERE id = $1";
    client.execute(last, &[&failing]).await.unwrap();
    client
        .execute("SELECT weir_fail($1, 1, 'no such file')", &[&failing])
        .await
        .unwrap();
    assert_eq!(events_of_job(&weir, failing).await, ["job.failed"]);
    let completed = weir.analyse(who, "c_test.go", GO_TESTS).await;
    begin(completed).await;
    client
        .execute("SELECT weir_complete($1, 1, NULL)", &[&completed])
        .await
        .unwrap();
    assert_eq!(events_of_job(&weir, completed).await, ["job.completed"]);

    // Cancelled, and ended by another River client, which reconciliation finds. Deleting the reservation of a job that
    // continues is not an end.
    let cancelled = weir.analyse(who, "d_test.go", GO_TESTS).await;
    let answer = weir
        .call("DELETE", &format!("/api/jobs/{cancelled}"), who, &[], Vec::new())
        .await;
    assert_eq!(answer.status, 200);
    weir.released(who, "analysis").await;
    assert_eq!(events_of_job(&weir, cancelled).await, ["job.cancelled"]);
    let other_job = weir.analyse(who, "e_test.go", GO_TESTS).await;
    begin(other_job).await;
    weir.ended_by_other_client(other_job, "completed").await;
    weir.reconcile().await;
    assert_eq!(events_of_job(&weir, other_job).await, ["job.completed"]);
    let goes_on = weir.analyse(who, "f_test.go", GO_TESTS).await;
    client
        .execute(
            "UPDATE weir_jobs SET ended_at = now(), admitted_at = NULL WHERE job_id = $1",
            &[&goes_on],
        )
        .await
        .unwrap();
    weir.recount().await;
    assert_eq!(events_of_job(&weir, goes_on).await, [""; 0]);

    let all = emitted(&weir).await;
    let failed = &all.iter().find(|event| event["type"] == "job.failed").unwrap()["data"];
    assert_eq!(
        (
            &failed["job_id"],
            &failed["used"],
            &failed["error"],
            &failed["meter"]
        ),
        (
            &json!(failing),
            &json!(0),
            &json!("no such file"),
            &json!("analysis")
        )
    );
    let data = &all[0]["data"];
    assert_eq!(
        (
            &data["subject"],
            &data["holder"],
            &data["service"],
            &data["used"],
            &data["attempts"]
        ),
        (
            &json!(user),
            &json!(user),
            &json!("analysis"),
            &json!(1),
            &json!(1)
        )
    );
    assert!(data.get("output").is_none());
    let finished: Timestamp = data["finished_at"].as_str().unwrap().parse().unwrap();
    assert!((Timestamp::now().as_second() - finished.as_second()).abs() < 60);
    // Deliveries have no holder.
    let held: i64 = client
        .query_one("SELECT count(*) FROM quota_reservations r JOIN river_job j ON j.id = r.job_id WHERE j.kind = 'weir:webhook'", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(held, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_json_for_any_subject_and_error() {
    const TEXT: &str = "a \"b\" c:\\d %s %1$s\n\t{}],\u{7f}\u{2028}ß😀";
    let weir = Weir::with(&SILENT).await;
    add(&weir, "https://example.com/a", &["job.failed"], &[]).await;
    let user = weir.user("free").await;
    let client = weir.client().await;
    client
        .execute("UPDATE users SET subject = $2 WHERE id = $1", &[&user, &TEXT])
        .await
        .unwrap();
    let failing = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    weir.start_elsewhere(failing).await;
    client
        .execute(
            "UPDATE river_job SET max_attempts = 1, metadata = metadata || jsonb_build_object('weir:request_id', $2::text) \
             WHERE id = $1",
            &[&failing, &TEXT],
        )
        .await
        .unwrap();
    client
        .execute("SELECT weir_fail($1, 1, $2)", &[&failing, &TEXT])
        .await
        .unwrap();
    let events = emitted(&weir).await;
    let [event] = &*events else { panic!("{events:?}") };
    for member in ["subject", "error", "request_id"] {
        assert_eq!(event["data"][member], TEXT, "{member}");
    }
    weir.end().await;
}

/// The ways in which the usage of a free plan's 50 grows by one.
async fn use_one(weir: &Weir, user: Uuid, way: &str) {
    let (who, mut client) = (Who::User(user), weir.client().await);
    match way {
        "a worker" => {
            let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
            weir.start_elsewhere(id).await;
            let success = weir_ledger::settlement::Success {
                attempt: 1,
                job_created_at: None,
                output: json!(null),
                used: None,
            };
            let ended = weir_ledger::settlement::Ended {
                job_id: id,
                holder: Some(user),
                success: Some(success),
            };
            weir.context.settler.settle(ended).await.unwrap();
        }
        "SQL" => {
            let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
            weir.start_elsewhere(id).await;
            client
                .execute("SELECT weir_complete($1, 1, NULL)", &[&id])
                .await
                .unwrap();
        }
        "another client" => {
            let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
            weir.start_elsewhere(id).await;
            weir.ended_by_other_client(id, "completed").await;
            weir.reconcile().await;
        }
        "an operator" => {
            let account = user_of(weir, user).await;
            control::adjust(&mut client, "shell:test", &account, &adjustment(1), None)
                .await
                .unwrap();
        }
        _ => weir.use_up(user, "analysis", 1).await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_threshold_emits_one_event_when_reached() {
    let weir = Weir::with(&SILENT).await;
    add(&weir, "https://example.com/a", &["quota.threshold"], &[]).await;
    for way in ["a worker", "SQL", "another client", "an operator", "by hand"] {
        let user = weir.user("free").await;
        weir.use_up(user, "analysis", 38).await;
        use_one(&weir, user, way).await;
        assert_eq!(thresholds(&weir, user).await, [""; 0], "{way}");
        use_one(&weir, user, way).await;
        assert_eq!(thresholds(&weir, user).await, ["month 80"], "{way}");
        use_one(&weir, user, way).await;
        weir.use_up(user, "analysis", 8).await;
        assert_eq!(thresholds(&weir, user).await, ["month 80"], "{way}");
        use_one(&weir, user, way).await;
        assert_eq!(thresholds(&weir, user).await, ["month 80", "month 100"], "{way}");
    }
    let last = emitted(&weir).await.pop().unwrap();
    let data = &last["data"];
    assert_eq!(
        (&data["used"], &data["limit"], &data["meter"]),
        (&json!(50), &json!(50), &json!("analysis"))
    );
    let reset: Timestamp = data["reset_at"].as_str().unwrap().parse().unwrap();
    assert!(reset > Timestamp::now());

    // Many at once, one of which reaches it. A rolled-back transaction reaches nothing.
    let user = weir.user("free").await;
    let client = weir.client().await;
    let insert = format!("SELECT weir_charge('{user}', 'analysis', 49, gen_random_uuid()::text, now())");
    client
        .batch_execute(&format!("BEGIN; {insert}; ROLLBACK"))
        .await
        .unwrap();
    assert_eq!(thresholds(&weir, user).await, [""; 0]);
    futures_util::future::join_all((0..25).map(|_| weir.use_up(user, "analysis", 3))).await;
    assert_eq!(thresholds(&weir, user).await, ["month 80", "month 100"]);
    // Released and repeated usage does not reach it a second time.
    let mut client = weir.client().await;
    let account = user_of(&weir, user).await;
    for amount in [-70, 60] {
        control::adjust(&mut client, "shell:test", &account, &adjustment(amount), None)
            .await
            .unwrap();
    }
    assert_eq!(thresholds(&weir, user).await.len(), 2);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_limit_may_be_reached_by_earlier_usage() {
    let weir = Weir::with(&SILENT).await;
    add(&weir, "https://example.com/a", &[], &[50, 100, 120]).await;
    // A downgrade in the middle of the month.
    let user = weir.user("pro").await;
    let (mut client, account) = (weir.client().await, user_of(&weir, user).await);
    control::adjust(&mut client, "shell:test", &account, &adjustment(40), None)
        .await
        .unwrap();
    assert_eq!(thresholds(&weir, user).await, [""; 0]);
    set_plan(&weir, user, "free", Effective::Now).await;
    assert_eq!(thresholds(&weir, user).await, ["month 50"]);
    // Overrides, including daily ones.
    let own = Override {
        limits: [(Span::Month, Some(33))].into(),
        slots: None,
        burst: None,
        expires_at: None,
    };
    control::set_override(&mut client, "shell:test", &account, "analysis", &own)
        .await
        .unwrap();
    assert_eq!(
        thresholds(&weir, user).await,
        ["month 50", "month 100", "month 120"]
    );
    set_plan(&weir, user, "pro", Effective::Now).await;
    assert_eq!(thresholds(&weir, user).await.len(), 3);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_window_emits_one_event() {
    let weir = Weir::with(&SILENT).await;
    add(
        &weir,
        "https://example.com/a",
        &["quota.threshold", "quota.renewed"],
        &[],
    )
    .await;
    let (user, other) = (weir.user("free").await, weir.user("free").await);
    weir.use_up(user, "analysis", 50).await;
    weir.use_up(other, "analysis", 10).await;
    assert_eq!(thresholds(&weir, user).await, ["month 80", "month 100"]);
    weir.reconcile().await;
    assert_eq!(emitted(&weir).await.len(), 2, "the month is not over");
    // A month later.
    let client = weir.client().await;
    client
        .batch_execute(
            "UPDATE user_subscriptions SET current_period_start = now() - interval '1 hour';
             UPDATE quota_thresholds SET ends_at = now() - interval '1 hour'",
        )
        .await
        .unwrap();
    let others = [weir.writer_session().await, weir.writer_session().await];
    let looked = futures_util::future::join_all(others.iter().map(control::emit_renewals)).await;
    assert_eq!(looked.into_iter().map(Result::unwrap).sum::<i64>(), 2);
    weir.reconcile().await;
    let renewed: Vec<Value> = emitted(&weir)
        .await
        .into_iter()
        .filter(|event| event["type"] == "quota.renewed")
        .collect();
    assert_eq!(renewed.len(), 1);
    let data = &renewed[0]["data"];
    assert_eq!(
        (&data["subject"], &data["used"], &data["limit"], &data["window"]),
        (&json!(user), &json!(0), &json!(50), &json!("month"))
    );
    // The next month has separate thresholds.
    weir.use_up(user, "analysis", 40).await;
    assert_eq!(
        thresholds(&weir, user).await,
        ["month 80", "month 100", "month 80"]
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_plan_emits_an_event_only_if_the_plan_changes() {
    let weir = Weir::with(&SILENT).await;
    add(&weir, "https://example.com/a", &["plan.changed"], &[]).await;
    let user = weir.user("free").await;
    let changes = async || {
        let events = emitted(&weir).await;
        let of_user = events
            .iter()
            .filter(|event| event["data"]["subject"] == json!(user));
        of_user
            .map(|event| format!("{} {}", event["data"]["before"], event["data"]["plan"]).replace('"', ""))
            .collect::<Vec<String>>()
    };
    set_plan(&weir, user, "free", Effective::Now).await;
    assert_eq!(changes().await, [""; 0], "nothing changed");
    set_plan(&weir, user, "pro", Effective::Now).await;
    set_plan(&weir, user, "pro_plus", Effective::PeriodEnd).await;
    assert_eq!(changes().await, ["free pro"], "the other is to come");
    let client = weir.client().await;
    client
        .batch_execute("UPDATE user_subscriptions SET next_plan_at = now() WHERE next_plan_at IS NOT NULL")
        .await
        .unwrap();
    weir.reconcile().await;
    assert_eq!(changes().await, ["free pro", "pro pro_plus"]);
    let ends = "UPDATE user_subscriptions SET status = 'canceled', canceled_at = now() WHERE user_id = $1";
    client.execute(ends, &[&user]).await.unwrap();
    assert_eq!(
        changes().await.last().unwrap(),
        "pro_plus free",
        "the default one"
    );
    // A new user who starts on another plan than the default.
    let seen_first = weir.user("enterprise").await;
    let last = emitted(&weir).await.pop().unwrap();
    assert_eq!(
        (&last["data"]["subject"], &last["data"]["plan"]),
        (&json!(seen_first), &json!("enterprise"))
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_get_their_selected_events_under_the_same_id() {
    let weir = Weir::with(&SILENT).await;
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 45).await;
    use_one(&weir, user, "SQL").await;
    assert_eq!(
        weir.count("quota_thresholds").await,
        0,
        "no webhook receives thresholds"
    );
    let (a, b) = (
        add(&weir, "https://example.com/a", &["job.completed"], &[]).await,
        add(
            &weir,
            "https://example.com/b",
            &["job.completed", "quota.threshold"],
            &[98],
        )
        .await,
    );
    add(&weir, "https://example.com/c", &["job.failed"], &[]).await;
    for _ in 0..3 {
        use_one(&weir, user, "a worker").await;
    }
    let events = emitted(&weir).await;
    let completed: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "job.completed")
        .collect();
    assert_eq!((completed.len(), events.len()), (6, 7));
    let ids: std::collections::BTreeSet<&str> = completed
        .iter()
        .map(|event| event["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), 3, "an event has one id for all");
    assert_eq!(thresholds(&weir, user).await, ["month 98"]);

    // Removed webhooks get no more events, not even waiting ones. Those of disabled ones wait.
    let mut client = weir.client().await;
    control::disable_webhook(&mut client, a, "410").await.unwrap();
    assert_eq!(
        control::remove_webhook(&mut client, "shell:test", b)
            .await
            .unwrap(),
        4
    );
    use_one(&weir, user, "a worker").await;
    let open = "SELECT count(*) FROM river_job WHERE kind = 'weir:webhook' AND finalized_at IS NULL";
    let open: i64 = client.query_one(open, &[]).await.unwrap().get(0);
    assert_eq!(open, 4, "those of the disabled one, which can be enabled");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_user_drops_its_waiting_deliveries() {
    let weir = Weir::with(&SILENT).await;
    add(&weir, "https://example.com/a", &[], &[]).await;
    let (user, other) = (weir.user("free").await, weir.user("free").await);
    for one in [user, other] {
        weir.use_up(one, "analysis", 45).await;
        use_one(&weir, one, "SQL").await;
    }
    let (mut client, account) = (weir.client().await, user_of(&weir, user).await);
    control::delete(&mut client, "shell:test", &account)
        .await
        .unwrap();
    let events = emitted(&weir).await;
    assert!(
        events
            .iter()
            .all(|event| !event.to_string().contains(&user.to_string())),
        "{events:?}"
    );
    assert_eq!(events.len(), 2);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raised_limit_emits_its_threshold_again() {
    let weir = Weir::with(&SILENT).await;
    add(&weir, "https://example.com/a", &["quota.threshold"], &[80, 100]).await;
    let user = weir.user("free").await;
    let (mut client, account) = (weir.client().await, user_of(&weir, user).await);
    let mut limit = async |most: i64| {
        let own = Override {
            limits: [(Span::Month, Some(most))].into(),
            slots: None,
            burst: None,
            expires_at: None,
        };
        control::set_override(&mut client, "shell:test", &account, "analysis", &own)
            .await
            .unwrap();
    };
    limit(10).await;
    weir.use_up(user, "analysis", 10).await;
    assert_eq!(thresholds(&weir, user).await, ["month 80", "month 100"]);
    limit(20).await;
    assert_eq!(thresholds(&weir, user).await.len(), 2, "half of it");
    weir.use_up(user, "analysis", 10).await;
    let twice = ["month 80", "month 100", "month 80", "month 100"];
    assert_eq!(thresholds(&weir, user).await, twice);
    limit(10).await;
    limit(20).await;
    assert_eq!(
        thresholds(&weir, user).await,
        twice,
        "that limit has emitted its events"
    );
    weir.end().await;
}

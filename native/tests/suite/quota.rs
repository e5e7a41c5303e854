//! Quota (ADR-21). Each test is named after the failure that it excludes.

use std::time::Duration;

use crate::common::submissions::submission;
use crate::common::{self, GO_TESTS, Weir, Who, files};
use jiff::{Span, Timestamp, tz::TimeZone};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use weir_ledger::database::DatabaseError;
use weir_ledger::reservation::{Answer, Idempotency, Reserver, Submission};

fn reserver(weir: &Weir) -> Reserver {
    Reserver::start(&weir.context.database)
}

async fn storm(reservers: &[Reserver], submissions: Vec<Submission>) -> (usize, usize) {
    let mut tasks = tokio::task::JoinSet::new();
    for (index, submission) in submissions.into_iter().enumerate() {
        let reserver = reservers[index % reservers.len()].clone();
        tasks.spawn(async move { reserver.submit(submission).await.unwrap() });
    }
    let (mut accepted, mut rejected) = (0, 0);
    while let Some(answer) = tasks.join_next().await {
        match answer.unwrap() {
            Answer::Accepted { .. } => accepted += 1,
            Answer::OverQuota { .. } => rejected += 1,
            other => panic!("{other:?}"),
        }
    }
    (accepted, rejected)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_at_once_get_exactly_the_ten_left() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 40).await;
    let counts = storm(&[reserver(&weir)], vec![submission(user, 1); 200]).await;
    assert_eq!(counts, (10, 190));
    let quota = weir.quota(Who::User(user), "analysis").await;
    assert_eq!(
        quota["used"].as_i64().unwrap() + quota["reserved"].as_i64().unwrap(),
        50
    );
    assert_eq!(quota["remaining"], 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_origins_at_once_never_overshoot_together() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let origins: Vec<_> = (0..4).map(|_| reserver(&weir)).collect();
    let counts = storm(&origins, vec![submission(user, 3); 120]).await;
    assert_eq!(counts, (16, 104), "16 times 3 is 48 of 50");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_concurrent_users_each_get_their_limit() {
    let weir = Weir::new().await;
    let mut submissions = Vec::new();
    for _ in 0..40 {
        let user = weir.user("free").await;
        submissions.extend(vec![submission(user, 10); 8]);
    }
    let origins = [reserver(&weir), reserver(&weir)];
    assert_eq!(storm(&origins, submissions).await, (200, 120));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_leaves_nothing_and_has_retry_after() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 50).await;
    let answer = weir
        .post(
            "/api/jobs/analysis",
            Who::User(user),
            &files(&[("a_test.go", GO_TESTS)]),
        )
        .await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.body["title"], "Quota Exceeded");
    assert_eq!(answer.body["quota"]["used"], 50);
    assert_eq!(answer.body["renews_at"], answer.body["quota"]["reset_at"]);
    let counts = weir
        .client()
        .await
        .query_one(
            "SELECT (SELECT count(*) FROM river_job), (SELECT count(*) FROM quota_reservations)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((counts.get::<_, i64>(0), counts.get::<_, i64>(1)), (0, 0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_submission_of_a_group_fails_alone() {
    let weir = Weir::new().await;
    let reserver = reserver(&weir);
    let user = weir.user("pro").await;
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..30 {
        let mut one = submission(user, 1);
        if index % 10 == 3 {
            one.args = json!({ "user_id": user, "text": "a NUL: \u{0}" });
        }
        let reserver = reserver.clone();
        tasks.spawn(async move { reserver.submit(one).await.is_ok() });
    }
    let results = tasks.join_all().await;
    assert_eq!(results.iter().filter(|ok| **ok).count(), 27);
    assert_eq!(weir.quota(Who::User(user), "analysis").await["reserved"], 27);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnected_caller_leaves_a_complete_job_or_none() {
    let weir = Weir::new().await;
    let reserver = reserver(&weir);
    let user = weir.user("pro").await;
    let mut tasks = Vec::new();
    for _ in 0..100 {
        let (reserver, one) = (reserver.clone(), submission(user, 1));
        tasks.push(tokio::spawn(async move { reserver.submit(one).await }));
    }
    for (index, task) in tasks.iter().enumerate() {
        if index % 2 == 0 {
            task.abort();
        }
    }
    for task in tasks {
        let _ = task.await;
    }
    // After one more submission, all earlier ones are done.
    reserver.submit(submission(user, 1)).await.unwrap();
    let row = weir
        .client()
        .await
        .query_one(
            "SELECT (SELECT count(*) FROM river_job), (SELECT count(*) FROM quota_reservations), \
                    (SELECT count(*) FROM weir_jobs), (SELECT reserved FROM quota_balances)",
            &[],
        )
        .await
        .unwrap();
    let jobs: i64 = row.get(0);
    assert!((51..=101).contains(&jobs), "{jobs}");
    assert_eq!([row.get::<_, i64>(1), row.get(2), row.get(3)], [jobs; 3]);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_idempotency_key_never_creates_two_jobs() {
    let weir = Weir::new().await;
    let reservers = [reserver(&weir), reserver(&weir)];
    let user = weir.user("pro").await;
    let mut one = submission(user, 1);
    one.idempotency = Some(Idempotency {
        key: "order-7".to_owned(),
        request_hash: vec![1; 32],
    });
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..40 {
        let (reserver, one) = (reservers[index % 2].clone(), one.clone());
        tasks.spawn(async move { reserver.submit(one).await.unwrap() });
    }
    let answers = tasks.join_all().await;
    let ids: std::collections::BTreeSet<i64> = answers
        .iter()
        .map(|answer| match answer {
            Answer::Accepted { job, .. } => job.id,
            Answer::Repeated { job_id, .. } => *job_id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(
        answers
            .iter()
            .filter(|answer| matches!(answer, Answer::Accepted { .. }))
            .count(),
        1
    );
    assert_eq!(weir.quota(Who::User(user), "analysis").await["reserved"], 1);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_is_per_user_and_request_and_lasts_a_day() {
    let weir = Weir::new().await;
    let (a, b) = (
        Who::User(weir.user("free").await),
        Who::User(weir.user("free").await),
    );
    let body = files(&[("a_test.go", GO_TESTS)]).to_string().into_bytes();
    let other = files(&[("b_test.go", GO_TESTS)]).to_string().into_bytes();
    let key = [("Idempotency-Key", "k1")];
    let id = async |who, body: &Vec<u8>| {
        let answer = weir
            .call("POST", "/api/jobs/analysis", who, &key, body.clone())
            .await;
        (answer.status.as_u16(), answer.body["job"]["id"].as_i64())
    };
    let first = id(a, &body).await;
    assert_eq!(first.0, 202);
    assert_eq!(id(a, &body).await, first, "the same answer again");
    assert_eq!(id(a, &other).await.0, 422, "the same key with another body");
    let theirs = id(b, &body).await;
    assert!(
        theirs.0 == 202 && theirs.1 != first.1,
        "another user's key is another key"
    );
    weir.client()
        .await
        .batch_execute("UPDATE weir_jobs SET submitted_at = submitted_at - interval '25 hours'")
        .await
        .unwrap();
    let later = id(a, &other).await;
    assert!(later.0 == 202 && later.1 != first.1, "free again after a day");
    for bad in ["", &"x".repeat(256)] {
        let answer = weir
            .call(
                "POST",
                "/api/jobs/analysis",
                a,
                &[("Idempotency-Key", bad)],
                body.clone(),
            )
            .await;
        assert_eq!(answer.status, 422);
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folded_submission_keeps_its_idempotency_key() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/programs.toml")]).await;
    let client = weir.client().await;
    let who = Who::User(weir.user("free").await);
    let mut args = files(&[("a_test.go", GO_TESTS)]);
    for member in ["owner", "repo", "commit_sha"] {
        args[member] = member.into();
    }
    let mut others = args.clone();
    others["commit_sha"] = "another".into();
    let post = async |path, key, args: &Value| {
        let key = [("Idempotency-Key", key)];
        let path = format!("/api/jobs/analysis{path}");
        weir.call("POST", &path, who, &key, args.to_string().into_bytes())
            .await
    };
    let job_of = |answer: &common::Answer| answer.body["job"]["id"].as_i64();
    let first = post("", "first", &args).await;
    let folded = post("", "second", &args).await;
    let batch = post("/batch", "batch", &json!([args, others])).await;
    let job = job_of(&first);
    assert_eq!((job_of(&folded), &folded.body["folded"]), (job, &json!(true)));
    assert_eq!(batch.body["jobs"][0]["id"].as_i64(), job);
    let submit = "SELECT outcome, job_id FROM weir_submit('anne', 'analysis', $1, 1, $2)";
    let by_sql = async |args: &Value, key: &str| -> (String, Option<i64>) {
        let options = json!({ "idempotency_key": key });
        let row = client.query_one(submit, &[args, &options]).await.unwrap();
        (row.get(0), row.get(1))
    };
    let annes = by_sql(&args, "first").await.1;
    assert_eq!(by_sql(&args, "second").await, ("folded".to_owned(), annes));

    let working = weir.work().await;
    weir.all_finished().await;
    working.stop().await;
    let again = post("", "second", &args).await;
    assert_eq!((again.status.as_u16(), job_of(&again)), (202, job));
    let again = post("/batch", "batch", &json!([args, others])).await;
    let ids = |answer: &common::Answer| [0, 1].map(|index| answer.body["jobs"][index]["id"].as_i64());
    assert_eq!((again.status.as_u16(), ids(&again)), (202, ids(&batch)));
    assert_eq!(post("", "second", &others).await.status, 422);
    assert_eq!(by_sql(&args, "second").await, ("repeated".to_owned(), annes));
    assert_eq!(by_sql(&others, "second").await.0, "key_reused");
    assert_eq!(weir.jobs().await, 3);
    let age = "UPDATE folded_submissions SET created_at = created_at - interval '25 hours'";
    client.batch_execute(age).await.unwrap();
    let later = post("", "second", &args).await;
    assert_ne!(job_of(&later), job, "free again after a day");
    assert_eq!(job_of(&post("", "third", &args).await), job_of(&later));
    weir.reconcile().await;
    assert_eq!(
        weir.count("folded_submissions").await,
        1,
        "expired keys are deleted"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn weirs_job_rows_equal_those_of_river() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    reserver(&weir).submit(submission(user, 1)).await.unwrap();
    let pool = weir.context.database.river_pool(1).unwrap();
    let river = riverqueue::Client::builder(pool).build().unwrap();

    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(transparent)]
    struct Args(serde_json::Value);
    impl riverqueue::JobArgs for Args {
        const KIND: &'static str = "analysis:analyze";
    }
    let opts = riverqueue::InsertOpts::default()
        .with_queue("analysis_default")
        .with_max_attempts(3);
    river
        .insert(Args(submission(user, 1).args))
        .opts(opts)
        .await
        .unwrap();
    let rows = weir
        .client()
        .await
        .query(
            "SELECT to_jsonb(j) - 'id' - 'created_at' - 'scheduled_at' FROM river_job j ORDER BY id",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(
        rows[0].get::<_, serde_json::Value>(0),
        rows[1].get::<_, serde_json::Value>(0)
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_change_applies_immediately_without_rewriting_rows() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await;
    let reserver = reserver(&weir);
    weir.use_up(user, "analysis", 60).await;
    assert!(matches!(
        reserver.submit(submission(user, 40)).await.unwrap(),
        Answer::Accepted { .. }
    ));
    let client = weir.client().await;
    weir_ledger::plans::ensure_user(&client, user, "free")
        .await
        .unwrap();
    assert!(matches!(
        reserver.submit(submission(user, 1)).await.unwrap(),
        Answer::OverQuota { .. }
    ));
    let quota = weir.quota(Who::User(user), "analysis").await;
    assert_eq!(
        quota,
        json!({"used": 60, "reserved": 40, "limit": 50, "ceiling": null, "overage": 0, "remaining": 0, "reset_at": quota["reset_at"]})
    );
    weir.is_clean().await;
    weir_ledger::plans::ensure_user(&client, user, "enterprise")
        .await
        .unwrap();
    let Answer::Accepted {
        quota: Some(quota), ..
    } = reserver.submit(submission(user, 1_000_000)).await.unwrap()
    else {
        panic!("an unlimited plan has room")
    };
    assert_eq!((quota.month.limit, quota.month.remaining), (None, None));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_reserved_in_one_period_is_never_charged_to_the_next() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let client = weir.client().await;
    let id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    // Moves the job's period into the past: the anchor moves by the rest of the period.
    client
        .execute(
            "UPDATE user_subscriptions SET current_period_start = now() - interval '1 minute' WHERE user_id = $1",
            &[&user],
        )
        .await
        .unwrap();
    let working = weir.work().await;
    weir.finished(id, Who::User(user)).await;
    let quota = weir.quota(Who::User(user), "analysis").await;
    assert_eq!((&quota["used"], &quota["reserved"]), (&json!(0), &json!(0)));
    let charged: i64 = client
        .query_one("SELECT sum(used)::bigint FROM quota_balances", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(charged, 1);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_never_runs_out_of_periods() {
    // No job has to renew anything: an old subscription has a current period.
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let client = weir.client().await;
    client
        .execute(
            "UPDATE user_subscriptions SET current_period_start = '2023-01-31 10:00+00', \
                    current_period_end = '2023-02-28 10:00+00' WHERE user_id = $1",
            &[&user],
        )
        .await
        .unwrap();
    let usage = weir.get("/api/usage", Who::User(user)).await.body;
    let (start, end): (Timestamp, Timestamp) = (
        usage["period"]["start"].as_str().unwrap().parse().unwrap(),
        usage["period"]["end"].as_str().unwrap().parse().unwrap(),
    );
    let now = Timestamp::now();
    assert!(start <= now && now < end, "{usage}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn billing_periods_are_calendar_months_from_the_anchor() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let mut runner = TestRunner::new(Config::default());
    let strategy = proptest::collection::vec((0_i64..2_000_000_000, 0_i64..2_500_000_000), 2000);
    let mut pairs = strategy.new_tree(&mut runner).unwrap().current();
    // Month ends, leap days, and the moments around a boundary.
    for anchor in [
        "2024-01-31T23:59:59Z",
        "2023-12-31T00:00:00Z",
        "2024-02-29T12:00:00Z",
        "2023-08-30T07:00:00Z",
    ] {
        let anchor: Timestamp = anchor.parse().unwrap();
        let zoned = anchor.to_zoned(TimeZone::UTC);
        for month in 0..60 {
            let boundary = zoned
                .checked_add(Span::new().months(month))
                .unwrap()
                .timestamp()
                .as_second();
            pairs.extend([-1, 0, 1].map(|off| (anchor.as_second(), boundary + off)));
        }
    }
    for (anchor, at) in pairs {
        let (anchor, at) = (
            Timestamp::from_second(anchor).unwrap(),
            Timestamp::from_second(at).unwrap(),
        );
        let row = client
            .query_one(
                "SELECT period_start, period_end FROM billing_period($1, $2)",
                &[&anchor, &at],
            )
            .await
            .unwrap();
        let (start, end): (Timestamp, Timestamp) = (row.get(0), row.get(1));
        assert!(
            start <= at && at < end,
            "anchor {anchor}, at {at}: {start} to {end}"
        );
        // Both ends are the anchor plus a whole number of months, by another calendar's count.
        let zoned = anchor.to_zoned(TimeZone::UTC);
        let begin = start.to_zoned(TimeZone::UTC);
        let months =
            i32::from(begin.year() - zoned.year()) * 12 + i32::from(begin.month()) - i32::from(zoned.month());
        let month = |n: i32| zoned.checked_add(Span::new().months(n)).unwrap().timestamp();
        assert_eq!(
            (start, end),
            (month(months), month(months + 1)),
            "anchor {anchor}, at {at}"
        );
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_finds_violations_and_repair_fixes_the_counters() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let mut client = weir.client().await;
    client
        .batch_execute("UPDATE holders SET used = 3, reserved = 5, parked = 4")
        .await
        .unwrap();
    let complaints = weir.complaints().await;
    assert_eq!(
        complaints.iter().filter(|one| one.starts_with("I6")).count(),
        2,
        "{complaints:?}"
    );
    weir_ledger::audit::repair(&mut client).await.unwrap();
    weir.is_clean().await;
    weir.use_up(user, "analysis", 200).await;
    assert!(weir.complaints().await.iter().any(|one| one.starts_with("I1")));
    client.batch_execute("DELETE FROM usage_events").await.unwrap();
    weir.recount().await;
    client
        .batch_execute("UPDATE quota_reservations SET expires_at = now() - interval '1 second'")
        .await
        .unwrap();
    assert!(weir.complaints().await.iter().any(|one| one.starts_with("I4")));
    weir.reconcile().await;
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_never_expires_while_its_job_waits() {
    let weir = Weir::with(&[("RESERVATION_TTL", "1m")]).await;
    let user = weir.user("free").await;
    let id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let client = weir.client().await;
    for _ in 0..3 {
        client
            .batch_execute("UPDATE quota_reservations SET expires_at = now() - interval '5 minutes'")
            .await
            .unwrap();
        weir.reconcile().await;
        let left: f64 = client
            .query_one(
                "SELECT extract(epoch FROM expires_at - now())::float8 FROM quota_reservations WHERE job_id = $1",
                &[&id],
            )
            .await
            .unwrap()
            .get(0);
        assert!(left > 50.0, "{left}");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_ended_or_deleted_elsewhere_releases_its_quota() {
    let weir = Weir::new().await;
    let user = weir.user("enterprise").await;
    let who = Who::User(user);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(weir.analyse(who, "a_test.go", GO_TESTS).await);
    }
    weir.start_elsewhere(ids[0]).await;
    weir.ended_by_other_client(ids[0], "discarded").await;
    weir.ended_by_other_client(ids[1], "cancelled").await;
    weir.client()
        .await
        .execute("DELETE FROM river_job WHERE id = $1", &[&ids[2]])
        .await
        .unwrap();
    weir.reconcile().await;
    let quota = weir.quota(who, "analysis").await;
    assert_eq!((&quota["used"], &quota["reserved"]), (&json!(0), &json!(0)));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_another_client_completes_is_charged_once() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.ended_by_other_client(id, "completed").await;
    for _ in 0..3 {
        weir.reconcile().await;
    }
    let quota = weir.quota(who, "analysis").await;
    assert_eq!((&quota["used"], &quota["reserved"]), (&json!(1), &json!(0)));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_database_is_503_and_the_service_recovers() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("pro").await);
    weir.analyse(who, "a_test.go", GO_TESTS).await;
    let admin = weir.client().await;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let mut statuses = std::collections::BTreeSet::new();
    for _ in 0..10 {
        admin.query(cut, &[]).await.unwrap();
        let answer = weir
            .call(
                "POST",
                "/api/jobs/analysis",
                who,
                &[("Idempotency-Key", "storm")],
                files(&[("a_test.go", GO_TESTS)]).to_string().into_bytes(),
            )
            .await;
        statuses.insert(answer.status.as_u16());
        if answer.status == 503 {
            assert_eq!(answer.headers["retry-after"], "2");
            assert!(
                !answer.body.to_string().contains("terminat"),
                "no internals: {}",
                answer.body
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        statuses.iter().all(|status| [202, 503].contains(status)),
        "{statuses:?}"
    );
    weir.until("the service to heal", async || {
        (weir.get("/api/usage", who).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(
        weir.quota(who, "analysis").await["reserved"],
        2,
        "one before, and one for the key"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_new_users_at_once_all_get_their_job() {
    let weir = Weir::new().await;
    let submissions = (0..10_000).map(|_| submission(Uuid::new_v4(), 1)).collect();
    assert_eq!(
        storm(&[reserver(&weir), reserver(&weir)], submissions).await,
        (10_000, 0)
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exhausted_pool_is_503_and_never_a_hung_request() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let pool = &weir.context.pool;
    let over = CancellationToken::new();
    let mut held = tokio::task::JoinSet::new();
    for _ in 0..pool.max_size() {
        let (pool, over) = (pool.clone(), over.clone());
        held.spawn(async move {
            pool.within(Duration::from_secs(60), async |_| {
                over.cancelled().await;
                Ok::<_, DatabaseError>(())
            })
            .await
        });
    }
    weir.until("every connection to be taken", async || {
        (pool.free() == 0).then_some(())
    })
    .await;
    let started = std::time::Instant::now();
    let answer = weir.get("/api/usage", who).await;
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert_eq!(answer.headers["retry-after"], "2");
    assert!(started.elapsed() < Duration::from_secs(10));
    over.cancel();
    held.join_all().await;
    assert_eq!(weir.get("/api/usage", who).await.status, 200);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_amount_that_does_not_fit_is_refused_before_a_job_is_accepted() {
    let weir = Weir::new().await;
    let user = weir.user("enterprise").await;
    let who = Who::User(user);
    weir.use_up(user, "analysis", i64::MAX - 3).await;
    let first = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let client = weir.client().await;
    let submit = async |amount: i64| -> String {
        let sql = "SELECT outcome FROM weir_submit($1, 'analysis', '{}', $2)";
        let row = client.query_one(sql, &[&user.to_string(), &amount]).await;
        row.unwrap().get("outcome")
    };
    assert_eq!(submit(3).await, "too_large");
    assert_eq!(submit(1).await, "admitted");
    let last = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let body = files(&[("a_test.go", GO_TESTS)]);
    for (path, body) in [
        ("/api/jobs/analysis", body.clone()),
        ("/api/jobs/analysis/batch", json!([body])),
    ] {
        let answer = weir.post(path, who, &body).await;
        assert_eq!(answer.status, 422, "{path}: {}", answer.body);
    }
    weir.start_elsewhere(first).await;
    let extend = format!("SELECT outcome FROM weir_extend({first}, 1, 1)");
    let outcome: String = client.query_one(&extend, &[]).await.unwrap().get("outcome");
    assert_eq!(outcome, "too_large");
    let complete = format!("SELECT outcome FROM weir_complete({first}, 1)");
    let outcome: String = client.query_one(&complete, &[]).await.unwrap().get("outcome");
    assert_eq!(outcome, "done");
    let cancelled = weir
        .call("DELETE", &format!("/api/jobs/{last}"), who, &[], Vec::new())
        .await;
    assert_eq!(cancelled.body["status"], "cancelled", "{}", cancelled.body);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_covers_the_time_and_the_priority() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let later = |hours| Timestamp::now() + jiff::SignedDuration::from_hours(hours);
    let (one, other) = (later(1).to_string(), later(2).to_string());
    let body = files(&[("a_test.go", GO_TESTS)]);
    let single = body.to_string().into_bytes();
    let batch = json!([body]).to_string().into_bytes();
    for (path, body) in [
        ("/api/jobs/analysis", single),
        ("/api/jobs/analysis/batch", batch),
    ] {
        let send = async |headers: &[(&str, &str)]| {
            let headers = [&[("idempotency-key", path)], headers].concat();
            let answer = weir.call("POST", path, who, &headers, body.clone()).await;
            answer.status.as_u16()
        };
        let first = [("weir-run-at", one.as_str())];
        assert_eq!(send(&first).await, 202, "{path}");
        assert_eq!(send(&first).await, 202, "{path}");
        assert_eq!(send(&[("weir-run-at", &other)]).await, 422, "{path}");
        assert_eq!(send(&[]).await, 422, "{path}");
        assert_eq!(send(&[first[0], ("weir-priority", "2")]).await, 422, "{path}");
        assert_eq!(send(&[first[0], ("weir-priority", "1")]).await, 202, "{path}");
    }
    let client = weir.client().await;
    let submit = async |options: serde_json::Value| -> String {
        let sql = "SELECT outcome FROM weir_submit('anne', 'analysis', '{}', 1, $1)";
        client.query_one(sql, &[&options]).await.unwrap().get("outcome")
    };
    let first = json!({ "idempotency_key": "k", "run_at": one });
    assert_eq!(submit(first.clone()).await, "parked");
    assert_eq!(submit(first).await, "repeated");
    let second = json!({ "idempotency_key": "k", "run_at": other });
    assert_eq!(submit(second).await, "key_reused");
    let third = json!({ "idempotency_key": "k", "run_at": one, "priority": 2 });
    assert_eq!(submit(third).await, "key_reused");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_that_has_passed_still_repeats_the_same_submission() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let who = Who::Subject("anne");
    let body = files(&[("a_test.go", GO_TESTS)]).to_string().into_bytes();
    // The test cannot move its clock past the start time between the two submissions, so both are in the past.
    let past = [("idempotency-key", "k"), ("weir-run-at", "2026-01-01T00:00:00Z")];
    let at_once = [("idempotency-key", "k")];
    let send = async |headers: &[(&str, &str)]| {
        let answer = weir
            .call("POST", "/api/jobs/analysis", who, headers, body.clone())
            .await;
        answer.status.as_u16()
    };
    assert_eq!(send(&past).await, 202);
    assert_eq!(send(&past).await, 202);
    assert_eq!(send(&at_once).await, 422);
    let submit = async |options: serde_json::Value| -> String {
        let sql = "SELECT outcome FROM weir_submit('bob', 'analysis', '{}', 1, $1)";
        client.query_one(sql, &[&options]).await.unwrap().get("outcome")
    };
    let past = json!({ "idempotency_key": "k", "run_at": "2026-01-01T00:00:00Z" });
    assert_eq!(submit(past.clone()).await, "admitted");
    assert_eq!(submit(past).await, "repeated");
    assert_eq!(submit(json!({ "idempotency_key": "k" })).await, "key_reused");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_members_does_not_change_a_request() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let key = [("idempotency-key", "k")];
    let mut ids = Vec::new();
    for body in [
        r#"{"files":[{"path":"a_test.go","content":""}],"owner":"o","repo":"r"}"#,
        r#"{"repo": "r", "owner": "o", "files": [{"content": "", "path": "a_test.go"}]}"#,
    ] {
        let answer = weir
            .call("POST", "/api/jobs/analysis", who, &key, body.as_bytes().to_vec())
            .await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        ids.push(answer.body["job"]["id"].as_i64().unwrap());
    }
    assert_eq!(ids[0], ids[1]);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_submission_is_answered_after_its_job_was_deleted() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let body = files(&[("a_test.go", GO_TESTS)]);
    let client = weir.client().await;
    let send = async |path: &str, body: &serde_json::Value| {
        let key = [("idempotency-key", path)];
        weir.call("POST", path, who, &key, body.to_string().into_bytes())
            .await
    };
    let (single, batch) = ("/api/jobs/analysis", "/api/jobs/analysis/batch");
    let all = json!([body]);
    let first = send(single, &body).await.body["job"].clone();
    let second = send(batch, &all).await.body["jobs"][0].clone();
    let working = weir.work().await;
    for job in [&first, &second] {
        weir.finished(job["id"].as_i64().unwrap(), who).await;
        weir.released(who, "analysis").await;
    }
    working.stop().await;
    client.batch_execute("DELETE FROM river_job").await.unwrap();
    let single = send(single, &body).await;
    assert_eq!(single.status, 202, "{}", single.body);
    let batch = send(batch, &all).await;
    assert_eq!(batch.status, 202, "{}", batch.body);
    for (then, now) in [(&first, &single.body["job"]), (&second, &batch.body["jobs"][0])] {
        assert_eq!(
            (&now["id"], &now["service"], &now["status"], &now["charged"]),
            (&then["id"], &json!("analysis"), &json!("completed"), &json!(1)),
            "{now}"
        );
    }
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_amount_that_no_period_allows_is_refused_without_retry_after() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let body = files(&[("a_test.go", GO_TESTS)]);
    let answer = weir
        .post("/api/jobs/analysis/batch", who, &json!(vec![body; 60]))
        .await;
    assert_eq!(answer.status, 429, "{}", answer.body);
    let detail = answer.body["detail"].as_str().unwrap();
    assert!(detail.contains("allows 50 per month"), "{detail}");
    assert_eq!(answer.headers.get("retry-after"), None);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_over_24_days_is_only_in_the_body() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 50).await;
    let client = weir.client().await;
    let body = files(&[("a_test.go", GO_TESTS)]);
    // The period started this many days ago. It ends in more than 24 days, or in fewer.
    for (days, is_told) in [(0, false), (20, true)] {
        let anchor = format!(
            "UPDATE user_subscriptions SET current_period_start = date_trunc('day', now()) - interval '{days} days'; \
             UPDATE usage_events SET period_start = period_start_of(user_id, now())"
        );
        client.batch_execute(&anchor).await.unwrap();
        weir.recount().await;
        let answer = weir.post("/api/jobs/analysis", Who::User(user), &body).await;
        assert_eq!(answer.status, 429, "{}", answer.body);
        let wait = answer.headers.get("retry-after");
        assert_eq!(wait.is_some(), is_told, "{days}: {wait:?}");
        if let Some(wait) = wait {
            let wait: i64 = wait.to_str().unwrap().parse().unwrap();
            let renews_at: Timestamp = answer.body["renews_at"].as_str().unwrap().parse().unwrap();
            let rest = renews_at.as_second() - Timestamp::now().as_second();
            assert!(rest <= wait, "{rest} {wait}");
        }
        assert_eq!(answer.body["renews_at"], answer.body["quota"]["reset_at"]);
        assert!(answer.body["renews_at"].is_string(), "{}", answer.body);
    }
    weir.abandon().await;
}

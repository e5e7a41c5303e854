//! Soft limits: jobs above the limit are accepted up to the ceiling, after grants, and the overage is reported
//! everywhere.

use crate::common::process::command;
use crate::common::services_file::ServicesFile;
use crate::common::{Answer, GO_TESTS, Weir, Who, files};
use serde_json::{Value, json};
use uuid::Uuid;
use weir_ledger::control::{self, NewGrant, Override, User};
use weir_ledger::holder::Holders;
use weir_ledger::settlement::{Ended, Success};
use weir_policy::span::Span;

/// The shipped services file with another limit of the free plan, in a separate file.
fn shop(limit: &str) -> String {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../weir.toml");
    let shipped = std::fs::read_to_string(shipped).unwrap();
    let changed = shipped.replace(
        "limits = { specview = 5000, analysis = 50 }",
        &format!("limits = {{ specview = 5000, analysis = {limit} }}"),
    );
    assert_ne!(shipped, changed);
    changed
}

async fn submit(weir: &Weir, user: Uuid) -> Answer {
    weir.post(
        "/api/jobs/analysis",
        Who::User(user),
        &files(&[("a_test.go", GO_TESTS)]),
    )
    .await
}

/// Used and reserved, overage, and remaining.
fn amounts(quota: &Value) -> [i64; 3] {
    let taken = quota["used"].as_i64().unwrap() + quota["reserved"].as_i64().unwrap();
    [
        taken,
        quota["overage"].as_i64().unwrap(),
        quota["remaining"].as_i64().unwrap(),
    ]
}

async fn user_of(weir: &Weir, user: Uuid) -> User {
    User::of(Holders::load(&weir.client().await).await.unwrap(), user.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_limit_grants_pay_first_and_overage_ends_at_the_ceiling() {
    let weir = Weir::serving(&shop("{ limit = 50, ceiling = 60 }"), &[]).await;
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 45).await;
    let wanted = NewGrant {
        meter: "analysis",
        amount: 3,
        expires_at: None,
        reason: "bought",
    };
    let mut client = weir.client().await;
    let account = user_of(&weir, user).await;
    control::grant(&mut client, "shell:test", &account, &wanted, None)
        .await
        .unwrap();
    let (mut jobs, mut all_amounts) = (Vec::new(), Vec::new());
    for _ in 0..18 {
        let answer = submit(&weir, user).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        jobs.push(answer.body["job"]["id"].as_i64().unwrap());
        all_amounts.push(amounts(&answer.body["quota"]));
    }
    // Five from the plan, three from the grant, and ten above the limit.
    assert_eq!(all_amounts[0], [46, 0, 17]);
    assert_eq!(all_amounts[4], [50, 0, 13]);
    assert_eq!(all_amounts[7], [53, 0, 10]);
    assert_eq!(all_amounts[8], [54, 1, 9]);
    assert_eq!(all_amounts[17], [63, 10, 0]);
    let refused = submit(&weir, user).await;
    assert_eq!(refused.status, 429);
    let quota = &refused.body["quota"];
    assert_eq!((&quota["limit"], &quota["ceiling"]), (&json!(50), &json!(60)));
    let policy = refused.headers["ratelimit-policy"].to_str().unwrap();
    assert!(policy.contains("q=60"), "{policy}");
    assert_eq!(weir.complaints().await, [""; 0]);

    // Accepted overage is charged as overage, by a worker and in SQL.
    for (n, job) in [(0, jobs[0]), (7, jobs[7]), (16, jobs[16])] {
        client
            .execute("UPDATE river_job SET state = 'available' WHERE id = $1", &[&job])
            .await
            .unwrap();
        weir.start_elsewhere(job).await;
        let success = Success {
            attempt: 1,
            job_created_at: None,
            output: json!(null),
            used: None,
        };
        let ended = Ended {
            job_id: job,
            holder: Some(user),
            success: Some(success),
        };
        weir.context.settler.settle(ended).await.unwrap();
        let row = client
            .query_one(
                "SELECT from_grants, overage FROM usage_events WHERE job_id = $1",
                &[&job],
            )
            .await
            .unwrap();
        let charged: (i64, i64) = (row.get(0), row.get(1));
        assert_eq!(charged, (i64::from(n == 7), i64::from(n == 16)), "job {n}");
    }
    weir.start_elsewhere(jobs[17]).await;
    client
        .execute("SELECT weir_complete($1, 1, NULL)", &[&jobs[17]])
        .await
        .unwrap();
    let bearer = {
        let key = "weir_sk_reader";
        let scopes = [control::Scope::Admin];
        control::create_key(&mut client, "shell:test", "reader", key, &scopes, None)
            .await
            .unwrap();
        format!("Bearer {key}")
    };
    // Visible once no older transaction of the server, in any database, can still write an event.
    let overage: i64 = weir
        .until("all usage events", async || {
            let feed = weir
                .with_key("GET", "/admin/usage/events", &bearer, "-", "")
                .await
                .body;
            let events = feed["events"].as_array().unwrap();
            let overages = events
                .iter()
                .map(|event| event["data"]["overage"].as_i64().unwrap());
            (events.len() as i64 == weir.count("usage_events").await).then(|| overages.sum())
        })
        .await;
    assert_eq!(overage, 2);

    // Ungranted usage is a violation above the ceiling, but not above the limit.
    weir.is_clean().await;
    weir.use_up(user, "analysis", 1).await;
    let complaints = weir.complaints().await;
    assert!(
        complaints
            .iter()
            .any(|one| one.starts_with("I1") && one.contains("limit 60")),
        "{complaints:?}"
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soft_day_limit_does_not_count_as_monthly_overage() {
    let weir = Weir::serving(&shop("{ month = 50, day = { limit = 2, ceiling = 4 } }"), &[]).await;
    let user = weir.user("free").await;
    let mut jobs = Vec::new();
    for _ in 0..4 {
        let answer = submit(&weir, user).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        jobs.push(answer.body["job"]["id"].as_i64().unwrap());
    }
    let refused = submit(&weir, user).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.body["windows"][0]["window"], "day");
    assert_eq!(refused.body["windows"][0]["overage"], 2);
    let client = weir.client().await;
    let held: i64 = client
        .query_one("SELECT sum(overage)::bigint FROM quota_reservations", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(held, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extend_stops_at_the_ceiling_and_overrides_are_hard() {
    let weir = Weir::serving(&shop("{ limit = 50, ceiling = 60 }"), &[]).await;
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 45).await;
    let answer = submit(&weir, user).await;
    let job = answer.body["job"]["id"].as_i64().unwrap();
    weir.start_elsewhere(job).await;
    let mut client = weir.client().await;
    let extend = async |more: i64| {
        let extend = "SELECT outcome, quota FROM weir_extend($1, 1, $2)";
        let row = weir
            .client()
            .await
            .query_one(extend, &[&job, &more])
            .await
            .unwrap();
        (row.get::<_, String>("outcome"), amounts(&row.get("quota")))
    };
    assert_eq!(extend(15).await, ("over_quota".to_owned(), [46, 0, 14]));
    assert_eq!(extend(9).await, ("extended".to_owned(), [55, 5, 5]));
    client
        .execute("SELECT weir_complete($1, 1, NULL, 8)", &[&job])
        .await
        .unwrap();
    let overage: i64 = client
        .query_one("SELECT overage FROM usage_events WHERE job_id = $1", &[&job])
        .await
        .unwrap()
        .get(0);
    assert_eq!(overage, 3, "eight were used, five of them the plan's");
    weir.is_clean().await;

    let (other, own) = (
        weir.user("free").await,
        Override {
            limits: [(Span::Month, Some(1))].into(),
            slots: None,
            burst: None,
            expires_at: None,
        },
    );
    let account = user_of(&weir, other).await;
    control::set_override(&mut client, "shell:test", &account, "analysis", &own)
        .await
        .unwrap();
    assert_eq!(submit(&weir, other).await.status, 202);
    assert_eq!(submit(&weir, other).await.status, 429);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn soft_limits_come_from_the_services_file_and_are_validated() {
    let weir = Weir::new().await;
    let message = |shop: &str, arguments: &[&str]| {
        let output = command(&weir, arguments)
            .env("WEIR_CONFIG", ServicesFile::new(shop).name())
            .output()
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    for (limit, expected) in [
        ("{ limit = 50, ceiling = 50 }", "must be more than the limit"),
        ("{ limit = 50 }", "ceiling = 1500"),
        ("{ limit = 50, ceiling = 60, soft = true }", "ceiling = 1500"),
        (
            "{ month = { limit = 9, ceiling = 9999999999999999 } }",
            "999999999999999",
        ),
    ] {
        let message = message(&shop(limit), &["plans"]);
        assert!(message.contains(expected), "{limit}: {message}");
    }
    let shop = shop("{ month = { limit = 50, ceiling = 60 }, hour = 20 }");
    let migrated = message(&shop, &["migrate"]);
    assert!(
        migrated.contains("plan free: analysis per month 50 -> 50 up to 60"),
        "{migrated}"
    );
    let plans = message(&shop, &["plans"]);
    assert!(
        plans.contains("50 up to 60") && plans.contains("has the same catalogue"),
        "{plans}"
    );
    weir.end().await;
}

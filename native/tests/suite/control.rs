//! The control plane: service keys, and the changes that operators and billing make with them.

use std::time::{Duration, Instant};

use crate::common::{Answer, GO_TESTS, Weir, Who, files};
use axum::body::Body;
use axum::http::Request;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use weir_ledger::control::{self, ControlError, Scope, User};
use weir_ledger::holder::Holders;
use weir_ledger::migrate;

/// A backend with a key.
struct Backend<'a> {
    weir: &'a Weir,
    key: String,
}

impl<'a> Backend<'a> {
    async fn new(weir: &'a Weir, scopes: &[Scope]) -> Self {
        Self::until(weir, scopes, None).await
    }

    async fn until(weir: &'a Weir, scopes: &[Scope], ends: Option<Timestamp>) -> Self {
        let key = format!("weir_sk_{}", Uuid::new_v4().simple());
        let mut client = weir.client().await;
        control::create_key(&mut client, "shell:test", &key[8..], &key, scopes, ends)
            .await
            .unwrap();
        Self { weir, key }
    }

    async fn operator(weir: &'a Weir) -> Self {
        Self::new(weir, &[Scope::Admin]).await
    }

    async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {}", self.key));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.weir
            .send(request.body(Body::from(body.to_owned())).unwrap())
            .await
    }

    async fn get(&self, path: &str) -> Value {
        let answer = self.call("GET", path, &[], "").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body
    }

    async fn put(&self, path: &str, body: &Value) -> Answer {
        self.call("PUT", path, &[], &body.to_string()).await
    }

    async fn post(&self, path: &str, key: &str, body: &Value) -> Answer {
        self.call("POST", path, &[("idempotency-key", key)], &body.to_string())
            .await
    }

    /// An event of the payment provider's, `second` seconds after its first.
    async fn plan(&self, user: Uuid, plan: &str, event: &str, second: i64, effective: &str) -> Value {
        let at = Timestamp::from_second(1_800_000_000 + second).unwrap();
        let body = json!({ "plan": plan, "event_id": event, "occurred_at": at, "effective": effective });
        let answer = self.put(&format!("/admin/holders/{user}/plan"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.body
    }

    async fn actions(&self) -> Vec<String> {
        let log = self.get("/admin/audit-log").await;
        let changes = log["changes"].as_array().unwrap();
        changes
            .iter()
            .map(|change| change["action"].as_str().unwrap().to_owned())
            .collect()
    }
}

async fn user_of(weir: &Weir, subject: &str) -> User {
    let holders = Holders::load(&weir.client().await).await.unwrap();
    User::of(holders, subject.parse().unwrap())
}

fn analysis() -> String {
    files(&[("a_test.go", GO_TESTS)]).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_acts_on_behalf_within_its_keys_scopes() {
    let weir = Weir::new().await;
    let backend = Backend::new(&weir, &[Scope::Submit, Scope::Read]).await;
    let zoe = [("weir-on-behalf-of", "Zo%C3%AB of Utrecht")];
    // Unencoded, for clients that can send it.
    let raw = [("weir-on-behalf-of", "Zoë of Utrecht")];
    let answer = backend
        .call("POST", "/api/jobs/analysis", &zoe, &analysis())
        .await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let made_up = answer.headers["x-request-id"].to_str().unwrap();
    assert!(Uuid::parse_str(made_up).is_ok(), "{made_up}");
    let asks = [zoe[0], ("x-request-id", "req_7")];
    let answer_with_id = backend.call("GET", "/api/usage", &asks, "").await;
    assert_eq!(answer_with_id.headers["x-request-id"], "req_7");
    for path in ["/admin/audit-log", "/nowhere"] {
        let refused = backend.call("GET", path, &[], "").await;
        assert!(refused.headers.contains_key("x-request-id"), "{path}");
    }
    let operator = Backend::operator(&weir).await;
    let log = operator
        .call("GET", "/admin/audit-log", &[("x-request-id", "req_8")], "")
        .await;
    assert_eq!(log.headers["x-request-id"], "req_8");
    let own = Who::Subject("Zoë of Utrecht");
    let id = answer.body["job"]["id"].as_i64().unwrap();
    assert_eq!(weir.get(&format!("/api/jobs/{id}"), own).await.status, 200);
    for name in [&zoe, &raw] {
        let usage = backend.call("GET", "/api/usage", name, "").await;
        assert_eq!(usage.body["analysis"]["reserved"], 1);
    }
    let cancelled = backend.call("DELETE", &format!("/api/jobs/{id}"), &zoe, "").await;
    assert_eq!(cancelled.body["status"], "cancelled");

    // Another user's job, one without an owner, and a header with several users.
    let other = [("weir-on-behalf-of", "another user")];
    let answer = backend.call("GET", &format!("/api/jobs/{id}"), &other, "").await;
    assert_eq!(answer.status, 404);
    let two = [zoe[0], other[0]];
    for wrong in [&[][..], &two, &[("weir-on-behalf-of", "")]] {
        let answer = backend.call("GET", "/api/usage", wrong, "").await;
        assert_eq!(answer.status, 422, "{}", answer.body);
    }
    let reader = Backend::new(&weir, &[Scope::Read]).await;
    assert_eq!(reader.call("GET", "/api/usage", &zoe, "").await.status, 200);
    let refused = reader.call("POST", "/api/jobs/analysis", &zoe, &analysis()).await;
    assert_eq!(refused.status, 403);
    assert!(
        refused.body["detail"].as_str().unwrap().contains("submit"),
        "{}",
        refused.body
    );
    assert_eq!(backend.call("GET", "/admin/audit-log", &[], "").await.status, 403);

    // The header alone does not identify anyone, and neither does a request through the edge.
    let request = Request::builder().uri("/api/usage").header(zoe[0].0, zoe[0].1);
    assert_eq!(weir.send(request.body(Body::empty()).unwrap()).await.status, 401);
    let anonymous = Who::Address("198.51.100.9");
    let usage = weir.call("GET", "/api/usage", anonymous, &zoe, Vec::new()).await;
    assert_eq!(usage.body["plan"], "anonymous");
    let bearer = format!("Bearer {}", backend.key);
    let both = [("authorization", bearer.as_str()), zoe[0]];
    let answer = weir.call("GET", "/api/usage", anonymous, &both, Vec::new()).await;
    assert_eq!(answer.status, 401, "a key that came through the edge");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_keys_are_answered_slowly_and_do_not_delay_others() {
    let weir = Weir::new().await;
    let operator = Backend::operator(&weir).await;
    let path = "/admin/audit-log";
    let ended = Backend::until(&weir, &[Scope::Admin], Some(Timestamp::now())).await;
    let revoked = Backend::operator(&weir).await;
    assert_eq!(revoked.call("GET", path, &[], "").await.status, 200);
    let mut client = weir.client().await;
    assert!(
        control::revoke_key(&mut client, "shell:test", &revoked.key[8..])
            .await
            .unwrap()
    );
    let wrong = Backend {
        weir: &weir,
        key: format!("{}x", operator.key),
    };
    for (backend, reason) in [(&ended, "expired"), (&revoked, "revoked"), (&wrong, "unknown")] {
        let started = Instant::now();
        let answer = backend.call("GET", path, &[], "").await;
        assert_eq!(answer.status, 401);
        assert!(
            answer.body["detail"].as_str().unwrap().contains(reason),
            "{}",
            answer.body
        );
        assert!(started.elapsed() >= Duration::from_millis(900), "{reason}");
    }
    // Many at once: the right key is answered, and the wrong ones do not wait for each other.
    let started = Instant::now();
    let guesses = futures_util::future::join_all((0..200).map(|_| wrong.call("GET", path, &[], "")));
    let right = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let started = Instant::now();
        assert_eq!(operator.call("GET", path, &[], "").await.status, 200);
        started.elapsed()
    };
    let (guesses, right) = tokio::join!(guesses, right);
    assert!(guesses.iter().all(|answer| answer.status == 401));
    // In sequence, the wrong ones would take 200 s.
    assert!(right < Duration::from_secs(30), "{right:?}");
    assert!(started.elapsed() < Duration::from_secs(60));

    // The database does not contain the key, and the last use is written once a minute.
    let rows: Vec<(String, i64)> = client
        .query(
            "SELECT to_jsonb(k)::text, extract(epoch FROM last_used_at)::bigint FROM service_keys k \
                WHERE last_used_at IS NOT NULL",
            &[],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    assert_eq!(rows.len(), 2, "those that were accepted");
    assert!(rows.iter().all(|(row, _)| !row.contains("weir_sk_")));
    let version = "SELECT xmin::text FROM service_keys WHERE name = $1";
    let name = &operator.key[8..];
    let before: String = client.query_one(version, &[&name]).await.unwrap().get(0);
    operator.get(path).await;
    let after: String = client.query_one(version, &[&name]).await.unwrap().get(0);
    assert_eq!(before, after);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_changes_do_not_delay_maintenance() {
    let weir = Weir::new().await;
    let mut operator = weir.client().await;
    let open = operator.transaction().await.unwrap();
    open.execute(
        "INSERT INTO admin_log (actor, action) VALUES ('shell:test', 'test')",
        &[],
    )
    .await
    .unwrap();
    let writer = weir.writer_session().await;
    assert_eq!(control::apply_scheduled(&writer).await.unwrap(), 0);
    open.rollback().await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_start_parked_jobs_and_old_events_are_ignored() {
    let weir = Weir::new().await;
    let backend = Backend::operator(&weir).await;
    let user = weir.user("free").await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await);
    }
    let stopped = tokio_util::sync::CancellationToken::new();
    let maintenance = tokio::spawn(weir::work::reconcile::run(weir.another(&[]), stopped.clone()));
    let parked =
        async || backend.get(&format!("/admin/holders/{user}")).await["meters"]["analysis"]["parked"].clone();
    assert_eq!(parked().await, 2);
    weir.maintenance_started().await;

    let answer = backend.plan(user, "pro", "evt_2", 20, "now").await;
    assert_eq!(
        (&answer["plan"], &answer["applied"]),
        (&json!("pro"), &json!(true))
    );
    weir.until("the waiting jobs to get their slots", async || {
        (parked().await == 0).then_some(())
    })
    .await;

    let again = backend.plan(user, "pro", "evt_2", 20, "now").await;
    assert_eq!(
        (&again["applied"], &again["repeated"]),
        (&json!(true), &json!(true))
    );
    let late = backend.plan(user, "free", "evt_1", 10, "now").await;
    assert_eq!((&late["plan"], &late["applied"]), (&json!("pro"), &json!(false)));
    let actions = backend.actions().await;
    assert_eq!(
        actions,
        ["key.create", "plan.set"],
        "changes without effect are not in the log"
    );

    // The same id with other contents is an error, and so are an unknown plan and an invalid body.
    let path = format!("/admin/holders/{user}/plan");
    let at = Timestamp::now();
    for (body, status) in [
        (
            json!({ "plan": "free", "event_id": "evt_2", "occurred_at": at }),
            409,
        ),
        (
            json!({ "plan": "gold", "event_id": "evt_3", "occurred_at": at }),
            422,
        ),
        (json!({ "plan": "free", "event_id": "evt_3" }), 422),
        (json!({ "plan": "free", "event_id": "", "occurred_at": at }), 422),
        (
            json!({ "plan": "free", "event_id": "evt\0", "occurred_at": at }),
            422,
        ),
        // Milliseconds read as seconds, or a mistyped year: every later event would count as older.
        (
            json!({ "plan": "free", "event_id": "evt_3", "occurred_at": "2062-01-31T00:00:00Z" }),
            422,
        ),
    ] {
        let answer = backend.put(&path, &body).await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    stopped.cancel();
    maintenance.await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_change_at_period_end_holds_without_maintenance() {
    let weir = Weir::new().await;
    let backend = Backend::operator(&weir).await;
    let user = weir.user("pro").await;
    let path = format!("/admin/holders/{user}");
    let answer = backend.plan(user, "free", "evt_1", 10, "period_end").await;
    assert_eq!(
        (&answer["plan"], &answer["next_plan"]["plan"]),
        (&json!("pro"), &json!("free"))
    );
    assert_eq!(
        answer["next_plan"]["at"],
        answer["meters"]["analysis"]["windows"][0]["reset_at"]
    );
    let client = weir.client().await;
    let fall_due = async || {
        client
            .execute(
                "UPDATE user_subscriptions SET next_plan_at = now() WHERE user_id = $1",
                &[&user],
            )
            .await
            .unwrap()
    };
    fall_due().await;
    assert_eq!(backend.get(&path).await["plan"], "free");
    let quota = weir.quota(Who::User(user), "analysis").await;
    assert_eq!(quota["limit"], 50);
    weir.use_up(user, "analysis", 50).await;
    let body = files(&[("a_test.go", GO_TESTS)]);
    assert_eq!(
        weir.post("/api/jobs/analysis", Who::User(user), &body)
            .await
            .status,
        429
    );
    // The next change follows the plan that was in force by then.
    let answer = backend.plan(user, "enterprise", "evt_2", 20, "period_end").await;
    assert_eq!(
        (&answer["plan"], &answer["next_plan"]["plan"]),
        (&json!("free"), &json!("enterprise"))
    );
    // A change with immediate effect replaces it.
    let answer = backend.plan(user, "pro_plus", "evt_3", 30, "now").await;
    assert_eq!(
        (&answer["plan"], &answer["next_plan"]),
        (&json!("pro_plus"), &Value::Null)
    );

    backend.plan(user, "free", "evt_4", 40, "period_end").await;
    fall_due().await;
    weir.reconcile().await;
    let row = client
        .query_one(
            "SELECT next_plan_at FROM user_subscriptions WHERE user_id = $1",
            &[&user],
        )
        .await
        .unwrap();
    assert_eq!(row.get::<_, Option<Timestamp>>(0), None);
    assert_eq!(backend.actions().await.last().unwrap(), "plan.due");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_apply_everywhere_until_they_expire() {
    let weir = Weir::new().await;
    let backend = Backend::operator(&weir).await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    let path = format!("/admin/holders/{user}/overrides/analysis");
    let body = files(&[("a_test.go", GO_TESTS)]);
    let submit = async || weir.post("/api/jobs/analysis", who, &body).await.status;
    weir.use_up(user, "analysis", 49).await;
    assert_eq!(submit().await, 202);
    assert_eq!(submit().await, 429);
    let over = json!({ "slots": 2, "expires_at": Timestamp::now() });
    assert_eq!(backend.put(&path, &over).await.status, 422);
    for burst in [0, 1, 1_000_001] {
        let low = json!({ "slots": 2, "burst": burst });
        assert_eq!(backend.put(&path, &low).await.status, 422, "{burst}");
    }
    assert_eq!(backend.put(&path, &json!({ "burst": 9 })).await.status, 200);
    let wanted = json!({ "limits": { "month": 53 }, "slots": 2, "burst": 3 });
    let answer = backend.put(&path, &wanted).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let analysis = &answer.body["meters"]["analysis"];
    assert_eq!(analysis["windows"][0]["limit"], 53);
    assert_eq!(
        (&analysis["slots"]["limit"], &analysis["slots"]["burst"]),
        (&json!(2), &json!(3))
    );
    assert_eq!(analysis["overrides"]["limits"], json!({ "month": 53 }));
    assert_eq!(weir.quota(who, "analysis").await["limit"], 53);
    for status in [202, 202, 202, 429] {
        assert_eq!(submit().await, status);
    }
    // Two have a slot. The audit uses the same limit.
    let held = backend.get(&format!("/admin/holders/{user}")).await["meters"]["analysis"].clone();
    assert_eq!(
        (&held["slots"]["in_use"], &held["parked"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(weir.complaints().await, Vec::<String>::new());
    // Additional slots go to parked jobs, and unlimited is unlimited.
    let wanted = json!({ "limits": { "month": null }, "slots": 4 });
    assert_eq!(backend.put(&path, &wanted).await.status, 200);
    weir.reconcile().await;
    let held = backend.get(&format!("/admin/holders/{user}")).await["meters"]["analysis"].clone();
    assert_eq!(
        (&held["slots"]["in_use"], &held["parked"]),
        (&json!(4), &json!(0))
    );
    assert_eq!(weir.quota(who, "analysis").await["limit"], Value::Null);
    // It expires by the clock alone.
    let client = weir.client().await;
    client
        .execute(
            "UPDATE limit_overrides SET expires_at = now() WHERE user_id = $1",
            &[&user],
        )
        .await
        .unwrap();
    assert_eq!(submit().await, 429);
    let answer = backend.call("DELETE", &path, &[], "").await;
    assert_eq!(answer.body["meters"]["analysis"]["overrides"], Value::Null);
    for (path, wanted, status) in [
        (path.clone(), json!({}), 422),
        (path.clone(), json!({ "limits": { "month": -1 } }), 422),
        (path.clone(), json!({ "limits": { "hour": 5 } }), 422),
        (path.clone(), json!({ "slots": 0 }), 422),
        (path.replace("/analysis", "/nothing"), json!({ "slots": 1 }), 404),
    ] {
        let answer = backend.put(&path, &wanted).await;
        assert_eq!(answer.status, status, "{wanted}: {}", answer.body);
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adjustment_is_booked_once_and_limited_to_the_usage() {
    let weir = Weir::new().await;
    let backend = Backend::operator(&weir).await;
    let user = weir.user("free").await;
    weir.use_up(user, "analysis", 40).await;
    let path = format!("/admin/holders/{user}/adjustments");
    let refund = json!({ "meter": "analysis", "amount": -15, "reason": "our outage" });
    let first = backend.post(&path, "refund-1", &refund).await;
    assert_eq!((first.status.as_u16(), &first.body["used"]), (201, &json!(25)));
    let again = backend.post(&path, "refund-1", &refund).await;
    assert_eq!((again.status.as_u16(), &again.body), (201, &first.body));
    assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 25);
    let more = |amount: i64| json!({ "meter": "analysis", "amount": amount, "reason": "?" });
    assert_eq!(backend.post(&path, "refund-1", &more(-1)).await.status, 409);
    assert_eq!(backend.post(&path, "refund-2", &more(-26)).await.status, 422);
    assert_eq!(backend.post(&path, "refund-2", &more(0)).await.status, 422);
    assert_eq!(
        backend
            .call("POST", &path, &[], &more(1).to_string())
            .await
            .status,
        422
    );
    // More than the plan allows, by an operator's decision, which the audit accepts.
    assert_eq!(backend.post(&path, "more", &more(100)).await.body["used"], 125);
    let log = backend.get("/admin/audit-log?after=1&limit=1").await;
    let entry = &log["changes"][0];
    assert_eq!(
        (&entry["action"], &entry["reason"]),
        (&json!("usage.adjust"), &json!("our outage"))
    );
    assert_eq!(
        (&entry["before"]["used"], &entry["after"]["used"]),
        (&json!(40), &json!(25))
    );
    assert!(entry["actor"].as_str().unwrap().starts_with("key:"));
    let client = weir.client().await;
    for sql in [
        "UPDATE admin_log SET actor = 'nobody'",
        "DELETE FROM admin_log",
        "TRUNCATE admin_log",
    ] {
        let refused = client.batch_execute(sql).await.unwrap_err();
        assert!(
            format!("{:?}", refused.as_db_error()).contains("append-only"),
            "{sql}: {refused}"
        );
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_commits_never_add_usage_events_before_a_cursor() {
    let weir = Weir::new().await;
    let backend = Backend::operator(&weir).await;
    let (early, late) = (weir.user("free").await, weir.user("free").await);
    // Rows from before the feed.
    weir.use_up(early, "analysis", 1).await;
    weir.use_up(early, "analysis", 2).await;
    let client = weir.client().await;
    client
        .batch_execute("UPDATE usage_events SET xid = NULL")
        .await
        .unwrap();
    let event = "SELECT weir_charge($1::uuid::text, 'analysis', $2, gen_random_uuid()::text, now())";
    let mut slow = weir.client().await;
    let slow = slow.transaction().await.unwrap();
    slow.execute(event, &[&late, &10_i64]).await.unwrap();
    // Started later and committed earlier.
    client.execute(event, &[&early, &20_i64]).await.unwrap();

    let mut amounts = Vec::new();
    let mut cursor = String::new();
    let mut read = async |amounts: &mut Vec<i64>| {
        loop {
            let page = backend
                .get(&format!("/admin/usage/events?limit=1&{cursor}"))
                .await;
            cursor = format!("after={}", page["next"].as_str().unwrap());
            let events = page["events"].as_array().unwrap();
            amounts.extend(
                events
                    .iter()
                    .map(|event| event["data"]["amount"].as_i64().unwrap()),
            );
            if events.is_empty() {
                return;
            }
        }
    };
    read(&mut amounts).await;
    amounts.sort_unstable();
    assert_eq!(
        amounts,
        [1, 2],
        "events after an open transaction are not returned yet"
    );
    slow.commit().await.unwrap();
    weir.until("the rest", async || {
        read(&mut amounts).await;
        (amounts.len() >= 4).then_some(())
    })
    .await;
    assert_eq!(amounts[2..], [10, 20]);
    let page = backend.get("/admin/usage/events").await;
    let event = &page["events"][2];
    assert_eq!(
        (
            &event["specversion"],
            &event["type"],
            &event["subject"],
            &event["data"]["meter"]
        ),
        (
            &json!("1.0"),
            &json!("weir.usage"),
            &json!(late),
            &json!("analysis")
        )
    );
    for wrong in ["after=7", "limit=0", "limit=1001", "after=x.y"] {
        let answer = backend
            .call("GET", &format!("/admin/usage/events?{wrong}"), &[], "")
            .await;
        assert_eq!(answer.status, 422, "{wrong}");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_events_are_a_cloudevents_batch_on_request() {
    let weir = Weir::with(&[("USAGE_EVENT_SOURCE", "https://example.com/billing?shop=7")]).await;
    let backend = Backend::operator(&weir).await;
    let user = weir.user("free").await;
    for amount in [1, 2, 3] {
        weir.use_up(user, "analysis", amount).await;
    }
    let batch = async |accept: &str, query: &str| {
        let path = format!("/admin/usage/events?{query}");
        let answer = backend.call("GET", &path, &[("accept", accept)], "").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer
    };
    let header = |answer: &Answer, name: &str| answer.headers[name].to_str().unwrap().to_owned();
    let amounts = |events: &Value| {
        let events = events.as_array().unwrap().iter();
        events
            .map(|event| event["data"]["amount"].clone())
            .collect::<Vec<_>>()
    };

    // Open transactions of other tests delay all later events.
    weir.until("all events", async || {
        let all = batch("*/*", "").await.body;
        (all["events"].as_array().unwrap().len() == 3).then_some(())
    })
    .await;
    let wanted = "application/cloudevents-batch+json";
    let first = batch(wanted, "limit=2").await;
    assert_eq!(header(&first, "content-type"), wanted);
    assert_eq!(amounts(&first.body), [json!(1), json!(2)]);
    assert_eq!(first.body[0]["source"], "https://example.com/billing?shop=7");
    let link = header(&first, "link");
    let query = link
        .strip_prefix("</admin/usage/events?")
        .and_then(|rest| rest.strip_suffix(">; rel=\"next\""))
        .unwrap_or_else(|| panic!("{link}"));
    assert!(query.ends_with("&limit=2"), "{link}");
    let rest = batch(
        "text/plain, Application/CloudEvents-Batch+JSON; charset=utf-8",
        query,
    )
    .await;
    assert_eq!(amounts(&rest.body), [json!(3)]);

    // Other clients get the same events in the usual form.
    for accept in [
        "*/*",
        "application/json",
        "application/cloudevents-batch+json;q=0",
    ] {
        let usual = batch(accept, "limit=2").await;
        assert_eq!(header(&usual, "content-type"), "application/json", "{accept}");
        assert_eq!(usual.body["events"], first.body);
        assert!(query.starts_with(&format!("after={}&", usual.body["next"].as_str().unwrap())));
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_user_cancels_jobs_and_keeps_billed_usage() {
    let weir = Weir::new().await;
    let subject = "anne@example.com";
    let who = Who::Subject(subject);
    let working = weir.work().await;
    let done = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.finished(done, who).await;
    weir.released(who, "analysis").await;
    working.stop().await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(weir.analyse(who, "a_test.go", GO_TESTS).await);
    }
    // One job runs, in another client.
    weir.start_elsewhere(ids[0]).await;
    let mut client = weir.client().await;
    let anne = user_of(&weir, subject).await;
    let cancelled = control::cancel_waiting(&mut client, "shell:test", &anne, Some("abuse")).await;
    assert_eq!(cancelled.unwrap(), 3);
    let quota = weir.quota(who, "analysis").await;
    assert_eq!((&quota["reserved"], &quota["used"]), (&json!(1), &json!(1)));
    assert_eq!(
        weir.get(&format!("/api/jobs/{}", ids[3]), who).await.body["status"],
        "cancelled"
    );
    let refused = control::delete(&mut client, "shell:test", &anne)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("are still running"), "{refused}");
    weir.ended_by_other_client(ids[0], "cancelled").await;
    weir.reconcile().await;
    let folded = "INSERT INTO folded_submissions VALUES ($1, 'k', '', $2)";
    client.execute(folded, &[&anne.id, &ids[0]]).await.unwrap();
    let deleted = control::delete(&mut client, "shell:test", &anne).await.unwrap();
    assert_eq!((deleted.usage_events, deleted.jobs), (1, 5));

    let everything: String = client
        .query_one(
            "SELECT concat((SELECT jsonb_agg(u) FROM users u), (SELECT jsonb_agg(e) FROM usage_events e), \
             (SELECT jsonb_agg(b) FROM quota_balances b), (SELECT jsonb_agg(j) FROM river_job j), \
             (SELECT jsonb_agg(s) FROM weir_jobs s), (SELECT jsonb_agg(f) FROM folded_submissions f), \
             (SELECT jsonb_agg(h) FROM holders h))",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert!(
        !everything.contains(subject) && !everything.contains(&anne.id.to_string()),
        "{everything}"
    );
    let billed: i64 = client
        .query_one("SELECT sum(quota_amount)::bigint FROM usage_events", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(billed, 1);
    // A user who returns starts with no usage.
    assert_eq!(weir.quota(who, "analysis").await["used"], 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_path_is_refused_and_needs_a_key_first() {
    let weir = Weir::new().await;
    let backend = Backend::operator(&weir).await;
    let stranger = Backend {
        weir: &weir,
        key: "weir_sk_unknown".to_owned(),
    };
    for (method, path) in [("GET", ""), ("PUT", "/plan"), ("DELETE", "/overrides/analysis")] {
        let path = format!("/admin/holders/%FF{path}");
        let answer = backend.call(method, &path, &[], "{}").await;
        assert_eq!(
            (answer.status.as_u16(), &answer.headers["content-type"]),
            (404, &"application/problem+json".parse().unwrap()),
            "{}",
            answer.body
        );
        assert_eq!(stranger.call(method, &path, &[], "{}").await.status, 401);
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_submission_during_deletion_leaves_a_complete_user() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let holders = Holders::load(&weir.client().await).await.unwrap();
    let account = User::of(holders, user.into());
    let (mut shop, mut operator, observer) = (weir.client().await, weir.client().await, weir.client().await);
    let open = shop.transaction().await.unwrap();
    let submit = "SELECT outcome FROM weir_submit($1, 'analysis', '{\"files\": []}', 3)";
    open.query_one(submit, &[&user.to_string()]).await.unwrap();
    let deleting = control::delete(&mut operator, "shell:test", &account);
    let committing = async {
        weir.until("the deletion to wait", async || {
            let waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
            observer.query_opt(waits, &[]).await.unwrap()
        })
        .await;
        open.commit().await.unwrap();
    };
    let (deleted, ()) = tokio::join!(deleting, committing);
    assert!(matches!(deleted, Err(ControlError::Conflict(_))), "{deleted:?}");
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_user_row_by_hand_keeps_its_usage() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    weir.use_up(user, "analysis", 7).await;
    let client = weir.client().await;
    client
        .execute("DELETE FROM users WHERE id = $1", &[&user])
        .await
        .unwrap();
    assert_eq!(weir.count("usage_events").await, 1);
    let sums = "SELECT sum(used)::bigint, sum(reserved)::bigint FROM quota_balances";
    let row = client.query_one(sums, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (7, 0));
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_listed_by_period_including_past_ones() {
    let weir = Weir::new().await;
    let operator = Backend::operator(&weir).await;
    let user = weir.user("free").await;
    let client = weir.client().await;
    let used = "SELECT weir_charge($1::uuid::text, $2, $3, gen_random_uuid()::text, now() - make_interval(months => $4))";
    let anchor =
        "UPDATE user_subscriptions SET current_period_start = now() - interval '1 hour' WHERE user_id = $1";
    client.execute(anchor, &[&user]).await.unwrap();
    for (meter, amount, months) in [
        ("analysis", 7_i64, 2),
        ("analysis", 5, 0),
        ("analysis", 4, 0),
        ("specview", 3, 0),
    ] {
        client
            .execute(used, &[&user, &meter, &amount, &months])
            .await
            .unwrap();
    }
    weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    let path = format!("/admin/holders/{user}/usage");
    let shown = async |query: &str| {
        let answer = operator.get(&format!("{path}{query}")).await;
        let periods = answer["periods"].as_array().unwrap().clone();
        let numbers = periods.iter().map(|one| {
            (
                one["meter"].as_str().unwrap().to_owned(),
                one["used"].clone(),
                one["reserved"].clone(),
            )
        });
        (numbers.collect::<Vec<_>>(), periods)
    };
    let of = |meter: &str, used: i64, reserved: i64| (meter.to_owned(), json!(used), json!(reserved));
    let (numbers, periods) = shown("").await;
    assert_eq!(
        numbers,
        [of("analysis", 9, 1), of("specview", 3, 0), of("analysis", 7, 0)]
    );
    let moment = |value: &Value| value.as_str().unwrap().parse::<Timestamp>().unwrap();
    assert!(moment(&periods[2]["end"]) < Timestamp::now() && moment(&periods[0]["end"]) > Timestamp::now());
    assert!(
        periods
            .iter()
            .all(|one| moment(&one["start"]) < moment(&one["end"]))
    );
    assert_eq!(shown("?meter=specview").await.0, [of("specview", 3, 0)]);
    assert_eq!(shown("?limit=1").await.0, [of("analysis", 9, 1)]);
    assert_eq!(shown("?window=day").await.0, [], "nothing is limited by day");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_events_written_during_a_migration_reach_the_feed() {
    let weir = Weir::new().await;
    let user = weir.user("enterprise").await;
    let stopped = CancellationToken::new();
    let mut writers = JoinSet::new();
    for _ in 0..4 {
        let (client, stopped) = (weir.client().await, stopped.clone());
        writers.spawn(async move {
            let event = "SELECT weir_charge($1::uuid::text, 'analysis', 1, gen_random_uuid()::text, now())";
            while !stopped.is_cancelled() {
                client.execute(event, &[&user]).await.unwrap();
            }
        });
    }
    for _ in 0..30 {
        migrate::migrate(&weir.context.database).await.unwrap();
    }
    stopped.cancel();
    writers.join_all().await;
    let hidden = weir.count("usage_events WHERE xid IS NULL").await;
    assert_eq!(hidden, 0, "of {}", weir.count("usage_events").await);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_user_includes_jobs_of_other_clients() {
    let weir = Weir::new().await;
    let subject = "zoe@example.com";
    let args = json!({ "user_id": subject, "files": [] });
    let first = weir.insert_by_river(args.clone(), "analysis_default").await;
    weir.insert_by_river(args.clone(), "analysis_default").await;
    weir.reconcile().await;
    // Another program's job, with any user names.
    let mut client = weir.client().await;
    let others = "INSERT INTO river_job (args, kind, max_attempts, state, finalized_at) \
                  VALUES ($1, 'newsletter', 3, 'completed', now())";
    client.execute(others, &[&args]).await.unwrap();
    let zoe = user_of(&weir, subject).await;
    weir.start_elsewhere(first).await;
    let cancelled = control::cancel_waiting(&mut client, "shell:test", &zoe, None).await;
    assert_eq!(cancelled.unwrap(), 1, "running jobs are not cancelled");
    weir.ended_by_other_client(first, "completed").await;
    weir.reconcile().await;
    let one = weir.insert_by_river(args, "analysis_default").await;
    weir.reconcile().await;
    let holds = format!("quota_reservations WHERE job_id = {one} AND admitted_at IS NOT NULL");
    assert_eq!(weir.count(&holds).await, 1);
    let cancelled = control::cancel_waiting(&mut client, "shell:test", &zoe, None).await;
    assert_eq!(cancelled.unwrap(), 1, "it has a slot, and no worker runs it");
    let deleted = control::delete(&mut client, "shell:test", &zoe).await.unwrap();
    assert_eq!(deleted.jobs, 3);
    let left = "SELECT array_agg(kind) FROM river_job";
    let left: Vec<String> = client.query_one(left, &[]).await.unwrap().get(0);
    assert_eq!(left, ["newsletter"]);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_event_does_not_restore_a_deleted_user() {
    let weir = Weir::new().await;
    let backend = Backend::operator(&weir).await;
    let anne = user_of(&weir, "anne@example.com").await;
    let path = "/admin/holders/anne%40example.com";
    let event = |id: &str, second: i64| {
        let at = Timestamp::from_second(1_800_000_000 + second).unwrap();
        json!({ "plan": "pro", "event_id": id, "occurred_at": at, "effective": "now" })
    };
    let grant = json!({ "meter": "analysis", "amount": 100, "reason": "order 7" });
    let adjustment = json!({ "meter": "analysis", "amount": 5, "reason": "a correction" });
    let (plan, grants) = (format!("{path}/plan"), format!("{path}/grants"));
    assert_eq!(backend.put(&plan, &event("e1", 0)).await.body["applied"], true);
    assert_eq!(backend.post(&grants, "order 7", &grant).await.status, 201);
    let mut client = weir.client().await;
    control::delete(&mut client, "shell:test", &anne).await.unwrap();
    let adjustments = format!("{path}/adjustments");
    let overrides = format!("{path}/overrides/analysis");
    for answer in [
        backend.put(&plan, &event("e2", 60)).await,
        backend.put(&plan, &event("e1", 0)).await,
        backend.post(&grants, "order 7", &grant).await,
        backend.post(&adjustments, "a", &adjustment).await,
        backend.put(&overrides, &json!({ "slots": 2 })).await,
    ] {
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.body, json!({ "applied": false, "reason": "deleted" }));
    }
    assert!(!anne.is_known(&client).await.unwrap());
    assert_eq!(backend.call("GET", path, &[], "").await.status, 404);
    // No remaining row identifies her.
    let kept = "SELECT count(*) FROM deleted_users d WHERE to_jsonb(d)::text LIKE '%' || $1 || '%' \
                OR to_jsonb(d)::text LIKE '%anne%'";
    let row = client.query_one(kept, &[&anne.id.to_string()]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);

    // She signs up again, and pays again.
    let who = Who::Subject("anne@example.com");
    weir.analyse(who, "a_test.go", GO_TESTS).await;
    let answer = backend.put(&plan, &event("e3", 120)).await;
    assert_eq!(answer.body["applied"], true, "{}", answer.body);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_usage_feed_starts_now_or_at_a_time() {
    let weir = Weir::new().await;
    let backend = Backend::operator(&weir).await;
    let user = weir.user("free").await;
    let client = weir.client().await;
    // One from before a dump, and one in each later hour.
    let event = "INSERT INTO usage_events (user_id, event_type, quota_amount, created_at, period_start) \
                 VALUES ($1, 'analysis', $2, $3::text::timestamptz, period_start_of($1, $3::text::timestamptz))";
    for (amount, at) in [
        (1_i64, "2026-11-01T01:00:00Z"),
        (2, "2026-11-01T02:00:00Z"),
        (3, "2026-11-01T03:00:00Z"),
        (4, "2026-11-01T04:00:00Z"),
    ] {
        client.execute(event, &[&user, &amount, &at]).await.unwrap();
    }
    let restored = "UPDATE usage_events SET xid = NULL WHERE quota_amount <= 2";
    client.batch_execute(restored).await.unwrap();
    let read = async |after: &str| {
        let (mut amounts, mut cursor) = (Vec::new(), after.to_owned());
        loop {
            let page = backend
                .get(&format!("/admin/usage/events?limit=1&after={cursor}"))
                .await;
            cursor = page["next"].as_str().unwrap().to_owned();
            match page["events"][0]["data"]["amount"].as_i64() {
                Some(amount) => amounts.push(amount),
                None => return (amounts, cursor),
            }
        }
    };
    // Open transactions of other tests delay all later events.
    let at_two = weir
        .until("the last event", async || {
            let (amounts, _) = read("2026-11-01T02:00:00Z").await;
            amounts.contains(&4).then_some(amounts)
        })
        .await;
    assert_eq!(at_two, [2, 3, 4]);
    assert_eq!(read("2026-11-01T02:30:00Z").await.0, [3, 4]);
    let (none, now) = read("now").await;
    assert!(none.is_empty(), "{none:?}");
    client
        .execute(event, &[&user, &5_i64, &"2026-11-01T05:00:00Z"])
        .await
        .unwrap();
    weir.recount().await;
    let rest = weir
        .until("the event after that", async || {
            let (amounts, _) = read(&now).await;
            (!amounts.is_empty()).then_some(amounts)
        })
        .await;
    assert_eq!(rest, [5]);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_returns_the_outcome_of_a_submission() {
    let weir = Weir::new().await;
    let (backend, client) = (Backend::operator(&weir).await, weir.client().await);
    let user = weir.user("free").await;
    let (who, path) = (Who::User(user), format!("/admin/holders/{user}/quota"));
    let check = async |query: &str| {
        let by_operator = backend.get(&format!("{path}?{query}")).await;
        let own = weir.get(&format!("/api/quota?{query}"), who).await;
        assert_eq!(own.status, 200, "{}", own.body);
        assert_eq!(by_operator, own.body);
        own.body
    };
    let outcome = async |query: &str| check(query).await["outcome"].clone();
    let rows = async || {
        let sql = "SELECT ARRAY[(SELECT count(*) FROM users), (SELECT count(*) FROM holders), \
                   (SELECT count(*) FROM quota_reservations), (SELECT count(*) FROM river_job)]";
        client.query_one(sql, &[]).await.unwrap().get::<_, Vec<i64>>(0)
    };
    let quota = weir.quota(who, "analysis").await;
    let before = rows().await;
    assert_eq!(
        check("service=analysis").await,
        json!({ "outcome": "admitted", "quota": quota })
    );
    assert_eq!(outcome("service=analysis&amount=50").await, "admitted");
    let refused = check("service=analysis&amount=51").await;
    assert_eq!(
        (&refused["outcome"], &refused["quota"]),
        (&json!("over_quota"), &quota)
    );
    assert_eq!(
        (&refused["windows"][0]["window"], &refused["windows"][0]["limit"]),
        (&json!("month"), &json!(50))
    );
    assert_eq!(outcome("service=specview&amount=7").await, "admitted");
    // Unknown users are on the default plan, and stay unknown.
    let unknown = backend
        .get("/admin/holders/anne/quota?service=analysis&amount=51")
        .await;
    assert_eq!(unknown["outcome"], "over_quota");
    let own = weir.get("/api/quota?service=analysis", Who::Subject("bob")).await;
    assert_eq!(own.body["outcome"], "admitted", "{}", own.body);
    let sql = "SELECT outcome FROM weir_quota('carol', 'analysis', 51)";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "over_quota");
    assert_eq!(rows().await, before, "it writes nothing");

    // It waits for no lock, and sees what is committed.
    let mut other = weir.client().await;
    weir.analyse(who, "a_test.go", GO_TESTS).await;
    let transaction = other.transaction().await.unwrap();
    let lock = "SELECT FROM holders WHERE holder = $1 FOR UPDATE";
    transaction.execute(lock, &[&user]).await.unwrap();
    assert_eq!(outcome("service=analysis").await, "parked");
    transaction.rollback().await.unwrap();
    weir.analyse(who, "a_test.go", GO_TESTS).await;
    let most = "UPDATE subscription_plans SET max_waiting = 1";
    client.batch_execute(most).await.unwrap();
    assert_eq!(outcome("service=analysis").await, "too_many_waiting");

    // An address has slots and no quota.
    let anonymous = weir
        .get("/api/quota?service=analysis", Who::Address("198.51.100.9"))
        .await;
    assert_eq!(anonymous.body, json!({ "outcome": "admitted", "quota": null }));

    for (query, status) in [
        ("service=video", 404),
        ("service=", 404),
        ("", 422),
        ("service=analysis&amount=-1", 422),
        ("service=analysis&amount=1000000000000001", 422),
        ("service=analysis&amount=1.5", 422),
        // The amount depends on the arguments.
        ("service=specview", 422),
    ] {
        let answer = weir.get(&format!("/api/quota?{query}"), who).await;
        assert_eq!(answer.status, status, "{query}: {}", answer.body);
        let answer = backend.call("GET", &format!("{path}?{query}"), &[], "").await;
        assert_eq!(answer.status, status, "{query}: {}", answer.body);
    }
    weir.end().await;
}

//! The description of the API is true: every documented answer of every documented route is provoked, and its body is
//! what the description says.

use std::collections::BTreeSet;

use crate::common::{Answer, GO_TESTS, Weir, Who, files};
use jsonschema::{Validator, validator_for};
use serde_json::{Value, json};
use weir_ledger::control::{self, Scope};

/// The description, and which of its answers have been seen.
struct Described {
    document: Value,
    seen: BTreeSet<(String, String, String)>,
}

impl Described {
    async fn of(weir: &Weir) -> Self {
        let answer = weir.get("/api/openapi.json", Who::Address("198.51.100.9")).await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.body["openapi"]
                .as_str()
                .unwrap()
                .split('.')
                .take(2)
                .collect::<Vec<_>>(),
            ["3", "1"]
        );
        Self {
            document: answer.body,
            seen: BTreeSet::new(),
        }
    }

    /// Every documented route, method and status.
    fn promised(&self) -> BTreeSet<(String, String, String)> {
        let mut promised = BTreeSet::new();
        for (route, methods) in self.document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                for status in operation["responses"].as_object().unwrap().keys() {
                    promised.insert((route.clone(), method.to_uppercase(), status.clone()));
                }
            }
        }
        promised
    }

    /// Checks an answer against what is documented for it.
    fn check(&mut self, route: &str, method: &str, answer: &Answer) {
        let status = answer.status.as_str();
        let place = format!("{method} {route}: {status}");
        let described = &self.document["paths"][route][method.to_lowercase()]["responses"][status];
        assert!(described.is_object(), "{place} is not documented");
        if status == "204" {
            assert_eq!(
                (&answer.body, described.get("content")),
                (&json!(""), None),
                "{place}"
            );
            self.seen
                .insert((route.to_owned(), method.to_owned(), status.to_owned()));
            return;
        }
        let kind = answer.headers["content-type"].to_str().unwrap();
        let (documented, content) = described["content"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(kind.split(';').next(), Some(documented.as_str()), "{place}");
        if let Some(schema) = content.get("schema") {
            let errors: Vec<_> = self
                .validator(schema)
                .iter_errors(&answer.body)
                .map(|error| format!("{}: {error}", error.instance_path()))
                .collect();
            assert!(errors.is_empty(), "{place}: {errors:?} in {}", answer.body);
        }
        self.seen
            .insert((route.to_owned(), method.to_owned(), status.to_owned()));
    }

    /// Members that the description does not have are faults too, so that nothing is answered that nobody is told of.
    fn validator(&self, schema: &Value) -> Validator {
        let mut components = self.document["components"].clone();
        for (name, schema) in components["schemas"].as_object_mut().unwrap() {
            // Problems may have more.
            if schema["type"] == "object" && name != "ProblemDetails" {
                schema["additionalProperties"] =
                    json!(schema.get("additionalProperties").unwrap_or(&json!(false)));
            }
        }
        let mut root = schema.clone();
        root["components"] = components;
        validator_for(&root).unwrap()
    }
}

/// A path of a route.
fn path_of(route: &str) -> String {
    let path = route.replace("{id}", "1").replace("{subject}", "anne");
    path.replace("{meter}", "analysis")
}

/// The page's and the tests' types are made from this file. After a change: `UPDATE_SNAPSHOTS=1 npm test --
/// openapi.rs`, look at the difference, and run `npm run generate`.
#[tokio::test(flavor = "multi_thread")]
async fn the_description_is_the_one_in_the_repository() {
    let weir = Weir::with(&[("WEIR_ENV", "development")]).await;
    let document = Described::of(&weir).await.document;
    let document = serde_json::to_string_pretty(&document).unwrap() + "\n";
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/openapi.json");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(file, &document).unwrap();
    }
    let known = std::fs::read_to_string(file).unwrap();
    assert!(
        document == known,
        "the API's description has changed: see the comment of this test"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_answer_happens_and_is_as_documented() {
    let secret = weir::outbound::Secret::random();
    let weir = Weir::with(&[("HANDLER_SECRET", &secret.reveal())]).await;
    let mut described = Described::of(&weir).await;
    let user = weir.user("free").await;
    let (who, anonymous) = (Who::User(user), Who::Address("198.51.100.9"));
    let full = Who::User(weir.user("free").await);
    if let Who::User(full) = full {
        weir.use_up(full, "analysis", 50).await;
    }
    let good = files(&[("a_test.go", GO_TESTS)]).to_string();
    let big = "x".repeat(300 * 1024);
    let submit = "/api/jobs/{id}";
    for (path, who, body, status) in [
        ("/api/jobs/analysis", who, good.as_str(), 202),
        ("/api/jobs/analysis", anonymous, &good, 202),
        ("/api/jobs/analysis", who, "{", 400),
        ("/api/jobs/nothing", who, &good, 404),
        ("/api/jobs/analysis", who, &big, 413),
        ("/api/jobs/analysis", who, "{}", 422),
        ("/api/jobs/analysis", full, &good, 429),
    ] {
        let answer = weir.call("POST", path, who, &[], body.as_bytes().to_vec()).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        described.check(submit, "POST", &answer);
    }
    let many = format!("[{good}, {good}]");
    for (path, who, body, status) in [
        (
            "/api/jobs/analysis/batch",
            Who::User(weir.user("free").await),
            many.as_str(),
            202,
        ),
        ("/api/jobs/analysis/batch", who, "[", 400),
        ("/api/jobs/nothing/batch", who, &many, 404),
        ("/api/jobs/analysis/batch", who, &big, 413),
        ("/api/jobs/analysis/batch", who, "[{}]", 422),
        ("/api/jobs/analysis/batch", full, &many, 429),
    ] {
        let answer = weir.call("POST", path, who, &[], body.as_bytes().to_vec()).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        described.check("/api/jobs/{id}/batch", "POST", &answer);
    }
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let working = weir.work().await;
    let job = weir.finished(id, who).await;
    assert!(job["output"].is_object());
    let (one, events) = (format!("/api/jobs/{id}"), format!("/api/jobs/{id}/events"));
    let missing = ["/api/jobs/999999", "/api/jobs/999999/events"];
    for (route, method, path, who, status) in [
        (submit, "GET", one.as_str(), who, 200),
        (submit, "GET", missing[0], who, 404),
        (submit, "DELETE", &one, who, 200),
        (submit, "DELETE", missing[0], who, 404),
        ("/api/jobs/{id}/events", "GET", &events, who, 200),
        ("/api/jobs/{id}/events", "GET", missing[1], who, 404),
        ("/api/jobs/events", "GET", "/api/jobs/events?limit=0", who, 422),
        ("/api/jobs", "GET", "/api/jobs", who, 200),
        ("/api/jobs", "GET", "/api/jobs?limit=0", who, 422),
        ("/api/usage", "GET", "/api/usage", who, 200),
        ("/api/usage", "GET", "/api/usage", anonymous, 200),
        ("/api/lanes", "GET", "/api/lanes", who, 200),
    ] {
        let answer = weir.call(method, path, who, &[], Vec::new()).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        described.check(route, method, &answer);
    }
    working.stop().await;

    // What an endpoint says that answers later.
    let token = async |id: i64, claim: &str| {
        let sql = "SELECT created_at FROM river_job WHERE id = $1";
        let row = weir.client().await.query_opt(sql, &[&id]).await.unwrap();
        let claim = weir_ledger::attempts::Claim {
            job_id: id,
            claim,
            created_at: row.map_or(jiff::Timestamp::UNIX_EPOCH, |row| row.get(0)),
        };
        let token = weir.context.attempt_tokens().await.unwrap().of(claim).unwrap();
        format!("Bearer {}", secrecy::ExposeSecret::expose_secret(&token))
    };
    let largest = json!({ "error": "x".repeat(5 * 1024 * 1024) }).to_string();
    let in_an_hour =
        json!({ "error": "x", "retry_at": jiff::Timestamp::now() + jiff::Span::new().hours(1) }).to_string();
    for (what, body, wrong) in [
        ("progress", r#"{"fraction": 0.5}"#, r#"{"fraction": 2}"#),
        ("heartbeat", "", ""),
        ("extend", r#"{"more": 1}"#, r#"{"more": 0}"#),
        // Nobody is there who would try it again in time.
        ("fail", &in_an_hour, "{}"),
        ("complete", r#"{"output": {"a": 1}}"#, "[]"),
    ] {
        let (route, begun) = (
            format!("/worker/jobs/{{id}}/{what}"),
            weir.analyse(Who::User(weir.user("free").await), "a_test.go", GO_TESTS)
                .await,
        );
        weir.begun_elsewhere(begun).await;
        let (path, bearer) = (
            route.replace("{id}", &begun.to_string()),
            token(begun, "1.1").await,
        );
        let mut answers = vec![(wrong, 422), (&largest, 413), (body, 200)];
        if what == "heartbeat" {
            answers = vec![(body, 200)];
        }
        for (body, status) in answers {
            let answer = weir.with_key("POST", &path, &bearer, "key", body).await;
            assert_eq!(answer.status, status, "{path}: {}", answer.body);
            described.check(&route, "POST", &answer);
        }
        let old = token(begun, "0.0").await;
        let answer = weir.with_key("POST", &path, &old, "key", body).await;
        assert_eq!(answer.status, 409, "{path}: {}", answer.body);
        described.check(&route, "POST", &answer);
    }
    let attempt = token(1, "1.1").await;

    // What a service key is for.
    let key = |scope: Scope| {
        let (weir, name) = (&weir, scope.as_str());
        async move {
            let secret = format!("weir_sk_{name}");
            let mut client = weir.client().await;
            control::create_key(&mut client, "shell:test", name, &secret, &[scope], None)
                .await
                .unwrap();
            format!("Bearer {secret}")
        }
    };
    let (reader, operator) = (key(Scope::Read).await, key(Scope::Admin).await);
    let plan =
        json!({ "plan": "pro", "event_id": "evt_1", "occurred_at": "2026-01-31T00:00:00Z" }).to_string();
    let other_plan = plan.replace("pro", "free");
    let own = json!({ "slots": 2 }).to_string();
    let adjust = json!({ "meter": "analysis", "amount": 1, "reason": "a test" }).to_string();
    let (other_adjust, nothing) = (adjust.replace('1', "2"), adjust.replace("analysis", "nothing"));
    let grant = json!({ "meter": "analysis", "amount": 1, "reason": "a test" }).to_string();
    let other_grant = grant.replace('1', "2");
    let (holder, overrides) = (
        "/admin/holders/{subject}",
        "/admin/holders/{subject}/overrides/{meter}",
    );
    for (method, route, meter, body, status) in [
        ("PUT", "/admin/holders/{subject}/plan", "", plan.as_str(), 200),
        ("PUT", "/admin/holders/{subject}/plan", "", &other_plan, 409),
        ("PUT", "/admin/holders/{subject}/plan", "", "{}", 422),
        ("PUT", overrides, "analysis", &own, 200),
        ("PUT", overrides, "nothing", &own, 404),
        ("PUT", overrides, "analysis", "{}", 422),
        ("DELETE", overrides, "analysis", "", 200),
        ("DELETE", overrides, "nothing", "", 404),
        ("POST", "/admin/holders/{subject}/adjustments", "", &adjust, 201),
        (
            "POST",
            "/admin/holders/{subject}/adjustments",
            "",
            &other_adjust,
            409,
        ),
        ("POST", "/admin/holders/{subject}/adjustments", "", "{}", 422),
        ("POST", "/admin/holders/{subject}/grants", "", &grant, 201),
        ("POST", "/admin/holders/{subject}/grants", "", &other_grant, 409),
        ("POST", "/admin/holders/{subject}/grants", "", "{}", 422),
        ("GET", holder, "", "", 200),
        ("GET", "/admin/holders/{subject}/usage", "", "", 200),
        ("GET", "/admin/usage/events", "", "", 200),
        ("GET", "/admin/audit-log", "", "", 200),
    ] {
        let path = route.replace("{subject}", "anne").replace("{meter}", meter);
        let answer = weir.with_key(method, &path, &operator, route, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        described.check(route, method, &answer);
    }
    let deleted =
        "INSERT INTO deleted_users (hash) SELECT sha256(convert_to(weir_holder('gone')::text, 'UTF8'))";
    weir.client().await.batch_execute(deleted).await.unwrap();
    for (method, route, path, body, status) in [
        (
            "POST",
            "/admin/holders/{subject}/adjustments",
            "/admin/holders/gone/adjustments",
            adjust.as_str(),
            200,
        ),
        (
            "POST",
            "/admin/holders/{subject}/grants",
            "/admin/holders/gone/grants",
            grant.as_str(),
            200,
        ),
        (
            "PUT",
            "/admin/holders/{subject}/plan",
            "/admin/holders/gone/plan",
            plan.as_str(),
            200,
        ),
        (
            "POST",
            "/admin/holders/{subject}/adjustments",
            "/admin/holders/anne/adjustments",
            nothing.as_str(),
            404,
        ),
        (
            "POST",
            "/admin/holders/{subject}/grants",
            "/admin/holders/anne/grants",
            nothing.as_str(),
            404,
        ),
        ("GET", holder, "/admin/holders/nobody", "", 404),
        (
            "PUT",
            "/admin/holders/{subject}/plan",
            "/admin/holders/%11/plan",
            plan.as_str(),
            404,
        ),
        (
            "GET",
            "/admin/holders/{subject}/usage",
            "/admin/holders/nobody/usage",
            "",
            404,
        ),
        (
            "GET",
            "/admin/holders/{subject}/usage",
            "/admin/holders/anne/usage?window=week",
            "",
            422,
        ),
        (
            "GET",
            "/admin/usage/events",
            "/admin/usage/events?limit=0",
            "",
            422,
        ),
        ("GET", "/admin/audit-log", "/admin/audit-log?limit=0", "", 422),
    ] {
        let answer = weir.with_key(method, path, &operator, "key-2", body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        described.check(route, method, &answer);
    }
    let webhook = |route: &str, id: &str| route.replace("{id}", id);
    let (wanted, replay) = (
        json!({ "url": "https://example.com/hook" }).to_string(),
        json!({ "undelivered_since": "2026-01-31T00:00:00Z" }).to_string(),
    );
    let of_webhook = "/admin/webhooks/{id}";
    let [rotate, enable, test, replays] =
        ["rotate", "enable", "test", "replay"].map(|what| format!("{of_webhook}/{what}"));
    let made = weir
        .with_key("POST", "/admin/webhooks", &operator, "-", &wanted)
        .await;
    assert_eq!(made.status, 201, "{}", made.body);
    described.check("/admin/webhooks", "POST", &made);
    let (there, nowhere) = (
        made.body["id"].as_str().unwrap(),
        "00000000-0000-0000-0000-000000000000",
    );
    for (method, route, id, body, status) in [
        ("GET", "/admin/webhooks", "", "", 200),
        ("POST", "/admin/webhooks", "", wanted.as_str(), 409),
        ("POST", "/admin/webhooks", "", "{}", 422),
        ("POST", &rotate, there, "", 200),
        ("POST", &rotate, nowhere, "", 404),
        ("POST", &enable, there, "", 204),
        ("POST", &enable, "anne", "", 404),
        ("POST", &test, there, "", 202),
        ("POST", &test, nowhere, "", 404),
        ("POST", &replays, there, &replay, 200),
        ("POST", &replays, there, "{}", 422),
        ("POST", &replays, nowhere, &replay, 404),
        ("DISABLE", "", there, "", 0),
        ("POST", &test, there, "", 409),
        ("POST", &replays, there, &replay, 409),
        ("DELETE", of_webhook, there, "", 204),
        ("DELETE", of_webhook, there, "", 404),
    ] {
        if method == "DISABLE" {
            let mut client = weir.client().await;
            let disabled = control::disable_webhook(&mut client, there.parse().unwrap(), "410");
            disabled.await.unwrap();
            continue;
        }
        let path = webhook(route, id);
        let answer = weir.with_key(method, &path, &operator, "-", body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        described.check(route, method, &answer);
    }
    for (route, method, status) in described.promised() {
        if status == "403" {
            let lacking = if route.starts_with("/admin/") {
                &reader
            } else {
                &operator
            };
            let answer = weir
                .with_key(&method, &path_of(&route), lacking, "key-3", "")
                .await;
            assert_eq!(answer.status, 403, "{method} {route}");
            described.check(&route, &method, &answer);
        }
    }

    // Without an assertion of the edge's, everywhere.
    for (route, method, _) in described.promised() {
        let path = path_of(&route);
        let request = axum::http::Request::builder().method(method.as_str()).uri(path);
        let answer = weir.send(request.body(axum::body::Body::empty()).unwrap()).await;
        assert_eq!(answer.status, 401, "{method} {route}");
        described.check(&route, &method, &answer);
    }

    // A stream without an end is looked at only as far as its head.
    for route in ["/api/lanes/events", "/api/jobs/events"] {
        let response = weir.head_of(route, who).await;
        described.check(route, "GET", &response);
    }

    // As many as one may have, and one more.
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(weir.stream("/api/jobs/events", who).await);
    }
    for (route, path) in [
        ("/api/jobs/events", "/api/jobs/events"),
        ("/api/jobs/{id}/events", events.as_str()),
    ] {
        let answer = weir.get(path, who).await;
        assert_eq!(answer.status, 429, "{}", answer.body);
        described.check(route, "GET", &answer);
    }
    let mut live = Vec::new();
    for _ in 0..8 {
        live.push(weir.stream("/api/lanes/events", who).await);
    }
    let answer = weir.get("/api/lanes/events", who).await;
    assert_eq!(answer.status, 429, "{}", answer.body);
    described.check("/api/lanes/events", "GET", &answer);
    drop((streams, live));
    assert_eq!(weir.head_of("/api/jobs/events", who).await.status, 200);

    // And without a database.
    let admin = weir.admin().await;
    let name = weir.name();
    admin
        .batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        .await
        .unwrap();
    for (route, method, status) in described.promised() {
        if status != "503" {
            continue;
        }
        let path = match (route.as_str(), method.as_str()) {
            ("/api/jobs/{id}/batch", _) => "/api/jobs/analysis/batch".to_owned(),
            ("/api/jobs/{id}", "POST") => "/api/jobs/analysis".to_owned(),
            (route, _) => path_of(route),
        };
        // Every connection that is open by now.
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
        admin.batch_execute(&end).await.unwrap();
        let answer = weir
            .until(&format!("{method} {route} to notice the outage"), async || {
                let body = if path.ends_with("/batch") {
                    many.clone()
                } else if method == "POST" {
                    good.clone()
                } else {
                    String::new()
                };
                let answer = if let Some((_, what)) = path
                    .strip_prefix("/worker/")
                    .and_then(|path| path.rsplit_once('/'))
                {
                    let body = match what {
                        "progress" => r#"{"fraction": 0.5}"#,
                        "extend" => r#"{"more": 1}"#,
                        "fail" => r#"{"error": "x"}"#,
                        _ => "{}",
                    };
                    weir.with_key(&method, &path, &attempt, "key-5", body).await
                } else if path.starts_with("/admin/") {
                    weir.with_key(&method, &path, &operator, "key-4", "{}").await
                } else {
                    weir.call(&method, &path, who, &[], body.into_bytes()).await
                };
                (answer.status == 503).then_some(answer)
            })
            .await;
        assert!(answer.headers.contains_key("retry-after"), "{method} {route}");
        described.check(&route, &method, &answer);
    }
    admin
        .batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
        .await
        .unwrap();
    let never: Vec<_> = described
        .promised()
        .difference(&described.seen)
        .cloned()
        .collect();
    assert!(never.is_empty(), "documented, but never seen: {never:?}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_the_asking_is_there_and_described_in_development_only() {
    let route = "/api/dev/token";
    let anybody = Who::Address("198.51.100.9");
    let ask = async |weir: &Weir, tier: &str| weir.post(route, anybody, &json!({ "tier": tier })).await;
    let weir = Weir::new().await;
    let described = Described::of(&weir).await;
    assert!(described.document["paths"].get(route).is_none());
    assert_eq!(ask(&weir, "pro").await.status, 404);
    weir.end().await;

    let weir = Weir::with(&[("WEIR_ENV", "development")]).await;
    let mut described = Described::of(&weir).await;
    let given = ask(&weir, "pro").await;
    assert_eq!((given.status.as_u16(), &given.body["tier"]), (200, &"pro".into()));
    described.check(route, "POST", &given);
    let user = Who::User(given.body["user"].as_str().unwrap().parse().unwrap());
    assert_eq!(weir.get("/api/usage", user).await.body["tier"], "pro");
    let refused = ask(&weir, "gold").await;
    assert_eq!(refused.status, 422);
    described.check(route, "POST", &refused);
    let outside = axum::http::Request::builder().method("POST").uri(route);
    let outside = weir.send(outside.body(axum::body::Body::empty()).unwrap()).await;
    described.check(route, "POST", &outside);
    let mut client = weir.client().await;
    let made = control::create_key(&mut client, "shell:test", "a", "weir_sk_a", &[Scope::Admin], None);
    made.await.unwrap();
    let lacking = weir
        .with_key("POST", route, "Bearer weir_sk_a", "key", "{}")
        .await;
    described.check(route, "POST", &lacking);
    let of_route = |answers: BTreeSet<(String, String, String)>| -> Vec<String> {
        let mine = answers.into_iter().filter(|(path, _, _)| path == route);
        mine.map(|(_, _, status)| status).collect()
    };
    assert_eq!(of_route(described.seen.clone()), ["200", "401", "403", "422"]);
    assert_eq!(
        of_route(described.promised()),
        ["200", "401", "403", "422", "503"]
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_cache_may_keep_an_answer() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    for path in [
        "/api/usage",
        "/api/jobs",
        &format!("/api/jobs/{id}"),
        "/api/lanes",
        "/api/openapi.json",
        "/api/jobs/events",
        "/api/lanes/events",
        "/api/no/such/route",
        "/admin/holders/anne",
    ] {
        let answer = weir.head_of(path, who).await;
        assert_eq!(answer.headers["cache-control"], "no-store", "{path}");
    }
    weir.end().await;
}

//! The API's description is correct: the tests provoke every documented response of every documented route, and
//! validate its body.

use std::collections::BTreeSet;

use crate::common::{Answer, GO_TESTS, Weir, Who, files};
use jsonschema::{Validator, validator_for};
use serde_json::{Value, json};
use uuid::Uuid;
use weir_ledger::control::{self, Scope};

const HOLDER: &str = "/admin/holders/{subject}";
const PLAN: &str = "/admin/holders/{subject}/plan";
const OVERRIDE: &str = "/admin/holders/{subject}/overrides/{meter}";
const ADJUSTMENTS: &str = "/admin/holders/{subject}/adjustments";
const GRANTS: &str = "/admin/holders/{subject}/grants";
const GRANT: &str = "/admin/holders/{subject}/grants/{grant}";
const USAGE: &str = "/admin/holders/{subject}/usage";
const CHECK: &str = "/admin/holders/{subject}/quota";
const EVENTS: &str = "/admin/usage/events";
const LOG: &str = "/admin/audit-log";

/// The description, and the responses seen so far.
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

    /// Checks a response against its documentation.
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
        let content = &described["content"][kind.split(';').next().unwrap()];
        assert!(content.is_object(), "{place}: {kind} is not documented");
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

    /// Refuses members that the description lacks, so that no response has undocumented ones.
    fn validator(&self, schema: &Value) -> Validator {
        let mut components = self.document["components"].clone();
        for (name, schema) in components["schemas"].as_object_mut().unwrap() {
            // Problems may have additional members.
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

/// The page's and the tests' types are generated from this file. After a change:
/// `UPDATE_SNAPSHOTS=1 npm test -- openapi.rs`, check the difference, and run `npm run generate`.
#[tokio::test(flavor = "multi_thread")]
async fn the_description_is_the_one_in_the_repository() {
    let weir = Weir::with(&[("WEIR_ENV", "development")]).await;
    // The text, because it has the paths in order.
    let document = weir.text_of("/api/openapi.json").await + "\n";
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

/// A Weir with the state for every documented response.
struct Provoked {
    weir: Weir,
    described: Described,
    who: Who,
    anonymous: Who,
    /// A user without quota left.
    full: Who,
    /// A valid body of a submission, and one of a batch.
    good: String,
    many: String,
    /// Service keys, as the `Authorization` header.
    reader: String,
    operator: String,
}

impl Provoked {
    async fn new() -> Self {
        let secret = weir::outbound::Secret::random();
        let weir = Weir::with(&[("HANDLER_SECRET", &secret.reveal())]).await;
        let full = weir.user("free").await;
        weir.use_up(full, "analysis", 50).await;
        let good = files(&[("a_test.go", GO_TESTS)]).to_string();
        let mut client = weir.client().await;
        let mut keys = Vec::new();
        for scope in [Scope::Read, Scope::Admin] {
            let name = scope.as_str();
            let secret = format!("weir_sk_{name}");
            control::create_key(&mut client, "shell:test", name, &secret, &[scope], None)
                .await
                .unwrap();
            keys.push(format!("Bearer {secret}"));
        }
        Self {
            described: Described::of(&weir).await,
            who: Who::User(weir.user("free").await),
            anonymous: Who::Address("198.51.100.9"),
            full: Who::User(full),
            many: format!("[{good}, {good}]"),
            good,
            operator: keys.remove(1),
            reader: keys.remove(0),
            weir,
        }
    }

    /// The `Authorization` header of an endpoint that works on this attempt.
    async fn token(&self, id: i64, claim: &str) -> String {
        let sql = "SELECT created_at FROM river_job WHERE id = $1";
        let row = self.weir.client().await.query_opt(sql, &[&id]).await.unwrap();
        let claim = weir_ledger::attempts::Claim {
            job_id: id,
            claim,
            created_at: row.map_or(jiff::Timestamp::UNIX_EPOCH, |row| row.get(0)),
        };
        let token = self
            .weir
            .context
            .attempt_tokens()
            .await
            .unwrap()
            .of(claim)
            .unwrap();
        format!("Bearer {}", secrecy::ExposeSecret::expose_secret(&token))
    }

    /// Submissions, alone and in batches.
    async fn submissions(&mut self) {
        let big = "x".repeat(300 * 1024);
        let other = Who::User(self.weir.user("free").await);
        for (path, caller, body, status) in [
            ("/api/jobs/analysis", self.who, self.good.as_str(), 202),
            ("/api/jobs/analysis", self.anonymous, &self.good, 202),
            ("/api/jobs/analysis", self.who, "{", 400),
            ("/api/jobs/nothing", self.who, &self.good, 404),
            ("/api/jobs/analysis", self.who, &big, 413),
            ("/api/jobs/analysis", self.who, "{}", 422),
            ("/api/jobs/analysis", self.full, &self.good, 429),
            ("/api/jobs/analysis/batch", other, &self.many, 202),
            ("/api/jobs/analysis/batch", self.who, "[", 400),
            ("/api/jobs/nothing/batch", self.who, &self.many, 404),
            ("/api/jobs/analysis/batch", self.who, &big, 413),
            ("/api/jobs/analysis/batch", self.who, "[{}]", 422),
            ("/api/jobs/analysis/batch", self.full, &self.many, 429),
        ] {
            let answer = self
                .weir
                .call("POST", path, caller, &[], body.as_bytes().to_vec())
                .await;
            assert_eq!(answer.status, status, "{}", answer.body);
            let route = if path.ends_with("/batch") {
                "/api/jobs/{id}/batch"
            } else {
                "/api/jobs/{id}"
            };
            self.described.check(route, "POST", &answer);
        }
    }

    /// Reading and cancelling a job, and an owner's other reads.
    async fn jobs(&mut self) {
        let id = self.weir.analyse(self.who, "a_test.go", GO_TESTS).await;
        let working = self.weir.work().await;
        let job = self.weir.finished(id, self.who).await;
        assert!(job["output"].is_object());
        let (one, events) = (format!("/api/jobs/{id}"), format!("/api/jobs/{id}/events"));
        let missing = ["/api/jobs/999999", "/api/jobs/999999/events"];
        for (route, method, path, caller, status) in [
            ("/api/jobs/{id}", "GET", one.as_str(), self.who, 200),
            ("/api/jobs/{id}", "GET", missing[0], self.who, 404),
            ("/api/jobs/{id}", "DELETE", &one, self.who, 200),
            ("/api/jobs/{id}", "DELETE", missing[0], self.who, 404),
            ("/api/jobs/{id}/events", "GET", &events, self.who, 200),
            ("/api/jobs/{id}/events", "GET", missing[1], self.who, 404),
            (
                "/api/jobs/events",
                "GET",
                "/api/jobs/events?limit=0",
                self.who,
                422,
            ),
            ("/api/jobs", "GET", "/api/jobs", self.who, 200),
            ("/api/jobs", "GET", "/api/jobs?limit=0", self.who, 422),
            ("/api/usage", "GET", "/api/usage", self.who, 200),
            ("/api/usage", "GET", "/api/usage", self.anonymous, 200),
            (
                "/api/quota",
                "GET",
                "/api/quota?service=analysis&amount=60",
                self.who,
                200,
            ),
            (
                "/api/quota",
                "GET",
                "/api/quota?service=analysis",
                self.anonymous,
                200,
            ),
            ("/api/quota", "GET", "/api/quota?service=video", self.who, 404),
            ("/api/quota", "GET", "/api/quota", self.who, 422),
            ("/api/lanes", "GET", "/api/lanes", self.who, 200),
        ] {
            let answer = self.weir.call(method, path, caller, &[], Vec::new()).await;
            assert_eq!(answer.status, status, "{path}: {}", answer.body);
            self.described.check(route, method, &answer);
        }
        working.stop().await;
    }

    /// Running a cancelled job again, and all that failed alike.
    async fn retries(&mut self) {
        let user = self.weir.user("free").await;
        let who = Who::User(user);
        let id = self.weir.analyse(who, "a_test.go", GO_TESTS).await;
        let (job, retry) = (format!("/api/jobs/{id}"), format!("/api/jobs/{id}/retry"));
        self.weir.call("DELETE", &job, who, &[], Vec::new()).await;
        for (path, status) in [
            (retry.as_str(), 202),
            (&retry, 409),
            ("/api/jobs/999999/retry", 404),
        ] {
            let answer = self.weir.call("POST", path, who, &[], Vec::new()).await;
            assert_eq!(answer.status, status, "{path}: {}", answer.body);
            self.described.check("/api/jobs/{id}/retry", "POST", &answer);
        }
        self.weir.call("DELETE", &job, who, &[], Vec::new()).await;
        self.weir.use_up(user, "analysis", 50).await;
        let answer = self.weir.call("POST", &retry, who, &[], Vec::new()).await;
        assert_eq!(answer.status, 429, "{}", answer.body);
        self.described.check("/api/jobs/{id}/retry", "POST", &answer);
        for (job, status) in [
            (id.to_string(), 200),
            ("999999999".to_owned(), 404),
            ("x".to_owned(), 404),
        ] {
            let path = format!("/admin/jobs/{job}");
            self.check_operator("GET", "/admin/jobs/{id}", &path, "-", "", status)
                .await;
        }
        for (route, matching) in [
            ("/admin/jobs/retry", r#"{"subject": "anne"}"#),
            ("/admin/jobs/cancel", r#"{"subject": "unknown"}"#),
        ] {
            for (body, status) in [
                (matching, 200),
                (r#"{"kind": "a", "service": "analysis"}"#, 422),
                ("{}", 422),
                (r#"{"service": "nothing"}"#, 404),
            ] {
                self.check_operator("POST", route, route, "-", body, status).await;
            }
        }
        let row = "INSERT INTO river_queue (name, created_at, updated_at) VALUES ('specview_scheduled', now(), now()) \
                   ON CONFLICT DO NOTHING";
        self.weir.client().await.batch_execute(row).await.unwrap();
        for change in ["pause", "resume"] {
            let route = format!("/admin/lanes/{{queue}}/{change}");
            for (queue, status) in [("specview_scheduled", 204), ("nothing", 404)] {
                let path = route.replace("{queue}", queue);
                self.check_operator("POST", &route, &path, "-", "", status).await;
            }
        }
    }

    /// Reports of an endpoint that answers later.
    async fn later_answers(&mut self) {
        let largest = json!({ "error": "x".repeat(5 * 1024 * 1024) }).to_string();
        let in_an_hour =
            json!({ "error": "x", "retry_at": jiff::Timestamp::now() + jiff::Span::new().hours(1) })
                .to_string();
        for (what, body, wrong) in [
            ("progress", r#"{"fraction": 0.5}"#, r#"{"fraction": 2}"#),
            ("heartbeat", "", ""),
            ("extend", r#"{"more": 1}"#, r#"{"more": 0}"#),
            // Later than any retry during the test.
            ("fail", &in_an_hour, "{}"),
            ("complete", r#"{"output": {"a": 1}}"#, "[]"),
        ] {
            let (route, running) = (
                format!("/worker/jobs/{{id}}/{what}"),
                self.weir
                    .analyse(Who::User(self.weir.user("free").await), "a_test.go", GO_TESTS)
                    .await,
            );
            self.weir.start_elsewhere(running).await;
            let (path, bearer) = (
                route.replace("{id}", &running.to_string()),
                self.token(running, "1.1").await,
            );
            let mut answers = vec![(wrong, 422), (&largest, 413), (body, 200)];
            if what == "heartbeat" {
                answers = vec![(body, 200)];
            }
            for (body, status) in answers {
                let answer = self.weir.with_key("POST", &path, &bearer, "key", body).await;
                assert_eq!(answer.status, status, "{path}: {}", answer.body);
                self.described.check(&route, "POST", &answer);
            }
            let old = self.token(running, "0.0").await;
            let answer = self.weir.with_key("POST", &path, &old, "key", body).await;
            assert_eq!(answer.status, 409, "{path}: {}", answer.body);
            self.described.check(&route, "POST", &answer);
        }
    }

    /// Changes that need a service key.
    async fn administration(&mut self) {
        let plan = r#"{"plan": "pro", "event_id": "evt_1", "occurred_at": "2026-01-31T00:00:00Z"}"#;
        let (other_plan, slots) = (&plan.replace("pro", "free"), r#"{"slots": 2}"#);
        let more = r#"{"meter": "analysis", "amount": 1, "reason": "a test"}"#;
        let (other, nothing) = (&more.replace('1', "2"), &more.replace("analysis", "nothing"));
        self.change_a_known_holder(plan, other_plan, slots, more, other)
            .await;
        self.lower_a_grant().await;
        let deleted =
            "INSERT INTO deleted_users (hash) SELECT sha256(convert_to(weir_holder('gone')::text, 'UTF8'))";
        self.weir.client().await.batch_execute(deleted).await.unwrap();
        for (method, route, path, body, status) in [
            ("POST", ADJUSTMENTS, "/admin/holders/gone/adjustments", more, 200),
            ("POST", GRANTS, "/admin/holders/gone/grants", more, 200),
            ("PUT", PLAN, "/admin/holders/gone/plan", plan, 200),
            (
                "POST",
                ADJUSTMENTS,
                "/admin/holders/anne/adjustments",
                nothing,
                404,
            ),
            ("POST", GRANTS, "/admin/holders/anne/grants", nothing, 404),
            ("GET", HOLDER, "/admin/holders/nobody", "", 404),
            ("PUT", PLAN, "/admin/holders/%11/plan", plan, 404),
            ("GET", USAGE, "/admin/holders/nobody/usage", "", 404),
            ("GET", USAGE, "/admin/holders/anne/usage?window=week", "", 422),
            (
                "GET",
                CHECK,
                "/admin/holders/nobody/quota?service=analysis",
                "",
                200,
            ),
            ("GET", CHECK, "/admin/holders/nobody/quota?service=video", "", 404),
            ("GET", CHECK, "/admin/holders/nobody/quota", "", 422),
            ("GET", EVENTS, "/admin/usage/events?limit=0", "", 422),
            ("GET", LOG, "/admin/audit-log?limit=0", "", 422),
        ] {
            self.check_operator(method, route, path, "key-2", body, status)
                .await;
        }
    }

    async fn change_a_known_holder(
        &mut self,
        plan: &str,
        other_plan: &str,
        slots: &str,
        more: &str,
        other: &str,
    ) {
        for (method, route, meter, body, status) in [
            ("PUT", PLAN, "", plan, 200),
            ("PUT", PLAN, "", other_plan, 409),
            ("PUT", PLAN, "", "{}", 422),
            ("PUT", OVERRIDE, "analysis", slots, 200),
            ("PUT", OVERRIDE, "nothing", slots, 404),
            ("PUT", OVERRIDE, "analysis", "{}", 422),
            ("DELETE", OVERRIDE, "analysis", "", 200),
            ("DELETE", OVERRIDE, "nothing", "", 404),
            ("POST", ADJUSTMENTS, "", more, 201),
            ("POST", ADJUSTMENTS, "", other, 409),
            ("POST", ADJUSTMENTS, "", "{}", 422),
            ("POST", GRANTS, "", more, 201),
            ("POST", GRANTS, "", other, 409),
            ("POST", GRANTS, "", "{}", 422),
            ("GET", HOLDER, "", "", 200),
            ("GET", USAGE, "", "", 200),
            ("GET", EVENTS, "", "", 200),
            ("GET", LOG, "", "", 200),
        ] {
            let path = route.replace("{subject}", "anne").replace("{meter}", meter);
            self.check_operator(method, route, &path, route, body, status)
                .await;
        }
    }

    async fn lower_a_grant(&mut self) {
        let grants = "SELECT id FROM grants LIMIT 1";
        let grant: Uuid = self
            .weir
            .client()
            .await
            .query_one(grants, &[])
            .await
            .unwrap()
            .get(0);
        let lowered = r#"{"amount": 0, "reason": "a refund"}"#;
        for (grant, body, status) in [
            (grant.to_string(), lowered, 200),
            (grant.to_string(), "{}", 422),
            (Uuid::new_v4().to_string(), lowered, 404),
            ("none".to_owned(), lowered, 404),
        ] {
            let path = format!("/admin/holders/anne/grants/{grant}");
            self.check_operator("PUT", GRANT, &path, "-", body, status).await;
        }
    }

    /// Sends a request as the operator, with this idempotency key, and checks the response against the document.
    async fn check_operator(
        &mut self,
        method: &str,
        route: &str,
        path: &str,
        key: &str,
        body: &str,
        status: u16,
    ) {
        let answer = self.weir.with_key(method, path, &self.operator, key, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        self.described.check(route, method, &answer);
    }

    /// Webhooks from creation to deletion.
    async fn webhooks(&mut self) {
        let webhook = |route: &str, id: &str| route.replace("{id}", id);
        let (wanted, replay) = (
            json!({ "url": "https://example.com/hook" }).to_string(),
            json!({ "undelivered_since": "2026-01-31T00:00:00Z" }).to_string(),
        );
        let of_webhook = "/admin/webhooks/{id}";
        let [rotate, enable, test, replays] =
            ["rotate", "enable", "test", "replay"].map(|what| format!("{of_webhook}/{what}"));
        let made = self
            .weir
            .with_key("POST", "/admin/webhooks", &self.operator, "-", &wanted)
            .await;
        assert_eq!(made.status, 201, "{}", made.body);
        self.described.check("/admin/webhooks", "POST", &made);
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
                let mut client = self.weir.client().await;
                let disabled = control::disable_webhook(&mut client, there.parse().unwrap(), "410");
                disabled.await.unwrap();
                continue;
            }
            let path = webhook(route, id);
            let answer = self.weir.with_key(method, &path, &self.operator, "-", body).await;
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
            self.described.check(route, method, &answer);
        }
    }

    /// A service key without the scope.
    async fn missing_scopes(&mut self) {
        for (route, method, status) in self.described.promised() {
            if status == "403" {
                let lacking = if route.starts_with("/admin/") {
                    &self.reader
                } else {
                    &self.operator
                };
                let answer = self
                    .weir
                    .with_key(&method, &path_of(&route), lacking, "key-3", "")
                    .await;
                assert_eq!(answer.status, 403, "{method} {route}");
                self.described.check(&route, &method, &answer);
            }
        }
    }

    /// A service key without the user that it acts for.
    async fn missing_subjects(&mut self) {
        let mut client = self.weir.client().await;
        let key = "weir_sk_no_subject";
        control::create_key(&mut client, "shell:test", "no-subject", key, &Scope::ALL, None)
            .await
            .unwrap();
        for (route, method, status) in self.described.promised() {
            if status == "422" && route.starts_with("/api/") {
                let request = axum::http::Request::builder()
                    .method(method.as_str())
                    .uri(path_of(&route))
                    .header("authorization", format!("Bearer {key}"));
                let request = request.body(axum::body::Body::empty()).unwrap();
                let answer = self.weir.send(request).await;
                assert_eq!(answer.status, 422, "{method} {route}");
                self.described.check(&route, &method, &answer);
            }
        }
    }

    /// Requests without the edge's assertion.
    async fn no_assertion(&mut self) {
        for (route, method, _) in self.described.promised() {
            let path = path_of(&route);
            let request = axum::http::Request::builder().method(method.as_str()).uri(path);
            let answer = self
                .weir
                .send(request.body(axum::body::Body::empty()).unwrap())
                .await;
            assert_eq!(answer.status, 401, "{method} {route}");
            self.described.check(&route, &method, &answer);
        }
    }

    /// Event streams, and one more than is allowed. The body of a stream has no end, so only its head is checked.
    async fn streams(&mut self) {
        for route in ["/api/lanes/events", "/api/jobs/events"] {
            let response = self.weir.head_of(route, self.who).await;
            self.described.check(route, "GET", &response);
        }

        // The maximum number of streams, and one more.
        let job = self.weir.analyse(self.who, "a_test.go", GO_TESTS).await;
        let events = format!("/api/jobs/{job}/events");
        let mut streams = Vec::new();
        for _ in 0..32 {
            streams.push(self.weir.stream("/api/jobs/events", self.who).await);
        }
        for (route, path) in [
            ("/api/jobs/events", "/api/jobs/events"),
            ("/api/jobs/{id}/events", events.as_str()),
        ] {
            let answer = self.weir.get(path, self.who).await;
            assert_eq!(answer.status, 429, "{}", answer.body);
            self.described.check(route, "GET", &answer);
        }
        let mut live = Vec::new();
        for _ in 0..8 {
            live.push(self.weir.stream("/api/lanes/events", self.who).await);
        }
        let answer = self.weir.get("/api/lanes/events", self.who).await;
        assert_eq!(answer.status, 429, "{}", answer.body);
        self.described.check("/api/lanes/events", "GET", &answer);
        drop((streams, live));
        assert_eq!(self.weir.head_of("/api/jobs/events", self.who).await.status, 200);
    }

    /// Every route while the database refuses connections.
    async fn no_database(&mut self) {
        let attempt = self.token(1, "1.1").await;
        let admin = self.weir.admin().await;
        let name = self.weir.name();
        admin
            .batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
            .await
            .unwrap();
        for (route, method, status) in self.described.promised() {
            if status != "503" {
                continue;
            }
            let path = match (route.as_str(), method.as_str()) {
                ("/api/jobs/{id}/batch", _) => "/api/jobs/analysis/batch".to_owned(),
                ("/api/jobs/{id}", "POST") => "/api/jobs/analysis".to_owned(),
                (route, _) if route.ends_with("/quota") => format!("{}?service=analysis", path_of(route)),
                (route, _) => path_of(route),
            };
            // All open connections.
            let end =
                format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
            admin.batch_execute(&end).await.unwrap();
            let answer = self
                .weir
                .until(&format!("{method} {route} to notice the outage"), async || {
                    let body = if path.ends_with("/batch") {
                        self.many.clone()
                    } else if method == "POST" {
                        self.good.clone()
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
                        self.weir.with_key(&method, &path, &attempt, "key-5", body).await
                    } else if path.starts_with("/admin/") {
                        self.weir
                            .with_key(&method, &path, &self.operator, "key-4", "{}")
                            .await
                    } else {
                        self.weir
                            .call(&method, &path, self.who, &[], body.into_bytes())
                            .await
                    };
                    (answer.status == 503).then_some(answer)
                })
                .await;
            assert!(answer.headers.contains_key("retry-after"), "{method} {route}");
            self.described.check(&route, &method, &answer);
        }
        admin
            .batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_answer_occurs_as_documented() {
    let mut provoked = Provoked::new().await;
    provoked.submissions().await;
    provoked.jobs().await;
    provoked.retries().await;
    provoked.later_answers().await;
    provoked.administration().await;
    provoked.webhooks().await;
    provoked.missing_scopes().await;
    provoked.missing_subjects().await;
    provoked.no_assertion().await;
    provoked.streams().await;
    provoked.no_database().await;
    let described = &provoked.described;
    let never: Vec<_> = described
        .promised()
        .difference(&described.seen)
        .cloned()
        .collect();
    assert!(never.is_empty(), "documented, but never seen: {never:?}");
    provoked.weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn development_tokens_exist_in_development_only() {
    let route = "/api/dev/token";
    let anybody = Who::Address("198.51.100.9");
    let ask = async |weir: &Weir, plan: &str| weir.post(route, anybody, &json!({ "plan": plan })).await;
    let weir = Weir::new().await;
    let described = Described::of(&weir).await;
    assert!(described.document["paths"].get(route).is_none());
    assert_eq!(ask(&weir, "pro").await.status, 404);
    weir.end().await;

    let weir = Weir::with(&[("WEIR_ENV", "development")]).await;
    let mut described = Described::of(&weir).await;
    let given = ask(&weir, "pro").await;
    assert_eq!((given.status.as_u16(), &given.body["plan"]), (200, &"pro".into()));
    described.check(route, "POST", &given);
    let user = Who::User(given.body["user"].as_str().unwrap().parse().unwrap());
    assert_eq!(weir.get("/api/usage", user).await.body["plan"], "pro");
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
async fn development_tokens_can_have_a_burst() {
    let weir = Weir::with(&[("WEIR_ENV", "development")]).await;
    let ask = async |wanted: Value| {
        let anybody = Who::Address("198.51.100.9");
        weir.post("/api/dev/token", anybody, &wanted).await
    };
    let given = ask(json!({ "plan": "free", "burst": 3 })).await;
    assert_eq!(given.status, 200, "{}", given.body);
    let user: Uuid = given.body["user"].as_str().unwrap().parse().unwrap();
    let set = "SELECT count(*), count(*) FILTER (WHERE o.burst = 3 AND o.month = -1 AND o.slots IS NULL AND o.expires_at IS NULL)
                 FROM meters m LEFT JOIN limit_overrides o ON o.event_type::text = m.name::text AND o.user_id = $1";
    let client = weir.client().await;
    let row = client.query_one(set, &[&user]).await.unwrap();
    let (meters, with_burst): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!((meters, with_burst), (2, 2));
    for burst in [json!(0), json!(-1), json!("3"), json!(1_000_001)] {
        let refused = ask(json!({ "plan": "free", "burst": burst })).await;
        assert_eq!(refused.status, 422, "{burst}: {}", refused.body);
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shared_queue_runs_without_admission_in_development_only() {
    let route = "/api/dev/shared-queue";
    let who = Who::Address("198.51.100.9");
    let run = uuid::Uuid::new_v4();
    let wanted = json!({ "run": run, "users": [0, 0, 0, 1] });
    let list = format!("{route}?run={run}");
    let weir = Weir::new().await;
    assert_eq!(weir.post(route, who, &wanted).await.status, 404);
    weir.end().await;

    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let read = |file: &str| std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
    let services = read("weir.toml") + &read("scripts/lib/demo.toml");
    let weir = Weir::serving(&services, &[("WEIR_ENV", "development")]).await;
    let mut described = Described::of(&weir).await;
    let working = weir.work().await;
    let submitted = weir.post(route, who, &wanted).await;
    assert_eq!(submitted.status, 202, "{}", submitted.body);
    described.check(route, "POST", &submitted);
    let users = |answer: &Answer| -> Vec<i64> {
        let jobs = answer.body.as_array().unwrap().iter();
        jobs.map(|job| job["user"].as_i64().unwrap()).collect()
    };
    assert_eq!(users(&submitted), [0, 0, 0, 1]);
    let done = weir
        .until("the end of the shared queue", async || {
            let answer = weir.get(&list, who).await;
            let jobs = answer.body.as_array()?;
            let all = jobs.iter().all(|job| job["finished_at"].is_string());
            (all && jobs.len() == 4).then_some(answer)
        })
        .await;
    described.check(route, "GET", &done);
    assert_eq!(users(&done), [0, 0, 0, 1]);
    // There are as many workers as a user's slots, so slots do not limit the jobs.
    let time =
        |n: usize, name: &str| -> jiff::Timestamp { done.body[n][name].as_str().unwrap().parse().unwrap() };
    assert!(time(2, "started_at") < time(0, "finished_at"), "{}", done.body);
    assert_eq!(weir.count("quota_reservations").await, 0);
    for body in [
        json!({}),
        json!({ "run": run, "users": [] }),
        json!({ "run": run, "users": vec![0; 201] }),
    ] {
        let refused = weir.post(route, who, &body).await;
        assert_eq!(refused.status, 422);
        described.check(route, "POST", &refused);
    }
    let refused = weir.get(&format!("{route}?run=1"), who).await;
    assert_eq!(refused.status, 422);
    described.check(route, "GET", &refused);
    working.stop().await;
    weir.end().await;

    let weir = Weir::with(&[("WEIR_ENV", "development")]).await;
    let mut described = Described::of(&weir).await;
    let absent = weir.post(route, who, &wanted).await;
    assert_eq!(absent.status, 404, "the shipped catalogue has no service for it");
    described.check(route, "POST", &absent);
    described.check(route, "GET", &weir.get(&list, who).await);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn caches_may_not_keep_answers() {
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

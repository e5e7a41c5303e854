//! Event streams: their events, their privacy, and their cost.

use crate::common;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{GO_TESTS, Weir, Who};
use async_trait::async_trait;
use axum::body::{Body, BodyDataStream};
use axum::http::{Request, Response};
use futures_util::StreamExt;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tower::ServiceExt;
use uuid::Uuid;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::work::{Role, Working};
use weir_ledger::attempts::Progress;
use weir_ledger::control::{self, Scope};
use weir_ledger::holder::Holder;
use weir_policy::token::LEEWAY_SECS;

/// An open stream of server-sent events.
struct Events {
    body: BodyDataStream,
    text: String,
    read: VecDeque<(String, Value)>,
}

impl Events {
    async fn open(weir: &Weir, path: &str, who: Who) -> Self {
        Self::of_answer(weir.stream(path, who).await)
    }

    fn of_answer(response: Response<Body>) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(
            response.headers()["x-accel-buffering"],
            "no",
            "nginx must not buffer it"
        );
        Self {
            body: Body::into_data_stream(response.into_body()),
            text: String::new(),
            read: VecDeque::new(),
        }
    }

    /// The next event; `None` when the stream ends.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(event) = self.read.pop_front() {
                return Some(event);
            }
            let chunk = tokio::time::timeout(Duration::from_secs(30), self.body.next()).await;
            let chunk = chunk.unwrap_or_else(|_| panic!("waited 30 s for an event"))?;
            self.text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
            while let Some(end) = self.text.find("\n\n") {
                let event: String = self.text.drain(..end + 2).collect();
                let field = |name: &str| {
                    let mut lines = event.lines();
                    lines.find_map(|line| line.strip_prefix(name)).map(str::trim)
                };
                if let (Some(name), Some(data)) = (field("event:"), field("data:")) {
                    self.read
                        .push_back((name.to_owned(), serde_json::from_str(data).unwrap()));
                }
            }
        }
    }

    async fn of(&mut self, name: &str) -> Value {
        let (got, data) = self.next().await.unwrap();
        assert_eq!(got, name, "{data}");
        data
    }
}

/// Long enough to be seen running by a client that polls ten times a second, on a busy machine too.
struct Unhurried;

#[async_trait]
impl Handler for Unhurried {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, _attempt: Attempt) -> Result<Worked, HandlerError> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(Outcome {
            output: json!({}),
            used: None,
        }
        .into())
    }
}

async fn work_with(weir: &Weir, handler: Arc<dyn Handler>) -> Working {
    let context = weir.another(&[]).with_handler("analysis:analyze", handler);
    Working::start(&context, Role::Both, &context.settings.services)
        .await
        .unwrap()
}

/// Holds each job of a user until the test has seen it running. A stream shows at most the states between two looks.
struct HeldUntilSeen {
    user: Uuid,
    seen: watch::Sender<BTreeSet<i64>>,
}

#[async_trait]
impl Handler for HeldUntilSeen {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        if attempt.holder.is_some_and(|holder| holder.id == self.user) {
            let mut seen = self.seen.subscribe();
            let _ = seen.wait_for(|seen| seen.contains(&attempt.job_id)).await;
        }
        Ok(Outcome {
            output: json!({}),
            used: None,
        }
        .into())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stream_sends_every_job_of_a_burst_but_not_other_users_jobs() {
    let weir = Weir::new().await;
    let user = weir.user("enterprise").await;
    let (who, other) = (Who::User(user), Who::User(weir.user("free").await));
    let handler = Arc::new(HeldUntilSeen {
        user,
        seen: watch::Sender::default(),
    });
    let mut events = Events::open(&weir, "/api/jobs/events", who).await;
    assert_eq!(events.of("jobs").await, json!([]));
    let mut seen: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for _ in 0..50 {
        weir.analyse(other, "a_test.go", GO_TESTS).await;
        seen.insert(weir.analyse(who, "a_test.go", GO_TESTS).await, Vec::new());
    }
    let mut working = None;
    let is_over = |states: &Vec<String>| states.last().is_some_and(|state| state == "completed");
    while !seen.values().all(is_over) {
        let job = events.of("job").await;
        let id = job["id"].as_i64().unwrap();
        let states = seen
            .get_mut(&id)
            .unwrap_or_else(|| panic!("{job} belongs to another user"));
        let state = job["status"].as_str().unwrap().to_owned();
        let order = ["queued", "running", "completed"];
        let place = |state: &String| order.iter().position(|one| one == state);
        assert!(
            states.last().is_none_or(|last| place(last) <= place(&state)),
            "{states:?}"
        );
        if state == "running" {
            handler.seen.send_modify(|seen| {
                seen.insert(id);
            });
        }
        if state == "completed" {
            assert_eq!(job["charged"], 1);
        }
        if states.last() != Some(&state) {
            states.push(state);
        }
        if working.is_none() && seen.values().all(|states| !states.is_empty()) {
            working = Some(work_with(&weir, Arc::clone(&handler) as Arc<dyn Handler>).await);
        }
    }
    for (id, states) in seen {
        assert_eq!(states, ["queued", "running", "completed"], "job {id}");
    }
    working.unwrap().stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconnected_stream_sends_every_change() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let mut events = Events::open(&weir, "/api/jobs/events?limit=2", who).await;
    assert_eq!(events.of("jobs").await, json!([]));
    let first = weir.analyse(who, "a_test.go", GO_TESTS).await;
    assert_eq!(events.of("job").await["id"], first);
    drop(events);

    // Before the stream opens: one job is done, two are added, and the oldest of the three is not among the two
    // requested ones.
    let working = weir.work().await;
    weir.finished(first, who).await;
    working.stop().await;
    let second = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let third = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let mut events = Events::open(&weir, "/api/jobs/events?limit=2", who).await;
    let jobs = events.of("jobs").await;
    let now: Vec<_> = jobs
        .as_array()
        .unwrap()
        .iter()
        .map(|job| (job["id"].as_i64().unwrap(), job["waiting_for"].as_str()))
        .collect();
    assert_eq!(now, [(third, Some("slot")), (second, Some("worker"))]);
    assert_eq!(events.of("job").await["id"], first, "one of the hundred newest");

    // Nothing more until something happens, then that change and its consequences.
    let path = format!("/api/jobs/{second}");
    assert_eq!(weir.call("DELETE", &path, who, &[], Vec::new()).await.status, 200);
    let (mut cancelled, mut promoted) = (false, false);
    while !(cancelled && promoted) {
        let job = events.of("job").await;
        cancelled |= job["id"] == second && job["status"] == "cancelled";
        promoted |= job["id"] == third && job["waiting_for"] == "worker";
    }

    // A row of River's tables is deleted by hand.
    weir.client()
        .await
        .execute("DELETE FROM river_job WHERE id = $1", &[&third])
        .await
        .unwrap();
    while events.next().await.unwrap() != ("gone".to_owned(), json!({ "id": third })) {}
    weir.reconcile().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_anonymous_caller_streams_one_job_by_token() {
    let weir = Weir::new().await;
    let (here, neighbour) = (Who::Address("198.51.100.1"), Who::Address("198.51.100.1"));
    let answer = weir
        .post(
            "/api/jobs/analysis",
            here,
            &common::files(&[("a_test.go", GO_TESTS)]),
        )
        .await;
    let id = answer.body["job"]["id"].as_i64().unwrap();
    let token = answer.body["token"].as_str().unwrap();
    assert_eq!(weir.head_of("/api/jobs/events", neighbour).await.status, 401);
    // A browser's EventSource sends no header.
    let mut events = Events::open(&weir, &format!("/api/jobs/{id}/events?token={token}"), here).await;
    assert_eq!(events.of("job").await["status"], "queued");
    weir.call("DELETE", &format!("/api/jobs/{id}"), here, &[], Vec::new())
        .await;
    assert_eq!(events.of("job").await["status"], "cancelled");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_one_job_ends_with_its_last_state() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let mut events = Events::open(&weir, &format!("/api/jobs/{id}/events"), who).await;
    assert_eq!(events.of("job").await["status"], "queued");
    weir.analyse(who, "a_test.go", GO_TESTS).await;
    let working = work_with(&weir, Arc::new(Unhurried)).await;
    let mut last = Value::Null;
    while let Some((name, job)) = events.next().await {
        assert_eq!((name.as_str(), &job["id"]), ("job", &id.into()));
        last = job;
    }
    assert_eq!(last["status"], "completed");
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_shows_the_charge_of_a_job_another_client_ended() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await;
    let charged = [("completed", 1), ("cancelled", 0)];
    let mut streams = Vec::new();
    for (state, cost) in charged {
        let id = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        weir.ended_by_other_client(id, state).await;
        let mut events = Events::open(&weir, &format!("/api/jobs/{id}/events"), Who::User(user)).await;
        let job = events.of("job").await;
        assert_eq!((&job["status"], &job["charged"]), (&json!(state), &json!(0)));
        streams.push((events, cost));
    }
    weir.reconcile().await;
    for (mut events, cost) in streams {
        if cost > 0 {
            assert_eq!(events.of("job").await["charged"], cost);
        }
        assert_eq!(events.next().await, None);
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_callers_token_expires() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let of_one = format!("/api/jobs/{id}/events");
    for path in ["/api/jobs/events", "/api/lanes/events", &of_one] {
        // The token is accepted for two more seconds, because clocks differ.
        let expires_at = jiff::Timestamp::now().as_second().unsigned_abs() + 2 - LEEWAY_SECS;
        let mut events = Events::of_answer(weir.stream_until(path, who, expires_at).await);
        let end = async { while events.next().await.is_some() {} };
        let waited = tokio::time::timeout(Duration::from_secs(60), end).await;
        assert!(waited.is_ok(), "{path} goes on");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_when_its_service_key_is_revoked_or_expires() {
    let weir = Weir::new().await;
    let mut client = weir.client().await;
    let open = async |name: &str, path: &str| {
        let request = Request::builder()
            .uri(path)
            .header("authorization", format!("Bearer weir_sk_{}", name.repeat(43)))
            .header("weir-on-behalf-of", "anne");
        let request = request.body(Body::empty()).unwrap();
        Events::of_answer(weir.router.clone().oneshot(request).await.unwrap())
    };
    let in_an_hour = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    for (name, expires_at) in [("a", None), ("b", Some(in_an_hour)), ("c", None)] {
        let secret = format!("weir_sk_{}", name.repeat(43));
        control::create_key(
            &mut client,
            "shell:test",
            name,
            &secret,
            &[Scope::Read],
            expires_at,
        )
        .await
        .unwrap();
    }
    let mut streams = Vec::new();
    for name in ["a", "b"] {
        for path in ["/api/jobs/events", "/api/lanes/events"] {
            streams.push((name, path, open(name, path).await));
        }
    }
    let mut other = open("c", "/api/lanes/events").await;
    assert!(control::revoke_key(&mut client, "shell:test", "a").await.unwrap());
    // Not earlier, because a key that has expired opens no stream.
    let expire = "UPDATE service_keys SET expires_at = now() WHERE name = 'b'";
    client.batch_execute(expire).await.unwrap();
    for (name, path, mut events) in streams {
        let end = async { while events.next().await.is_some() {} };
        let waited = tokio::time::timeout(Duration::from_secs(60), end).await;
        assert!(waited.is_ok(), "{path} of {name} goes on");
    }
    for _ in 0..3 {
        assert!(other.next().await.is_some(), "a valid key's stream goes on");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_streams_cost_the_database_as_little_as_one() {
    let weir = Weir::new().await;
    let reads = async || -> i64 {
        // An idle backend reports its reads about once a second.
        tokio::time::sleep(Duration::from_millis(2500)).await;
        let row = weir
            .client()
            .await
            .query_one(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()",
                &[],
            )
            .await
            .unwrap();
        row.get(0)
    };
    let mut streams = Vec::new();
    let mut cost = Vec::new();
    for count in [1, 40] {
        while streams.len() < count {
            let who = Who::User(weir.user("free").await);
            // An unfinished job, so that it is checked often.
            weir.analyse(who, "a_test.go", GO_TESTS).await;
            streams.push(Events::open(&weir, "/api/jobs/events", who).await);
        }
        let before = reads().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        cost.push(reads().await - before);
    }
    assert!(cost[0] > 10, "one stream is looked after: {cost:?}");
    assert!(cost[1] < 3 * cost[0], "{cost:?}");
    drop(streams);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_of_the_lanes_does_not_contain_user_data() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let mut events = Events::open(&weir, "/api/lanes/events", Who::Address("192.0.2.9")).await;
    let empty = events.of("lanes").await;
    assert_eq!(empty["services"]["analysis"]["default"]["queued"], 0, "{empty}");
    for _ in 0..3 {
        weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    }
    // Once a second, so some of them may be from before all jobs were submitted.
    let mut seen = events.of("lanes").await;
    for _ in 0..100 {
        if seen["services"]["analysis"]["parked"] == 2 {
            break;
        }
        seen = events.of("lanes").await;
    }
    let analysis = &seen["services"]["analysis"];
    assert_eq!(
        (
            &analysis["parked"],
            &analysis["slots_in_use"],
            &analysis["default"]["queued"]
        ),
        (&json!(2), &json!(1), &json!(1)),
        "{seen}"
    );
    assert_eq!(analysis["priority"]["queued"], 0, "{seen}");
    assert!(!seen.to_string().contains(&user.to_string()), "{seen}");
    let now = weir.get("/api/lanes", Who::User(user)).await.body;
    assert_eq!(
        now["services"], seen["services"],
        "as a query of the database shows it"
    );
    weir.end().await;
}

/// Reports its progress, and continues when notified.
struct Halfway(Arc<tokio::sync::Notify>);

#[async_trait]
impl Handler for Halfway {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        for n in 0..=50 {
            attempt.progress.report(Progress {
                fraction: f64::from(n) / 100.0,
                message: Some(format!("{n} of 100")),
            });
        }
        self.0.notified().await;
        Ok(Outcome {
            output: json!({}),
            used: None,
        }
        .into())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_sends_progress_and_the_latest_of_many_messages() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let go_on = Arc::new(tokio::sync::Notify::new());
    let handler = Arc::new(Halfway(Arc::clone(&go_on)));
    let working = work_with(&weir, handler).await;
    let mut events = Events::open(&weir, "/api/jobs/events", who).await;
    events.of("jobs").await;
    weir.analyse(who, "a_test.go", GO_TESTS).await;
    loop {
        let job = events.of("job").await;
        if job["progress"]["fraction"] == 0.5 {
            assert_eq!(job["progress"]["message"], "50 of 100");
            break;
        }
    }
    go_on.notify_one();
    loop {
        let job = events.of("job").await;
        if job["status"] == "completed" {
            assert_eq!(job["progress"], Value::Null);
            break;
        }
    }
    working.stop().await;
    weir.end().await;
}

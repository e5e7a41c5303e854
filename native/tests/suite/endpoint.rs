//! The handler `http` and a service's own retry policy, against a real HTTP server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::fleet::Maintenance;
use crate::common::services_file::service;
use crate::common::{Weir, Who};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use weir::work::Working;

struct Call {
    at: Instant,
    headers: HashMap<String, String>,
    body: Value,
}

/// The requests to the endpoint, in order.
type Calls = Arc<Mutex<Vec<Call>>>;

/// Dropped when the server notices that the client has left.
struct Waiting(Calls);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.lock().unwrap().clear();
    }
}

async fn answer(State(calls): State<Calls>, headers: HeaderMap, body: String) -> Response {
    let body: Value = serde_json::from_str(&body).unwrap();
    let tries = {
        let mut calls = calls.lock().unwrap();
        calls.push(Call {
            at: Instant::now(),
            headers: headers
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
                .collect(),
            body: body.clone(),
        });
        calls.len()
    };
    match body["do"].as_str().unwrap() {
        "work" => json!({ "used": 2, "said": body["say"] })
            .to_string()
            .into_response(),
        "busy" if tries == 1 => {
            (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "2")], "busy").into_response()
        }
        "fail" if tries <= 2 => (StatusCode::INTERNAL_SERVER_ERROR, "out of paper").into_response(),
        "refuse" => (StatusCode::UNPROCESSABLE_ENTITY, "no such repository").into_response(),
        "deploy" if tries == 1 => {
            let status = StatusCode::from_u16(body["status"].as_u64().unwrap().try_into().unwrap());
            (status.unwrap(), [("retry-after", "1")], "not here yet").into_response()
        }
        "give up" => {
            let problem = json!({ "title": "Gone", "retry": false }).to_string();
            let kind = [("content-type", "application/problem+json")];
            (StatusCode::SERVICE_UNAVAILABLE, kind, problem).into_response()
        }
        "flood" => "x".repeat(5 * 1024 * 1024).into_response(),
        "hang" => {
            let _waiting = Waiting(calls);
            tokio::time::sleep(Duration::from_secs(60)).await;
            StatusCode::OK.into_response()
        }
        _ => "{}".into_response(),
    }
}

/// A Weir with the endpoint as its only service.
struct Stage {
    weir: Weir,
    working: Working,
    maintenance: Maintenance,
    calls: Calls,
    who: Who,
}

impl Stage {
    async fn new() -> Self {
        let calls = Calls::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/work", post(answer))
            .with_state(Arc::clone(&calls));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self::at(address, calls).await
    }

    /// The same with an existing endpoint.
    async fn at(address: std::net::SocketAddr, calls: Calls) -> Self {
        let handler = format!(
            "timeout = '60s'\nmax_attempts = 3\nretry = {{ base = '100ms', factor = 4 }}\n\
             handler = {{ type = 'http', url = 'http://{address}/work', private = true, amount = 5 }}"
        );
        let weir = Weir::serving(&service("remote", "specview", &handler), &[]).await;
        let working = weir.work().await;
        let who = Who::User(weir.user("free").await);
        Self {
            maintenance: Maintenance::of(&weir),
            weir,
            working,
            calls,
            who,
        }
    }

    async fn submit(&self, args: Value) -> i64 {
        let answer = self.weir.post("/api/jobs/remote", self.who, &args).await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        answer.body["job"]["id"].as_i64().unwrap()
    }

    async fn run(&self, args: Value) -> Value {
        let id = self.submit(args).await;
        self.weir.finished(id, self.who).await
    }

    fn pauses(&self) -> Vec<f64> {
        let calls = self.calls.lock().unwrap();
        calls
            .windows(2)
            .map(|two| (two[1].at - two[0].at).as_secs_f64())
            .collect()
    }

    async fn end(self) {
        self.working.stop().await;
        self.maintenance.end().await;
        self.weir.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoints_answer_is_the_output_and_the_charge() {
    let stage = Stage::new().await;
    let job = stage.run(json!({ "do": "work", "say": "안녕" })).await;
    assert_eq!(
        (&job["status"], &job["charged"], &job["output"]["said"]),
        (&json!("completed"), &json!(2), &json!("안녕")),
        "{job}"
    );
    {
        let calls = stage.calls.lock().unwrap();
        assert_eq!(calls.len(), 1);
        let id = &job["id"];
        for (name, value) in [
            ("weir-job-id", id.to_string()),
            ("weir-attempt", "1".to_owned()),
            ("content-type", "application/json".to_owned()),
        ] {
            assert_eq!(calls[0].headers[name], value, "{name}");
        }
        assert_eq!(calls[0].body["say"], "안녕");
        let key = &calls[0].headers["idempotency-key"];
        assert!(key.parse::<uuid::Uuid>().is_ok(), "{key}");
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_endpoint_is_retried_by_the_services_policy() {
    let stage = Stage::new().await;
    let job = stage.run(json!({ "do": "fail" })).await;
    assert_eq!(
        (&job["status"], &job["attempt"]),
        (&json!("completed"), &json!(3)),
        "{job}"
    );
    let pauses = stage.pauses();
    // 100 ms and 400 ms, less a tenth. River's own pauses would be 1 s and 16 s.
    assert!(pauses[0] >= 0.09 && pauses[1] >= 0.36, "{pauses:?}");
    assert!(pauses.iter().sum::<f64>() < 10.0, "{pauses:?}");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoints_retry_after_is_respected() {
    let stage = Stage::new().await;
    let job = stage.run(json!({ "do": "busy" })).await;
    assert_eq!(job["status"], "completed", "{job}");
    let pauses = stage.pauses();
    assert!(pauses[0] >= 1.95, "{pauses:?}");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_request_and_too_long_an_answer_end_the_job_immediately() {
    let stage = Stage::new().await;
    for (what, reason) in [("refuse", "no such repository"), ("flood", "larger than")] {
        let job = stage.run(json!({ "do": what })).await;
        assert_eq!(
            (&job["status"], &job["attempt"], &job["charged"]),
            (&json!("failed"), &json!(1), &json!(0)),
            "{job}"
        );
        let message = job["error"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message}");
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_the_job_closes_the_connection_to_the_endpoint() {
    let stage = Stage::new().await;
    let id = stage.submit(json!({ "do": "hang" })).await;
    stage
        .weir
        .until("the endpoint to be asked", async || {
            (!stage.calls.lock().unwrap().is_empty()).then_some(())
        })
        .await;
    stage
        .weir
        .call("DELETE", &format!("/api/jobs/{id}"), stage.who, &[], Vec::new())
        .await;
    let job = stage.weir.finished(id, stage.who).await;
    assert_eq!(job["status"], "cancelled", "{job}");
    stage
        .weir
        .until("the endpoint to notice", async || {
            stage.calls.lock().unwrap().is_empty().then_some(())
        })
        .await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_during_a_deployment_is_retried() {
    let stage = Stage::new().await;
    for status in [401, 403, 404, 421, 451] {
        stage.calls.lock().unwrap().clear();
        let job = stage.run(json!({ "do": "deploy", "status": status })).await;
        assert_eq!(
            (&job["status"], &job["attempt"]),
            (&json!("completed"), &json!(2)),
            "{status}: {job}"
        );
        let pauses = stage.pauses();
        assert!(pauses[0] >= 0.95, "{status}: Retry-After is 1 s: {pauses:?}");
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_problem_with_retry_false_is_final() {
    let stage = Stage::new().await;
    let job = stage.run(json!({ "do": "give up" })).await;
    assert_eq!(
        (&job["status"], &job["attempt"]),
        (&json!("failed"), &json!(1)),
        "{job}"
    );
    for status in [400, 409, 410, 413, 422] {
        stage.calls.lock().unwrap().clear();
        let job = stage.run(json!({ "do": "deploy", "status": status })).await;
        assert_eq!(
            (&job["status"], &job["attempt"]),
            (&json!("failed"), &json!(1)),
            "{status}: {job}"
        );
    }
    stage.end().await;
}

/// A server that answers the first request of each connection and closes the connection on the next, like one that
/// closes idle connections. Returns its address and the keys of its requests.
async fn hanging_up() -> (std::net::SocketAddr, Arc<Mutex<Vec<String>>>) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&keys);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                for answers in [true, false] {
                    let mut request = String::new();
                    while !request.ends_with('}') {
                        let mut piece = [0; 4096];
                        match stream.read(&mut piece).await {
                            Ok(read) if read > 0 => {
                                request.push_str(&String::from_utf8_lossy(&piece[..read]))
                            }
                            _ => return,
                        }
                    }
                    let key = request
                        .lines()
                        .find_map(|line| line.strip_prefix("idempotency-key: "));
                    seen.lock().unwrap().push(key.unwrap().to_owned());
                    if request.contains("\"late crash\"") && !answers {
                        tokio::time::sleep(Duration::from_secs(4)).await;
                    }
                    // Closes the connection immediately if the request asks for it.
                    if !answers || request.contains("\"crash\"") {
                        return;
                    }
                    let answer =
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                    stream.write_all(answer).await.unwrap();
                }
            });
        }
    });
    (address, keys)
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_connections_do_not_use_an_attempt() {
    let (address, keys) = hanging_up().await;
    let stage = Stage::at(address, Calls::default()).await;
    for attempts in 1..=2 {
        let job = stage.run(json!({ "n": attempts })).await;
        assert_eq!(
            (&job["status"], &job["attempt"]),
            (&json!("completed"), &json!(1)),
            "{job}"
        );
    }
    {
        let keys = keys.lock().unwrap();
        assert_eq!(keys.len(), 3, "{keys:?}");
        assert_eq!(keys[1], keys[2], "the same job's");
    }
    // The first request may use the kept connection, and is repeated. A request on a new connection is not repeated.
    let job = stage.run(json!({ "do": "crash" })).await;
    assert_eq!(job["status"], "failed", "{job}");
    let asked = keys.lock().unwrap().len() - 3;
    assert!(
        (3..=4).contains(&asked),
        "once an attempt, and once more for the kept connection: {asked}"
    );
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_before_a_crash_has_the_same_idempotency_key() {
    let (address, keys) = hanging_up().await;
    let stage = Stage::at(address, Calls::default()).await;
    let job = stage.run(json!({ "n": 1 })).await;
    assert_eq!(job["status"], "completed", "{job}");
    // Over the kept connection. The endpoint closes it 4 s after it received the request.
    let job = stage.run(json!({ "do": "late crash" })).await;
    let keys = keys.lock().unwrap().clone();
    assert_eq!(keys.len(), 3, "{keys:?}");
    assert_eq!(
        (&job["status"], &job["attempt"]),
        (&json!("completed"), &json!(2)),
        "the crash is a failed attempt: {job}"
    );
    stage.end().await;
}

//! An endpoint that answers later, and a Weir with this endpoint as its only service.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use weir::work::Working;

use super::services_file::service;
use super::{Answer, Weir, Who};

pub const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A request to the endpoint.
#[derive(Clone, Debug)]
pub struct Asked {
    pub job: i64,
    pub attempt: i64,
    pub token: String,
    pub headers: HashMap<String, String>,
    pub body: String,
}

struct Endpoint {
    asked: Mutex<Vec<Asked>>,
    /// Whether held answers are sent.
    let_go: watch::Sender<bool>,
}

async fn answer(State(endpoint): State<Arc<Endpoint>>, headers: HeaderMap, body: String) -> Response {
    let headers: HashMap<String, String> = headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    let number = |name: &str| headers[name].parse().unwrap();
    let asked = Asked {
        job: number("weir-job-id"),
        attempt: number("weir-attempt"),
        token: headers.get("weir-attempt-token").cloned().unwrap_or_default(),
        body: body.clone(),
        headers,
    };
    endpoint.asked.lock().unwrap().push(asked);
    let args: Value = serde_json::from_str(&body).unwrap();
    let mut let_go = endpoint.let_go.subscribe();
    match args["do"].as_str().unwrap() {
        "later" => StatusCode::ACCEPTED.into_response(),
        "hold" => {
            let_go.wait_for(|let_go| *let_go).await.unwrap();
            StatusCode::ACCEPTED.into_response()
        }
        "hang" => std::future::pending().await,
        _ => json!({ "used": 1 }).to_string().into_response(),
    }
}

pub struct Stage {
    pub weir: Weir,
    rounds: CancellationToken,
    endpoint: Arc<Endpoint>,
}

impl Stage {
    /// `timeout` is how long the endpoint may be silent. Its jobs reserve 5 each, of a meter with enough slots.
    pub async fn new(timeout: &str, more: &[(&str, &str)]) -> Self {
        let endpoint = Arc::new(Endpoint {
            asked: Mutex::default(),
            let_go: watch::channel(false).0,
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/work", post(answer))
            .with_state(Arc::clone(&endpoint));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let handler = format!(
            "timeout = '{timeout}'\nmax_attempts = 2\nretry = {{ base = '100ms', factor = 1 }}\n\
             handler = {{ type = 'http', url = 'http://{address}/work', private = true, amount = 5 }}"
        );
        // One worker, so that an outstanding job could block it.
        let services = service("remote", "specview", &handler).replace("_workers = 2", "_workers = 1");
        let variables = [&[("HANDLER_SECRET", SECRET)], more].concat();
        Self {
            weir: Weir::serving(&services, &variables).await,
            rounds: CancellationToken::new(),
            endpoint,
        }
    }

    /// Works its jobs, and reconciles.
    pub async fn work(&self) -> Working {
        let rounds = weir::work::reconcile::run(self.weir.context.clone(), self.rounds.clone());
        tokio::spawn(rounds);
        self.weir.work().await
    }

    pub async fn user(&self) -> Who {
        Who::User(self.weir.user("free").await)
    }

    pub async fn submit(&self, who: Who, what: &str) -> i64 {
        let answer = self
            .weir
            .post("/api/jobs/remote", who, &json!({ "do": what }))
            .await;
        assert_eq!(answer.status, 202, "{}", answer.body);
        answer.body["job"]["id"].as_i64().unwrap()
    }

    pub async fn job(&self, id: i64, who: Who) -> Value {
        self.weir.get(&format!("/api/jobs/{id}"), who).await.body
    }

    /// The requests to the endpoint about a job, in order.
    pub fn asked(&self, job: i64) -> Vec<Asked> {
        let asked = self.endpoint.asked.lock().unwrap();
        asked.iter().filter(|one| one.job == job).cloned().collect()
    }

    /// Waits for the request about an attempt at a job.
    pub async fn started(&self, job: i64, attempt: i64) -> Asked {
        self.weir
            .until(&format!("attempt {attempt} at job {job}"), async || {
                self.asked(job).into_iter().rfind(|one| one.attempt == attempt)
            })
            .await
    }

    /// Inserts a job without an owner, as another River client would.
    pub async fn insert_unowned(&self, what: &str) -> i64 {
        let sql = "INSERT INTO river_job (args, kind, max_attempts, queue, state) \
                   VALUES ($1, 'test:remote', 2, 'remote_scheduled', 'available') RETURNING id";
        let (client, args) = (self.weir.client().await, json!({ "do": what }));
        client.query_one(sql, &[&args]).await.unwrap().get(0)
    }

    /// Waits until a job's answer is outstanding.
    pub async fn outstanding(&self, job: i64) {
        self.weir
            .until(&format!("job {job} to be outstanding"), async || {
                let sql = "SELECT 1 FROM outstanding_attempts WHERE job_id = $1";
                let rows = self.weir.client().await.query(sql, &[&job]).await.unwrap();
                (!rows.is_empty()).then_some(())
            })
            .await;
    }

    /// Submits a job and waits until its answer is outstanding.
    pub async fn answered_later(&self, who: Who) -> (i64, Asked) {
        let job = self.submit(who, "later").await;
        let asked = self.started(job, 1).await;
        self.outstanding(job).await;
        (job, asked)
    }

    pub fn let_go(&self) {
        self.endpoint.let_go.send_replace(true);
    }

    /// Sends a report to the origin with this token.
    pub async fn send(&self, job: i64, token: &str, what: &str, body: &Value) -> Answer {
        self.send_raw(job, token, what, body.to_string()).await
    }

    pub async fn send_raw(&self, job: i64, token: &str, what: &str, body: String) -> Answer {
        let request = Request::builder()
            .method("POST")
            .uri(format!("/worker/jobs/{job}/{what}"))
            .header("authorization", format!("Bearer {token}"));
        self.weir.send(request.body(Body::from(body)).unwrap()).await
    }

    /// Sends a report, and expects the origin to accept it.
    pub async fn report(&self, asked: &Asked, what: &str, body: &Value) -> Value {
        let answer = self.send(asked.job, &asked.token, what, body).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.body);
        answer.body
    }

    /// Sends a report, and expects the origin to refuse it. Returns the reason.
    pub async fn refused(&self, asked: &Asked, what: &str, body: &Value, status: u16) -> String {
        let answer = self.send(asked.job, &asked.token, what, body).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.body);
        answer.body["detail"].as_str().unwrap().to_owned()
    }

    pub async fn charges(&self, job: i64) -> Vec<i64> {
        let sql = "SELECT quota_amount FROM usage_events WHERE job_id = $1";
        let rows = self.weir.client().await.query(sql, &[&job]).await.unwrap();
        rows.iter().map(|row| row.get::<_, i64>(0)).collect()
    }

    pub async fn end(self) {
        self.rounds.cancel();
        self.weir.end().await;
    }
}

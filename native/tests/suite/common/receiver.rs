//! A receiver of webhooks that can be killed and restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac as _};
use serde_json::Value;
use sha2::Sha256;

/// A delivery as it arrived.
#[derive(Clone, Debug)]
pub struct Received {
    pub id: String,
    pub timestamp: String,
    pub signatures: Vec<String>,
    pub body: Vec<u8>,
    pub event: Value,
}

impl Received {
    /// Whether one of its signatures is from this secret, by the specification and not by Weir's code.
    pub fn is_signed_by(&self, secret: &str) -> bool {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(
            [
                self.id.as_bytes(),
                b".",
                self.timestamp.as_bytes(),
                b".",
                &self.body,
            ]
            .concat()
            .as_slice(),
        );
        let expected = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        self.signatures.contains(&expected)
    }

    pub fn kind(&self) -> &str {
        self.event["type"].as_str().unwrap()
    }
}

/// How it responds.
#[derive(Clone, Copy, Debug)]
pub enum Answers {
    Status(u16),
    /// With a redirect to this port.
    Redirect(u16),
    /// After this time.
    After(Duration),
    /// With an unlimited body.
    Endless,
}

#[derive(Clone)]
struct Shared {
    received: Arc<Mutex<Vec<Received>>>,
    answers: Arc<Mutex<Answers>>,
}

pub struct Receiver {
    pub port: u16,
    shared: Shared,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Receiver {
    pub fn new() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Shared {
            received: Arc::default(),
            answers: Arc::new(Mutex::new(Answers::Status(204))),
        };
        let mut receiver = Self {
            port,
            shared,
            runtime: None,
        };
        receiver.serve(listener);
        receiver
    }

    fn serve(&mut self, listener: TcpListener) {
        // A separate runtime, so that all its connections end with it.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        listener.set_nonblocking(true).unwrap();
        let router = Router::new().fallback(receive).with_state(self.shared.clone());
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await
        });
        self.runtime = Some(runtime);
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    pub fn answer(&self, answers: Answers) {
        *self.shared.answers.lock().unwrap() = answers;
    }

    /// Stops the listener and breaks pending requests.
    pub fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }

    pub async fn start_again(&mut self) {
        let listener = loop {
            match TcpListener::bind(("127.0.0.1", self.port)) {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        self.serve(listener);
    }

    /// All deliveries so far, including repetitions.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap().clone()
    }

    /// By id, as a receiver stores them.
    pub fn by_id(&self) -> BTreeMap<String, Received> {
        let received = self.received().into_iter();
        received.map(|one| (one.id.clone(), one)).collect()
    }

    /// The events of this type, each once.
    pub fn of(&self, kind: &str) -> Vec<Value> {
        let mut seen = BTreeSet::new();
        let received = self.received().into_iter();
        received
            .filter(|one| one.kind() == kind && seen.insert(one.id.clone()))
            .map(|one| one.event)
            .collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn receive(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response<Body> {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let received = Received {
        id: header("webhook-id"),
        timestamp: header("webhook-timestamp"),
        signatures: header("webhook-signature")
            .split(' ')
            .map(str::to_owned)
            .collect(),
        body: body.to_vec(),
        event: serde_json::from_slice(&body).unwrap(),
    };
    shared.received.lock().unwrap().push(received);
    let answers = *shared.answers.lock().unwrap();
    let response = Response::builder();
    match answers {
        Answers::Status(status) => response.status(status).body(Body::from("as told")),
        Answers::Redirect(port) => response
            .status(StatusCode::TEMPORARY_REDIRECT)
            .header("location", format!("http://127.0.0.1:{port}/hook"))
            .body(Body::empty()),
        Answers::After(pause) => {
            tokio::time::sleep(pause).await;
            response.status(200).body(Body::empty())
        }
        Answers::Endless => {
            let chunks = futures_util::stream::repeat_with(|| {
                Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 65_536]))
            });
            response.status(500).body(Body::from_stream(chunks))
        }
    }
    .unwrap()
}

//! Traces, as a collector gets them from the real binary.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::process::Process;
use crate::common::{EDGE_SECRET, GO_TESTS, Weir, Who, files};
use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use prost::Message;
use serde_json::Value;

const EDGE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A collector that keeps the spans.
struct Collector {
    endpoint: String,
    got: Arc<Mutex<Vec<Got>>>,
}

/// A span and its service.
#[derive(Clone)]
struct Got {
    service: String,
    span: Span,
}

impl Got {
    fn attributes(&self) -> BTreeMap<&str, String> {
        texts(&self.span.attributes)
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<&str, String> {
    let text = |one: &KeyValue| match one.value.clone().unwrap().value.unwrap() {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    attributes
        .iter()
        .map(|one| (one.key.as_str(), text(one)))
        .collect()
}

impl Collector {
    async fn start() -> Self {
        let got = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&got);
        let receive = async move |headers: HeaderMap, body: Bytes| {
            if headers["content-type"] != "application/x-protobuf" || headers["api-key"] != "k=1" {
                return StatusCode::BAD_REQUEST;
            }
            let request = ExportTraceServiceRequest::decode(body).unwrap();
            for resource in request.resource_spans {
                let attributes = resource.resource.unwrap().attributes;
                let service = texts(&attributes)["service.name"].clone();
                let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                kept.lock().unwrap().extend(spans.map(|span| Got {
                    service: service.clone(),
                    span,
                }));
            }
            StatusCode::OK
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/traces", post(receive));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { endpoint, got }
    }

    fn process(&self, weir: &Weir, command: &str) -> Process {
        let service = format!("weir-{command}");
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", self.endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=k%3D1"),
            ("OTEL_SERVICE_NAME", &service),
            // Longer than the test, so that spans arrive only if the process sends them when it ends.
            ("OTEL_BSP_SCHEDULE_DELAY", "60000"),
        ];
        Process::start(weir, &[command], &variables)
    }

    fn named(&self, name: &str) -> Vec<Got> {
        let got = self.got.lock().unwrap();
        got.iter().filter(|got| got.span.name == name).cloned().collect()
    }
}

async fn submit(process: &Process, who: Who) -> i64 {
    let (path, body) = (
        "/api/jobs/analysis",
        files(&[("a_test.go", GO_TESTS)]).to_string(),
    );
    let assertion = who.assertion(EDGE_SECRET, "POST", path, "a-request");
    let headers = [("Weir-Assertion", assertion.as_str()), ("traceparent", EDGE)];
    let reply = process.ask("POST", path, &headers, &body).await.unwrap();
    assert_eq!(reply.status, 202, "{}", reply.text);
    let answer: Value = serde_json::from_str(&reply.text).unwrap();
    answer["job"]["id"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_trace_spans_edge_api_wait_and_settlement() {
    let weir = Weir::new().await;
    let collector = Collector::start().await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    let serve = collector.process(&weir, "serve");
    serve.ready().await;
    // The second waits for the first one's slot.
    let jobs = [submit(&serve, who).await, submit(&serve, who).await];
    let work = collector.process(&weir, "work");
    work.ready().await;
    for job in jobs {
        weir.finished(job, who).await;
    }
    assert!(collector.got.lock().unwrap().is_empty(), "sent before the end");
    assert_eq!(serve.stop().await, Some(0));
    assert_eq!(work.stop().await, Some(0));

    let trace = hex("4bf92f3577b34da6a3ce929d0e0e4736");
    let requests = collector.named("POST /api/jobs/{id}");
    assert_eq!(requests.len(), 2);
    for request in &requests {
        assert_eq!(request.service, "weir-serve");
        assert_eq!(request.span.trace_id, trace);
        assert_eq!(request.span.parent_span_id, hex("00f067aa0ba902b7"), "the edge's");
        assert_eq!(request.span.kind(), SpanKind::Server);
        let attributes = request.attributes();
        assert_eq!(attributes["http.request.method"], "POST");
        assert_eq!(attributes["http.route"], "/api/jobs/{id}");
        assert_eq!(attributes["http.response.status_code"], "202");
        assert_eq!(attributes["weir.request_id"], "a-request");
        assert_eq!(attributes["user.id"], user.to_string());
    }
    for (n, job) in jobs.into_iter().enumerate() {
        let of = |name: &str| {
            let spans = collector.named(name);
            let mut mine = spans
                .into_iter()
                .filter(|got| got.attributes().get("messaging.message.id") == Some(&job.to_string()));
            let only = mine.next().unwrap_or_else(|| panic!("no {name:?} of job {job}"));
            assert!(mine.next().is_none(), "two {name:?} of job {job}");
            only
        };
        let submission = of("submit analysis");
        assert_eq!(submission.span.kind(), SpanKind::Producer);
        assert!(
            requests
                .iter()
                .any(|request| request.span.span_id == submission.span.parent_span_id)
        );
        let (wait, attempt) = (of("wait analysis_default"), of("process analysis_default"));
        for got in [&wait, &attempt] {
            assert_eq!(got.service, "weir-work");
            assert_eq!(got.span.trace_id, trace);
            assert_eq!(got.span.parent_span_id, submission.span.span_id);
            let attributes = got.attributes();
            assert_eq!(attributes["messaging.system"], "river");
            assert_eq!(attributes["messaging.destination.name"], "analysis_default");
            assert_eq!(attributes["user.id"], user.to_string());
            assert_eq!(attributes["weir.kind"], "analysis:analyze");
            assert_eq!(attributes["weir.attempt"], "1");
        }
        assert_eq!(attempt.span.kind(), SpanKind::Consumer);
        assert_eq!(attempt.attributes()["weir.outcome"], "completed");
        assert_eq!(attempt.attributes()["weir.charged"], "1");
        assert_eq!(wait.span.end_time_unix_nano, attempt.span.start_time_unix_nano);
        let parked: Vec<_> = wait.span.events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(parked, if n == 0 { vec![] } else { vec!["could run"] });
        let settled = collector.named("settle");
        let settled = settled
            .iter()
            .find(|got| got.span.parent_span_id == attempt.span.span_id)
            .unwrap();
        assert_eq!(settled.span.trace_id, trace);
        assert!(settled.span.end_time_unix_nano <= attempt.span.end_time_unix_nano);
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_endpoint_traces_are_not_exported_or_stored() {
    let weir = Weir::new().await;
    let collector = Collector::start().await;
    let who = Who::User(weir.user("free").await);
    for (process, exports) in [
        (Process::start(&weir, &["up"], &[]), false),
        (collector.process(&weir, "up"), true),
    ] {
        process.ready().await;
        let job = submit(&process, who).await;
        weir.finished(job, who).await;
        let row = weir
            .client()
            .await
            .query_one(
                "SELECT metadata ? 'weir:traceparent' FROM river_job WHERE id = $1",
                &[&job],
            )
            .await
            .unwrap();
        assert_eq!(row.get::<_, bool>(0), exports);
        let threads = std::fs::read_dir(format!("/proc/{}/task", process.pid())).unwrap();
        let mut names =
            threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap());
        assert_eq!(names.any(|name| name.starts_with("OpenTelemetry")), exports);
        assert_eq!(process.stop().await, Some(0));
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_collector_loses_only_traces() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let away = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
    ];
    let process = Process::start(&weir, &["up"], &away);
    process.ready().await;
    let job = submit(&process, who).await;
    weir.finished(job, who).await;
    weir.until("the failure to be logged", async || {
        let mut log = process.log().into_iter();
        log.find(|line| line["message"] == "traces could not be exported")
    })
    .await;
    let stopping = Instant::now();
    assert_eq!(process.stop().await, Some(0));
    assert!(
        stopping.elapsed() < Duration::from_secs(15),
        "{:?}",
        stopping.elapsed()
    );
    weir.end().await;
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

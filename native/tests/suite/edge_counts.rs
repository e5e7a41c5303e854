//! The edge's reports about its own work become metrics exactly once, and only the edge can report.

use crate::common::process::{Process, Reply};
use crate::common::{EDGE_SECRET, Weir, Who};
use weir_policy::assertion::{self, AssertionKey};
use weir_policy::counts::{MAX_BYTES, PATH};

const REPORT: &str =
    r#"{"requests":{"denied":40,"user":2,"teleported":9},"events":{"counter_unavailable":3}}"#;

/// A report as the edge sends it.
async fn report(process: &Process, id: &str, body: &str) -> Reply {
    let key = AssertionKey::new(EDGE_SECRET.as_bytes()).unwrap();
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    let signed = assertion::sign_own(&key, "POST", PATH, id, now).unwrap();
    let headers = [(assertion::HEADER, signed.as_str())];
    process.ask("POST", PATH, &headers, body).await.unwrap()
}

/// The metrics of denials, users' requests and fallbacks.
async fn counted(process: &Process) -> [Option<f64>; 3] {
    let scrape = process.scrape().await;
    let requests = |outcome| scrape.value("weir_edge_requests_total", &[("outcome", outcome)]);
    let fallbacks = scrape.value("weir_edge_events_total", &[("event", "counter_unavailable")]);
    [requests("denied"), requests("user"), fallbacks]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_report_is_counted_once() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    assert_eq!(
        counted(&process).await,
        [Some(0.0); 3],
        "there from the first scrape on"
    );
    for id in ["one", "one", "two", "one"] {
        assert_eq!(report(&process, id, REPORT).await.status, 204);
    }
    assert_eq!(counted(&process).await, [Some(80.0), Some(4.0), Some(6.0)]);
    assert_eq!(
        report(&process, "three", "{}").await.status,
        204,
        "an edge that knows none of the names"
    );
    assert_eq!(report(&process, "four", "none").await.status, 400);
    let long = format!("{{}}{}", " ".repeat(MAX_BYTES));
    assert_eq!(report(&process, "five", &long).await.status, 413);
    assert_eq!(counted(&process).await, [Some(80.0), Some(4.0), Some(6.0)]);
    let requests = process
        .log()
        .into_iter()
        .filter(|line| line["message"] == "request");
    assert_eq!(requests.count(), 0, "reports have no line");
    process.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn client_requests_through_the_edge_cannot_report_counts() {
    let weir = Weir::new().await;
    let process = Process::start(&weir, &["serve"], &[]);
    process.ready().await;
    let user = Who::User(weir.user("enterprise").await);
    // As if the edge forwarded it after all, in any spelling.
    for path in [
        PATH,
        "/api//edge/counts",
        "/api/%65dge/counts",
        "/api/edge/counts/",
        "/api/edge/counts?x=1",
    ] {
        for who in [user, Who::Address("198.51.100.5")] {
            let reply = process.call("POST", path, who, "client", REPORT).await;
            assert!([401, 404].contains(&reply.status), "{path}: {}", reply.status);
        }
    }
    assert_eq!(process.ask("POST", PATH, &[], REPORT).await.unwrap().status, 401);
    assert_eq!(counted(&process).await, [Some(0.0); 3]);

    let key = AssertionKey::new(EDGE_SECRET.as_bytes()).unwrap();
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    let own = assertion::sign_own(&key, "GET", "/api/usage", "one", now).unwrap();
    let headers = [(assertion::HEADER, own.as_str())];
    assert_eq!(
        process
            .ask("GET", "/api/usage", &headers, "")
            .await
            .unwrap()
            .status,
        401
    );
    process.stop().await;
    weir.end().await;
}

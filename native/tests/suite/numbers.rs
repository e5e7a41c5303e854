//! Numbers in arguments and outputs keep their digits, as far as PostgreSQL keeps them.

use crate::common::services_file::service;
use crate::common::{Answer, Weir, Who};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use serde_json::{Value, json};

/// Digits that a double would lose, and PostgreSQL's form of them.
const WRITTEN: &str =
    r#"{"id": 12345678901234567890123, "price": 1.10, "small": 0.1e-7, "large": -9223372036854775809}"#;
const KEPT: [(&str, &str); 4] = [
    ("id", "12345678901234567890123"),
    ("price", "1.10"),
    ("small", "0.00000001"),
    ("large", "-9223372036854775809"),
];

/// A Weir with programs and endpoints that return their input.
struct Echo {
    weir: Weir,
    who: Who,
    subject: String,
}

impl Echo {
    async fn new() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", post(async |body: String| body));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let service = |name: &str, unique_by: &str, handler: &str| {
            let more = format!("unique_by = [{unique_by}]\nhandler = {{ {handler}, amount = 1 }}");
            service(
                name,
                "specview",
                &format!("timeout = '60s'\nmax_attempts = 1\n{more}"),
            )
        };
        let services = [
            service("program", "", "type = 'exec', command = ['cat']"),
            service(
                "endpoint",
                "",
                &format!("type = 'http', url = 'http://{address}/', private = true"),
            ),
            service(
                "huge",
                "",
                r#"type = 'exec', command = ['echo', '{"n": 1e131000}']"#,
            ),
            service("folding", "'n'", "type = 'exec', command = ['cat']"),
        ];
        let weir = Weir::serving(&services.concat(), &[]).await;
        let user = weir.user("enterprise").await;
        Self {
            weir,
            who: Who::User(user),
            subject: user.to_string(),
        }
    }

    async fn submit(&self, path: &str, key: &str, body: &str) -> Answer {
        let headers = [("idempotency-key", key)];
        let path = format!("/api/jobs/{path}");
        self.weir
            .call("POST", &path, self.who, &headers, body.into())
            .await
    }

    /// The stored arguments.
    async fn stored(&self, id: i64) -> Value {
        let sql = "SELECT args::text FROM river_job WHERE id = $1";
        let row = self.weir.client().await.query_one(sql, &[&id]).await.unwrap();
        serde_json::from_str(row.get(0)).unwrap()
    }

    async fn end(self) {
        self.weir.end().await;
    }
}

fn id_of(job: &Value) -> i64 {
    job["id"].as_i64().unwrap_or_else(|| panic!("{job}"))
}

fn assert_kept(value: &Value) {
    for (member, digits) in KEPT {
        assert_eq!(value[member].to_string(), digits, "{member} in {value}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_keep_their_digits_from_the_submission_to_the_output() {
    let echo = Echo::new().await;
    let mut jobs = Vec::new();
    for service in ["program", "endpoint"] {
        let one = echo.submit(service, &format!("{service} 1"), WRITTEN).await;
        jobs.push(id_of(&one.body["job"]));
        let batch = format!("[{WRITTEN}, {WRITTEN}]");
        let path = format!("{service}/batch");
        let both = echo.submit(&path, &format!("{service} 2"), &batch).await;
        jobs.extend(both.body["jobs"].as_array().unwrap().iter().map(id_of));
        let sql = "SELECT job_id FROM weir_submit($1, $2, $3::text::jsonb)";
        let client = echo.weir.client().await;
        let row = client.query_one(sql, &[&echo.subject, &service, &WRITTEN]).await;
        jobs.push(row.unwrap().get(0));
    }
    assert_eq!(jobs.len(), 8);
    let working = echo.weir.work().await;
    for id in jobs {
        assert_kept(&echo.stored(id).await);
        let job = echo.weir.finished(id, echo.who).await;
        assert_eq!(job["status"], "completed", "{job}");
        assert_kept(&job["output"]);
    }
    working.stop().await;
    echo.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_cannot_be_stored_are_refused_with_a_reason() {
    let echo = Echo::new().await;
    for number in ["1e400", "-1e400", "1e131000", "1e-20000", &"9".repeat(400)] {
        let args = format!(r#"{{"n": [{number}]}}"#);
        for (path, body) in [("program", args.clone()), ("program/batch", format!("[{args}]"))] {
            let answer = echo.submit(path, &format!("{path} {number}"), &body).await;
            assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", answer.body);
            let detail = answer.body["detail"].as_str().unwrap();
            assert!(detail.contains("is out of range"), "{detail}");
        }
    }
    let working = echo.weir.work().await;
    let answer = echo.submit("huge", "huge", "{}").await;
    let job = echo.weir.finished(id_of(&answer.body["job"]), echo.who).await;
    let message = job["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("the output cannot be stored: the number 1e"),
        "{job}"
    );
    assert_eq!(
        (&job["status"], &job["charged"]),
        (&json!("failed"), &json!(0)),
        "{job}"
    );
    echo.weir.released(echo.who, "specview").await;
    working.stop().await;
    echo.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_needs_equal_numbers() {
    let echo = Echo::new().await;
    let first = echo
        .submit("program", "k", r#"{"a": 1.10, "id": 12345678901234567890123}"#)
        .await;
    let again = echo
        .submit("program", "k", r#"{"id": 12345678901234567890123, "a": 11e-1}"#)
        .await;
    assert_eq!(
        id_of(&again.body["job"]),
        id_of(&first.body["job"]),
        "{}",
        again.body
    );
    let other = echo
        .submit("program", "k", r#"{"a": 1.10, "id": 12345678901234567890124}"#)
        .await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", other.body);
    echo.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_fold_over_http_and_sql_for_any_number_notation() {
    let echo = Echo::new().await;
    let sql = "SELECT outcome, job_id FROM weir_submit($1, 'folding', $2::text::jsonb)";
    for (over_http, in_sql) in [
        ("1e21", "1000000000000000000000.0"),
        ("1.0", "1"),
        ("1.50", "1.5"),
        ("1e-7", "0.0000001"),
        ("-0", "-0"),
        ("3e-324", "3e-324"),
        // Smaller than any double.
        ("-1e-400", "-1e-400"),
    ] {
        let args = format!(r#"{{"n": {over_http}}}"#);
        let answer = echo.submit("folding", over_http, &args).await;
        let client = echo.weir.client().await;
        let args = format!(r#"{{"n": {in_sql}}}"#);
        let row = client.query_one(sql, &[&echo.subject, &args]).await.unwrap();
        assert_eq!(row.get::<_, &str>("outcome"), "folded", "{over_http}");
        assert_eq!(
            row.get::<_, i64>("job_id"),
            id_of(&answer.body["job"]),
            "{over_http}"
        );
    }
    echo.end().await;
}

//! A job's life through the API, River and settlement, on a real PostgreSQL.

use crate::common;
use crate::common::{GO_TESTS, Weir, Who, files};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn an_analysis_is_reserved_run_and_charged_once() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let answer = weir
        .post("/api/jobs/analysis", who, &files(&[("a_test.go", GO_TESTS)]))
        .await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let id = answer.body["job"]["id"].as_i64().unwrap();
    assert_eq!(answer.headers["location"], format!("/api/jobs/{id}"));
    assert_eq!(answer.body["job"]["status"], "queued");
    assert_eq!(answer.body["job"]["waiting_for"], "worker");
    assert_eq!(answer.body["job"]["queue"], "analysis_default");
    assert_eq!(answer.body["job"]["reserved"], 1);
    assert_eq!(answer.body["quota"]["reserved"], 1);
    assert_eq!(answer.body["quota"]["remaining"], 49);
    weir.is_clean().await;

    let working = weir.work().await;
    let job = weir.finished(id, who).await;
    assert_eq!(job["status"], "completed", "{job}");
    assert_eq!(job["output"]["count"], 2);
    assert_eq!(
        job["output"]["tests"][1]["name"],
        "func TestSubtract(t *testing.T) {}"
    );
    assert_eq!((&job["reserved"], &job["charged"]), (&json!(0), &json!(1)));
    let quota = weir.quota(who, "analysis").await;
    assert_eq!((&quota["used"], &quota["reserved"]), (&json!(1), &json!(0)));
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_the_right_status_and_do_not_leave_rows() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let big = files(&[("a.go", &"x".repeat(256 * 1024))]).to_string();
    let cases: [(&str, Vec<u8>, u16); 9] = [
        ("/api/jobs/analysis", b"{".to_vec(), 400),
        ("/api/jobs/analysis", b"\xff\xfe".to_vec(), 400),
        ("/api/jobs/analysis", b"[1]".to_vec(), 422),
        ("/api/jobs/analysis", b"{\"files\": []}".to_vec(), 422),
        (
            "/api/jobs/analysis",
            b"{\"files\": [{\"path\": \"\", \"content\": \"\"}]}".to_vec(),
            422,
        ),
        (
            "/api/jobs/analysis",
            b"{\"files\": [{\"path\": \"a.go\", \"content\": \"\\u0000\"}]}".to_vec(),
            422,
        ),
        ("/api/jobs/nothing", b"{}".to_vec(), 404),
        ("/api/jobs/analysis", big.into_bytes(), 413),
        ("/api/nothing", b"{}".to_vec(), 404),
    ];
    for (path, body, status) in cases {
        let answer = weir.call("POST", path, who, &[], body).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert_eq!(
            answer.headers["content-type"], "application/problem+json",
            "{path}"
        );
        assert_eq!(answer.body["status"], status);
    }
    assert_eq!(
        weir.call("PUT", "/api/usage", who, &[], Vec::new()).await.status,
        405
    );
    assert_eq!(weir.get("/api/jobs?limit=0", who).await.status, 422);
    assert_eq!(weir.get("/api/jobs/x", who).await.status, 404);
    assert_eq!(weir.jobs().await, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_the_edges_assertion_are_refused() {
    use axum::body::Body;
    use axum::http::Request;
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let naked = Request::get("/api/usage")
        .header("Authorization", "Bearer x")
        .body(Body::empty())
        .unwrap();
    let answer = weir.send(naked).await;
    assert_eq!(answer.status, 401);
    assert_eq!(answer.headers["content-type"], "application/problem+json");

    let key = weir_policy::assertion::AssertionKey::new(common::EDGE_SECRET.as_bytes()).unwrap();
    let caller = weir_policy::assertion::Caller {
        user: Some(user.into()),
        client_address: "192.0.2.1".to_owned(),
        token_expires_at: None,
    };
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    let sign = |method: &str, path: &str, at: u64| {
        weir_policy::assertion::sign(&key, &caller, method, path, "r", at).unwrap()
    };
    for (assertion, why) in [
        (sign("GET", "/api/lanes", now), "another path"),
        (sign("DELETE", "/api/usage", now), "another method"),
        (sign("GET", "/api/usage", now - 120), "expired"),
    ] {
        let request = Request::get("/api/usage")
            .header("Weir-Assertion", assertion)
            .body(Body::empty())
            .unwrap();
        assert_eq!(weir.send(request).await.status, 401, "{why}");
    }
    let good = Request::get("/api/usage")
        .header("Weir-Assertion", sign("GET", "/api/usage", now))
        .body(Body::empty())
        .unwrap();
    assert_eq!(weir.send(good).await.status, 200);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_its_owner_can_see_a_job() {
    let weir = Weir::new().await;
    let (mine, theirs) = (
        Who::User(weir.user("free").await),
        Who::User(weir.user("free").await),
    );
    let anonymous = [Who::Address("198.51.100.1"), Who::Address("198.51.100.2")];
    let id = weir.analyse(mine, "a_test.go", GO_TESTS).await;
    let path = format!("/api/jobs/{id}");
    assert_eq!(weir.get(&path, mine).await.status, 200);
    for who in [theirs, anonymous[0]] {
        assert_eq!(weir.get(&path, who).await.status, 404);
        assert_eq!(weir.call("DELETE", &path, who, &[], Vec::new()).await.status, 404);
    }
    assert_eq!(weir.get("/api/jobs", theirs).await.body, json!([]));
    assert_eq!(weir.get("/api/jobs", anonymous[0]).await.status, 401);
    let id = weir.analyse(anonymous[0], "a_test.go", GO_TESTS).await;
    let path = format!("/api/jobs/{id}");
    let job = weir.get(&path, anonymous[0]).await.body;
    assert_eq!((&job["plan"], &job["reserved"]), (&json!("anonymous"), &json!(0)));
    assert_eq!(weir.get(&path, anonymous[1]).await.status, 404);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_anonymous_job_is_not_open_to_others_at_the_address() {
    let weir = Weir::new().await;
    let here = Who::Address("198.51.100.1");
    let body = files(&[("a_test.go", GO_TESTS)]);
    let answers = [
        weir.post("/api/jobs/analysis", here, &body).await.body,
        weir.post("/api/jobs/analysis", here, &body).await.body,
    ];
    let [first, second] = [&answers[0], &answers[1]];
    assert_ne!(first["job"]["id"], second["job"]["id"]);
    let path = format!("/api/jobs/{}", first["job"]["id"]);
    let ask = async |method: &str, token: Option<&Value>, who: Who| {
        let mut request = axum::http::Request::builder().method(method).uri(&path).header(
            weir_policy::assertion::HEADER,
            who.assertion(common::EDGE_SECRET, method, &path, "request-1"),
        );
        if let Some(token) = token {
            request = request.header("weir-job-token", token.as_str().unwrap());
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        weir.send(request).await.status.as_u16()
    };
    for method in ["GET", "DELETE"] {
        assert_eq!(ask(method, None, here).await, 404, "{method} without a token");
        assert_eq!(
            ask(method, Some(&second["token"]), here).await,
            404,
            "{method} with another's"
        );
    }
    // The token is sufficient, also from another network.
    let other_address = Who::Address("203.0.113.9");
    assert_eq!(ask("GET", Some(&first["token"]), other_address).await, 200);
    assert_eq!(ask("DELETE", Some(&first["token"]), other_address).await, 200);
    // A signed-in user's job has no token, and its response contains none.
    let user = Who::User(weir.user("free").await);
    assert!(
        weir.post("/api/jobs/analysis", user, &body)
            .await
            .body
            .get("token")
            .is_none()
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_cannot_set_the_jobs_owner() {
    let weir = Weir::new().await;
    let (user, victim) = (weir.user("free").await, weir.user("free").await);
    let mut body = files(&[("a_test.go", GO_TESTS)]);
    body["user_id"] = victim.to_string().into();
    for (who, expected) in [
        (Who::User(user), Some(user.to_string())),
        (Who::Address("198.51.100.1"), None),
    ] {
        let answer = weir.post("/api/jobs/analysis", who, &body).await;
        let id = answer.body["job"]["id"].as_i64().unwrap();
        let row = weir
            .client()
            .await
            .query_one("SELECT args ->> 'user_id' FROM river_job WHERE id = $1", &[&id])
            .await
            .unwrap();
        assert_eq!(row.get::<_, Option<String>>(0), expected);
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_newest_first_and_pages_by_id() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(weir.analyse(who, "a_test.go", GO_TESTS).await);
    }
    ids.reverse();
    let list = |body: &Value| -> Vec<i64> {
        body.as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_i64().unwrap())
            .collect()
    };
    assert_eq!(list(&weir.get("/api/jobs?limit=3", who).await.body), ids[..3]);
    assert_eq!(
        list(&weir.get(&format!("/api/jobs?before={}", ids[2]), who).await.body),
        ids[3..]
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_a_queued_job_frees_quota_and_slot_immediately() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let first = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let second = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let waiting = async |id: i64| weir.get(&format!("/api/jobs/{id}"), who).await.body["waiting_for"].clone();
    assert_eq!(
        (waiting(first).await, waiting(second).await),
        (json!("worker"), json!("slot"))
    );
    let answer = weir
        .call("DELETE", &format!("/api/jobs/{first}"), who, &[], Vec::new())
        .await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["status"]),
        (200, &json!("cancelled"))
    );
    assert_eq!(
        waiting(second).await,
        "worker",
        "the freed slot goes to the next one"
    );
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 1);
    assert_eq!(weir.quota(who, "analysis").await["used"], 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_previous_secret_is_valid_during_rotation() {
    use axum::body::Body;
    use axum::http::Request;
    let before = "the secret of the edge before this one";
    let weir = Weir::with(&[("EDGE_SECRET_PREVIOUS", before)]).await;
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    for (secret, status) in [
        (common::EDGE_SECRET, 200),
        (before, 200),
        ("a secret that was never the edge's own", 401),
    ] {
        let key = weir_policy::assertion::AssertionKey::new(secret.as_bytes()).unwrap();
        let caller = weir_policy::assertion::Caller {
            user: None,
            client_address: "192.0.2.1".to_owned(),
            token_expires_at: None,
        };
        let assertion = weir_policy::assertion::sign(&key, &caller, "GET", "/api/lanes", "r", now).unwrap();
        let request = Request::get("/api/lanes")
            .header("Weir-Assertion", assertion)
            .body(Body::empty())
            .unwrap();
        assert_eq!(weir.send(request).await.status, status, "{secret}");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_without_a_secret_does_not_start() {
    let weir = Weir::new().await;
    let output = common::process::command(&weir, &["serve"])
        .env_remove("EDGE_SECRET")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("EDGE_SECRET is not set"), "{words}");
    weir.end().await;
}

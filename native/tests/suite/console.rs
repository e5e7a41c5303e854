//! The operator's console: the contents of its pages, their actions, and clients without access.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::common::{Answer, GO_TESTS, Weir, Who};
use async_trait::async_trait;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;
use weir::api::listen::{self, Patience};
use weir::handler::{Attempt, Handler, HandlerError, Refusal, Worked};
use weir::work::{Role, Working};
use weir_ledger::control::{self, Scope};
use weir_ledger::holder::Holder;

const HERE: &str = "127.0.0.1:50000";

async fn ask(weir: &Weir, peer: &str, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::empty()).unwrap();
    let peer: SocketAddr = peer.parse().unwrap();
    request.extensions_mut().insert(ConnectInfo(peer));
    weir.send(request).await
}

/// A request from a browser on this machine.
async fn get(weir: &Weir, path: &str) -> Answer {
    ask(weir, HERE, "GET", path, &[("host", "localhost:8080")]).await
}

/// The text of an existing page.
async fn page(weir: &Weir, path: &str) -> String {
    let answer = get(weir, path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    let policy = answer.headers["content-security-policy"].to_str().unwrap();
    assert!(
        policy.starts_with("default-src 'none'; style-src 'self';"),
        "{policy}"
    );
    assert_eq!(answer.headers["cache-control"], "no-store");
    assert_eq!(answer.headers["x-content-type-options"], "nosniff");
    let text = answer.body.as_str().unwrap().to_owned();
    assert!(!text.contains("<script"), "{text}");
    text
}

async fn cancel(weir: &Weir, id: i64, headers: &[(&str, &str)]) -> Answer {
    let headers = [&[("host", "localhost:8080")], headers].concat();
    ask(
        weir,
        HERE,
        "POST",
        &format!("/console/jobs/{id}/cancel"),
        &headers,
    )
    .await
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// Fails every job permanently.
struct Fails;

const REASON: &str = "<script>alert('reason')</script> & so on\nsecond line";

#[async_trait]
impl Handler for Fails {
    async fn reserve(&self, _: Holder, _: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, _: Attempt) -> Result<Worked, HandlerError> {
        Err(HandlerError::Permanent(REASON.to_owned()))
    }
}

async fn work_and_fail(weir: &Weir) -> Working {
    let context = weir
        .another(&[])
        .with_handler("analysis:analyze", Arc::new(Fails) as Arc<dyn Handler>);
    Working::start(&context, Role::Both, &context.settings.services)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_show_waiting_jobs_and_their_holders() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await;
    weir.use_up(user, "analysis", 12).await;
    let mut jobs = Vec::new();
    for n in 0..5 {
        jobs.push(
            weir.analyse(Who::User(user), &format!("{n}_test.go"), GO_TESTS)
                .await,
        );
    }
    weir.analyse(Who::Address("198.51.100.7"), "a_test.go", GO_TESTS)
        .await;

    let overview = page(&weir, "/console").await;
    has(
        &overview,
        &[
            "<strong>none</strong>; start <code>weir schedule</code>",
            "analysis: 4 slots in use, 2 waiting for a slot",
            "idle: specview (0 workers)",
            "<td class=\"held\">no workers</td>",
            "http-equiv=\"refresh\" content=\"5\"",
            "<caption>",
            "<th scope=\"row\">default</th>",
            "</svg>Weir",
            "<a href=\"/console\" aria-current=\"page\">Overview</a>",
            "<a href=\"/console/holders\">Holders</a>",
            // One row for the lanes without jobs.
            "<th scope=\"row\">idle</th><td class=\"text\" colspan=\"5\">scheduled (0 workers)</td>",
        ],
    );
    assert!(!page(&weir, "/console?refresh=off").await.contains("http-equiv"));

    for path in ["/console/holders", "/console/holders?by=running"] {
        let holders = page(&weir, path).await;
        has(
            &holders,
            &[&format!("/console/holders/{user}"), "anonymous", "<td>pro</td>"],
        );
        let at = |what: &str| holders.find(what).unwrap();
        assert!(at(&user.to_string()) < at("anonymous<"), "more of its jobs wait");
    }

    has(
        &page(&weir, "/console/holders?by=usage").await,
        &[
            "Most waiting first",
            &format!("/console/holders/{user}"),
            "<td>pro</td><td>analysis</td><td>12</td><td>5</td>",
        ],
    );

    let holder = page(&weir, &format!("/console/holders/{user}")).await;
    let below_holders = "<a href=\"/console/holders\" aria-current=\"true\">Holders</a>";
    has(
        &holder,
        &[
            below_holders,
            &format!("<h1>User {user}</h1>"),
            "<dd>pro</dd>",
            "<td>3 of 3</td><td>0</td><td>2</td><td>12</td><td>5</td><td>1000</td>",
            "waits for a slot",
            "waits for a worker",
            &format!("action=\"/console/jobs/{}/cancel\" method=\"post\"", jobs[4]),
        ],
    );
    assert_eq!(holder.matches("waits for a slot").count(), 2);

    let job = page(&weir, &format!("/console/jobs/{}", jobs[4])).await;
    has(
        &job,
        &[
            below_holders,
            &format!("/console/holders/{user}"),
            "<dd>waits for a slot</dd>",
            "parked since",
            "request-1",
            "4_test.go",
            "0 of 3",
        ],
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_frees_the_quota_and_passes_the_slot_on() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let first = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let second = weir.analyse(who, "b_test.go", GO_TESTS).await;
    let waits = async |id: i64| weir.get(&format!("/api/jobs/{id}"), who).await.body["waiting_for"].clone();
    assert_eq!(
        (waits(first).await, waits(second).await),
        (json!("worker"), json!("slot"))
    );

    let answer = cancel(&weir, first, &[("sec-fetch-site", "same-origin")]).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.headers["location"]),
        (303, &format!("/console/jobs/{first}").parse().unwrap())
    );
    has(
        &page(&weir, &format!("/console/jobs/{first}")).await,
        &["<dd>cancelled</dd>"],
    );
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 1);
    assert_eq!(waits(second).await, "worker", "it has the slot of the first");

    // An ended job stays unchanged, and has no button.
    assert_eq!(cancel(&weir, first, &[]).await.status, 303);
    assert!(
        !page(&weir, &format!("/console/jobs/{first}"))
            .await
            .contains("/cancel")
    );
    assert_eq!(
        cancel(&weir, second, &[("origin", "http://localhost:8080")])
            .await
            .status,
        303
    );
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_counted_by_reason_and_escaped() {
    let weir = Weir::new().await;
    let working = work_and_fail(&weir).await;
    let user = weir.user("pro").await;
    let who = Who::User(user);
    let mut last = 0;
    for _ in 0..3 {
        last = weir
            .analyse(who, "<script>alert('args')</script>_test.go", GO_TESTS)
            .await;
        assert_eq!(weir.finished(last, who).await["status"], "failed");
    }
    let failures = page(&weir, "/console/failures").await;
    let reason = "&lt;script&gt;alert('reason')&lt;/script&gt; &amp; so on";
    has(
        &failures,
        &[
            &format!("<td>analysis</td><td class=\"text\">{reason}</td><td>3</td>"),
            &format!("/console/jobs/{last}"),
            "most frequent",
        ],
    );
    assert!(!failures.contains("second line"));
    has(
        &page(&weir, &format!("/console/jobs/{last}")).await,
        &["&lt;script&gt;alert('args')", reason, "second line", "Attempt 1"],
    );
    has(
        &page(&weir, &format!("/console/holders/{user}")).await,
        &[reason, "failed"],
    );
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_redirects_to_its_page() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    let find = async |text: &str| {
        let answer = get(&weir, &format!("/console/find?q={text}")).await;
        let place = answer
            .headers
            .get("location")
            .map(|place| place.to_str().unwrap().to_owned());
        (answer.status.as_u16(), place)
    };
    let job = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let page_of_job = Some(format!("/console/jobs/{job}"));
    assert_eq!(find(&job.to_string()).await, (303, page_of_job.clone()));
    assert_eq!(find("request-1").await, (303, page_of_job));
    assert_eq!(
        find(&format!("%20{user}+")).await,
        (303, Some(format!("/console/holders/{user}")))
    );
    // A subject that is not a UUID, and one that is a number.
    let (clerk, seventeen) = (Who::Subject("user_2aB|é"), Who::Subject("17017"));
    weir.analyse(clerk, "a_test.go", GO_TESTS).await;
    weir.analyse(seventeen, "a_test.go", GO_TESTS).await;
    let (_, place) = find("user_2aB%7C%C3%A9").await;
    let (place, id) = (
        place.as_deref().unwrap(),
        place.as_deref().unwrap().rsplit('/').next(),
    );
    has(
        &page(&weir, place).await,
        &[
            "<title>User user_2aB|é · Weir console</title>",
            "<h1>User user_2aB|é</h1>",
            &format!("<dt>id</dt><dd>{}</dd>", id.unwrap()),
        ],
    );
    let (_, place) = find("17017").await;
    has(&page(&weir, &place.unwrap()).await, &["<h1>User 17017</h1>"]);
    has(&page(&weir, "/console/holders").await, &["user_2aB|é", "17017"]);
    let second = weir.analyse(who, "b_test.go", GO_TESTS).await;
    has(
        &page(&weir, "/console/find?q=request-1").await,
        &[
            &format!("/console/jobs/{job}"),
            &format!("/console/jobs/{second}"),
        ],
    );
    for nothing in [
        "",
        "999999",
        "-1",
        "%00",
        "request-2",
        "%3Cscript%3E",
        &Uuid::new_v4().to_string(),
        &"x".repeat(500),
    ] {
        let answer = get(&weir, &format!("/console/find?q={nothing}")).await;
        assert_eq!(answer.status, 404, "{nothing}");
        let text = answer.body.as_str().unwrap();
        assert!(
            text.contains("<h1>Not found</h1>") && !text.contains("<script"),
            "{text}"
        );
    }
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_ids_get_an_error_page() {
    let weir = Weir::new().await;
    for path in [
        "/console/jobs/4711".to_owned(),
        "/console/jobs/x".to_owned(),
        format!("/console/holders/{}", Uuid::new_v4()),
        "/console/holders/x".to_owned(),
        "/console/nothing".to_owned(),
    ] {
        let answer = get(&weir, &path).await;
        assert_eq!(answer.status, 404, "{path}");
        has(answer.body.as_str().unwrap(), &["<h1>Not found</h1>", "<nav"]);
        assert_eq!(answer.headers["cache-control"], "no-store");
    }
    assert_eq!(cancel(&weir, 4711, &[]).await.status, 404);
    let style = get(&weir, "/console/style.css").await;
    assert_eq!(
        (
            style.status.as_u16(),
            style.headers["content-type"].to_str().unwrap()
        ),
        (200, "text/css; charset=utf-8")
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_this_machine_can_reach_the_console() {
    let weir = Weir::new().await;
    let nowhere = ask(&weir, HERE, "GET", "/nowhere", &[("host", "localhost")])
        .await
        .body;
    let local = ("host", "127.0.0.1:8080");
    for (peer, headers) in [
        ("192.0.2.1:50000", vec![local]),
        ("[2001:db8::1]:50000", vec![local]),
        ("[::ffff:192.0.2.1]:50000", vec![local]),
        (HERE, vec![]),
        (HERE, vec![("host", "weir.example")]),
        (HERE, vec![("host", "localhost.evil.example:8080")]),
        (HERE, vec![("host", "evil.example@localhost")]),
        (HERE, vec![local, ("host", "localhost")]),
        (HERE, vec![local, ("x-forwarded-for", "127.0.0.1")]),
        (HERE, vec![local, ("cf-connecting-ip", "192.0.2.1")]),
        (HERE, vec![local, ("via", "1.1 proxy")]),
    ] {
        for path in [
            "/console",
            "/console/holders",
            "/console/style.css",
            "/console/nothing",
        ] {
            for method in ["GET", "POST", "DELETE"] {
                let answer = ask(&weir, peer, method, path, &headers).await;
                assert_eq!(answer.status, 404, "{method} {path} {peer} {headers:?}");
                assert_eq!(answer.body, nowhere, "as if there were none");
            }
        }
    }
    let unknown = Request::builder().uri("/console").header("host", "localhost");
    let answer = weir.send(unknown.body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status, 404, "a connection with an unknown peer");
    for (peer, host) in [
        ("127.0.0.1:1", "localhost"),
        ("[::1]:1", "[::1]:8080"),
        ("[::ffff:127.0.0.1]:1", "127.0.0.1"),
    ] {
        assert_eq!(
            ask(&weir, peer, "GET", "/console", &[("host", host)])
                .await
                .status,
            200,
            "{peer}"
        );
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_websites_cannot_cancel_jobs() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    for header in [
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-site", "none"),
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost:8081"),
        ("origin", "https://localhost:8080"),
    ] {
        let answer = cancel(&weir, id, &[header]).await;
        assert_eq!(answer.status, 403, "{header:?}");
    }
    let path = format!("/console/jobs/{id}/cancel");
    assert_eq!(get(&weir, &path).await.status, 405, "a link cancels nothing");
    assert_eq!(
        weir.get(&format!("/api/jobs/{id}"), who).await.body["status"],
        "queued"
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listener_passes_on_the_peer_address() {
    let weir = Weir::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (router, stopping) = (weir.router.clone(), weir.stopping.clone());
    let answering = tokio::spawn(listen::answer(listener, router, Patience::default(), stopping));
    for (host, status) in [("localhost", "200"), ("weir.example", "404")] {
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /console HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    weir.stopping.cancel();
    answering.await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_do_not_scan_large_tables() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "INSERT INTO river_job (args, kind, max_attempts, state, finalized_at, metadata) \
                 SELECT '{}', 'analysis:analyze', 3, 'completed', now() - n * interval '1 minute', \
                        jsonb_build_object('weir:request_id', n::text) FROM generate_series(1, 20000) n; \
             INSERT INTO holders (holder, event_type) \
                 SELECT overlay(gen_random_uuid()::text PLACING 'f' FROM 20)::uuid, 'analysis' FROM generate_series(1, 20000); \
             INSERT INTO weir_jobs (holder, event_type, reserved_amount, job_id, submitted_at, parked_at) \
                 SELECT overlay(gen_random_uuid()::text PLACING 'f' FROM 20)::uuid, 'analysis', 0, id, now(), now() FROM river_job; \
             INSERT INTO outstanding_attempts (job_id, claim, patience, deadline_at) \
                 SELECT id, '1.1', '1 hour', now() FROM river_job; \
             INSERT INTO users SELECT gen_random_uuid() FROM generate_series(1, 20000); \
             ANALYZE",
        )
        .await
        .unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledger/src/read/sql");
    // Without `busiest_holders.sql` and `heaviest_holders.sql`, which read all holders, like the overview.
    for name in [
        "known_holder",
        "holder_slots",
        "job_details",
        "start_p99",
        "failures",
        "jobs_of_request",
    ] {
        let scans = if name == "jobs_of_request" { "off" } else { "on" };
        let sql = std::fs::read_to_string(folder.join(format!("{name}.sql"))).unwrap();
        let plan = client
            .simple_query(&format!(
                "SET enable_seqscan = {scans}; EXPLAIN (GENERIC_PLAN, COSTS OFF) {sql}"
            ))
            .await
            .unwrap();
        let lines: Vec<&str> = plan
            .iter()
            .filter_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect();
        assert!(
            lines.iter().any(|line| line.contains("Index")),
            "{name}: {lines:#?}"
        );
        // This database has no usage events, so that table is as small as possible. Outstanding attempts are scanned
        // like running jobs.
        let scan = lines.iter().find(|line| {
            line.contains("Seq Scan") && !line.contains("usage_events") && !line.contains("outstanding")
        });
        assert!(scan.is_none(), "{name}: {lines:#?}");
    }
    weir.abandon().await;
}

const AWAY: &str = "192.0.2.1:50000";

/// A form that a browser on another machine sends, with this cookie.
async fn submit(weir: &Weir, path: &str, cookie: &str, form: &str) -> Answer {
    let request = Request::builder()
        .method("POST")
        .uri(path)
        .header("host", "ops.example.com")
        .header("origin", "https://ops.example.com")
        .header("content-type", "application/x-www-form-urlencoded")
        .header("cookie", cookie);
    let mut request = request.body(Body::from(form.to_owned())).unwrap();
    let peer: SocketAddr = AWAY.parse().unwrap();
    request.extensions_mut().insert(ConnectInfo(peer));
    weir.send(request).await
}

fn location(answer: &Answer) -> &str {
    answer.headers["location"].to_str().unwrap()
}

async fn key(weir: &Weir, name: &str, scope: Scope) -> String {
    let secret = format!("weir_sk_{name}");
    let mut client = weir.client().await;
    control::create_key(&mut client, "shell:test", name, &secret, &[scope], None)
        .await
        .unwrap();
    secret
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_signs_in_from_another_machine_with_a_key() {
    let weir = Weir::new().await;
    let host = ("host", "ops.example.com");
    let sign_in = "/console/sign-in";
    // No key has the scope.
    assert_eq!(ask(&weir, AWAY, "GET", sign_in, &[host]).await.status, 404);
    let (reader, admin) = (
        key(&weir, "reader", Scope::Read).await,
        key(&weir, "anne", Scope::Admin).await,
    );
    let answer = ask(&weir, AWAY, "GET", "/console", &[host]).await;
    assert_eq!((answer.status.as_u16(), location(&answer)), (303, sign_in));
    has(
        ask(&weir, AWAY, "GET", sign_in, &[host])
            .await
            .body
            .as_str()
            .unwrap(),
        &["type=\"password\""],
    );
    for (wrong, fault) in [
        (reader.as_str(), "lacks the scope admin"),
        ("weir_sk_wrong", "not valid"),
        ("", "not valid"),
    ] {
        let answer = submit(&weir, sign_in, "", &format!("key={wrong}")).await;
        assert_eq!(answer.status, 403, "{wrong}");
        assert!(!answer.headers.contains_key("set-cookie"));
        has(answer.body.as_str().unwrap(), &[fault]);
    }
    let answer = submit(&weir, sign_in, "", &format!("key={admin}")).await;
    assert_eq!((answer.status.as_u16(), location(&answer)), (303, "/console"));
    let set = answer.headers["set-cookie"].to_str().unwrap();
    let (cookie, attributes) = set.split_once(';').unwrap();
    assert_eq!(
        attributes,
        " Path=/; Secure; HttpOnly; SameSite=Strict; Max-Age=28800"
    );
    assert!(!set.contains(&admin), "the key stays out of the browser");

    let signed_in = [host, ("cookie", cookie), ("x-forwarded-for", "198.51.100.1")];
    assert_eq!(ask(&weir, AWAY, "GET", "/console", &signed_in).await.status, 200);
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let cancel = format!("/console/jobs/{id}/cancel");
    // Another website cannot use the session.
    let foreign = [host, ("cookie", cookie), ("origin", "https://evil.example")];
    assert_eq!(ask(&weir, AWAY, "POST", &cancel, &foreign).await.status, 403);
    assert_eq!(submit(&weir, &cancel, cookie, "").await.status, 303);
    let log = "SELECT actor, after FROM admin_log WHERE action = 'job.cancel'";
    let row = weir.client().await.query_one(log, &[]).await.unwrap();
    assert_eq!(
        (row.get::<_, &str>(0), row.get::<_, Value>(1)),
        ("key:anne", json!({ "job": id }))
    );

    let answer = submit(&weir, "/console/sign-out", cookie, "").await;
    assert!(
        answer.headers["set-cookie"]
            .to_str()
            .unwrap()
            .contains("Max-Age=0")
    );
    control::revoke_key(&mut weir.client().await, "shell:test", "anne")
        .await
        .unwrap();
    key(&weir, "bea", Scope::Admin).await;
    let answer = ask(&weir, AWAY, "GET", "/console", &signed_in).await;
    assert_eq!(
        (answer.status.as_u16(), location(&answer)),
        (303, sign_in),
        "the key was revoked"
    );
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_finds_failed_jobs_runs_them_again_and_pauses_a_lane() {
    let weir = Weir::new().await;
    let working = work_and_fail(&weir).await;
    let who = Who::User(weir.user("pro").await);
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(weir.analyse(who, "a_test.go", GO_TESTS).await);
        weir.finished(jobs[jobs.len() - 1], who).await;
    }
    working.stop().await;
    let list = page(
        &weir,
        "/console/jobs?service=analysis&state=discarded&error=ALERT",
    )
    .await;
    for job in &jobs {
        has(
            &list,
            &[&format!("/console/jobs/{job}"), "<td>failed</td>", "1 of "],
        );
    }
    let subject = weir
        .client()
        .await
        .query_one(
            "SELECT coalesce(u.subject, s.holder::text) FROM weir_jobs s \
        LEFT JOIN users u ON u.id = s.user_id WHERE s.job_id = $1",
            &[&jobs[0]],
        )
        .await
        .unwrap();
    let subject: String = subject.get(0);
    let of_kind = "kind=analysis%3Aanalyze&age=0";
    has(
        &page(&weir, &format!("/console/jobs?user={subject}&{of_kind}")).await,
        &[&format!("/console/jobs/{}", jobs[0]), &subject],
    );
    for filter in ["state=running", "user=unknown", "kind=unknown", "age=3600"] {
        has(
            &page(&weir, &format!("/console/jobs?{filter}")).await,
            &["No job matches."],
        );
    }
    let older = page(&weir, &format!("/console/jobs?before={}", jobs[1])).await;
    assert!(
        older.contains(&format!("/console/jobs/{}", jobs[0]))
            && !older.contains(&format!("/console/jobs/{}", jobs[1]))
    );

    let local = [("host", "localhost:8080")];
    let one = format!("/console/jobs/{}", jobs[0]);
    has(&page(&weir, &one).await, &["Run again"]);
    let change = "/console/jobs/change";
    let answer = post_form(&weir, change, &format!("job={}&action=retry", jobs[0])).await;
    has(answer.body.as_str().unwrap(), &["run again</th><td>1</td>"]);
    assert!(!page(&weir, &one).await.contains("Run again"));
    has(&page(&weir, "/console/failures").await, &["Run again…"]);
    let of_reason = |reason: &str| format!("kind=analysis%3Aanalyze&reason={reason}&action=retry");
    let other = of_reason("alert");
    has(
        &page(&weir, &format!("{change}?{other}")).await,
        &["No failed job matches."],
    );
    let none = post_form(&weir, change, &other).await;
    has(none.body.as_str().unwrap(), &["No job matches any more."]);
    let reason = of_reason("%3Cscript%3Ealert%28%27reason%27%29%3C%2Fscript%3E+%26+so+on");
    let preview = page(&weir, &format!("{change}?{reason}")).await;
    has(
        &preview,
        &[
            "2 failed jobs",
            "Run again 2 jobs",
            r#"name="kind" value="analysis:analyze""#,
        ],
    );
    let answer = post_form(&weir, change, &reason).await;
    has(answer.body.as_str().unwrap(), &["run again</th><td>2</td>"]);
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 3);

    let pause = "/console/lanes/analysis_priority/pause";
    assert_eq!(ask(&weir, HERE, "POST", pause, &local).await.status, 303);
    has(
        &page(&weir, "/console").await,
        &["/console/lanes/analysis_priority/resume", "paused"],
    );
    let resume = "/console/lanes/analysis_priority/resume";
    assert_eq!(ask(&weir, HERE, "POST", resume, &local).await.status, 303);
    assert_eq!(
        ask(&weir, HERE, "POST", "/console/lanes/nothing/pause", &local)
            .await
            .status,
        404
    );
    let actions = "SELECT array_agg(action ORDER BY id) FROM admin_log WHERE actor = 'console'";
    let actions: Vec<String> = weir.client().await.query_one(actions, &[]).await.unwrap().get(0);
    assert_eq!(actions, ["jobs.retry", "jobs.retry", "lane.pause", "lane.resume"]);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_cancels_selected_jobs_and_all_that_match() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let submit = "SELECT weir_submit('anne', 'analysis', '{}') FROM generate_series(1, 30)";
    client
        .batch_execute(&format!("UPDATE plan_limits SET month = NULL; {submit}"))
        .await
        .unwrap();
    let list = page(&weir, "/console/jobs?user=anne").await;
    assert_eq!(list.matches(r#"<input type="checkbox" name="job""#).count(), 30);
    has(&list, &["Cancel all unfinished that match…"]);
    assert!(!page(&weir, "/console/jobs").await.contains("that match"));
    let ids = "SELECT array_agg(id ORDER BY id) FROM river_job";
    let ids: Vec<i64> = client.query_one(ids, &[]).await.unwrap().get(0);

    let change = "/console/jobs/change";
    let selected = format!("job={}&job={}&job=9999&action=cancel", ids[0], ids[1]);
    let answer = post_form(&weir, change, &selected).await;
    let done = answer.body.as_str().unwrap().to_owned();
    has(
        &done,
        &[
            "cancelled</th><td>2</td>",
            "not submitted through Weir, or deleted</th><td>1</td>",
        ],
    );
    // What the page does not list does not change either.
    for other in ["state=running", "age=3600", "age=1h", "service=renamed"] {
        let none = page(&weir, &format!("{change}?user=anne&{other}&action=cancel")).await;
        has(&none, &["No unfinished job matches."]);
        let list = page(&weir, &format!("/console/jobs?user=anne&{other}")).await;
        has(&list, &["No job matches."]);
    }
    let completed = page(&weir, "/console/jobs?user=anne&state=completed").await;
    assert!(!completed.contains("that match…"));
    // Other programs' jobs match only by their kind.
    client
        .batch_execute(
            "INSERT INTO river_job (kind, queue, args, max_attempts) VALUES ('other:work', 'other', '{}', 3); \
             UPDATE river_job SET created_at = now() - interval '2 hours' WHERE state <> 'cancelled'",
        )
        .await
        .unwrap();
    for (filter, jobs) in [
        ("age=3600", "28 unfinished jobs<"),
        ("kind=other:work", "1 unfinished job<"),
    ] {
        has(
            &page(&weir, &format!("{change}?{filter}&action=cancel")).await,
            &[jobs],
        );
    }
    let (all, last) = ("user=anne&action=cancel", ids[29]);
    let preview = page(&weir, &format!("{change}?{all}")).await;
    has(
        &preview,
        &["28 unfinished jobs", &format!(r#"name="through" value="{last}""#)],
    );
    // After the preview.
    let one = "SELECT weir_submit('anne', 'analysis', '{}')";
    client.batch_execute(one).await.unwrap();
    let answer = post_form(&weir, change, &format!("{all}&through={last}")).await;
    let done = answer.body.as_str().unwrap().to_owned();
    has(
        &done,
        &[
            r#"<progress max="28" value="25"></progress> 25 of 28 jobs"#,
            "cancelled</th><td>28</td>",
            "</html>",
        ],
    );
    for nothing in [
        "action=cancel",
        "job=x&age=0&action=retry",
        "user=anne",
        "user=anne&through=x&action=cancel",
    ] {
        let refused = post_form(&weir, change, nothing).await;
        assert_eq!(refused.status, 422, "{nothing}");
    }
    let logged = "SELECT array_agg((after -> 'outcomes' ->> 'cancelled')::int ORDER BY id) FROM admin_log";
    let logged: Vec<i32> = client.query_one(logged, &[]).await.unwrap().get(0);
    assert_eq!(logged, [2, 28]);
    weir.reconcile().await;
    assert_eq!(weir.quota(Who::Subject("anne"), "analysis").await["reserved"], 1);
    weir.end().await;
}

/// Submits one of the console's forms from this machine.
async fn post_form(weir: &Weir, path: &str, form: &str) -> Answer {
    let request = Request::builder()
        .method("POST")
        .uri(path)
        .header("host", "localhost:8080")
        .header("content-type", "application/x-www-form-urlencoded");
    let mut request = request.body(Body::from(form.to_owned())).unwrap();
    let peer: SocketAddr = HERE.parse().unwrap();
    request.extensions_mut().insert(ConnectInfo(peer));
    weir.send(request).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_changes_the_plan_the_overrides_and_the_grants_of_a_user() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    weir.analyse(who, "a_test.go", GO_TESTS).await;
    let path = format!("/console/holders/{user}");
    let limits = "UPDATE plan_limits SET day = 40, hour = 20 WHERE event_type = 'analysis'";
    weir.client().await.batch_execute(limits).await.unwrap();
    has(
        &page(&weir, &path).await,
        &[
            "<option value=\"free\" selected>",
            "Override of analysis",
            "None.",
        ],
    );

    let event = Uuid::new_v4();
    let change = format!("plan=pro&effective=now&event={event}");
    let changed = post_form(&weir, &format!("{path}/plan"), &change).await;
    assert_eq!(
        (changed.status.as_u16(), location(&changed)),
        (303, path.as_str())
    );
    has(&page(&weir, &path).await, &["<option value=\"pro\" selected>"]);
    assert_eq!(weir.quota(who, "analysis").await["limit"], 1000);
    // A repeated form does not undo a later change.
    let later = format!("plan=free&effective=now&event={}", Uuid::new_v4());
    for form in [&later, &change] {
        assert_eq!(post_form(&weir, &format!("{path}/plan"), form).await.status, 303);
    }
    assert_eq!(weir.quota(who, "analysis").await["limit"], 50);

    let overrides = format!("{path}/overrides");
    let wanted = "meter=analysis&month=70&day=unlimited&hour=9&slots=2&burst=&until=2999-01-02T03:04";
    let set = post_form(&weir, &overrides, wanted).await;
    assert_eq!(set.status, 303, "{}", set.body);
    assert_eq!(weir.quota(who, "analysis").await["limit"], 70);
    has(
        &page(&weir, &path).await,
        &[
            "name=\"month\" value=\"70\"",
            "name=\"day\" value=\"unlimited\"",
            "name=\"hour\" value=\"9\"",
            "value=\"2\"",
            "value=\"2999-01-02T03:04:00\"",
            "Remove",
        ],
    );
    // The form is the whole override.
    let set = post_form(&weir, &overrides, "meter=analysis&month=70&slots=2").await;
    assert_eq!(set.status, 303, "{}", set.body);
    has(
        &page(&weir, &path).await,
        &["name=\"hour\" placeholder", "step=\"1\">"],
    );
    for (form, why) in [
        ("meter=analysis&month=many", "not a valid number"),
        ("meter=analysis&minute=many", "not a valid number"),
        ("meter=analysis&minute=5", "no plan limits analysis per minute"),
        ("meter=analysis&month=1&until=tomorrow", "not a valid time"),
        ("meter=analysis&month=&slots=&burst=", "needs limits"),
        ("meter=nothing&month=1", "unknown meter"),
    ] {
        let refused = post_form(&weir, &overrides, form).await;
        assert_eq!(refused.status, 422, "{form}");
        has(refused.body.as_str().unwrap(), &["Nothing changed", why]);
    }
    let removed = post_form(&weir, &overrides, "meter=analysis&month=70&slots=2&remove=true").await;
    assert_eq!(removed.status, 303);
    assert_eq!(weir.quota(who, "analysis").await["limit"], 50);

    // A double click grants once.
    let grant = format!(
        "meter=analysis&amount=25&reason=ticket+17&until=2999-01-02T03:04:05&key={}",
        Uuid::new_v4()
    );
    for _ in 0..2 {
        assert_eq!(
            post_form(&weir, &format!("{path}/grants"), &grant).await.status,
            303
        );
    }
    has(
        &page(&weir, &path).await,
        &["<td>25 of 25</td>", "2999-01-02 03:04:05 UTC", "ticket 17"],
    );
    let actions = "SELECT array_agg(action ORDER BY id) FROM admin_log WHERE actor = 'console'";
    let actions: Vec<String> = weir.client().await.query_one(actions, &[]).await.unwrap().get(0);
    assert_eq!(
        actions.iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "plan.set",
            "plan.set",
            "override.set",
            "override.set",
            "override.remove",
            "grant.give"
        ]
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_has_charts_of_the_last_hour() {
    let weir = Weir::new().await;
    let working = work_and_fail(&weir).await;
    let who = Who::User(weir.user("pro").await);
    let job = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.finished(job, who).await;
    working.stop().await;
    let client = weir.client().await;
    let start = weir_ledger::read::overview::start_p99(&client).await.unwrap();
    assert!(
        (0..600_000).contains(&start.start_p99_ms.unwrap()),
        "{:?}",
        start.start_p99_ms
    );
    // The first minute of a process is counted as it starts.
    let charts = weir
        .until("the first minute", async || {
            let overview = page(&weir, "/console?refresh=off").await;
            overview.contains("1 of 60 minutes").then_some(overview)
        })
        .await;
    has(
        &charts,
        &[
            "aria-label=\"done a minute: now 0, at most 0 within the last hour\"",
            "aria-label=\"failed a minute:",
            "aria-label=\"waiting:",
            "aria-label=\"p99 to start: now –",
        ],
    );
    weir.end().await;
}

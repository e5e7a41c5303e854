//! Subjects that are not UUIDs, and organisations: one subject is one holder, whichever client submits its jobs.

use crate::common::gate::Gate;
use crate::common::process::{Process, command};
use crate::common::{EDGE_SECRET, GO_TESTS, Weir, Who, files};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use uuid::Uuid;
use weir::work::Role;
use weir_ledger::holder::Holders;
use weir_ledger::plans;

const CLERK: &str = "user_2aB|Zoë";

/// Runs `weir`, and returns its output.
fn weir_output(weir: &Weir, arguments: &[&str]) -> String {
    let output = command(weir, arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn claims(token: &str) -> Value {
    let payload = token.trim().split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
}

/// The users of these jobs' reservations.
async fn holders(weir: &Weir, jobs: &[i64]) -> Vec<Uuid> {
    let sql = "SELECT DISTINCT holder FROM quota_reservations WHERE job_id = ANY ($1) AND user_id = holder";
    let rows = weir.client().await.query(sql, &[&jobs]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// River's row of a job.
async fn river(weir: &Weir, id: i64) -> (Value, Value, String) {
    let sql = "SELECT args, metadata, state::text FROM river_job WHERE id = $1";
    let row = weir.client().await.query_one(sql, &[&id]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_is_one_holder_for_all_clients() {
    let weir = Weir::new().await;
    let token = weir_output(&weir, &["token", "--plan", "pro", "--user", CLERK]);
    assert_eq!(claims(&token)["sub"], CLERK);

    let who = Who::Subject(CLERK);
    assert_eq!(weir.get("/api/usage", who).await.body["plan"], "pro");
    let slots = weir.slots_of("pro") as usize;
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    let mut jobs = vec![weir.analyse(who, "a_test.go", GO_TESTS).await];
    gate.until_running(&weir, 1).await;
    // The others come from another River client, and share the slots. A job without a slot is parked together with all
    // waiting ones.
    for _ in 0..slots + 4 {
        let args = json!({ "user_id": CLERK });
        jobs.push(weir.insert_by_river(args, "analysis_priority").await);
    }
    gate.until_running(&weir, slots).await;
    let client = weir.client().await;
    weir.until("the backlog to be parked", async || {
        let sql = "SELECT count(*) FROM river_job WHERE state IN ('available', 'running')";
        let row = client.query_one(sql, &[]).await.unwrap();
        (row.get::<_, i64>(0) == slots as i64).then_some(())
    })
    .await;
    assert_eq!(gate.most(), slots);
    let of_all = holders(&weir, &jobs).await;
    assert_eq!(of_all.len(), 1, "{of_all:?}");
    let users = client.query("SELECT id, subject FROM users", &[]).await.unwrap();
    assert_eq!(users.len(), 1);
    assert_eq!(
        (users[0].get::<_, Uuid>(0), users[0].get(1)),
        (of_all[0], Some(CLERK))
    );

    let (args, metadata, _) = river(&weir, jobs[0]).await;
    assert_eq!(
        (&args["user_id"], &metadata["weir:subject"]),
        (&json!(CLERK), &json!(CLERK))
    );
    // By the text, and by its derived id.
    for user in [CLERK.to_owned(), of_all[0].to_string()] {
        let shown = weir_output(&weir, &["user", "show", &user, "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(
            (&shown["subject"], &shown["plan"]),
            (&json!(CLERK), &json!("pro")),
            "{shown}"
        );
        let token = weir_output(&weir, &["token", "--plan", "pro", "--user", &user]);
        assert_eq!(claims(&token)["sub"], CLERK);
    }
    let text = weir_output(&weir, &["user", "show", CLERK]);
    assert!(text.starts_with(&format!("user {CLERK}, plan pro\n")), "{text}");
    gate.open();
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_that_differ_in_case_or_normalisation_are_different_users() {
    let weir = Weir::new().await;
    // The last two have the same letters, precomposed and decomposed.
    let subjects = ["anne", "Anne", "zo\u{eb}", "zoe\u{308}"];
    let mut jobs = Vec::new();
    for subject in subjects {
        jobs.push(weir.analyse(Who::Subject(subject), "a_test.go", GO_TESTS).await);
    }
    assert_eq!(holders(&weir, &jobs).await.len(), subjects.len());
    for (subject, job) in subjects.into_iter().zip(&jobs) {
        assert_eq!(weir.quota(Who::Subject(subject), "analysis").await["reserved"], 1);
        let list = weir.get("/api/jobs", Who::Subject(subject)).await.body;
        assert_eq!(list.as_array().unwrap().len(), 1);
        assert_eq!(list[0]["id"], *job);
    }
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_uuid_in_upper_case_is_the_same_user() {
    const UPPER: &str = "2B0C5D9E-5AD9-4F43-9F0A-0D4B4E0D3A55";
    let weir = Weir::new().await;
    let id: Uuid = UPPER.parse().unwrap();
    let job = weir.analyse(Who::Subject(UPPER), "a_test.go", GO_TESTS).await;
    assert_eq!(holders(&weir, &[job]).await, [id]);
    let (args, ..) = river(&weir, job).await;
    assert_eq!(args["user_id"], id.to_string());
    let client = weir.client().await;
    let row = client
        .query_one("SELECT id, subject FROM users", &[])
        .await
        .unwrap();
    assert_eq!((row.get::<_, Uuid>(0), row.get::<_, Option<&str>>(1)), (id, None));
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_share_their_organisations_quota_and_slots() {
    let weir = Weir::new().await;
    let (anne, ben) = (Who::Member("org_1", "anne"), Who::Member("org_1", "ben"));
    let first = weir.analyse(anne, "a_test.go", GO_TESTS).await;
    let second = weir.analyse(ben, "a_test.go", GO_TESTS).await;
    for (job, subject, state) in [(first, "anne", "available"), (second, "ben", "pending")] {
        let (args, metadata, is) = river(&weir, job).await;
        assert_eq!(args["user_id"], "org_1");
        assert_eq!(
            (metadata["weir:subject"].as_str(), is.as_str()),
            (Some(subject), state)
        );
    }
    assert_eq!(holders(&weir, &[first, second]).await.len(), 1);
    for who in [anne, ben, Who::Subject("org_1")] {
        assert_eq!(weir.quota(who, "analysis").await["reserved"], 2);
    }
    // Outside of the organisation, Anne has her own quota and slots.
    assert_eq!(weir.quota(Who::Subject("anne"), "analysis").await["reserved"], 0);
    let own = weir.analyse(Who::Subject("anne"), "a_test.go", GO_TESTS).await;
    assert_eq!(river(&weir, own).await.2, "available");
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_spelled_like_an_address_is_a_separate_holder() {
    const ADDRESS: &str = "203.0.113.7";
    let weir = Weir::new().await;
    let job = weir.analyse(Who::Subject(ADDRESS), "a_test.go", GO_TESTS).await;
    let anonymous = weir.analyse(Who::Address(ADDRESS), "a_test.go", GO_TESTS).await;
    let other = weir
        .insert_by_river(json!({ "user_id": ADDRESS }), "analysis_default")
        .await;
    // The free plan's only slot is taken by the first, and the address has its own.
    assert_eq!(river(&weir, anonymous).await.2, "available");
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    gate.until_running(&weir, 2).await;
    weir.until("the third to be parked", async || {
        (river(&weir, other).await.2 == "pending" || !holders(&weir, &[other]).await.is_empty()).then_some(())
    })
    .await;
    assert_eq!(holders(&weir, &[job]).await, holders(&weir, &[other]).await);
    assert!(holders(&weir, &[anonymous]).await.is_empty(), "it is no user");
    let strangers = weir
        .get(&format!("/api/jobs/{anonymous}"), Who::Subject(ADDRESS))
        .await;
    assert_eq!(strangers.status, 404);
    gate.open();
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_up_to_255_bytes_are_accepted_end_to_end() {
    let weir = Weir::new().await;
    let longest: &'static str = "é'\"\\<x>%_".repeat(25).leak();
    let longest = &longest[..longest.floor_char_boundary(255)];
    let job = weir.analyse(Who::Subject(longest), "a_test.go", GO_TESTS).await;
    assert_eq!(river(&weir, job).await.0["user_id"], longest);
    assert_eq!(
        weir.get(&format!("/api/jobs/{job}"), Who::Subject(longest))
            .await
            .status,
        200
    );
    weir_output(&weir, &["user", "show", longest]);
    for refused in ["a".repeat(256), String::new(), "a\nb".to_owned()] {
        let output = command(&weir, &["token", "--plan", "free", "--user", &refused])
            .output()
            .unwrap();
        assert!(!output.status.success());
        let why = String::from_utf8(output.stderr).unwrap();
        assert!(why.contains("subject"), "{why}");
    }
    // Jobs of another River client may have any user. They run, but belong to no user.
    let odd = weir
        .insert_by_river(
            json!({ "user_id": "a".repeat(300), "files": [{"path": "a_test.go", "content": GO_TESTS}] }),
            "analysis_default",
        )
        .await;
    let working = weir.work().await;
    weir.until("it to be completed", async || {
        (river(&weir, odd).await.2 == "completed").then_some(())
    })
    .await;
    weir.finished(job, Who::Subject(longest)).await;
    let client = weir.client().await;
    let users: i64 = client
        .query_one("SELECT count(*) FROM users", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(users, 1);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_inserted_by_hand_under_another_id_can_submit() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let by_hand = "INSERT INTO users (subject) VALUES ('anne'), ('ben') RETURNING id";
    let rows = client.query(by_hand, &[]).await.unwrap();
    let job = weir.analyse(Who::Subject("anne"), "a_test.go", GO_TESTS).await;
    let of_anne = holders(&weir, &[job]).await;
    assert!(of_anne.len() == 1 && of_anne[0] != rows[0].get::<_, Uuid>(0));
    weir_output(&weir, &["token", "--plan", "pro", "--user", "ben"]);
    assert_eq!(
        weir.get("/api/usage", Who::Subject("ben")).await.body["plan"],
        "pro"
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_first_requests_of_a_subject_create_one_user() {
    let weir = Weir::new().await;
    let mut meeting = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = weir.client().await;
        meeting.spawn(async move {
            let holders = Holders::load(&client).await.unwrap();
            for n in 0..100 {
                let subject = format!("user_{n}").parse().unwrap();
                plans::ensure_subject(&client, holders, &subject, "pro")
                    .await
                    .unwrap();
            }
        });
    }
    meeting.join_all().await;
    let client = weir.client().await;
    let sql = "SELECT count(*), count(DISTINCT subject) FROM users";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (100, 100));
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_names_the_member_of_an_organisation() {
    let weir = Weir::new().await;
    let server = Process::start(&weir, &["serve"], &[("EDGE_SECRET", EDGE_SECRET)]);
    server.ready().await;
    let body = files(&[("a_test.go", GO_TESTS)]).to_string();
    let reply = server
        .call(
            "POST",
            "/api/jobs/analysis",
            Who::Member("org_1", "anne"),
            "r-1",
            &body,
        )
        .await;
    assert_eq!(reply.status, 202, "{}", reply.text);
    let line = weir
        .until("its line", async || {
            let mut lines = server.log().into_iter();
            lines.find(|line| line["message"] == "request" && line["request_id"] == "r-1")
        })
        .await;
    assert_eq!(line["subject"], "anne", "{line}");
    let client = weir.client().await;
    let row = client
        .query_one("SELECT id::text FROM users WHERE subject = 'org_1'", &[])
        .await;
    assert_eq!(line["user"], row.unwrap().get::<_, &str>(0));
    server.stop().await;
    weir.abandon().await;
}

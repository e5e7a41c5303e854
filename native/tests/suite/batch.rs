//! Submitting for later, with a priority, and in batches.

use crate::common::{Answer, GO_TESTS, Weir, Who, files};
use serde_json::{Value, json};

async fn batch(weir: &Weir, who: Who, headers: &[(&str, &str)], jobs: usize) -> Answer {
    let jobs: Vec<Value> = (0..jobs)
        .map(|n| files(&[(&format!("a{n}_test.go"), GO_TESTS)]))
        .collect();
    let body = Value::from(jobs).to_string().into_bytes();
    weir.call("POST", "/api/jobs/analysis/batch", who, headers, body)
        .await
}

fn ids(answer: &Answer) -> Vec<i64> {
    let jobs = answer.body["jobs"].as_array().unwrap();
    jobs.iter().map(|job| job["id"].as_i64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_accepted_as_a_whole_or_not_at_all() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let who = Who::User(user);
    weir.use_up(user, "analysis", 40).await;
    let refused = batch(&weir, who, &[], 11).await;
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert_eq!(
        (
            &refused.body["quota"]["reserved"],
            &refused.body["quota"]["remaining"]
        ),
        (&json!(0), &json!(10)),
        "as it is without the batch"
    );
    assert_eq!(refused.body["windows"][0]["window"], "month");
    assert_eq!(
        (weir.jobs().await, weir.count("quota_reservations").await),
        (0, 0)
    );
    let accepted = batch(&weir, who, &[("Idempotency-Key", "k")], 10).await;
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    let waits: Vec<&Value> = accepted.body["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| &job["waiting_for"])
        .collect();
    assert_eq!(waits[0], "worker");
    assert!(waits[1..].iter().all(|wait| *wait == "slot"), "{waits:?}");
    assert_eq!(
        (
            &accepted.body["quota"]["reserved"],
            &accepted.body["quota"]["remaining"]
        ),
        (&json!(10), &json!(0))
    );
    // The same key again returns the same jobs, and creates none.
    let again = batch(&weir, who, &[("Idempotency-Key", "k")], 10).await;
    assert_eq!((again.status.as_u16(), ids(&again)), (202, ids(&accepted)));
    assert_eq!(weir.jobs().await, 10);
    for another in [1, 9, 11] {
        let reused = batch(&weir, who, &[("Idempotency-Key", "k")], another).await;
        assert_eq!(reused.status, 422, "{}", reused.body);
    }
    assert_eq!(weir.jobs().await, 10);
    let working = weir.work().await;
    weir.all_finished().await;
    weir.released(who, "analysis").await;
    assert_eq!(weir.quota(who, "analysis").await["used"], 50);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_job_does_not_block_a_batch() {
    let weir = Weir::new().await;
    let who = Who::Subject("anne");
    let args = files(&[("a_test.go", GO_TESTS)]);
    let options = json!({ "idempotency_key": "k#0" });
    let client = weir.client().await;
    let submit = "SELECT outcome FROM weir_submit('anne', 'analysis', $1, options => $2)";
    for expected in ["admitted", "repeated"] {
        let row = client.query_one(submit, &[&args, &options]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), expected);
    }
    let one = async |key| {
        let body = args.to_string().into_bytes();
        let key = [("Idempotency-Key", key)];
        let answer = weir.call("POST", "/api/jobs/analysis", who, &key, body).await;
        (answer.status.as_u16(), answer.body["job"]["id"].as_i64())
    };
    let first = one("k#1").await;
    assert_eq!((first.0, one("k#1").await), (202, first));
    assert_eq!(
        batch(&weir, who, &[("Idempotency-Key", "k")], 2).await.status,
        202
    );
    assert_eq!(weir.jobs().await, 4);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_batches_at_once_never_go_over_the_quota() {
    let weir = Weir::new().await;
    // An unknown user.
    let who = Who::Subject("auth0|batches");
    let answers = futures_util::future::join_all((0..12).map(|_| batch(&weir, who, &[], 9))).await;
    let accepted = answers.iter().filter(|answer| answer.status == 202).count();
    assert_eq!(accepted, 5, "of 50, five times nine");
    assert_eq!(weir.jobs().await, 45);
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 45);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_in_a_batch_name_the_position() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let good = files(&[("a_test.go", GO_TESTS)]);
    for (body, expected) in [
        (json!([]), "1 to 100"),
        (json!({}), "array"),
        (Value::from(vec![good.clone(); 101]), "1 to 100"),
        (json!([good, {}]), "[1]: "),
        (json!([good, 7]), "[1]: The arguments must be a JSON object."),
    ] {
        let answer = weir.post("/api/jobs/analysis/batch", who, &body).await;
        assert_eq!(answer.status, 422, "{}", answer.body);
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(expected), "{detail}");
    }
    let anonymous = batch(&weir, Who::Address("198.51.100.9"), &[], 1).await;
    assert_eq!(anonymous.status, 401);
    assert_eq!(weir.jobs().await, 0);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduled_job_can_be_cancelled_before_its_time() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let good = files(&[("a_test.go", GO_TESTS)]).to_string();
    let later = (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1)).to_string();
    let submit = async |headers: &[(&str, &str)]| {
        weir.call(
            "POST",
            "/api/jobs/analysis",
            who,
            headers,
            good.clone().into_bytes(),
        )
        .await
    };
    let answer = submit(&[("Weir-Run-At", &later), ("Weir-Priority", "2")]).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let job = &answer.body["job"];
    assert_eq!(
        (&job["waiting_for"], &job["reserved"]),
        (&json!("schedule"), &json!(1))
    );
    let path = format!("/api/jobs/{}", job["id"]);
    assert_eq!(weir.get(&path, who).await.body["waiting_for"], "schedule");
    let row = weir
        .client()
        .await
        .query_one(
            "SELECT priority, state::text, scheduled_at > now() + interval '50 minutes' FROM river_job",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        (row.get::<_, i16>(0), row.get::<_, &str>(1), row.get::<_, bool>(2)),
        (2, "pending", true)
    );
    // It neither uses a slot nor waits for one.
    let now = submit(&[]).await;
    assert_eq!(now.body["job"]["waiting_for"], "worker");
    weir.reconcile().await;
    assert_eq!(weir.get(&path, who).await.body["waiting_for"], "schedule");
    let cancelled = weir.call("DELETE", &path, who, &[], Vec::new()).await;
    assert_eq!(
        (&cancelled.body["status"], &cancelled.body["reserved"]),
        (&json!("cancelled"), &json!(0))
    );
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 1);
    for bad in [("Weir-Run-At", "soon"), ("Weir-Priority", "0")] {
        assert_eq!(submit(&[bad]).await.status, 422);
    }
    let address = Who::Address("198.51.100.10");
    let kept_for_long = [("Weir-Run-At", later.as_str())];
    let anonymous = weir
        .call(
            "POST",
            "/api/jobs/analysis",
            address,
            &kept_for_long,
            good.into_bytes(),
        )
        .await;
    assert_eq!(anonymous.status, 401);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_an_answer_does_not_reserve() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/programs.toml")]).await;
    let who = Who::User(weir.user("free").await);
    let commit = |sha: &str| {
        let mut args = files(&[("a_test.go", GO_TESTS)]);
        args["owner"] = "o".into();
        args["repo"] = "r".into();
        args["commit_sha"] = sha.into();
        args
    };
    let first = weir.post("/api/jobs/analysis", who, &commit("a")).await;
    assert_eq!(first.status, 202, "{}", first.body);
    let all = Value::from(["a", "b", "c"].map(commit).to_vec());
    let submit = async || weir.post("/api/jobs/analysis/batch", who, &all).await;
    // The first job exists, and cannot be read.
    let client = weir.client().await;
    let rename = |from: &str, to: &str| format!("ALTER TABLE {from} RENAME TO {to}");
    client
        .batch_execute(&rename("finished_jobs", "away"))
        .await
        .unwrap();
    let refused = submit().await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(weir.count("quota_reservations").await, 1);
    client
        .batch_execute(&rename("away", "finished_jobs"))
        .await
        .unwrap();
    let again = submit().await;
    assert_eq!((again.status.as_u16(), ids(&again).len()), (202, 3));
    assert_eq!(first.body["job"]["id"], again.body["jobs"][0]["id"]);
    weir.end().await;
}

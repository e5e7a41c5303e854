//! The SQL functions, called with arbitrary JSON, texts and numbers:
//!
//! - Each call has a documented outcome or is refused as `invalid_parameter_value`.
//! - A transaction continues after a refusal.
//! - A rollback leaves nothing.
//! - The audit is clean at the end.
//!
//! `WEIR_CASES` sets the number of cases, and `WEIR_SEED` repeats a run.

#[path = "strange/calls.rs"]
mod calls;
#[path = "strange/json.rs"]
mod json;

use crate::common;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::Weir;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use calls::{Call, Jobs};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Row, Transaction};
use weir_ledger::catalogue::services::{self, ServiceAmount, ServiceEntry};
use weir_ledger::meter::Meter;

/// The maximum time of a run, on any machine.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// Outcomes that must occur. Otherwise the other results prove little.
const EXPECTED: [&str; 4] = [
    "weir_submit: admitted",
    "weir_submit: refused",
    "weir_submit: repeated",
    "weir_complete: done",
];

const QUOTA: [&str; 8] = [
    "used",
    "reserved",
    "limit",
    "ceiling",
    "overage",
    "remaining",
    "reset_at",
    "windows",
];

fn entries() -> [ServiceEntry; 3] {
    let entry = |name: &str, unique_by: &[&str], amount| ServiceEntry {
        name: name.to_owned(),
        meter: Meter::of("specview"),
        kind: format!("test:{name}"),
        max_attempts: 3,
        unique_by: unique_by.iter().map(|member| (*member).to_owned()).collect(),
        amount,
        retry: None,
        timeout: Duration::from_secs(60),
        expires_in: None,
    };
    [
        entry("told", &["repo"], ServiceAmount::Caller),
        entry("fixed", &["repo", "user_id"], ServiceAmount::Fixed(3)),
        entry("pages", &[], ServiceAmount::Member("pages".to_owned())),
    ]
}

/// The result of a call: its outcome, or the SQLSTATE of its refusal.
async fn make(transaction: &mut Transaction<'_>, call: &Call, jobs: &mut Jobs) -> String {
    // Text that PostgreSQL itself rejects as JSON never reaches a function.
    for (index, param) in call.params.iter().enumerate() {
        if call.sql.contains(&format!("${}::text::jsonb", index + 1)) {
            let inner = transaction.transaction().await.unwrap();
            if inner.query_one("SELECT $1::text::jsonb", &[param]).await.is_err() {
                return "no JSON".to_owned();
            }
        }
    }
    let params: Vec<&(dyn tokio_postgres::types::ToSql + Sync)> =
        call.params.iter().map(|param| param as _).collect();
    let inner = transaction.transaction().await.unwrap();
    let result = inner.query(&call.sql, &params).await;
    match result {
        Ok(rows) => {
            inner.commit().await.unwrap();
            answered(call, &rows, jobs)
        }
        Err(error) => {
            let state = error.code().cloned();
            // A number that is not a double has no canonical form for uniqueness.
            let is_too_large = call.sql.contains("weir_submit")
                && call.params[2]
                    .as_ref()
                    .is_some_and(|args| json::exceeds_double(args));
            assert!(
                state == Some(SqlState::INVALID_PARAMETER_VALUE)
                    || is_too_large && state == Some(SqlState::NUMERIC_VALUE_OUT_OF_RANGE),
                "{} with {:?}: {error:?}",
                call.sql,
                call.params
            );
            drop(inner);
            "refused".to_owned()
        }
    }
}

fn answered(call: &Call, rows: &[Row], jobs: &mut Jobs) -> String {
    if call.sql.contains("weir_claim") {
        for row in rows {
            jobs.insert(row.get("job_id"), row.get::<_, i32>("attempt").into());
        }
        return format!("claimed {}", !rows.is_empty());
    }
    let [row] = rows else {
        panic!("{} rows of {}", rows.len(), call.sql)
    };
    if call.sql.contains("weir_holder") {
        return "holder".to_owned();
    }
    let outcome: String = row.get("outcome");
    let message = || format!("{outcome} of {} with {:?}: {row:?}", call.sql, call.params);
    assert!(call.outcomes.contains(&outcome.as_str()), "{}", message());
    if call.sql.contains("weir_submit") {
        let id: Option<i64> = row.get("job_id");
        let is_job = ["admitted", "parked", "repeated", "folded"].contains(&outcome.as_str());
        assert_eq!(id.is_some(), is_job, "{}", message());
        if let Some(id) = id {
            jobs.entry(id).or_insert(0);
        }
    }
    if call.sql.contains("weir_complete") {
        let charged: i64 = row.get("charged");
        assert!(
            charged >= 0 && (charged == 0 || outcome == "done"),
            "{}",
            message()
        );
    }
    if ["weir_submit", "weir_extend", "weir_quota"]
        .iter()
        .any(|name| call.sql.contains(name))
    {
        match row.get::<_, Option<Value>>("quota") {
            Some(Value::Object(quota)) => {
                assert!(
                    quota.keys().all(|member| QUOTA.contains(&member.as_str())),
                    "{}",
                    message()
                );
                assert!(
                    quota["used"].is_i64() && quota["reserved"].is_i64(),
                    "{}",
                    message()
                );
            }
            None => assert!(
                ["key_reused", "fenced_out"].contains(&outcome.as_str()),
                "{}",
                message()
            ),
            Some(_) => panic!("{}", message()),
        }
    }
    outcome
}

/// All rows that a rolled-back transaction must leave unchanged.
const ALL: &str = "
    SELECT (SELECT coalesce(sum(hashtextextended(x::text, 0)), 0) FROM river_job x)
         + (SELECT coalesce(sum(hashtextextended(x::text, 1)), 0) FROM quota_reservations x)
         + (SELECT coalesce(sum(hashtextextended(x::text, 2)), 0) FROM quota_balances x)
         + (SELECT coalesce(sum(hashtextextended(x::text, 3)), 0) FROM holders x)
         + (SELECT coalesce(sum(hashtextextended(x::text, 4)), 0) FROM weir_jobs x)
         + (SELECT coalesce(sum(hashtextextended(x::text, 5)), 0) FROM users x)
         + (SELECT coalesce(sum(hashtextextended(x::text, 6)), 0) FROM usage_events x)
         + (SELECT coalesce(sum(hashtextextended(x::text, 7)), 0) FROM job_outputs x) AS sum";

#[tokio::test(flavor = "multi_thread")]
async fn any_json_is_answered_or_refused_and_the_audit_passes() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("WEIR_SEED").unwrap_or_else(rand::random);
    let cases = number("WEIR_CASES");
    eprintln!("WEIR_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let weir = Weir::new().await;
    let mut client = weir.client().await;
    let rules = weir.context.settings.rules();
    services::apply(&mut weir.client().await, &entries(), &rules)
        .await
        .unwrap();
    // Many run at once, so that there are jobs to settle.
    let slots = "UPDATE plan_limits SET slots = 200";
    client.batch_execute(slots).await.unwrap();
    let (started, mut jobs, mut outcomes) = (Instant::now(), Jobs::new(), BTreeMap::<String, u64>::new());
    let (mut done, mut made) = (0, Vec::new());
    let is_missing =
        |outcomes: &BTreeMap<String, u64>| EXPECTED.into_iter().find(|one| !outcomes.contains_key(*one));
    while match cases {
        Some(cases) => done < cases,
        None if is_missing(&outcomes).is_some() => started.elapsed() < 10 * MAX_WAIT,
        None => done < 400 && started.elapsed() < MAX_WAIT,
    } {
        let is_kept = rng.random_bool(0.8);
        let mut after = jobs.clone();
        let before: String = sum_of(&client, is_kept).await;
        let mut transaction = client.transaction().await.unwrap();
        for _ in 0..rng.random_range(1..6) {
            let call = match rng.random_bool(0.15).then(|| made.pop()).flatten() {
                Some(again) => again,
                None => calls::call(&mut rng, &after),
            };
            let name = call.sql.split(['(', ' ']).nth(3).unwrap_or_default().to_owned();
            let outcome = make(&mut transaction, &call, &mut after).await;
            *outcomes.entry(format!("{name}: {outcome}")).or_default() += 1;
            if outcome == "admitted" || outcome == "parked" {
                made.push(call);
            }
        }
        // After all refusals, the transaction is still usable.
        assert_eq!(
            transaction
                .query_one("SELECT 1", &[])
                .await
                .unwrap()
                .get::<_, i32>(0),
            1
        );
        if is_kept {
            transaction.commit().await.unwrap();
            jobs = after;
        } else {
            transaction.rollback().await.unwrap();
            assert_eq!(sum_of(&client, false).await, before, "nothing is left of it");
        }
        done += 1;
    }
    eprintln!("{done} transactions in {:?}: {outcomes:#?}", started.elapsed());
    if cases.is_none_or(|cases| cases >= 1000) {
        assert_eq!(is_missing(&outcomes), None, "{outcomes:?}");
    }
    let mut complaints = weir.complaints().await;
    // This test has no leader, so due retries do not start.
    complaints.retain(|complaint| !complaint.contains("has been due since"));
    assert!(complaints.is_empty(), "{complaints:#?}");
    drop(client);
    weir.abandon().await;
}

/// A sum over all rows. Not needed if they are about to change.
async fn sum_of(client: &tokio_postgres::Client, is_kept: bool) -> String {
    if is_kept {
        return String::new();
    }
    let sql = format!("SELECT sum::text FROM ({ALL}) x");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_with_unreadable_json_do_not_stop_others() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("enterprise").await;
    let submit = "SELECT job_id FROM weir_submit($1, 'analysis', $2::text::jsonb)";
    let deep = format!("{{\"files\":{}1{}}}", "[".repeat(400), "]".repeat(400));
    let good = json_of_files();
    let mut ids = Vec::new();
    for args in [
        r#"{"files":1e400}"#,
        r#"{"files":[]}"#,
        r#"{"files":[],"n":-1e20000}"#,
        &good,
    ] {
        let id: i64 = client
            .query_one(submit, &[&user.to_string(), &args])
            .await
            .unwrap()
            .get(0);
        ids.push(id);
    }
    // Other clients of River may write arguments that are nested deeper than workers can read.
    let write = "UPDATE river_job SET args = args || $1::text::jsonb WHERE id = $2";
    client.execute(write, &[&deep, &ids[1]]).await.unwrap();
    let working = weir.work().await;
    let who = common::Who::User(user);
    let states = weir
        .until("all of them to end", async || {
            let sql = "SELECT count(*) FILTER (WHERE finalized_at IS NULL OR state = 'retryable'), \
                              count(*) FILTER (WHERE state = 'completed') FROM river_job WHERE id = ANY ($1)";
            let hurry =
                "UPDATE river_job SET scheduled_at = now() WHERE state = 'retryable' AND id = ANY ($1)";
            client.execute(hurry, &[&ids]).await.unwrap();
            let row = client.query_one(sql, &[&ids]).await.unwrap();
            (row.get::<_, i64>(0) == 0).then(|| row.get::<_, i64>(1))
        })
        .await;
    assert!(states >= 1, "the good one was completed");
    for id in &ids {
        let answer = weir.get(&format!("/api/jobs/{id}"), who).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let mut seen = Request::get(format!("/console/jobs/{id}")).header("host", "localhost:8080");
        let peer: SocketAddr = "127.0.0.1:50000".parse().unwrap();
        seen = seen.extension(ConnectInfo(peer));
        let seen = weir.send(seen.body(Body::empty()).unwrap()).await;
        assert_eq!(seen.status, 200, "{}", seen.body);
    }
    let listed = weir.get("/api/jobs", who).await;
    assert_eq!(listed.status, 200, "{}", listed.body);
    assert_eq!(
        listed
            .body
            .as_array()
            .or(listed.body["jobs"].as_array())
            .map(Vec::len),
        Some(4),
        "{}",
        listed.body
    );
    working.stop().await;
    // Outputs that are just as strange.
    let worked: i64 = client
        .query_one(submit, &[&user.to_string(), &r#"{"files":[]}"#])
        .await
        .unwrap()
        .get(0);
    weir.start_elsewhere(worked).await;
    let complete = "SELECT outcome FROM weir_complete($1, 1, $2::text::jsonb)";
    let row = client
        .query_one(complete, &[&worked, &r#"{"n":1e400}"#])
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>("outcome"), "done");
    let answer = weir.get(&format!("/api/jobs/{worked}"), who).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(weir.get("/api/jobs", who).await.status, 200);
    drop(client);
    weir.end().await;
}

fn json_of_files() -> String {
    serde_json::json!({ "files": [{ "path": "a_test.go", "content": common::GO_TESTS }] }).to_string()
}

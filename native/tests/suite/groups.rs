//! Batches and usage from elsewhere by SQL functions.

use crate::common::{Weir, Who};
use serde_json::{Value, json};
use tokio_postgres::Client;

/// The outcomes of a batch of analyses of these users, by member.
async fn submit_many(client: &Client, members: Value, all_or_none: bool) -> Vec<(i32, String, Option<i64>)> {
    let sql = "SELECT member, outcome, job_id FROM weir_submit_many($1, $2)";
    let rows = client.query(sql, &[&members, &all_or_none]).await.unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}

fn outcomes(rows: &[(i32, String, Option<i64>)]) -> Vec<(i32, &str)> {
    rows.iter().map(|row| (row.0, row.1.as_str())).collect()
}

async fn refusal(client: &Client, sql: &str) -> String {
    let error = client.batch_execute(sql).await.unwrap_err();
    error.as_db_error().unwrap().message().to_owned()
}

async fn jobs(client: &Client) -> i64 {
    let count = "SELECT count(*) FROM river_job";
    client.query_one(count, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_by_sql_has_a_row_for_each_member_and_refusals_are_rows() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let (one, other) = (weir.user("free").await, weir.user("free").await);
    weir.use_up(one, "analysis", 48).await;
    let member = |user: uuid::Uuid, key: &str| json!({ "subject": user, "service": "analysis", "args": {}, "options": { "idempotency_key": key } });
    let batch = json!([
        member(one, "a"),
        member(other, "a"),
        member(one, "b"),
        member(one, "c"),
        member(one, "a")
    ]);
    let refused = submit_many(&client, batch.clone(), true).await;
    assert_eq!(outcomes(&refused), [(4, "over_quota")]);
    assert_eq!(jobs(&client).await, 0);
    let rows = submit_many(&client, batch.clone(), false).await;
    assert_eq!(
        outcomes(&rows),
        [
            (1, "admitted"),
            (2, "admitted"),
            (3, "parked"),
            (4, "over_quota"),
            (5, "repeated")
        ]
    );
    assert_eq!(rows[0].2, rows[4].2);
    assert_eq!(jobs(&client).await, 3);
    // The same keys and arguments by weir_submit.
    let again =
        "SELECT outcome, job_id FROM weir_submit($1, 'analysis', '{}', NULL, '{\"idempotency_key\": \"b\"}')";
    let again = client.query_one(again, &[&one.to_string()]).await.unwrap();
    assert_eq!(
        (again.get::<_, &str>(0), again.get::<_, Option<i64>>(1)),
        ("repeated", rows[2].2)
    );
    assert_eq!(weir.quota(Who::User(one), "analysis").await["reserved"], 2);
    for (batch, message) in [
        ("{}", "submissions must be a JSON array"),
        ("[]", "submissions must be a JSON array"),
        ("[7]", "member 1 must be an object"),
        (
            r#"[{"subject": "anne", "service": "analysis", "args": {}, "x": 1}]"#,
            "member 1 must be an object",
        ),
        (
            r#"[{"subject": "anne", "service": "analysis", "args": {}, "amount": "x"}]"#,
            "member 1 must be an object",
        ),
        (
            r#"[{"subject": "anne", "service": "analysis", "args": 7}]"#,
            "the arguments must be a JSON object",
        ),
        (r#"[{"service": "analysis", "args": {}}]"#, "a subject must have"),
    ] {
        let error = refusal(&client, &format!("SELECT weir_submit_many('{batch}')")).await;
        assert!(error.starts_with(message), "{batch}: {error}");
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_attempts_ends_by_one_statement() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("enterprise").await;
    let member = json!({ "subject": user, "service": "analysis", "args": {} });
    let batch = json!([member, member, member]);
    let ids: Vec<i64> = submit_many(&client, batch, true)
        .await
        .iter()
        .map(|row| row.2.unwrap())
        .collect();
    let claimed = client
        .query("SELECT FROM weir_claim('analysis_priority', 'w', 3)", &[])
        .await
        .unwrap();
    assert_eq!(claimed.len(), 3);
    let attempts = json!([
        { "job_id": ids[0], "attempt": 1, "output": { "n": 1 }, "used": 0 },
        { "job_id": ids[1], "attempt": 1, "error": "out of paper" },
        { "job_id": ids[2], "attempt": 2 },
        { "job_id": ids[2], "attempt": 1 },
    ]);
    let sql = "SELECT outcome, charged FROM weir_settle_many($1) ORDER BY member";
    let rows = client.query(sql, &[&attempts]).await.unwrap();
    let ends: Vec<(&str, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(ends, [("done", 0), ("retry", 0), ("fenced_out", 0), ("done", 1)]);
    let error = refusal(&client, "SELECT weir_settle_many('[{}]')").await;
    assert!(error.starts_with("attempts must be a JSON array"), "{error}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_from_elsewhere_is_charged_once_per_event() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let charge = async |amount: i64, event: &str, ago: &str| -> String {
        let sql = "SELECT weir_charge($1, 'analysis', $2, $3, now() - $4::text::interval)";
        let row = client
            .query_one(sql, &[&user.to_string(), &amount, &event, &ago])
            .await;
        row.unwrap().get(0)
    };
    assert_eq!(charge(30, "e1", "0").await, "charged");
    assert_eq!(charge(30, "e1", "0").await, "repeated");
    assert_eq!(charge(31, "e1", "0").await, "key_reused");
    // It has happened, so no limit refuses it, and nothing is left.
    assert_eq!(charge(30, "e2", "0").await, "charged");
    let quota = weir.quota(Who::User(user), "analysis").await;
    assert_eq!((&quota["used"], &quota["remaining"]), (&json!(60), &json!(0)));
    let submit = "SELECT outcome FROM weir_submit($1, 'analysis', '{}')";
    let refused = client.query_one(submit, &[&user.to_string()]).await.unwrap();
    assert_eq!(refused.get::<_, &str>(0), "over_quota");
    // It counts in the period of its time.
    assert_eq!(charge(5, "e3", "70 days").await, "charged");
    assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 60);
    for (call, message) in [
        ("'a', 'analysis', -1, 'e', now()", "amount must be"),
        ("'a', 'analysis', 1, '', now()", "event_id must be"),
        ("'a', 'nothing', 1, 'e', now()", "there is no meter nothing"),
        (
            "'a', 'analysis', 1, 'e', now() + interval '1 day'",
            "occurred_at must be",
        ),
        ("'', 'analysis', 1, 'e', now()", "a subject must have"),
    ] {
        let error = refusal(&client, &format!("SELECT weir_charge({call})")).await;
        assert!(error.starts_with(message), "{call}: {error}");
    }
    weir.end().await;
}

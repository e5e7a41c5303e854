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
async fn tags_and_metadata_reach_rivers_row() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let submit = async |options: &Value| -> String {
        let sql = "SELECT outcome FROM weir_submit('anne', 'analysis', '{}', NULL, $1)";
        client.query_one(sql, &[options]).await.unwrap().get(0)
    };
    let mut options =
        json!({ "tags": ["nightly", "eu-1"], "metadata": { "order": 7 }, "idempotency_key": "k" });
    assert_eq!(submit(&options).await, "admitted");
    assert_eq!(submit(&options).await, "repeated");
    options["tags"] = json!(["nightly"]);
    assert_eq!(submit(&options).await, "key_reused");
    let row = client
        .query_one("SELECT tags, metadata FROM river_job", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, Vec<String>>(0), ["nightly", "eu-1"]);
    assert_eq!(row.get::<_, Value>(1)["order"], 7);
    for options in [
        r#"{"tags": "nightly"}"#,
        r#"{"tags": ["a b c"]}"#,
        r#"{"tags": [7]}"#,
        r#"{"metadata": []}"#,
        r#"{"metadata": {"weir:used": 7}}"#,
        r#"{"metadata": {"output": 7}}"#,
    ] {
        let error = refusal(
            &client,
            &format!("SELECT weir_submit('anne', 'analysis', '{{}}', NULL, '{options}')"),
        )
        .await;
        assert!(error.contains("must be"), "{options}: {error}");
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
        { "job_id": ids[0], "attempt": 1, "output": { "n": 1 }, "used": 0, "error": null },
        { "job_id": ids[1], "attempt": 1, "error": "out of paper" },
        { "job_id": ids[2], "attempt": 2 },
        { "job_id": ids[2], "attempt": 1 },
    ]);
    let sql = "SELECT outcome, charged FROM weir_settle_many($1) ORDER BY member";
    let rows = client.query(sql, &[&attempts]).await.unwrap();
    let ends: Vec<(&str, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(ends, [("done", 0), ("retry", 0), ("fenced_out", 0), ("done", 1)]);
    for attempts in ["[{}]", r#"[{"job_id": 1, "attempt": 1, "eror": "x"}]"#] {
        let error = refusal(&client, &format!("SELECT weir_settle_many('{attempts}')")).await;
        assert!(
            error.starts_with("attempts must be a JSON array"),
            "{attempts}: {error}"
        );
    }
    weir.end().await;
}

/// A charge waits for the account, and then counts in the period that is current.
#[tokio::test(flavor = "multi_thread")]
async fn a_charge_during_a_change_of_plan_counts_in_the_new_period() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let (mut changing, watch) = (weir.client().await, weir.client().await);
    let open = changing.transaction().await.unwrap();
    open.batch_execute(&format!(
        "INSERT INTO holders (holder, event_type, user_id) VALUES ('{user}', 'analysis', '{user}'); \
         UPDATE user_subscriptions SET current_period_start = now() - interval '1 hour' WHERE user_id = '{user}'"
    ))
    .await
    .unwrap();
    let charge = async {
        let sql = "SELECT weir_charge($1, 'analysis', 7, 'e')";
        let row = client.query_one(sql, &[&user.to_string()]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "charged");
    };
    let change = async {
        weir.until("the charge to wait", async || {
            let waits = "SELECT FROM pg_stat_activity WHERE query LIKE 'SELECT weir_charge%' AND wait_event_type = 'Lock' \
                         AND datname = current_database()";
            watch.query_opt(waits, &[]).await.unwrap().map(drop)
        })
        .await;
        open.commit().await.unwrap();
    };
    tokio::join!(charge, change);
    assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 7);
    weir.end().await;
}

/// The audit at the end compares each window with its events.
#[tokio::test(flavor = "multi_thread")]
async fn a_charge_counts_in_all_windows() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute("UPDATE plan_limits SET day = 10, hour = 5, counted = 3 WHERE event_type = 'analysis'")
        .await
        .unwrap();
    let user = weir.user("free").await.to_string();
    for (amount, event, ago) in [(30_i64, "e1", "0"), (7, "e2", "3 days")] {
        let sql = "SELECT weir_charge($1, 'analysis', $2, $3, now() - $4::text::interval)";
        client
            .query_one(sql, &[&user, &amount, &event, &ago])
            .await
            .unwrap();
    }
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

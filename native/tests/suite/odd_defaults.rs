//! A server, database and role with only odd defaults: Weir's sessions and functions set everything that they need.

use crate::common::process::Process;
use crate::common::{self, GO_TESTS, Weir, Who};
use serde_json::json;

/// Every default that changes the meaning, the plan or the time limit of a statement.
const ODD: [(&str, &str); 20] = [
    ("default_transaction_isolation", "'serializable'"),
    ("default_transaction_deferrable", "on"),
    ("standard_conforming_strings", "off"),
    ("backslash_quote", "off"),
    ("escape_string_warning", "off"),
    ("row_security", "off"),
    ("DateStyle", "'SQL, DMY'"),
    ("IntervalStyle", "'sql_standard'"),
    ("TimeZone", "'Asia/Kathmandu'"),
    ("bytea_output", "'escape'"),
    ("extra_float_digits", "-15"),
    ("statement_timeout", "'1500ms'"),
    ("lock_timeout", "'200ms'"),
    ("idle_session_timeout", "'700ms'"),
    ("gin_fuzzy_search_limit", "1"),
    ("enable_indexscan", "off"),
    ("enable_indexonlyscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_tidscan", "off"),
    ("enable_nestloop", "off"),
];

/// Settings of the session, and their values in Weir's sessions.
const PINNED: &str = "SELECT string_agg(current_setting(s), ' ') \
                      FROM unnest('{transaction_isolation, gin_fuzzy_search_limit, enable_indexscan, enable_indexonlyscan, \
                                    enable_bitmapscan, enable_tidscan, enable_nestloop}'::text[]) AS s";
const IN_SESSIONS: &str = "read committed 0 on on on on on";

#[tokio::test(flavor = "multi_thread")]
async fn everything_works_with_unusual_server_defaults() {
    let weir = Weir::new().await;
    let admin = weir.admin().await;
    for (setting, value) in ODD {
        let set = format!("ALTER DATABASE {} SET {setting} = {value}", weir.name());
        admin.batch_execute(&set).await.unwrap();
    }
    let again = common::process::command(&weir, &["migrate"]).output().unwrap();
    assert!(again.status.success(), "{again:?}");
    let database = weir_ledger::database::Database::at(weir.url()).unwrap();
    let second = std::time::Duration::from_secs(1);
    for session in [
        database.connect().await.unwrap(),
        database.connect_by_key(second).await.unwrap(),
    ] {
        let pinned = session.query_one(PINNED, &[]).await.unwrap();
        assert_eq!(pinned.get::<_, &str>(0), IN_SESSIONS);
    }
    let rows = database.pool(1).query(PINNED, &[]).await.unwrap();
    assert_eq!(rows[0].get::<_, &str>(0), IN_SESSIONS, "a pool's");
    let river = database.river_pool(1).unwrap();
    let pinned: String = sqlx::query_scalar(PINNED).fetch_one(&river).await.unwrap();
    assert_eq!(pinned, IN_SESSIONS, "River's");
    river.close().await;
    let up = Process::start(&weir, &["up"], &[]);
    up.ready().await;
    let users = [weir.user("free").await, weir.user("pro").await];
    for n in 0..24 {
        let body = common::files(&[("a_test.go", GO_TESTS)]).to_string();
        let who = Who::User(users[n % 2]);
        let reply = up
            .call("POST", "/api/jobs/analysis", who, &format!("request-{n}"), &body)
            .await;
        assert_eq!(reply.status, 202, "{}", reply.text);
    }
    weir.all_finished().await;
    weir.is_clean().await;
    let attempts: i64 = weir.count("river_job WHERE attempt > 1").await;
    assert_eq!(attempts, 0, "a job ran twice");
    assert_eq!(weir.count("usage_events").await, 24);
    let usage = up
        .call("GET", "/api/usage", Who::User(users[0]), "usage", "")
        .await;
    assert!(usage.text.contains(&json!(12).to_string()), "{}", usage.text);
    // Callers' own sessions have the odd defaults. The isolation level is the caller's choice.
    let client = weir.client_as_it_is().await;
    client
        .batch_execute("SET default_transaction_isolation = 'read committed'")
        .await
        .unwrap();
    for subject in ["anne@example.com", "back\\slash", &users[0].to_string()] {
        let row = client
            .query_one(
                "SELECT outcome, quota FROM weir_submit($1, 'analysis', '{\"s\": \"<&>\"}', 1, '{\"idempotency_key\": \"k\"}')",
                &[&subject],
            )
            .await
            .unwrap();
        assert_eq!(row.get::<_, &str>("outcome"), "admitted", "{subject}");
        let quota: serde_json::Value = row.get("quota");
        let reset: jiff::Timestamp = quota["reset_at"].as_str().unwrap().parse().unwrap();
        assert!(reset > jiff::Timestamp::now(), "{quota}");
    }
    assert_eq!(up.stop().await, Some(0));
    weir.abandon().await;
}

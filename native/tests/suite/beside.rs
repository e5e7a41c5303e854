//! Weir in a product's database: the product's tables, River and clients stay unchanged, and all of Weir works.

use crate::common::beside::Beside;
use crate::common::others::{THEIR_TABLES, contents, weir};
use crate::common::process::{Process, command};
use crate::common::{GO_TESTS, Weir, Who, files};
use serde_json::Value;
use tokio_postgres::Client;
use weir_ledger::database::Database;

/// The settings of the product's operator.
const OWN: [(&str, &str); 3] = [
    ("WEIR_SCHEMA", "weir"),
    ("RIVER_SCHEMA", "public"),
    ("RIVER_LEADER", "false"),
];

/// River's rows change while it works. Weir has a function with the name of River's channels, in its own schema.
const ALL_BUT_RIVERS: &str = "^river_";

/// The definitions of the tables in `public`, including River's, without rows.
async fn definitions(client: &Client) -> String {
    let all = contents(client, "").await;
    let of_rows =
        |line: &&str| !line.starts_with("rows ") && !line.starts_with(['<', ' ']) && !line.is_empty();
    // A sequence's position is also a row.
    all.lines().filter(of_rows).collect::<Vec<_>>().join("\n")
}

async fn completed_elsewhere(client: &Client) -> i64 {
    let count = "SELECT count(*) FROM public.river_job WHERE queue = 'beside' AND state = 'completed'";
    client.query_one(count, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn weir_leaves_a_products_tables_and_river_unchanged() {
    let Some(product) = Beside::built().await else {
        return;
    };
    let mut running = None;
    let mut before = None;
    let weir = Weir::made(&OWN, async |url| {
        let client = Database::at(url).unwrap().connect().await.unwrap();
        client.batch_execute(THEIR_TABLES).await.unwrap();
        product.migrate(url, 6);
        running = Some(product.start(url, &[]));
        while completed_elsewhere(&client).await < 1 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let all = definitions(&client).await;

        let refused = weir(url, &["migrate"], &[]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let message = String::from_utf8(refused.stderr).unwrap();
        for words in [
            "nothing was changed",
            "grants",
            "processes",
            "users",
            "WEIR_SCHEMA=weir",
        ] {
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(definitions(&client).await, all);
        let ours = client.query_one("SELECT to_regnamespace('weir') IS NULL", &[]);
        assert!(ours.await.unwrap().get::<_, bool>(0));

        before = Some((all, contents(&client, ALL_BUT_RIVERS).await));
        let migrated = weir(url, &["migrate"], &OWN);
        assert!(migrated.status.success(), "{migrated:?}");
        let message = String::from_utf8(migrated.stdout).unwrap();
        assert!(
            message.contains("stay at version 6, which is new enough"),
            "{message}"
        );
    })
    .await;
    let up = Process::start(&weir, &["up"], &OWN);
    up.ready().await;
    let who = Who::User(weir.user("pro").await);
    for n in 0..3 {
        let body = files(&[(&format!("{n}_test.go"), GO_TESTS)]).to_string();
        let reply = up
            .call("POST", "/api/jobs/analysis", who, "request-1", &body)
            .await;
        assert_eq!(reply.status, 202, "{}", reply.text);
        let answer: Value = serde_json::from_str(&reply.text).unwrap();
        let job = weir.finished(answer["job"]["id"].as_i64().unwrap(), who).await;
        assert_eq!(job["status"], "completed", "{job}");
    }
    assert_eq!(weir.quota(who, "analysis").await["used"], 3);
    weir.until(
        "Weir's maintenance to be done, and the product to lead",
        async || {
            let now = command(&weir, &["status", "--json"]).output().unwrap();
            let now: Value = serde_json::from_slice(&now.stdout).unwrap();
            (now["leader"]["foreign"] == true && now["maintenance"].is_object()).then_some(())
        },
    )
    .await;
    let audit = command(&weir, &["audit"]).output().unwrap();
    assert!(audit.status.success(), "{audit:?}");

    // The product works as before, next to Weir and after its removal.
    let theirs = Database::at(weir.url()).unwrap().connect().await.unwrap();
    drop(running);
    let _again = product.start(weir.url(), &[]);
    weir.until("the product's next job", async || {
        (completed_elsewhere(&theirs).await >= 2).then_some(())
    })
    .await;
    let (all, rows) = before.unwrap();
    assert_eq!(definitions(&theirs).await, all);
    assert_eq!(contents(&theirs, ALL_BUT_RIVERS).await, rows);
    assert_eq!(up.stop().await, Some(0));
    drop(_again);
    weir.end().await;
}

//! Reconciliation: what is stuck goes on, what others must do is left to them, and one process sees to it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{GO_TESTS, Weir, Who};
use tokio_util::sync::CancellationToken;
use weir_policy::tier::Tier;

/// A job that another client inserted into the default lane.
async fn insert(client: &tokio_postgres::Client, kind: &str) -> i64 {
    client
        .query_one(
            "INSERT INTO river_job (args, kind, max_attempts, queue) VALUES ('{}', $1, 1, 'analysis_default') RETURNING id",
            &[&kind],
        )
        .await
        .unwrap()
        .get(0)
}

async fn state(client: &tokio_postgres::Client, id: i64) -> (String, i16) {
    let row = client
        .query_one("SELECT state::text, attempt FROM river_job WHERE id = $1", &[&id])
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_kind_that_nobody_here_knows_is_left_to_those_who_do() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let foreign = insert(&client, "foo:bar").await;
    let who = Who::User(weir.user(Tier::Free).await);
    let ours = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let working = weir.work().await;
    assert_eq!(weir.finished(ours, who).await["status"], "completed");
    assert_eq!(state(&client, foreign).await, ("available".to_owned(), 0));
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_client_runs_for_too_long_goes_on_unless_only_others_know_how_long_is_too_long() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let mut ids = Vec::new();
    for (kind, hours) in [
        ("analysis:analyze", 2.0),
        ("analysis:analyze", 0.5),
        ("foo:bar", 2.0),
    ] {
        let id = insert(&client, kind).await;
        client
            .execute(
                "UPDATE river_job SET state = 'running', attempt = 1, max_attempts = 3, attempted_by = '{another}', \
                        attempted_at = now() - make_interval(secs => $2) WHERE id = $1",
                &[&id, &(hours * 3600.0)],
            )
            .await
            .unwrap();
        ids.push(id);
    }
    weir.reconcile().await;
    let mut states = Vec::new();
    for id in ids {
        states.push(state(&client, id).await.0);
    }
    assert_eq!(states, ["available", "running", "running"]);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_reconciles_and_when_it_ends_another_does() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let holders = async || -> Vec<i32> {
        let rows = client
            .query(
                "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                 WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()",
                &[],
            )
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let mut processes = Vec::new();
    for _ in 0..3 {
        let stopped = CancellationToken::new();
        let run = weir::work::reconcile::run(weir.another(&[]), stopped.clone());
        processes.push((stopped, tokio::spawn(run)));
    }
    let first = weir
        .until("somebody to take the duty", async || {
            holders().await.first().copied()
        })
        .await;
    // Some rounds of all three.
    for _ in 0..20 {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert_eq!(holders().await, [first]);
    }
    // The one that holds it cannot be told from here; each is ended in turn.
    while let Some((stopped, running)) = processes.pop() {
        stopped.cancel();
        running.await.unwrap();
        if processes.is_empty() {
            break;
        }
        weir.until("a living process to have the duty", async || {
            (holders().await.len() == 1).then_some(())
        })
        .await;
    }
    weir.until("the duty to end with the last", async || {
        holders().await.is_empty().then_some(())
    })
    .await;
    weir.end().await;
}

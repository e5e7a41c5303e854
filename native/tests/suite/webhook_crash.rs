//! Webhooks are exact while processes are killed. No event is lost, none reports a change that did not happen, and
//! repeated deliveries have the same id.

use std::time::Duration;

use crate::common::process::{self, KilledOnDrop};
use crate::common::receiver::{Answers, Receiver};
use crate::common::{Weir, Who};
use serde_json::json;
use uuid::Uuid;
use weir::webhooks;

const PAIRS: [(&str, &str); 2] = [
    ("WEIR_CONFIG", "tests/crash.toml"),
    ("WEBHOOK_PRIVATE_NETWORKS", "true"),
];

fn kill(process: &mut KilledOnDrop) {
    process.0.kill().unwrap();
    process.0.wait().unwrap();
}

async fn webhook(weir: &Weir, receiver: &Receiver) -> Uuid {
    let (mut client, settings) = (weir.client().await, &weir.context.settings);
    let events = ["job.completed".to_owned()];
    let made = webhooks::add(&mut client, settings, "shell:test", &receiver.url(), &events, &[]).await;
    made.unwrap().webhook.id
}

async fn submit(weir: &Weir) -> i64 {
    let who = Who::User(weir.user("free").await);
    let answer = weir.post("/api/jobs/nap", who, &json!({})).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    answer.body["job"]["id"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_before_commit_does_not_emit_events() {
    let weir = Weir::with(&PAIRS).await;
    let receiver = Receiver::new();
    webhook(&weir, &receiver).await;
    // Transactions that insert a delivery wait while this test has the lock.
    let client = weir.client().await;
    client
        .batch_execute(
            "CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END';
             CREATE TRIGGER wait_for_test AFTER INSERT ON river_job FOR EACH ROW
                 WHEN (NEW.kind = 'weir:webhook') EXECUTE FUNCTION wait_for_test();
             SELECT pg_advisory_lock(4711)",
        )
        .await
        .unwrap();
    let job = submit(&weir).await;
    let _scheduler = process::spawn(&weir, "schedule");
    let mut victim = process::spawn(&weir, "work");
    let waiting = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted";
    let backend: i32 = weir
        .until("the worker to have delivered it, and not committed", async || {
            client
                .query_opt(waiting, &[])
                .await
                .unwrap()
                .map(|row| row.get("pid"))
        })
        .await;
    kill(&mut victim);
    // The session does not notice by itself before it has its lock, and its commit may be sent already.
    client
        .execute("SELECT pg_terminate_backend($1)", &[&backend])
        .await
        .unwrap();
    weir.until("the session to end", async || {
        let left = client.query_opt(waiting, &[]).await.unwrap();
        left.is_none().then_some(())
    })
    .await;
    let state = "SELECT state::text, (SELECT count(*) FROM river_job WHERE kind = 'weir:webhook') FROM river_job WHERE id = $1";
    let row = client.query_one(state, &[&job]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, i64>(1)), ("running", 0));
    assert_eq!(weir.count("usage_events").await, 0);
    client
        .batch_execute("SELECT pg_advisory_unlock(4711)")
        .await
        .unwrap();
    let _successor = process::spawn(&weir, "work");
    weir.until("the event", async || {
        (!receiver.received().is_empty()).then_some(())
    })
    .await;
    weir.all_finished().await;
    let deliveries = receiver.by_id();
    assert_eq!(deliveries.len(), 1, "{deliveries:?}");
    let data = &deliveries.values().next().unwrap().event["data"];
    assert_eq!((&data["job_id"], &data["attempts"]), (&json!(job), &json!(2)));
    assert_eq!(weir.count("usage_events").await, 1);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_is_repeated_under_its_id_after_a_kill() {
    let weir = Weir::with(&PAIRS).await;
    let receiver = Receiver::new();
    receiver.answer(Answers::After(Duration::from_secs(10)));
    webhook(&weir, &receiver).await;
    let job = submit(&weir).await;
    let _scheduler = process::spawn(&weir, "schedule");
    let mut victim = process::spawn(&weir, "work");
    weir.until("the delivery to be under way", async || {
        (receiver.received().len() == 1).then_some(())
    })
    .await;
    kill(&mut victim);
    receiver.answer(Answers::Status(200));
    let _successor = process::spawn(&weir, "work");
    weir.until("it to come again", async || {
        (receiver.received().len() == 2).then_some(())
    })
    .await;
    weir.all_finished().await;
    let deliveries = receiver.by_id();
    assert_eq!(deliveries.len(), 1, "{deliveries:?}");
    assert_eq!(
        deliveries.values().next().unwrap().event["data"]["job_id"],
        json!(job)
    );
    let completed = "SELECT count(*) FROM river_job WHERE state = 'completed'";
    let completed: i64 = weir
        .client()
        .await
        .query_one(completed, &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(completed, 2, "the job and its delivery");
    weir.end().await;
}

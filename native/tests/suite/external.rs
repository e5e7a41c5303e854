//! Services that programs outside of Weir work.

use serde_json::{Value, json};
use weir::config::service::Service;
use weir::work::{Role, Working};

use crate::common::process::command;
use crate::common::receiver::Receiver;
use crate::common::{EXTERNAL, Weir, Who};

fn printed(weir: &Weir, arguments: &[&str]) -> String {
    let output = command(weir, arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn services(weir: &Weir) -> Value {
    let status: Value = serde_json::from_str(&printed(weir, &["status", "--json"])).unwrap();
    json!({ "services": status["services"], "held_back": status["held_back"] })
}

/// The workers that deliver to the only webhook.
fn delivery_workers(weir: &Weir) -> i64 {
    let list: Value = serde_json::from_str(&printed(weir, &["webhook", "list", "--json"])).unwrap();
    list[0]["workers"].as_i64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn weir_accepts_the_jobs_of_an_external_service_and_claims_none() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let working = weir.work().await;
    let who = Who::User(weir.user("pro").await);
    let client = weir.client().await;

    let answer = weir.post("/api/jobs/render", who, &json!({ "pages": 7 })).await;
    assert_eq!(answer.status, 202, "{}", answer.body);
    let job = answer.body["job"]["id"].as_i64().unwrap();
    assert_eq!(answer.body["job"]["reserved"], 7);
    let refused = weir.post("/api/jobs/render", who, &json!({})).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    let sql = "SELECT outcome, job_id FROM weir_submit('anne', 'mail', '{}')";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>("outcome"), "admitted");
    let mail: i64 = row.get("job_id");

    // Weir's workers work later jobs of their service, and leave the external ones.
    let echo = weir.post("/api/jobs/echo", who, &json!({})).await.body["job"]["id"].as_i64();
    weir.finished(echo.unwrap(), who).await;
    // Also one in a queue of Weir's.
    let strayed = "INSERT INTO river_job (kind, queue, args, max_attempts) VALUES ('test:mail', 'echo_default', '{}', 3)";
    client.batch_execute(strayed).await.unwrap();
    let echo = weir.post("/api/jobs/echo", who, &json!({})).await.body["job"]["id"].as_i64();
    weir.finished(echo.unwrap(), who).await;
    let attempts = "SELECT sum(attempt) FROM river_job WHERE kind IN ('test:render', 'test:mail')";
    assert_eq!(client.query_one(attempts, &[]).await.unwrap().get::<_, i64>(0), 0);

    let claim = "SELECT job_id, attempt FROM weir_claim($1, 'program-1', 10)";
    for (queue, job) in [("render_priority", job), ("mail_default", mail)] {
        let claimed = client.query(claim, &[&queue]).await.unwrap();
        assert_eq!(claimed.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [job]);
        let complete = "SELECT outcome FROM weir_complete($1, 1, '{}')";
        let completed = client.query_one(complete, &[&job]).await.unwrap();
        assert_eq!(completed.get::<_, &str>(0), "done");
    }
    assert_eq!(weir.finished(job, who).await["charged"], 7);
    client
        .batch_execute("DELETE FROM river_job WHERE queue = 'echo_default' AND kind = 'test:mail'")
        .await
        .unwrap();
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_marks_external_services_and_whether_a_worker_is_registered() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let client = weir.client().await;
    for service in ["render", "mail"] {
        let submit = "SELECT weir_submit('anne', $1, '{\"pages\": 1}')";
        client.execute(submit, &[&service]).await.unwrap();
    }
    let before = services(&weir);
    let external = ["render", "mail", "echo"].map(|service| &before["services"][service]["external"]);
    assert_eq!(external, [&json!(true), &json!(true), &json!(false)], "{before}");
    assert_eq!(before["services"]["mail"]["default"]["workers"], 0, "{before}");
    assert_eq!(before["held_back"]["mail"]["default"], "no_workers", "{before}");
    let text = printed(&weir, &["status"]);
    assert_eq!(
        text.matches("external: no worker is registered").count(),
        2,
        "{text}"
    );

    // A worker that has claimed from no queue may work any service.
    client
        .batch_execute("SELECT weir_heartbeat('program-1')")
        .await
        .unwrap();
    let text = printed(&weir, &["status"]);
    assert_eq!(
        text.matches("external: a worker is registered").count(),
        2,
        "{text}"
    );

    client
        .batch_execute(
            "SELECT weir_claim('mail_default', 'program-1'), weir_claim('mail_default', 'program-1')",
        )
        .await
        .unwrap();
    let after = services(&weir);
    let workers = ["render", "mail"].map(|service| &after["services"][service]["default"]["workers"]);
    assert_eq!(workers, [&json!(0), &json!(1)], "{after}");
    assert_eq!(after["services"]["mail"]["priority"]["workers"], 0, "{after}");
    assert_eq!(after["held_back"]["render"]["default"], "no_workers", "{after}");
    let text = printed(&weir, &["status"]);
    let marks: Vec<&str> = text.lines().filter(|line| line.starts_with("external")).collect();
    assert_eq!(
        marks,
        [
            "external: a worker is registered",
            "external: no worker is registered"
        ]
    );

    // A River client without heartbeats.
    client
        .batch_execute(
            "UPDATE processes SET beat_at = now() - interval '1 minute'; \
             UPDATE river_job SET state = 'running', attempt = 1, attempted_by = '{river}', attempted_at = now() \
             WHERE kind = 'test:render'",
        )
        .await
        .unwrap();
    let after = services(&weir);
    let workers = ["render", "mail"].map(|service| &after["services"][service]["default"]["workers"]);
    assert_eq!(workers, [&json!(1), &json!(1)], "{after}");
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn weir_work_refuses_an_external_service() {
    let weir = Weir::with(&[EXTERNAL]).await;
    let output = command(&weir, &["work", "--service", "echo,mail"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("the service \"mail\" is external"), "{message}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn weir_work_without_services_delivers_webhooks() {
    let allowed = ("WEBHOOK_PRIVATE_NETWORKS", "true");
    let weir = Weir::with(&[EXTERNAL, allowed]).await;
    let receiver = Receiver::new();
    let add = command(&weir, &["webhook", "add", &receiver.url()])
        .env(allowed.0, allowed.1)
        .output();
    assert!(add.unwrap().status.success());
    let submit = "SELECT weir_submit('anne', 'mail', '{}')";
    weir.client().await.batch_execute(submit).await.unwrap();
    let claim =
        "SELECT c.job_id, weir_complete(c.job_id, c.attempt) FROM weir_claim('mail_default', 'program-1') c";
    weir.client().await.query_one(claim, &[]).await.unwrap();
    let list = printed(&weir, &["webhook", "list"]);
    assert!(list.contains("not delivered: start `weir work`"), "{list}");
    assert_eq!(delivery_workers(&weir), 0);

    let external: Vec<Service> = weir
        .context
        .settings
        .services
        .iter()
        .filter(|service| service.is_external())
        .cloned()
        .collect();
    let working = Working::start(&weir.another(&[allowed]), Role::Work, &external)
        .await
        .unwrap();
    weir.until("the event", async || receiver.received().first().cloned())
        .await;
    let list = printed(&weir, &["webhook", "list"]);
    assert!(list.contains("well"), "{list}");
    assert_eq!(delivery_workers(&weir), 16);
    working.stop().await;
    weir.end().await;
}

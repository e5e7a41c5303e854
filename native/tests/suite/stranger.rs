//! A database role without any grant: its notifications and locks do not affect Weir.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::gate::KIND;
use crate::common::receiver::{Answers, Receiver};
use crate::common::{GO_TESTS, Weir, Who};
use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio_postgres::{Client, NoTls};
use tokio_util::sync::CancellationToken;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::webhooks;
use weir::work::{Role, Working, reconcile};
use weir_ledger::control;
use weir_ledger::holder::Holder;

/// A role that may connect, and has no other right.
struct Stranger {
    name: String,
    client: Client,
}

impl Stranger {
    async fn enter(weir: &Weir) -> Self {
        let name = format!("stranger_{}", weir.name());
        weir.admin()
            .await
            .batch_execute(&format!("CREATE ROLE {name} LOGIN PASSWORD 'stranger'"))
            .await
            .unwrap();
        let mut config: tokio_postgres::Config = weir.url().parse().unwrap();
        config.user(&name).password("stranger");
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        Self { name, client }
    }

    /// Sends the notification that River sends when a job is cancelled.
    async fn forge_cancel(&self, job_id: i64) {
        let forged = json!({ "action": "cancel", "job_id": job_id, "queue": "analysis_default" });
        self.client
            .execute(
                "SELECT pg_notify('public.river_control', $1)",
                &[&forged.to_string()],
            )
            .await
            .unwrap();
    }

    async fn leave(self, weir: Weir) {
        let admin = weir.admin().await;
        drop(self.client);
        weir.end().await;
        admin
            .batch_execute(&format!("DROP ROLE {}", self.name))
            .await
            .unwrap();
    }
}

/// Works until the test decides or the attempt is cancelled.
struct Obedient(watch::Sender<HashMap<i64, bool>>);

impl Obedient {
    fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(HashMap::new())))
    }

    async fn work(self: &Arc<Self>, weir: &Weir) -> Working {
        let handler = Arc::clone(self) as Arc<dyn Handler>;
        let context = weir
            .another(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "4")])
            .with_handler(KIND, handler);
        Working::start(&context, Role::Both, &context.settings.services)
            .await
            .unwrap()
    }

    fn decide(&self, job_id: i64, succeeds: bool) {
        self.0.send_modify(|decided| {
            decided.insert(job_id, succeeds);
        });
    }
}

#[async_trait]
impl Handler for Obedient {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let mut decided = self.0.subscribe();
        let succeeds = tokio::select! {
            () = attempt.cancelled.cancelled() => return Err(HandlerError::Cancelled),
            decided = decided.wait_for(|decided| decided.contains_key(&attempt.job_id)) => {
                decided.unwrap()[&attempt.job_id]
            }
        };
        if !succeeds {
            return Err(HandlerError::Failed("as the test wants it".to_owned()));
        }
        Ok(Outcome {
            output: json!({}),
            used: None,
        }
        .into())
    }
}

async fn running_job(weir: &Weir) -> (i64, Who) {
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.running(id, who).await;
    (id, who)
}

async fn cancel(weir: &Weir, (id, who): (i64, Who)) {
    let path = format!("/api/jobs/{id}");
    assert_eq!(weir.call("DELETE", &path, who, &[], Vec::new()).await.status, 200);
    assert_eq!(weir.finished(id, who).await["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_cannot_cancel_running_jobs() {
    let weir = Weir::new().await;
    let stranger = Stranger::enter(&weir).await;
    let handler = Obedient::new();
    let working = handler.work(&weir).await;
    let succeeds = running_job(&weir).await;
    let fails = running_job(&weir).await;
    let cancelled = running_job(&weir).await;
    let last = running_job(&weir).await;
    for (id, _) in [succeeds, fails, cancelled] {
        stranger.forge_cancel(id).await;
    }
    // Notifications arrive in order: after this one, the worker has all of them.
    cancel(&weir, last).await;

    for (id, who) in [succeeds, fails, cancelled] {
        let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
        assert_eq!(
            (&job["status"], &job["attempt"]),
            (&json!("running"), &json!(1)),
            "{job}"
        );
    }
    handler.decide(succeeds.0, true);
    let job = weir.finished(succeeds.0, succeeds.1).await;
    assert_eq!(
        (&job["status"], &job["charged"]),
        (&json!("completed"), &json!(1)),
        "{job}"
    );

    handler.decide(fails.0, false);
    let failed = weir
        .until("the attempt to fail", async || {
            let job = weir.get(&format!("/api/jobs/{}", fails.0), fails.1).await.body;
            (job["error"] != Value::Null).then_some(job)
        })
        .await;
    assert_eq!(
        (
            &failed["status"],
            &failed["waiting_for"],
            &failed["error"]["message"]
        ),
        (&json!("queued"), &json!("retry"), &json!("as the test wants it")),
        "{failed}"
    );

    // A genuine cancellation also takes effect after a forged one.
    cancel(&weir, cancelled).await;
    working.stop().await;
    weir.is_clean().await;
    stranger.leave(weir).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_requeues_a_job_with_a_foreign_cancellation() {
    let weir = Weir::new().await;
    let stranger = Stranger::enter(&weir).await;
    let handler = Obedient::new();
    let working = handler.work(&weir).await;
    let (id, who) = running_job(&weir).await;
    let last = running_job(&weir).await;
    stranger.forge_cancel(id).await;
    cancel(&weir, last).await;
    working.stop().await;
    let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
    assert_eq!(
        (&job["status"], &job["attempt"], &job["reserved"], &job["error"]),
        (&json!("queued"), &json!(0), &json!(1), &Value::Null),
        "{job}"
    );
    stranger.leave(weir).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_cannot_cancel_deliveries() {
    let weir = Weir::with(&[("WEBHOOK_PRIVATE_NETWORKS", "true")]).await;
    let stranger = Stranger::enter(&weir).await;
    let mut receiver = Receiver::new();
    receiver.answer(Answers::After(Duration::from_secs(60)));
    let mut client = weir.client().await;
    let events = ["job.completed".to_owned()];
    let settings = &weir.context.settings;
    let made = webhooks::add(&mut client, settings, "shell:test", &receiver.url(), &events, &[]).await;
    let webhook = made.unwrap().webhook.id;
    let working = weir.work().await;
    for _ in 0..2 {
        control::test_webhook(&mut client, "shell:test", webhook)
            .await
            .unwrap();
    }
    weir.until("both deliveries to be under way", async || {
        (receiver.received().len() == 2).then_some(())
    })
    .await;
    let rows = client
        .query("SELECT id FROM river_job ORDER BY id", &[])
        .await
        .unwrap();
    let (id, last): (i64, i64) = (rows[0].get(0), rows[1].get(0));
    stranger.forge_cancel(id).await;
    weir.river().jobs().cancel(last).await.unwrap();
    let state = async |id: i64| -> String {
        let sql = "SELECT state::text FROM river_job WHERE id = $1";
        weir.client().await.query_one(sql, &[&id]).await.unwrap().get(0)
    };
    weir.until("the genuine cancellation", async || {
        (state(last).await == "cancelled").then_some(())
    })
    .await;
    assert_eq!(state(id).await, "running");
    // It fails, and is retried.
    receiver.kill();
    weir.until("the delivery to fail", async || {
        (state(id).await != "running").then_some(())
    })
    .await;
    // Available, if it is due within five seconds.
    let state = state(id).await;
    assert!(["available", "retryable"].contains(&&*state), "{state}");
    working.stop().await;
    stranger.leave(weir).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_rights_cannot_stop_maintenance() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let stranger = Stranger::enter(&weir).await;
    // The keys of the advisory locks that Weir once used.
    stranger
        .client
        .batch_execute(
            "SELECT pg_advisory_lock((x'77656973'::bigint << 32) | 'quota_reservations'::regclass::oid::bigint); \
             SELECT pg_advisory_lock('admin_log'::regclass::oid::bigint); \
             SELECT pg_advisory_lock('quota_thresholds'::regclass::oid::bigint); \
             SELECT pg_advisory_lock(hashtextextended('weir usage archive', 0))",
        )
        .await
        .unwrap();
    let stopped = CancellationToken::new();
    let maintenance = tokio::spawn(reconcile::run(weir.another(&[]), stopped.clone()));
    let who = Who::User(weir.user("free").await);
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.ended_by_other_client(id, "cancelled").await;
    weir.released(who, "analysis").await;
    client
        .batch_execute(
            "SET lock_timeout = '10s'; INSERT INTO admin_log (actor, action) VALUES ('a test', 'a test')",
        )
        .await
        .unwrap();

    let advisory: Vec<String> = client
        .query(
            "SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosrc LIKE '%advisory%'",
            &[],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(advisory, Vec::<String>::new(), "any role can take such a lock");
    stopped.cancel();
    maintenance.await.unwrap();
    stranger.leave(weir).await;
}

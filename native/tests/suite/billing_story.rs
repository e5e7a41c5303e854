//! A year of billing in one story: the payment provider's events, a holder's limits, and the records afterwards.

use std::time::{Duration, Instant};

use crate::common::process::command;
use crate::common::receiver::Receiver;
use crate::common::submissions::submission;
use crate::common::{GO_TESTS, Weir, Who};
use jiff::Timestamp;
use serde_json::{Value, json};
use weir::work::{Role, Working};
use weir_ledger::holder::{Holder, Holders};
use weir_ledger::reservation::{Answer, Reserver, Submission};
use weir_ledger::settlement::{Ended, Success};

/// An event as Stripe sends it, and the parts that a backend reads.
fn stripe_event(id: &str, created: i64, plan: &str) -> Value {
    json!({
        "id": id,
        "object": "event",
        "type": "customer.subscription.updated",
        "created": created,
        "data": { "object": {
            "object": "subscription",
            "customer": "cus_anne",
            "metadata": { "subject": "auth0|anne" },
            "items": { "data": [{ "price": { "metadata": { "plan": plan } } }] },
        } },
    })
}

/// The backend's call by docs/how-to/billing.md: path and body.
fn change_of(event: &Value) -> (String, Value) {
    let subscription = &event["data"]["object"];
    let subject = subscription["metadata"]["subject"]
        .as_str()
        .unwrap()
        .replace('|', "%7C");
    let occurred_at = Timestamp::from_second(event["created"].as_i64().unwrap()).unwrap();
    let body = json!({
        "plan": subscription["items"]["data"][0]["price"]["metadata"]["plan"],
        "event_id": event["id"],
        "occurred_at": occurred_at,
        "effective": "now",
    });
    (format!("/admin/holders/{subject}/plan"), body)
}

/// The path of the user in `/admin`.
const HOLDER: &str = "/admin/holders/auth0%7Canne";

/// A backend that calls `/admin` with a service key.
struct Backend<'a> {
    weir: &'a Weir,
    /// The `Authorization` header.
    bearer: String,
}

impl<'a> Backend<'a> {
    /// Creates a key from a shell, as an operator does. It is alone on the last line.
    fn of(weir: &'a Weir) -> Self {
        let output = command(weir, &["key", "create", "--name", "billing", "--scope", "admin"])
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let key = printed.lines().last().unwrap();
        assert!(key.starts_with("weir_sk_") && key.len() == 51, "{printed}");
        let bearer = format!("Bearer {key}");
        Self { weir, bearer }
    }

    async fn call(&self, method: &str, path: &str, idempotency: &str, body: &Value) -> Value {
        let answer = self
            .weir
            .with_key(method, path, &self.bearer, idempotency, &body.to_string())
            .await;
        assert!(answer.status.is_success(), "{method} {path}: {}", answer.body);
        answer.body
    }

    async fn get(&self, path: &str) -> Value {
        self.call("GET", path, "-", &json!({})).await
    }
}

/// The provider reports an upgrade to Pro, which starts the user's parked jobs. Then it repeats the event, and sends an
/// older one.
async fn upgrade(backend: &Backend<'_>, who: Who, jobs: &[i64]) {
    let weir = backend.weir;
    let upgrade = stripe_event("evt_upgrade", 1_800_000_100, "pro");
    let (path, body) = change_of(&upgrade);
    let answer = backend.call("PUT", &path, "-", &body).await;
    assert_eq!(
        (&answer["applied"], &answer["plan"]),
        (&json!(true), &json!("pro"))
    );
    for id in jobs {
        weir.until("the jobs to start", async || {
            let job = weir.get(&format!("/api/jobs/{id}"), who).await.body;
            (job["waiting_for"] == "worker").then_some(())
        })
        .await;
    }

    // The provider repeats the event, and then sends an older one.
    assert_eq!(backend.call("PUT", &path, "-", &body).await["repeated"], true);
    let (_, older) = change_of(&stripe_event("evt_signup", 1_800_000_000, "free"));
    let answer = backend.call("PUT", &path, "-", &older).await;
    assert_eq!(
        (&answer["applied"], &answer["plan"]),
        (&json!(false), &json!("pro"))
    );
}

/// The month is nearly used up, and a hundred are bought: requested twice, granted once. A job reserves some of them,
/// and returns them when it ends.
async fn buy_grant(backend: &Backend<'_>, holder: Holder) {
    backend.weir.use_up(holder.id, "analysis", 1000 - 3 - 30).await;
    let bought = json!({ "meter": "analysis", "amount": 100, "reason": "bought" });
    let grants = format!("{HOLDER}/grants");
    let first = backend.call("POST", &grants, "order-7", &bought).await;
    assert_eq!(backend.call("POST", &grants, "order-7", &bought).await, first);
    let reserver = Reserver::start(&backend.weir.context.database);
    let submission = Submission {
        holder,
        subject: Some("auth0|anne".parse().unwrap()),
        args: json!({ "user_id": "auth0|anne", "files": [{ "path": "a_test.go", "content": GO_TESTS }] }),
        ..submission(holder.id, 80)
    };
    let Answer::Accepted { job, .. } = reserver.submit(submission).await.unwrap() else {
        panic!("the plan has 30 and the grant 100")
    };
    let left = async || {
        let holder = backend.get(HOLDER).await;
        holder["meters"]["analysis"]["grants"][0]["left"].clone()
    };
    assert_eq!(left().await, 50, "half of it is reserved");
    backend.weir.start_elsewhere(job.id).await;
    let success = Success {
        attempt: 1,
        job_created_at: None,
        output: json!(null),
        used: Some(30),
    };
    let ended = Ended {
        job_id: job.id,
        holder: Some(holder.id),
        success: Some(success),
    };
    backend.weir.context.settler.settle(ended).await.unwrap();
    assert_eq!(left().await, 100, "the plan's part paid for it");
}

/// A refund, a charge for other work, and the cancellation of the three waiting jobs.
async fn adjust_and_cancel(backend: &Backend<'_>) {
    let refund = json!({ "meter": "analysis", "amount": -10, "reason": "our outage" });
    backend
        .call("POST", &format!("{HOLDER}/adjustments"), "refund-1", &refund)
        .await;
    let rest = json!({ "meter": "analysis", "amount": 13, "reason": "work done by hand" });
    backend
        .call("POST", &format!("{HOLDER}/adjustments"), "rest-1", &rest)
        .await;
    let message = command(
        backend.weir,
        &["user", "cancel", "auth0|anne", "--reason", "asked for"],
    )
    .output()
    .unwrap();
    assert_eq!(String::from_utf8(message.stdout).unwrap(), "cancelled 3 jobs\n");
}

async fn check_usage_feed(backend: &Backend<'_>) {
    let read = async || {
        let feed = backend.get("/admin/usage/events").await;
        feed["events"].as_array().unwrap().clone()
    };
    // The feed waits for all open transactions of the server, also those of other tests.
    let started = Instant::now();
    while read().await.len() < 4 {
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "usage events are missing"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let events = read().await;
    let amounts: Vec<i64> = events
        .iter()
        .map(|event| {
            assert_eq!(event["subject"], "auth0|anne");
            event["data"]["amount"].as_i64().unwrap()
        })
        .collect();
    assert_eq!(amounts, [967, 30, -10, 13]);
}

async fn check_audit_log(backend: &Backend<'_>) {
    let log = backend.get("/admin/audit-log").await["changes"].clone();
    let trail: Vec<(&str, &str)> = log
        .as_array()
        .unwrap()
        .iter()
        .map(|change| {
            let actor = change["actor"].as_str().unwrap();
            (
                actor.split(':').next().unwrap(),
                change["action"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        trail,
        [
            ("shell", "key.create"),
            ("key", "webhook.add"),
            ("key", "plan.set"),
            ("key", "grant.give"),
            ("key", "usage.adjust"),
            ("key", "usage.adjust"),
            ("shell", "jobs.cancel"),
        ]
    );
    let plan = &log[2];
    assert_eq!(
        (&plan["before"]["plan"], &plan["after"]["status"]["plan"]),
        (&json!("free"), &json!("pro"))
    );
    assert_eq!(plan["after"]["event_id"], "evt_upgrade");
}

/// The receiver has each event once, by id.
fn check_deliveries(receiver: &Receiver, secret: &str) {
    let deliveries = receiver.by_id();
    let mut delivered: Vec<String> = deliveries
        .values()
        .map(|one| {
            assert!(one.is_signed_by(secret));
            let data = &one.event["data"];
            assert_eq!(data["subject"], "auth0|anne");
            match one.kind() {
                "quota.threshold" => format!("{} % of {}", data["percent"], data["limit"]),
                "job.completed" => format!("{} of {}", data["used"], data["reserved"]),
                "plan.changed" => format!("{} to {}", data["before"], data["plan"]),
                other => other.to_owned(),
            }
        })
        .collect();
    delivered.sort();
    assert_eq!(
        delivered,
        [
            "\"free\" to \"pro\"",
            "100 % of 1000",
            "30 of 80",
            "80 % of 1000",
            "job.cancelled",
            "job.cancelled",
            "job.cancelled",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_grants_and_refunds_are_applied_and_logged() {
    let weir = Weir::with(&[("WEBHOOK_PRIVATE_NETWORKS", "true")]).await;
    let who = Who::Subject("auth0|anne");
    let backend = Backend::of(&weir);

    // The receiver gets all events. No worker runs jobs in this test. Only webhooks are delivered.
    let mut receiver = Receiver::new();
    let wanted = json!({ "url": receiver.url() });
    let webhook = backend.call("POST", "/admin/webhooks", "-", &wanted).await;
    let secret = webhook["secret"].as_str().unwrap();
    let delivering = {
        let others: Vec<_> = weir
            .context
            .settings
            .service("specview")
            .cloned()
            .into_iter()
            .collect();
        Working::start(&weir.context, Role::Both, &others).await.unwrap()
    };

    // Three jobs on Free: one has the slot, two wait.
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(weir.analyse(who, "a_test.go", GO_TESTS).await);
    }
    let stopped = tokio_util::sync::CancellationToken::new();
    let maintenance = tokio::spawn(weir::work::reconcile::run(weir.another(&[]), stopped.clone()));
    let client = weir.client().await;
    weir.maintenance_started().await;
    upgrade(&backend, who, &jobs).await;

    weir.until("the change of plan", async || {
        (receiver.of("plan.changed").len() == 1).then_some(())
    })
    .await;
    receiver.kill();

    let holder = Holders::load(&client).await.unwrap().user_id("auth0|anne");
    buy_grant(&backend, holder).await;
    adjust_and_cancel(&backend).await;
    check_usage_feed(&backend).await;
    check_audit_log(&backend).await;

    // The receiver is up again, and has every event once by id.
    receiver.start_again().await;
    // On a busy machine, more than one attempt has failed, and the next one waits for minutes.
    client
        .execute(
            "UPDATE river_job SET state = 'available', scheduled_at = now() \
             WHERE state IN ('retryable', 'scheduled', 'available') AND kind = $1",
            &[&weir_ledger::control::DELIVERY_KIND],
        )
        .await
        .unwrap();
    weir.until("all that happened", async || {
        (receiver.by_id().len() >= 7).then_some(())
    })
    .await;
    check_deliveries(&receiver, secret);
    delivering.stop().await;
    stopped.cancel();
    maintenance.await.unwrap();
    weir.end().await;
}

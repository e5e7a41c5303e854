//! Schemas: River's tables in a schema other than the first of the search path, and two Weirs in one database.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::gate::Gate;
use crate::common::{GO_TESTS, Weir, Who};
use tokio_util::sync::CancellationToken;
use weir::work::{Role, Working, reconcile};
use weir_ledger::database::Database;
use weir_ledger::plans;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancellation_in_rivers_schema_is_noticed() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let admin = weir.admin().await;
    weir.client()
        .await
        .batch_execute("CREATE SCHEMA app")
        .await
        .unwrap();
    admin
        .batch_execute(&format!(
            "ALTER DATABASE {} SET search_path = app, public",
            weir.name()
        ))
        .await
        .unwrap();
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    let id = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.running(id, who).await;

    // A client that uses only the schema public.
    let separator = if weir.url().contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}options=-c%20search_path%3Dpublic", weir.url());
    let pool = sqlx::PgPool::connect(&url).await.unwrap();
    let river = riverqueue::Client::builder(pool).build().unwrap();
    river.jobs().cancel(id).await.unwrap();
    // Without the notification, a worker would run on, because the gate stays closed.
    let finished = tokio::time::timeout(Duration::from_secs(20), weir.finished(id, who)).await;
    assert_eq!(finished.unwrap()["status"], "cancelled");
    gate.open();
    working.stop().await;
    weir.end().await;
}

const FIRST: [(&str, &str); 2] = [("WEIR_SCHEMA", "Weir-One"), ("RIVER_SCHEMA", "river-one")];
const SECOND: [(&str, &str); 2] = [("WEIR_SCHEMA", "weir_two"), ("RIVER_SCHEMA", "river_two")];

/// Works and reconciles, as `weir up` does.
struct Up {
    gate: Arc<Gate>,
    working: Working,
    stopped: CancellationToken,
    reconciling: tokio::task::JoinHandle<()>,
}

impl Up {
    async fn start(weir: &Weir) -> Self {
        let gate = Gate::new();
        let stopped = CancellationToken::new();
        Self {
            working: gate.work(weir.another(&[]), Role::Both).await,
            reconciling: tokio::spawn(reconcile::run(weir.another(&[]), stopped.clone())),
            gate,
            stopped,
        }
    }

    async fn stop(self) {
        self.stopped.cancel();
        self.reconciling.await.unwrap();
        self.working.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_weirs_in_one_database_are_independent() {
    let one = Weir::with(&FIRST).await;
    let two = one.beside(&SECOND).await;
    let in_public: i64 = one
        .client()
        .await
        .query_one(
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(in_public, 0, "no object is created in other schemas");

    let user = one.user("free").await;
    let who = Who::User(user);
    assert_eq!(two.count("users").await, 0);
    plans::ensure_user(&two.client().await, user, "free")
        .await
        .unwrap();
    let (up_one, up_two) = (Up::start(&one).await, Up::start(&two).await);

    // Jobs with the same ids, of the same user, who has one slot in each.
    let mut ids = Vec::new();
    for weir in [&one, &two] {
        let first = weir.analyse(who, "a_test.go", GO_TESTS).await;
        ids.push((first, weir.analyse(who, "a_test.go", GO_TESTS).await));
        weir.running(first, who).await;
        assert_eq!(weir.jobs().await, 2);
        assert_eq!(weir.count("processes").await, 1);
    }
    assert_eq!(ids[0], ids[1]);
    let (first, second) = ids[0];

    // Only one of them gets a cancellation, and only one of them a pause.
    let path = format!("/api/jobs/{first}");
    assert_eq!(one.call("DELETE", &path, who, &[], Vec::new()).await.status, 200);
    assert_eq!(one.finished(first, who).await["status"], "cancelled");
    one.running(second, who).await;
    assert_eq!(up_two.gate.running(), BTreeSet::from([first]));
    one.river().queues().pause("analysis_default").await.unwrap();
    up_two.gate.open();
    assert_eq!(two.finished(first, who).await["status"], "completed");
    assert_eq!(two.finished(second, who).await["status"], "completed");
    up_one.gate.open();
    assert_eq!(one.finished(second, who).await["status"], "completed");
    let paused = one.analyse(who, "b_test.go", GO_TESTS).await;
    for (weir, used) in [(&one, 1), (&two, 2)] {
        weir.until("what is used", async || {
            (weir.quota(who, "analysis").await["used"] == used).then_some(())
        })
        .await;
    }

    // Each reconciles: jobs that end elsewhere are settled in both.
    let other = two.analyse(who, "b_test.go", GO_TESTS).await;
    two.finished(other, who).await;
    two.river().queues().pause("analysis_default").await.unwrap();
    let waiting = two.analyse(who, "c_test.go", GO_TESTS).await;
    for (weir, id) in [(&one, paused), (&two, waiting)] {
        assert_eq!(weir.quota(who, "analysis").await["reserved"], 1);
        weir.ended_by_other_client(id, "cancelled").await;
    }
    for weir in [&one, &two] {
        weir.released(who, "analysis").await;
    }
    up_one.stop().await;
    up_two.stop().await;
    two.is_clean().await;
    one.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn charges_and_plans_are_found_under_any_search_path() {
    let weir = Weir::with(&SECOND).await;
    let user = weir.user("pro").await;
    let theirs = Database::at(weir.url()).unwrap().connect().await.unwrap();
    theirs
        .batch_execute(
            "CREATE TABLE holders (id int); CREATE TABLE quota_balances (id int); \
             CREATE TEMPORARY TABLE user_subscriptions (id int)",
        )
        .await
        .unwrap();
    let used = "SELECT weir_two.weir_charge($1::uuid::text, 'analysis', 7, 'order 1')";
    theirs.execute(used, &[&user]).await.unwrap();
    assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 7);
    let changed =
        "UPDATE weir_two.user_subscriptions SET canceled_at = now(), status = 'canceled' WHERE user_id = $1";
    assert_eq!(theirs.execute(changed, &[&user]).await.unwrap(), 1);
    assert_eq!(weir.get("/api/usage", Who::User(user)).await.body["plan"], "free");
    weir.end().await;
}

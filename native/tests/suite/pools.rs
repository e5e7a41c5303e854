//! Pools: jobs claimed ahead of free workers, and idle capacity (ADR-16). The default lane may use the priority lane's
//! idle workers, but never at that lane's expense.

use std::sync::Arc;
use std::time::Duration;

use crate::common::gate::Gate;
use crate::common::{GO_TESTS, Weir, Who};
use uuid::Uuid;
use weir::work::{Role, Working};

/// River polls its queues once a second without notifications.
const ONE_POLL: Duration = Duration::from_secs(1);

const POOLS: [(&str, &str); 2] = [
    ("ANALYZER_QUEUE_PRIORITY_WORKERS", "3"),
    ("ANALYZER_QUEUE_DEFAULT_WORKERS", "2"),
];

async fn start(weir: &Weir, gate: &Arc<Gate>, lend: &'static str) -> Working {
    gate.work(weir.another(&[("LEND_IDLE_WORKERS", lend)]), Role::Both)
        .await
}

/// One job of each of `count` new users of this plan.
async fn submit(weir: &Weir, plan: &str, count: usize) -> Vec<Uuid> {
    let mut users = Vec::new();
    for _ in 0..count {
        let user = weir.user(plan).await;
        weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        users.push(user);
    }
    users
}

/// The time that each of these users' jobs waited for a worker, by the database's clock.
async fn waits(weir: &Weir, users: &[Uuid]) -> Vec<f64> {
    let sql = "SELECT extract(epoch FROM j.attempted_at - j.created_at)::float8 FROM weir_jobs s \
               JOIN river_job j ON j.id = s.job_id WHERE s.user_id = ANY ($1)";
    let rows = weir.client().await.query(sql, &[&users]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_priority_workers_take_default_jobs() {
    let weir = Weir::with(&POOLS).await;
    let gate = Gate::new();
    let free = submit(&weir, "free", 9).await;
    let working = start(&weir, &gate, "true").await;

    // Two workers of the default lane and three idle ones.
    gate.until_running_of(&weir, &free, 5).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(gate.running_of(&free).len(), 5, "never more than all workers");

    // Default jobs that do not end use all of them. Priority jobs start all the same.
    let pro = submit(&weir, "pro", 3).await;
    gate.until_running_of(&weir, &pro, 3).await;
    let waited = waits(&weir, &pro).await;
    assert!(
        waited.iter().all(|seconds| *seconds < ONE_POLL.as_secs_f64()),
        "{waited:?}"
    );
    assert_eq!(gate.running_of(&free).len(), 5, "and no running job is aborted");

    // A lent worker is not lent again while its lane needs it.
    gate.open_for(&gate.running_of(&free)[..4]);
    gate.until_running_of(&weir, &free, 2).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(
        gate.running_of(&free).len(),
        2,
        "as many as the default lane's own workers"
    );

    // When its lane is idle again, it is lent again.
    gate.open_for(&pro);
    gate.until_running_of(&weir, &free, 5).await;
    gate.open_for(&free);
    gate.until_running_of(&weir, &free, 0).await;
    working.stop().await;
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_default_workers_are_not_lent() {
    let weir = Weir::with(&POOLS).await;
    let gate = Gate::new();
    let free = submit(&weir, "free", 4).await;
    let working = start(&weir, &gate, "false").await;
    gate.until_running_of(&weir, &free, 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(gate.running_of(&free).len(), 2);
    gate.open_for(&free);
    gate.until_running_of(&weir, &free, 0).await;
    working.stop().await;
    weir.end().await;
}

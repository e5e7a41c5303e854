//! Fairness (ADR-10) and lanes (ADR-16), over several processes on one database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{GO_TESTS, PLANS, Weir, Who, lock_holder, river_worker};
use async_trait::async_trait;
use serde_json::{Map, Value, json};
use uuid::Uuid;
use weir::context::Context;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::work::{Role, Working};
use weir_ledger::holder::Holder;

const KIND: &str = "analysis:analyze";

/// Takes a while, and records when each job ran.
#[derive(Default)]
struct Clockwork {
    takes: Duration,
    now: Mutex<HashMap<Uuid, usize>>,
    most: Mutex<HashMap<Uuid, usize>>,
    order: Mutex<Vec<Uuid>>,
    most_together: Mutex<usize>,
    /// Jobs of these holders go on only after this many ran at once, however slowly a busy machine starts them.
    awaited: Mutex<HashMap<Uuid, usize>>,
}

impl Clockwork {
    fn taking(millis: u64) -> Arc<Self> {
        Arc::new(Self {
            takes: Duration::from_millis(millis),
            ..Self::default()
        })
    }

    fn awaits_more(&self, holder: Uuid) -> bool {
        let awaited = self.awaited.lock().unwrap().get(&holder).copied();
        self.most.lock().unwrap()[&holder] < awaited.unwrap_or(0)
    }
}

#[async_trait]
impl Handler for Clockwork {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let holder = attempt.holder.unwrap().id;
        {
            let mut now = self.now.lock().unwrap();
            *now.entry(holder).or_default() += 1;
            let together: usize = now.values().sum();
            let mut most_together = self.most_together.lock().unwrap();
            *most_together = (*most_together).max(together);
            let running = now[&holder];
            let mut most = self.most.lock().unwrap();
            let highest = most.entry(holder).or_default();
            *highest = (*highest).max(running);
            self.order.lock().unwrap().push(holder);
        }
        while self.awaits_more(holder) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(self.takes).await;
        *self.now.lock().unwrap().get_mut(&holder).unwrap() -= 1;
        Ok(Outcome {
            output: json!({}),
            used: None,
        }
        .into())
    }
}

async fn work(context: Context, clockwork: &Arc<Clockwork>, role: Role) -> Working {
    let context = context.with_handler(KIND, Arc::clone(clockwork) as Arc<dyn Handler>);
    Working::start(&context, role, &context.settings.services)
        .await
        .unwrap()
}

async fn submit(weir: &Weir, who: Who, jobs: usize) -> Vec<i64> {
    let mut ids = Vec::new();
    for _ in 0..jobs {
        ids.push(weir.analyse(who, "a_test.go", GO_TESTS).await);
    }
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_each_tier_holds_over_three_processes_and_everything_runs() {
    let weir = Weir::new().await;
    // Long enough that one more job than a user's slots would be seen.
    let clockwork = Clockwork::taking(300);
    // All jobs wait before the first process starts. Otherwise a user's jobs could end as fast as they are submitted.
    let mut users = Vec::new();
    for plan in PLANS {
        let user = weir.user(plan).await;
        submit(&weir, Who::User(user), 12).await;
        let slots = weir.slots_of(plan) as usize;
        clockwork.awaited.lock().unwrap().insert(user, slots);
        users.push((user, plan));
    }
    submit(&weir, Who::Address("198.51.100.7"), 6).await;
    let mut processes = vec![work(weir.another(&[]), &clockwork, Role::Both).await];
    for _ in 0..2 {
        processes.push(work(weir.another(&[]), &clockwork, Role::Work).await);
    }
    weir.all_finished().await;
    let most = clockwork.most.lock().unwrap().clone();
    for (user, plan) in users {
        let limit = weir.slots_of(plan) as usize;
        assert_eq!(
            most[&user], limit,
            "{plan}: all of its slots are used, and no more"
        );
    }
    assert_eq!(
        most.values().filter(|most| **most == 1).count(),
        2,
        "the free user and the anonymous address"
    );
    assert_eq!(clockwork.order.lock().unwrap().len(), 54);
    for process in processes {
        process.stop().await;
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_never_waits_for_another_users_backlog() {
    // One worker in the lane, so that only the order decides. With several floods, one of them has its next job in the
    // lane while another's job runs.
    const WORKERS: usize = 1;
    const FLOODS: usize = 3;
    let weir = Weir::with(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", &WORKERS.to_string())]).await;
    let clockwork = Clockwork::taking(20);
    for _ in 0..FLOODS {
        let flood = weir.user("free").await;
        submit(&weir, Who::User(flood), 15).await;
    }
    let newcomer = weir.user("free").await;
    let working = work(weir.another(&[]), &clockwork, Role::Both).await;
    weir.until("the floods to run", async || {
        (clockwork.order.lock().unwrap().len() >= 3).then_some(())
    })
    .await;
    // Together, so that the third is submitted before the first is done.
    futures_util::future::join_all((0..3).map(|_| submit(&weir, Who::User(newcomer), 1))).await;
    let started = clockwork.order.lock().unwrap().len();
    weir.all_finished().await;
    let order = clockwork.order.lock().unwrap().clone();
    let places: Vec<usize> = order
        .iter()
        .enumerate()
        .filter(|(_, user)| **user == newcomer)
        .map(|(place, _)| place)
        .collect();
    // Each flood has one job with a slot, all that Free allows. It runs, or is in front of the newcomer's. The next job
    // that gets the slot is behind it, although a worker may be faster at starting a job that was claimed later.
    assert!(
        places[0] <= started + FLOODS + WORKERS,
        "{started} had started, and {} when the newcomer's first did",
        places[0]
    );
    // The same holds between the newcomer's first and second job, and between the second and the third.
    let between = &order[places[0]..=places[2]];
    assert!(between.len() <= 3 + 2 * (FLOODS + WORKERS), "{between:?}");
    assert_eq!(order.len(), FLOODS * 15 + 3, "everything runs");
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_start_parked_jobs_and_downgrades_do_not() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let ids = submit(&weir, Who::User(user), 6).await;
    let client = weir.client().await;
    let waiting = async || {
        let rows = client
            .query(
                "SELECT state::text, queue FROM river_job WHERE id = ANY ($1) ORDER BY id",
                &[&ids],
            )
            .await
            .unwrap();
        rows.iter()
            .map(|row| format!("{} {}", row.get::<_, &str>(0), row.get::<_, &str>(1)))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        waiting().await[..2],
        ["available analysis_default", "pending analysis_default"]
    );
    weir_ledger::plans::ensure_user(&client, user, "pro")
        .await
        .unwrap();
    weir.reconcile().await;
    let after = waiting().await;
    assert_eq!(
        after[1..4],
        [
            "available analysis_priority",
            "available analysis_priority",
            "pending analysis_default"
        ]
    );
    weir_ledger::plans::ensure_user(&client, user, "free")
        .await
        .unwrap();
    for id in &ids[..2] {
        weir.call(
            "DELETE",
            &format!("/api/jobs/{id}"),
            Who::User(user),
            &[],
            Vec::new(),
        )
        .await;
    }
    assert!(
        waiting().await[3].starts_with("pending"),
        "one slot is in use, and one is all that Free has"
    );
    weir.call(
        "DELETE",
        &format!("/api/jobs/{}", ids[2]),
        Who::User(user),
        &[],
        Vec::new(),
    )
    .await;
    assert_eq!(waiting().await[3], "available analysis_default");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_other_river_clients_respect_the_slot_limit() {
    let weir = Weir::new().await;
    let clockwork = Clockwork::taking(50);
    let (known, stranger) = (weir.user("free").await, Uuid::new_v4());
    for user in [known, stranger] {
        for _ in 0..4 {
            weir.insert_by_river(json!({ "user_id": user }), "analysis_default")
                .await;
        }
    }
    // Only a freed slot wakes them in time.
    let context = weir.another(&[("FAIRNESS_SNOOZE_DURATION", "1h")]);
    let working = work(context, &clockwork, Role::Both).await;
    let context = weir.another(&[]);
    let stopped = tokio_util::sync::CancellationToken::new();
    let reconciling = tokio::spawn(weir::work::reconcile::run(context, stopped.clone()));
    weir.all_finished().await;
    let most = clockwork.most.lock().unwrap().clone();
    assert_eq!((most[&known], most[&stranger]), (1, 1));
    let row = weir
        .client()
        .await
        .query_one(
            "SELECT max(attempt)::int, count(*) FILTER (WHERE errors IS NOT NULL) FROM river_job",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        (row.get::<_, i32>(0), row.get::<_, i64>(1)),
        (1, 0),
        "waiting costs no attempt"
    );
    stopped.cancel();
    reconciling.await.unwrap();
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_another_river_client_costs_a_handful_of_refusals() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Args {
        user_id: Uuid,
        n: usize,
    }
    impl riverqueue::JobArgs for Args {
        const KIND: &'static str = KIND;
    }
    const JOBS: usize = 500;
    let weir = Weir::new().await;
    let clockwork = Clockwork::taking(1);
    let user_id = weir.user("free").await;
    let river = weir.river();
    let opts = riverqueue::InsertOpts::default().with_queue("analysis_default");
    let mut batch = riverqueue::InsertBatch::new();
    for n in 0..JOBS {
        batch.push_with(Args { user_id, n }, opts.clone());
    }
    river.insert_batch(batch).await.unwrap();
    let working = work(weir.another(&[]), &clockwork, Role::Both).await;
    weir.all_finished().await;
    assert_eq!(clockwork.most.lock().unwrap()[&user_id], 1);
    assert_eq!(clockwork.order.lock().unwrap().len(), JOBS, "each runs once");
    let row = weir
        .client()
        .await
        .query_one(
            "SELECT coalesce(sum((metadata ->> 'snoozes')::int), 0)::int, max(attempt)::int, \
                    count(*) FILTER (WHERE errors IS NOT NULL OR state <> 'completed') FROM river_job",
            &[],
        )
        .await
        .unwrap();
    let snoozes: i32 = row.get(0);
    // Three workers claim at once, and may claim once more before the first refusal is committed.
    assert!(snoozes <= 10, "{snoozes} refusals");
    assert_eq!(
        (row.get::<_, i32>(1), row.get::<_, i64>(2)),
        (1, 0),
        "waiting costs no attempt"
    );
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_river_worker_keeps_weirs_limits() {
    use riverqueue::{Client, QueueConfig};
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(transparent)]
    struct Args(Value);
    impl riverqueue::JobArgs for Args {
        const KIND: &'static str = KIND;
    }
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    submit(&weir, Who::User(user), 5).await;
    let (workers, running) = river_worker::counting::<Args>();
    // Only River, without Weir's middleware.
    let client = Client::builder(weir.context.database.river_pool(4).unwrap())
        .workers(workers)
        .queue("analysis_default", QueueConfig::new(10))
        .build()
        .unwrap();
    let mut run = client.start().unwrap();
    let stopped = tokio_util::sync::CancellationToken::new();
    let reconciling = tokio::spawn(weir::work::reconcile::run(weir.another(&[]), stopped.clone()));
    weir.all_finished().await;
    assert_eq!(river_worker::most(&running), 1);
    weir.until("the last settlement", async || {
        (weir.quota(Who::User(user), "analysis").await["used"] == 5).then_some(())
    })
    .await;
    run.stop().await.unwrap();
    stopped.cancel();
    reconciling.await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_jobs_of_dead_processes_are_taken_over() {
    let weir = Weir::new().await;
    let user = weir.user("pro").await;
    let ids = submit(&weir, Who::User(user), 3).await;
    let client = weir.client().await;
    let running = "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() - interval '11 seconds', \
                   attempted_by = array_append(attempted_by, $2) WHERE id = $1";
    for (id, process) in ids.iter().zip(["dead", "alive", "another client's"]) {
        client.execute(running, &[id, &process]).await.unwrap();
    }
    client
        .batch_execute(
            "INSERT INTO processes (client_id, beat_at) VALUES ('dead', now() - interval '11 seconds'), ('alive', now())",
        )
        .await
        .unwrap();
    weir.reconcile().await;
    let states: Vec<String> = client
        .query("SELECT state::text FROM river_job ORDER BY id", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(states, ["available", "running", "running"]);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_fairness_jobs_are_not_parked() {
    let weir = Weir::with(&[("FAIRNESS_ENABLED", "false")]).await;
    // Long enough that the last one starts before the first is done, even on a busy machine.
    let clockwork = Clockwork::taking(1000);
    let user = weir.user("free").await;
    submit(&weir, Who::User(user), 3).await;
    let working = work(weir.another(&[]), &clockwork, Role::Both).await;
    weir.all_finished().await;
    assert_eq!(clockwork.most.lock().unwrap()[&user], 3);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_never_runs_more_jobs_at_once_than_it_has_workers() {
    let weir = Weir::with(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "2")]).await;
    let clockwork = Clockwork::taking(5);
    for _ in 0..12 {
        let user = weir.user("free").await;
        submit(&weir, Who::User(user), 8).await;
    }
    let working = work(weir.another(&[]), &clockwork, Role::Both).await;
    weir.all_finished().await;
    assert_eq!(*clockwork.most_together.lock().unwrap(), 2);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_handlers_do_not_get_jobs_ahead_of_a_free_worker() {
    let weir = Weir::with(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "2")]).await;
    // Longer than a job that was claimed too early waits before it returns to its queue.
    let clockwork = Clockwork::taking(700);
    for _ in 0..8 {
        let user = weir.user("free").await;
        submit(&weir, Who::User(user), 1).await;
    }
    let working = work(weir.another(&[]), &clockwork, Role::Both).await;
    weir.all_finished().await;
    let claimed_in_vain: i64 = weir
        .client()
        .await
        .query_one("SELECT count(*) FROM river_job WHERE metadata ? 'snoozes'", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(claimed_in_vain, 0);
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_is_free_as_soon_as_its_handler_is_done() {
    let weir = Weir::with(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "1")]).await;
    let clockwork = Clockwork::taking(5);
    let (anne, ben) = (weir.user("free").await, weir.user("free").await);
    let annes = submit(&weir, Who::User(anne), 1).await;
    submit(&weir, Who::User(ben), 1).await;
    // Anne's job cannot be settled for now.
    let mut blocker = weir.client().await;
    let lock = lock_holder(&mut blocker, anne).await;
    let working = work(weir.another(&[]), &clockwork, Role::Both).await;
    weir.until("the other user's job to run", async || {
        (clockwork.order.lock().unwrap().len() == 2).then_some(())
    })
    .await;
    let state: String = weir
        .client()
        .await
        .query_one("SELECT state::text FROM river_job WHERE id = $1", &[&annes[0]])
        .await
        .unwrap()
        .get(0);
    assert_eq!(state, "running", "it is not settled yet");
    lock.rollback().await.unwrap();
    weir.all_finished().await;
    working.stop().await;
    weir.is_clean().await;
    weir.end().await;
}

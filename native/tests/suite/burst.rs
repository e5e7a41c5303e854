//! Idle workers are lent to jobs over their holder's slots, up to the plan's `burst`, and never at another's expense.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;
use weir::work::{Role, Working};
use weir_ledger::attempts::{self, Claimed, QueueClaim};
use weir_ledger::database::listener::INSERT;
use weir_ledger::settlement::{Ended, Settled, Success};

use crate::common::fleet::Maintenance;
use crate::common::gate::{Gate, KIND};
use crate::common::{GO_TESTS, Weir, Who};

/// The default lane lends four of its five workers.
const POOLS: [(&str, &str); 2] = [
    ("ANALYZER_QUEUE_PRIORITY_WORKERS", "1"),
    ("ANALYZER_QUEUE_DEFAULT_WORKERS", "5"),
];

async fn with_burst(burst: i32) -> Weir {
    let weir = Weir::with(&POOLS).await;
    set_burst(&weir.client().await, burst).await;
    weir
}

async fn set_burst(client: &Client, burst: i32) {
    let set = "UPDATE plan_limits SET burst = $1";
    client.execute(set, &[&burst]).await.unwrap();
}

async fn work(weir: &Weir) -> (Arc<Gate>, Working) {
    let gate = Gate::new();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    (gate, working)
}

async fn submit(weir: &Weir, user: Uuid, count: usize) -> Vec<i64> {
    let mut jobs = Vec::new();
    for _ in 0..count {
        jobs.push(weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await);
    }
    jobs
}

/// The running jobs of a user.
fn running_of(gate: &Gate, user: Uuid) -> usize {
    gate.holders()
        .into_iter()
        .filter(|holder| *holder == Some(user))
        .count()
}

/// Longer than the polls, which find every job that could start.
async fn a_while() {
    tokio::time::sleep(Duration::from_millis(1500)).await;
}

/// Lets all jobs end, and checks the database.
async fn end(weir: Weir, gate: &Gate, working: Working) {
    gate.open();
    weir.all_finished().await;
    working.stop().await;
    weir.is_clean().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_jobs_use_idle_workers_but_not_the_headroom() {
    let weir = with_burst(10).await;
    let (gate, working) = work(&weir).await;
    let user = weir.user("free").await;
    let jobs = submit(&weir, user, 8).await;
    gate.until_running(&weir, 4).await;
    a_while().await;
    assert_eq!(gate.running().len(), 4, "one worker stays idle");

    // It is for a newcomer.
    let newcomer = weir.user("free").await;
    submit(&weir, newcomer, 1).await;
    gate.until_running_of(&weir, &[newcomer], 1).await;

    // The owner, the operator and the metrics see which jobs are lent.
    let lanes = weir.get("/api/lanes", Who::User(user)).await.body;
    assert_eq!(lanes["services"]["analysis"]["default"]["lent"], 3, "{lanes}");
    let mut lent = 0;
    for job in &jobs {
        let job = weir.get(&format!("/api/jobs/{job}"), Who::User(user)).await.body;
        lent += usize::from(job["lent"].as_bool().unwrap());
        if job["status"] == "queued" {
            assert_eq!(job["waiting_for"], "slot");
        }
    }
    assert_eq!(lent, 3);
    end(weir, &gate, working).await;
    assert!(gate.most() <= 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_runs_more_jobs_than_the_burst() {
    let weir = with_burst(2).await;
    let (gate, working) = work(&weir).await;
    let user = weir.user("free").await;
    submit(&weir, user, 6).await;
    gate.until_running(&weir, 2).await;
    a_while().await;
    assert_eq!(gate.running().len(), 2);
    end(weir, &gate, working).await;
    assert_eq!(gate.most(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_burst_nothing_is_lent() {
    let weir = Weir::with(&POOLS).await;
    let (gate, working) = work(&weir).await;
    let user = weir.user("free").await;
    submit(&weir, user, 4).await;
    gate.until_running(&weir, 1).await;
    a_while().await;
    assert_eq!(gate.running().len(), 1);
    assert_eq!(weir.count("waiting_accounts").await, 0);
    end(weir, &gate, working).await;
    assert_eq!(gate.most(), 1);
}

/// If the jobs of an account cannot start, its share of the workers goes to other accounts.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_without_startable_jobs_keeps_no_workers_idle() {
    let weir = Weir::with(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "9")]).await;
    let client = weir.client().await;
    set_burst(&client, 100).await;
    let (unable, flood) = (weir.user("free").await, weir.user("free").await);
    let later = submit(&weir, unable, 10).await;
    submit(&weir, flood, 10).await;
    // As those of another service of the meter, which these workers do not know.
    let other = "UPDATE river_job SET kind = $2 WHERE id = ANY ($1) AND state = 'pending'";
    client.execute(other, &[&later, &"other"]).await.unwrap();
    let (gate, working) = work(&weir).await;
    // One worker is the headroom, and one job of each has a slot.
    gate.until_running(&weir, 8).await;
    assert_eq!((running_of(&gate, unable), running_of(&gate, flood)), (1, 7));
    client.execute(other, &[&later, &KIND]).await.unwrap();
    end(weir, &gate, working).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_workers_go_to_whoever_has_the_fewest_for_their_slots() {
    let weir = Weir::with(&[("ANALYZER_QUEUE_DEFAULT_WORKERS", "9")]).await;
    let client = weir.client().await;
    set_burst(&client, 100).await;
    let (one, three) = (weir.user("free").await, weir.user("free").await);
    let own = "INSERT INTO limit_overrides (user_id, event_type, slots) VALUES ($1, 'analysis', 3)";
    client.execute(own, &[&three]).await.unwrap();
    submit(&weir, one, 20).await;
    submit(&weir, three, 20).await;
    let (gate, working) = work(&weir).await;
    gate.until_running(&weir, 8).await;
    assert_eq!((running_of(&gate, one), running_of(&gate, three)), (2, 6));
    end(weir, &gate, working).await;
}

/// With probabilities in proportion to the slots, 300 of 400 workers go to the user with three. The bounds are more than
/// five standard deviations away, and with equal probabilities, 200 are expected.
#[tokio::test]
async fn between_equal_shares_chance_decides_in_proportion_to_the_slots() {
    let weir = with_burst(100).await;
    let mut client = weir.client().await;
    let (one, three) = (weir.user("free").await, weir.user("free").await);
    let own = "INSERT INTO limit_overrides (user_id, event_type, slots) VALUES ($1, 'analysis', 3)";
    client.execute(own, &[&three]).await.unwrap();
    submit(&weir, one, 2).await;
    let jobs = submit(&weir, three, 4).await;
    let lend = "SELECT jobs FROM lend_jobs('weir_test', ARRAY[$1::text], 'analysis_default', 1)";
    let mut lent = 0;
    for _ in 0..400 {
        let undone = client.transaction().await.unwrap();
        let row = undone.query_one(lend, &[&KIND]).await.unwrap();
        let [job] = row.get::<_, Vec<i64>>(0)[..] else {
            panic!("no worker was lent")
        };
        lent += usize::from(jobs.contains(&job));
        undone.rollback().await.unwrap();
    }
    assert!((250..=350).contains(&lent), "{lent} of 400");
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_sql_submits_use_idle_workers_too() {
    let weir = with_burst(10).await;
    let (gate, working) = work(&weir).await;
    let maintenance = Maintenance::of(&weir);
    let submit = "SELECT weir_submit('alice', 'analysis', '{}') FROM generate_series(1, 3)";
    weir.client().await.batch_execute(submit).await.unwrap();
    gate.until_running(&weir, 3).await;
    end(weir, &gate, working).await;
    maintenance.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_wait_already_profit_from_a_new_burst() {
    let weir = Weir::with(&POOLS).await;
    let (gate, working) = work(&weir).await;
    let maintenance = Maintenance::of(&weir);
    let user = weir.user("free").await;
    submit(&weir, user, 3).await;
    gate.until_running(&weir, 1).await;
    set_burst(&weir.client().await, 10).await;
    gate.until_running(&weir, 3).await;
    end(weir, &gate, working).await;
    maintenance.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lent_job_that_fails_waits_for_its_turn_again() {
    let weir = with_burst(10).await;
    let gate = Gate::new();
    let user = weir.user("free").await;
    let jobs = submit(&weir, user, 3).await;
    for job in &jobs {
        gate.fail_at_first(*job);
    }
    gate.open();
    let working = gate.work(weir.another(&[]), Role::Both).await;
    weir.all_finished().await;
    let client = weir.client().await;
    let row = "SELECT count(*) FROM river_job WHERE state = 'completed' AND attempt = 2";
    assert_eq!(client.query_one(row, &[]).await.unwrap().get::<_, i64>(0), 3);
    end(weir, &gate, working).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_burst_lets_running_jobs_end_and_starts_no_more() {
    let weir = with_burst(10).await;
    let (gate, working) = work(&weir).await;
    let (user, other) = (weir.user("free").await, weir.user("free").await);
    submit(&weir, user, 6).await;
    gate.until_running(&weir, 4).await;
    set_burst(&weir.client().await, 2).await;
    assert!(
        weir.complaints().await.is_empty(),
        "the audit knows that the burst was higher"
    );
    submit(&weir, other, 2).await;
    gate.until_running(&weir, 5).await;
    gate.open_for(&[other]);
    gate.until_running_of(&weir, &[other], 0).await;
    a_while().await;
    assert_eq!(running_of(&gate, user), 4, "none is stopped, and none starts");
    end(weir, &gate, working).await;
}

/// One user with a running job, and `count` that wait.
async fn flood(weir: &Weir, client: &Client, count: usize) -> Vec<i64> {
    let user = weir.user("free").await;
    let jobs = submit(weir, user, count + 1).await;
    let claim = "SELECT job_id FROM weir_claim('analysis_default', 'w')";
    let claimed = client.query_one(claim, &[]).await.unwrap();
    assert_eq!(claimed.get::<_, i64>(0), jobs[0]);
    jobs[1..].to_vec()
}

async fn claimed(client: &Client, arguments: &str) -> Vec<i64> {
    let claim = format!("SELECT job_id FROM weir_claim({arguments}) ORDER BY 1");
    let rows = client.query(&claim, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn workers_in_other_languages_get_parked_jobs_beyond_their_headroom() {
    let weir = with_burst(10).await;
    let client = weir.client().await;
    let jobs = flood(&weir, &client, 5).await;
    assert!(
        claimed(&client, "'analysis_default', 'w'").await.is_empty(),
        "a pool of one lends nothing"
    );
    assert_eq!(claimed(&client, "'analysis_default', 'w', 3").await, jobs[..2]);
    assert!(claimed(&client, "'analysis_priority', 'w', 3").await.is_empty());
    assert_eq!(
        claimed(&client, "'analysis_default', 'w', 1, 0").await,
        jobs[2..3]
    );
    let paused = "INSERT INTO river_queue (name, created_at, updated_at, paused_at) \
                  VALUES ('analysis_default', now(), now(), now()) \
                  ON CONFLICT (name) DO UPDATE SET paused_at = now()";
    client.batch_execute(paused).await.unwrap();
    assert!(claimed(&client, "'analysis_default', 'w', 9").await.is_empty());
    client
        .batch_execute("UPDATE river_queue SET paused_at = NULL")
        .await
        .unwrap();
    assert_eq!(claimed(&client, "'analysis_default', 'w', 9").await, jobs[3..]);

    // A settlement above the slots promotes nothing.
    let more = submit(&weir, holder(&client, jobs[0]).await, 1).await;
    let end = "SELECT outcome FROM weir_complete($1, 1, '{}')";
    for job in &jobs {
        let outcome = client.query_one(end, &[job]).await.unwrap();
        assert_eq!(outcome.get::<_, &str>(0), "done");
    }
    assert_eq!(
        claimed(&client, "'analysis_default', 'w'").await,
        Vec::<i64>::new()
    );
    assert_eq!(claimed(&client, "'analysis_default', 'w', 2").await, more);
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_above_the_slots_notifies_and_promotes_nothing() {
    let weir = with_burst(10).await;
    let client = weir.client().await;
    let jobs = flood(&weir, &client, 2).await;
    assert_eq!(claimed(&client, "'analysis_default', 'w', 2").await, jobs[..1]);
    let listener = weir.context.database.listen(&[INSERT]).await;
    let mut listener = listener.unwrap();
    let ended = Ended {
        job_id: jobs[0],
        holder: Some(holder(&client, jobs[0]).await),
        success: Some(Success {
            attempt: 1,
            job_created_at: None,
            output: json!({}),
            used: None,
        }),
    };
    let settled = weir.context.settler.settle(ended).await.unwrap();
    assert_eq!(settled, Settled::Done { charged: 1 });
    let woken = listener.next().await.unwrap();
    assert!(woken.contains("analysis_default"), "{woken}");
    assert!(claimed(&client, "'analysis_default', 'w'").await.is_empty());
    weir.abandon().await;
}

async fn holder(client: &Client, job: i64) -> Uuid {
    let holder = "SELECT user_id FROM weir_jobs WHERE job_id = $1";
    client.query_one(holder, &[&job]).await.unwrap().get(0)
}

#[tokio::test]
async fn a_claim_without_workers_to_lend_learns_that_jobs_wait() {
    let weir = with_burst(10).await;
    let jobs = flood(&weir, &weir.client().await, 2).await;
    let pool = weir.context.database.pool(1);
    let claim = async |lend| {
        let queue = QueueClaim {
            queue: "analysis_default".to_owned(),
            most: 3,
            since: None,
            lend,
        };
        let claimed = attempts::claim(&pool, "weir_test", &[KIND.to_owned()], &[queue]).await;
        let Claimed { jobs, unlent } = claimed.unwrap();
        (jobs.iter().map(|job| job.id).collect::<Vec<_>>(), unlent)
    };
    let queue = vec!["analysis_default".to_owned()];
    assert_eq!(claim(0).await, (vec![], queue.clone()));
    assert_eq!(claim(1).await, (jobs[..1].to_vec(), queue));
    assert_eq!(claim(3).await, (jobs[1..].to_vec(), vec![]));
    // A claim reads at most 128 accounts, so there may be others.
    let client = weir.client().await;
    let more = "WITH addresses AS ( \
                    INSERT INTO holders (holder, event_type) \
                    SELECT overlay(gen_random_uuid()::text PLACING 'e' FROM 20)::uuid, 'analysis' \
                    FROM generate_series(1, $1::int) RETURNING holder) \
                INSERT INTO waiting_accounts (holder, event_type) SELECT holder, 'analysis' FROM addresses";
    client.execute("DELETE FROM waiting_accounts", &[]).await.unwrap();
    client.execute(more, &[&128]).await.unwrap();
    assert_eq!(claim(3).await, (vec![], vec![]));
    client.execute(more, &[&1]).await.unwrap();
    assert_eq!(claim(3).await, (vec![], vec!["analysis_default".to_owned()]));
    weir.abandon().await;
}

#[tokio::test]
async fn maintenance_finds_waiting_jobs_that_idle_workers_could_run() {
    let weir = with_burst(10).await;
    let client = weir.client().await;
    flood(&weir, &client, 1).await;
    // One job runs.
    for (lends, is_found) in [(1, false), (2, true)] {
        let process = format!(
            "INSERT INTO processes (client_id, lends) VALUES ('weir_test', '{{\"analysis_default\": {lends}}}') \
             ON CONFLICT (client_id) DO UPDATE SET lends = excluded.lends"
        );
        client.batch_execute(&process).await.unwrap();
        let found = client
            .query_one("CALL await_unclaimed(0, NULL, NULL)", &[])
            .await
            .unwrap();
        let queues: Option<Vec<String>> = found.get("queues");
        let wanted = is_found.then(|| vec!["analysis_default".to_owned()]);
        assert_eq!(queues, wanted, "{lends} workers may be lent");
    }
    weir.abandon().await;
}

#[tokio::test]
async fn a_trigger_that_refuses_a_lent_job_does_not_stop_claims() {
    let weir = with_burst(10).await;
    let client = weir.client().await;
    let jobs = flood(&weir, &client, 2).await;
    let trigger = format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$; \
         CREATE TRIGGER refuse BEFORE UPDATE ON river_job FOR EACH ROW WHEN (NEW.id = {}) EXECUTE FUNCTION refuse()",
        jobs[0]
    );
    client.batch_execute(&trigger).await.unwrap();
    let newcomer = weir.user("free").await;
    let new = submit(&weir, newcomer, 1).await;
    assert_eq!(claimed(&client, "'analysis_default', 'w', 5").await, new);
    assert!(weir.complaints().await.is_empty(), "nothing is half lent");
    client
        .batch_execute("DROP TRIGGER refuse ON river_job")
        .await
        .unwrap();
    assert_eq!(claimed(&client, "'analysis_default', 'w', 5").await, jobs);
    weir.abandon().await;
}

#[tokio::test]
async fn a_lock_on_one_holder_leaves_idle_workers_to_others() {
    let weir = with_burst(10).await;
    let client = weir.client().await;
    let locked = flood(&weir, &client, 1).await;
    let others = flood(&weir, &client, 1).await;
    let holder = holder(&client, locked[0]).await;
    let mut blocker = weir.client().await;
    let transaction = blocker.transaction().await.unwrap();
    let lock = "SELECT FROM holders WHERE holder = $1 FOR UPDATE";
    transaction.query(lock, &[&holder]).await.unwrap();
    assert_eq!(claimed(&client, "'analysis_default', 'w', 3").await, others);
    transaction.rollback().await.unwrap();
    assert_eq!(claimed(&client, "'analysis_default', 'w', 3").await, locked);

    // Accounts without waiting jobs are forgotten.
    assert_eq!(weir.count("waiting_accounts").await, 2);
    let look = "CALL await_unclaimed(0, NULL, NULL)";
    client.batch_execute(look).await.unwrap();
    assert_eq!(weir.count("waiting_accounts").await, 0);
    weir.abandon().await;
}

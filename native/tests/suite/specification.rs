//! The database's functions decide as the specification in `weir_policy` does, over random sequences of submissions,
//! completions and cancellations of one user.

use crate::common::Weir;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tokio_postgres::{Client, Row};
use uuid::Uuid;
use weir_policy::admission::{Account, Allowance, Decision, charge, charged_overage, promotions};
use weir_policy::grants::{Draw, Grant, charged_to_grants};

/// The number of sequences.
const CASES: u64 = 40;

/// A job of the specification.
struct Job {
    id: i64,
    reserved: i64,
    draws: Vec<Draw>,
    overage: i64,
    has_slot: bool,
}

/// The user's account and unfinished jobs, by the specification.
struct Specification {
    account: Account,
    jobs: Vec<Job>,
}

impl Specification {
    fn submit(&mut self, amount: i64, is_for_later: bool) -> (&'static str, Vec<Draw>, i64) {
        let (decision, excess) = match is_for_later {
            true => self.account.schedule(amount),
            false => self.account.decide_and_draw(amount),
        };
        let outcome = match decision {
            Decision::Admitted => "admitted",
            Decision::Parked => "parked",
            Decision::Scheduled => "scheduled",
            Decision::OverQuota => "over_quota",
            Decision::TooLarge => "too_large",
            Decision::TooManyWaiting(_) => "too_many_waiting",
        };
        (outcome, excess.draws, excess.overage)
    }

    /// Ends a job, which is charged if it is completed. Promotes parked jobs, the oldest first.
    fn end(&mut self, index: usize, completed: Option<Option<i64>>) -> i64 {
        let job = self.jobs.remove(index);
        let charged = completed.map_or(0, |used| charge(job.reserved, used));
        let drawn: i64 = job.draws.iter().map(|draw| draw.amount).sum();
        let to_grants = charged_to_grants(job.reserved - job.overage, drawn, charged);
        assert!(charged_overage(job.reserved, job.overage, charged) <= job.overage);
        let mut paid = to_grants;
        for draw in &job.draws {
            let part = paid.min(draw.amount);
            paid -= part;
            self.account.grants[draw.grant].left += draw.amount - part;
        }
        for (index, allowance) in self.account.allowances.iter_mut().enumerate() {
            allowance.reserved -= job.reserved;
            allowance.used += charged;
            if index == 0 {
                allowance.from_grants -= drawn - to_grants;
                allowance.granted += drawn - to_grants;
            }
        }
        match job.has_slot {
            true => self.account.slots_in_use -= 1,
            false => self.account.parked -= 1,
        }
        let account = &mut self.account;
        let count = promotions(account.slot_limit, account.slots_in_use, account.parked);
        let parked = self.jobs.iter_mut().filter(|job| !job.has_slot);
        for job in parked.take(count as usize) {
            job.has_slot = true;
            account.slots_in_use += 1;
            account.parked -= 1;
        }
        charged
    }
}

fn maybe(rng: &mut StdRng, probability: f64, most: i64) -> Option<i64> {
    rng.random_bool(probability).then(|| rng.random_range(0..most))
}

/// A user with random limits and grants, in the database and in the specification.
async fn user(rng: &mut StdRng, client: &Client) -> (Uuid, Specification) {
    let id = Uuid::new_v4();
    let (month, day) = (maybe(rng, 0.8, 60), maybe(rng, 0.4, 60));
    let ceiling = month.and_then(|month| maybe(rng, 0.3, 30).map(|more| month + more));
    let slots = rng.random_range(1..4);
    let max_waiting = rng.random_bool(0.3).then(|| rng.random_range(1..5));
    let mut lefts: Vec<i64> = Vec::new();
    for _ in 0..rng.random_range(0..3) {
        lefts.push(rng.random_range(1..30));
    }
    let null = |number: Option<i64>| number.map_or("NULL".to_owned(), |number| number.to_string());
    let mut setup = format!(
        "INSERT INTO subscription_plans (tier, max_waiting) VALUES ('{id}', {}); \
         INSERT INTO plan_limits (plan_id, event_type, month, month_ceiling, day, slots) \
             SELECT id, 'analysis', {}, {}, {}, {slots} FROM subscription_plans WHERE tier = '{id}'; \
         SELECT create_users('{{{id}}}', '{{NULL}}', '{id}');",
        null(max_waiting),
        null(month),
        null(ceiling),
        null(day),
    );
    for (n, left) in lefts.iter().enumerate() {
        setup += &format!(
            "INSERT INTO grants (user_id, event_type, amount, reason, created_at) \
                 VALUES ('{id}', 'analysis', {left}, 'test', now() - interval '1 hour' + interval '{n} minutes'); \
             UPDATE holders SET has_grants = true WHERE user_id = '{id}';"
        );
    }
    client.batch_execute(&setup).await.unwrap();
    let grants = lefts.iter().enumerate().map(|(n, left)| Grant {
        left: *left,
        expires_at: None,
        created_at: n as i64,
    });
    let mut allowances = vec![Allowance {
        limit: month,
        ceiling,
        granted: lefts.iter().sum(),
        ..Allowance::default()
    }];
    allowances.push(Allowance {
        limit: day,
        ..Allowance::default()
    });
    let account = Account {
        allowances,
        slot_limit: Some(slots),
        max_waiting: max_waiting.map(|max| u32::try_from(max).unwrap()),
        grants: grants.collect(),
        ..Account::default()
    };
    let jobs = Vec::new();
    (id, Specification { account, jobs })
}

/// Submits a group, in order.
async fn submit(client: &Client, user: Uuid, group: &[(i64, bool)]) -> Vec<Row> {
    let members = group.iter().map(|(amount, is_for_later)| {
        json!({
            "holder": user, "user_id": user, "service": "analysis", "meter": "analysis", "kind": "analysis:analyze",
            "max_attempts": 3, "args": {}, "metadata": {}, "priority": 1, "amount": amount,
            "run_at": is_for_later.then_some("2999-01-01T00:00:00Z"),
        })
    });
    let submit = "SELECT * FROM submit_many(ARRAY(SELECT jsonb_populate_recordset(NULL::submission, $1)), 'wait', false) \
                  ORDER BY member";
    let members = Value::Array(members.collect());
    client.query(submit, &[&members]).await.unwrap()
}

/// Ends a job through the function for workers, or as another River client cancels it. Returns the charge.
async fn end(client: &Client, id: i64, completed: Option<Option<i64>>) -> i64 {
    match completed {
        Some(used) => {
            let claimed =
                "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() WHERE id = $1";
            client.execute(claimed, &[&id]).await.unwrap();
            let complete = "SELECT outcome, charged FROM weir_complete($1, 1, '{}', $2)";
            let row = client.query_one(complete, &[&id, &used]).await.unwrap();
            assert_eq!(row.get::<_, &str>("outcome"), "done");
            row.get("charged")
        }
        None => {
            let cancel = "UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = $1";
            client.execute(cancel, &[&id]).await.unwrap();
            let settle = "SELECT charged FROM settle_one($1, NULL, NULL, NULL)";
            client.query_one(settle, &[&id]).await.unwrap().get(0)
        }
    }
}

/// The account's counters: slots, parked, and of the month used, reserved, from grants and left in grants.
async fn counters(client: &Client, user: Uuid) -> Vec<i64> {
    let read = "SELECT ARRAY[h.slots_in_use, h.parked, coalesce(b.used, 0), coalesce(b.reserved, 0), \
                             coalesce(b.from_grants, 0), \
                             (SELECT coalesce(sum(g.amount - g.used - g.reserved), 0) FROM grants g WHERE g.user_id = $1)]::bigint[] \
                FROM holders h \
                LEFT JOIN quota_balances b ON b.user_id = h.user_id AND b.event_type = h.event_type AND b.span = 'month' \
                WHERE h.holder = $1 AND h.event_type = 'analysis'";
    client.query_one(read, &[&user]).await.unwrap().get(0)
}

/// One sequence. Stops early when the day changes.
async fn sequence(rng: &mut StdRng, client: &Client) {
    let (user, mut specification) = user(rng, client).await;
    let today = "SELECT date_trunc('day', now(), 'UTC')::text";
    let day: String = client.query_one(today, &[]).await.unwrap().get(0);
    for step in 0..rng.random_range(3..12) {
        if !specification.jobs.is_empty() && rng.random_bool(0.5) {
            let index = rng.random_range(0..specification.jobs.len());
            let (id, has_slot) = (specification.jobs[index].id, specification.jobs[index].has_slot);
            // Only a job with a slot runs.
            let completed = (has_slot && rng.random_bool(0.7)).then(|| maybe(rng, 0.6, 20));
            let expected = specification.end(index, completed);
            let charged = end(client, id, completed).await;
            assert_eq!(charged, expected, "step {step}: the charge of {id}");
        } else {
            let group: Vec<(i64, bool)> = (0..rng.random_range(1..6))
                .map(|_| (rng.random_range(0..25), rng.random_bool(0.1)))
                .collect();
            let rows = submit(client, user, &group).await;
            assert_eq!(rows.len(), group.len());
            for ((amount, is_for_later), row) in group.into_iter().zip(rows) {
                let (expected, draws, overage) = specification.submit(amount, is_for_later);
                assert_eq!(row.get::<_, &str>("outcome"), expected, "step {step}: {amount}");
                let id: Option<i64> = row.get("job_id");
                if let (Some(id), false) = (id, is_for_later) {
                    specification.jobs.push(Job {
                        id,
                        reserved: amount,
                        draws,
                        overage,
                        has_slot: expected == "admitted",
                    });
                }
            }
        }
        if client.query_one(today, &[]).await.unwrap().get::<_, String>(0) != day {
            return;
        }
        let Account {
            allowances,
            slots_in_use,
            parked,
            grants,
            ..
        } = &specification.account;
        let expected = vec![
            i64::from(*slots_in_use),
            i64::from(*parked),
            allowances[0].used,
            allowances[0].reserved,
            allowances[0].from_grants,
            grants.iter().map(|grant| grant.left).sum(),
        ];
        assert_eq!(counters(client, user).await, expected, "step {step}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_decides_as_the_specification_does() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    for seed in 0..CASES {
        eprintln!("seed {seed}");
        sequence(&mut StdRng::seed_from_u64(seed), &client).await;
    }
    weir.end().await;
}

/// An account that idle workers may be lent to.
struct Borrower {
    user: Uuid,
    slots: u32,
    burst: u32,
    slots_in_use: u32,
    parked: u32,
}

impl Borrower {
    fn room(&self) -> u32 {
        self.parked.min(self.burst.saturating_sub(self.slots_in_use))
    }
}

/// Accounts with random slots and waiting jobs, to which idle workers are lent twice.
async fn lending(rng: &mut StdRng, client: &Client) {
    // Only this sequence's accounts can borrow.
    let mut setup = "UPDATE plan_limits SET burst = NULL;".to_owned();
    let mut accounts = Vec::new();
    for _ in 0..rng.random_range(1..6) {
        let user = Uuid::new_v4();
        let slots = rng.random_range(1..4);
        let burst = slots + rng.random_range(0..6);
        let jobs = rng.random_range(1..9);
        setup += &format!(
            "INSERT INTO subscription_plans (tier) VALUES ('{user}'); \
             INSERT INTO plan_limits (plan_id, event_type, slots, burst) \
                 SELECT id, 'analysis', {slots}, {burst} FROM subscription_plans WHERE tier = '{user}'; \
             SELECT create_users('{{{user}}}', '{{NULL}}', '{user}');"
        );
        let slots_in_use = promotions(Some(slots), 0, jobs);
        accounts.push(Borrower {
            user,
            slots,
            burst,
            slots_in_use,
            parked: jobs - slots_in_use,
        });
    }
    client.batch_execute(&setup).await.unwrap();
    for account in &accounts {
        let jobs = account.slots_in_use + account.parked;
        submit(client, account.user, &vec![(1, false); jobs as usize]).await;
    }
    for _ in 0..2 {
        let idle: u32 = rng.random_range(1..8);
        let room: u32 = accounts.iter().map(Borrower::room).sum();
        let lend = "SELECT coalesce(cardinality(jobs), 0), has_more \
                    FROM lend_jobs('w', '{analysis:analyze}', 'analysis_default', $1)";
        let row = client.query_one(lend, &[&idle.cast_signed()]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0).unsigned_abs(), room.min(idle));
        assert_eq!(row.get::<_, bool>(1), room > idle);
        let mut borrowers = Vec::new();
        for (n, account) in accounts.iter_mut().enumerate() {
            let in_use =
                "SELECT slots_in_use, parked FROM holders WHERE holder = $1 AND event_type = 'analysis'";
            let row = client.query_one(in_use, &[&account.user]).await.unwrap();
            let [slots_in_use, parked] = [0, 1].map(|n| row.get::<_, i32>(n).unsigned_abs());
            assert_eq!(slots_in_use + parked, account.slots_in_use + account.parked);
            assert!(slots_in_use <= account.burst);
            if slots_in_use > account.slots_in_use {
                borrowers.push(n);
            }
            (account.slots_in_use, account.parked) = (slots_in_use, parked);
        }
        // Before its last worker, a borrower had no more jobs for its slots than anyone who could have had it.
        for one in borrowers.into_iter().map(|n| &accounts[n]) {
            for other in accounts.iter().filter(|other| other.room() > 0) {
                assert!((one.slots_in_use - 1) * other.slots <= other.slots_in_use * one.slots);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_workers_are_lent_as_specified() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    for seed in 0..CASES {
        eprintln!("seed {seed}");
        lending(&mut StdRng::seed_from_u64(seed), &client).await;
    }
    assert_eq!(weir.complaints().await, Vec::<String>::new());
    weir.abandon().await;
}

//! Grants: jobs draw on them when the plan has no room, and the unused part returns.

use crate::common::submissions::submission;
use crate::common::{GO_TESTS, Weir, Who, files};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use uuid::Uuid;
use weir_ledger::control::{self, Adjustment, ControlError, Credit, Granted, NewAdjustment, NewGrant, User};
use weir_ledger::holder::Holders;
use weir_ledger::reservation::{Answer, Reserver};
use weir_ledger::settlement::{Ended, Success};

/// A Free user with this many analyses left, and some grants.
struct Scene {
    weir: Weir,
    user: Uuid,
    account: User,
    reserver: Reserver,
}

impl Scene {
    async fn new(left: i64) -> Self {
        let weir = Weir::new().await;
        let user = weir.user("free").await;
        weir.use_up(user, "analysis", 50 - left).await;
        let holders = Holders::load(&weir.client().await).await.unwrap();
        let reserver = Reserver::start(&weir.context.database);
        Self {
            account: User::of(holders, user.into()),
            weir,
            user,
            reserver,
        }
    }

    async fn grant(&self, amount: i64, expires_in: Option<SignedDuration>) {
        let wanted = NewGrant {
            meter: "analysis",
            amount,
            expires_at: expires_in.map(|wait| Timestamp::now() + wait),
            reason: "bought",
        };
        let mut client = self.weir.client().await;
        control::grant(&mut client, "shell:test", &self.account, &wanted, None)
            .await
            .unwrap();
    }

    /// Submits this amount. Returns the job's id, or `None` if it is over the quota.
    async fn submit(&self, amount: i64) -> Option<i64> {
        match self.reserver.submit(submission(self.user, amount)).await.unwrap() {
            Answer::Accepted { job, .. } => Some(job.id),
            Answer::OverQuota { .. } => None,
            other => panic!("{other:?}"),
        }
    }

    async fn complete(&self, job_id: i64, used: i64) {
        self.weir.start_elsewhere(job_id).await;
        let ended = Ended {
            job_id,
            holder: Some(self.user),
            success: Some(Success {
                attempt: 1,
                job_created_at: None,
                output: json!(null),
                used: Some(used),
            }),
        };
        self.weir.context.settler.settle(ended).await.unwrap();
    }

    async fn cancel(&self, job_id: i64) {
        let who = Who::User(self.user);
        let path = format!("/api/jobs/{job_id}");
        assert_eq!(
            self.weir.call("DELETE", &path, who, &[], Vec::new()).await.status,
            200
        );
    }

    async fn grants(&self) -> Vec<Granted> {
        control::grants_of(&self.weir.client().await, &self.account)
            .await
            .unwrap()
    }

    async fn adjust(&self, amount: i64, credit: Credit) -> Adjustment {
        let wanted = NewAdjustment {
            meter: "analysis",
            amount,
            reason: "a test",
            credit,
        };
        let mut client = self.weir.client().await;
        let adjusted = control::adjust(&mut client, "shell:test", &self.account, &wanted, None).await;
        adjusted.unwrap().created
    }

    /// Lowers the grant.
    async fn lower(&self, grant: Uuid, amount: i64) -> Result<Granted, ControlError> {
        let mut client = self.weir.client().await;
        control::lower_grant(&mut client, "shell:test", &self.account, grant, amount, "refund").await
    }

    /// The sums of the usage events: amount, the part of grants, overage.
    async fn billed(&self) -> [i64; 3] {
        let sums = "SELECT sum(quota_amount)::bigint, sum(from_grants)::bigint, sum(overage)::bigint FROM usage_events";
        let row = self.weir.client().await.query_one(sums, &[]).await.unwrap();
        [0, 1, 2].map(|at| row.get(at))
    }

    /// The rest of each grant, in the order in which they are drawn on.
    async fn left(&self) -> Vec<i64> {
        self.grants().await.iter().map(|grant| grant.left).collect()
    }

    /// Used, reserved and remaining.
    async fn quota(&self) -> [i64; 3] {
        let quota = self.weir.quota(Who::User(self.user), "analysis").await;
        ["used", "reserved", "remaining"].map(|member| quota[member].as_i64().unwrap())
    }
}

const HOUR: SignedDuration = SignedDuration::from_hours(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_job_draws_on_grants_and_returns_what_it_does_not_use() {
    let scene = Scene::new(30).await;
    assert_eq!(scene.submit(80).await, None);
    scene.grant(100, None).await;
    assert_eq!(scene.quota().await, [20, 0, 130]);
    let job = scene.submit(80).await.unwrap();
    assert_eq!(
        (scene.left().await, scene.quota().await),
        (vec![50], [20, 80, 50])
    );
    assert_eq!(scene.weir.complaints().await, Vec::<String>::new());
    assert_eq!(scene.submit(51).await, None);
    scene.complete(job, 30).await;
    // The plan's 30 paid for it.
    assert_eq!(
        (scene.left().await, scene.quota().await),
        (vec![100], [50, 0, 100])
    );
    let job = scene.submit(80).await.unwrap();
    scene.complete(job, 30).await;
    assert_eq!((scene.left().await, scene.quota().await), (vec![70], [80, 0, 70]));
    let job = scene.submit(70).await.unwrap();
    assert_eq!(scene.submit(1).await, None);
    scene.cancel(job).await;
    assert_eq!((scene.left().await, scene.quota().await), (vec![70], [80, 0, 70]));
    let client = scene.weir.client().await;
    let row = client
        .query_one(
            "SELECT sum(quota_amount)::bigint, sum(from_grants)::bigint FROM usage_events",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (80, 30));
    scene.weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_survive_the_deletion_of_the_holders_row() {
    let scene = Scene::new(0).await;
    let client = scene.weir.client().await;
    let service = "SELECT outcome FROM weir_submit($1, 'analysis', '{\"files\": []}', 1)";
    for way in ["the ledger", "SQL"] {
        scene.grant(1, None).await;
        client.batch_execute("DELETE FROM holders").await.unwrap();
        let is_accepted = if way == "SQL" {
            let row = client
                .query_one(service, &[&scene.user.to_string()])
                .await
                .unwrap();
            ["admitted", "parked"].contains(&row.get(0))
        } else {
            scene.submit(1).await.is_some()
        };
        assert!(is_accepted, "by {way}");
    }
    scene.weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_are_drawn_by_expiry_and_hold_until_their_job_ends() {
    let scene = Scene::new(0).await;
    scene.grant(10, None).await;
    scene.grant(10, Some(HOUR * 2)).await;
    scene.grant(10, Some(HOUR)).await;
    let job = scene.submit(15).await.unwrap();
    assert_eq!(scene.left().await, [0, 5, 10]);
    let client = scene.weir.client().await;
    let expire = "UPDATE grants SET expires_at = now() - interval '1 second' WHERE expires_at IS NOT NULL";
    client.batch_execute(expire).await.unwrap();
    // The unused part has expired, and the reserved part is kept.
    assert_eq!(scene.quota().await, [50, 15, 10]);
    assert_eq!(scene.submit(11).await, None);
    scene.complete(job, 12).await;
    assert_eq!(scene.quota().await, [62, 0, 10]);
    let rows = client
        .query(
            "SELECT used FROM grants ORDER BY expires_at NULLS LAST, created_at DESC",
            &[],
        )
        .await
        .unwrap();
    let mut used: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    used.sort_unstable();
    assert_eq!(used, [0, 2, 10]);
    assert_eq!(scene.left().await, [10]);
    scene.weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_others_end_keep_grants_correct() {
    let scene = Scene::new(0).await;
    scene.grant(100, None).await;
    let jobs = [
        scene.submit(10).await.unwrap(),
        scene.submit(20).await.unwrap(),
        scene.submit(30).await.unwrap(),
    ];
    assert_eq!(scene.left().await, [40]);
    // By other clients, and by an operator.
    scene.weir.ended_by_other_client(jobs[0], "cancelled").await;
    scene.weir.ended_by_other_client(jobs[1], "completed").await;
    scene.weir.reconcile().await;
    assert_eq!(
        (scene.left().await, scene.quota().await),
        (vec![50], [70, 30, 50])
    );
    let cancelled =
        control::cancel_waiting(&mut scene.weir.client().await, "shell:test", &scene.account, None).await;
    assert_eq!(cancelled.unwrap(), 1);
    assert_eq!((scene.left().await, scene.quota().await), (vec![80], [70, 0, 80]));
    // A repair computes the same from the rows.
    scene
        .weir
        .client()
        .await
        .batch_execute("UPDATE holders SET from_grants = 1")
        .await
        .unwrap();
    assert!(!scene.weir.complaints().await.is_empty());
    weir_ledger::audit::repair(&mut scene.weir.client().await)
        .await
        .unwrap();
    assert_eq!(scene.quota().await, [70, 0, 80]);
    scene.weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_jobs_draw_exactly_the_granted_amount() {
    let scene = Scene::new(5).await;
    scene.grant(20, Some(HOUR)).await;
    scene.grant(10, None).await;
    let answers = futures_util::future::join_all((0..60).map(|_| scene.submit(1))).await;
    assert_eq!(answers.iter().flatten().count(), 35);
    assert_eq!(scene.quota().await, [45, 35, 0]);
    scene.weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn max_waiting_limits_the_waiting_jobs() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let client = weir.client().await;
    client
        .batch_execute("UPDATE subscription_plans SET max_waiting = 2 WHERE tier = 'free'")
        .await
        .unwrap();
    let body = files(&[("a_test.go", GO_TESTS)]);
    let submit = async || weir.post("/api/jobs/analysis", Who::User(user), &body).await;
    let first = submit().await.body["job"]["id"].as_i64().unwrap();
    for status in [202, 202, 429] {
        assert_eq!(submit().await.status, status);
    }
    let refused = submit().await;
    assert_eq!(refused.body["violated-policies"], json!(["waiting"]));
    assert!(
        refused.body["detail"]
            .as_str()
            .unwrap()
            .starts_with("2 jobs are waiting"),
        "{}",
        refused.body
    );
    assert_eq!(weir.quota(Who::User(user), "analysis").await["reserved"], 3);
    let path = format!("/api/jobs/{first}");
    assert_eq!(
        weir.call("DELETE", &path, Who::User(user), &[], Vec::new())
            .await
            .status,
        200
    );
    assert_eq!(submit().await.status, 202);
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn soon_due_jobs_do_not_bypass_max_waiting() {
    let weir = Weir::new().await;
    let user = weir.user("free").await;
    let client = weir.client().await;
    client
        .batch_execute("UPDATE subscription_plans SET max_waiting = 2 WHERE tier = 'free'")
        .await
        .unwrap();
    let body = files(&[("a_test.go", GO_TESTS)]);
    let soon = (jiff::Timestamp::now() + HOUR).to_string();
    let later = async || {
        let headers = [("Weir-Run-At", soon.as_str())];
        let body = body.to_string().into_bytes();
        let answer = weir.call("POST", "/api/jobs/analysis", Who::User(user), &headers, body);
        answer.await
    };
    for status in [202, 202, 429] {
        assert_eq!(later().await.status, status);
    }
    assert_eq!(later().await.body["violated-policies"], json!(["waiting"]));
    let now = async || {
        weir.post("/api/jobs/analysis", Who::User(user), &body)
            .await
            .status
    };
    assert_eq!(now().await, 202, "a slot is free");
    assert_eq!(now().await, 429);
    let outcome = client
        .query_one(
            "SELECT outcome FROM weir_submit($1, 'analysis', $2, NULL, jsonb_build_object('run_at', $3::text))",
            &[&user.to_string(), &body, &soon],
        )
        .await
        .unwrap();
    assert_eq!(outcome.get::<_, &str>("outcome"), "too_many_waiting");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_cover_usage_above_a_lowered_limit() {
    let scene = Scene::new(50).await;
    let client = scene.weir.client().await;
    let change = async |plan: &str| {
        let change = "UPDATE user_subscriptions SET plan_id = (SELECT id FROM subscription_plans WHERE tier::text = $2) \
                      WHERE user_id = $1";
        assert_eq!(client.execute(change, &[&scene.user, &plan]).await.unwrap(), 1);
    };
    change("pro").await;
    let job = scene.submit(400).await.unwrap();
    scene.complete(job, 400).await;
    change("free").await;
    assert_eq!(scene.submit(1).await, None);
    scene.grant(100, None).await;
    let job = scene.submit(60).await.unwrap();
    scene.weir.is_clean().await;
    // The same in SQL.
    let submit = "SELECT outcome FROM weir_submit($1, 'analysis', '{\"files\": []}', $2)";
    let submit = async |amount: i64| -> String {
        let row = client
            .query_one(submit, &[&scene.user.to_string(), &amount])
            .await;
        row.unwrap().get(0)
    };
    assert_eq!(submit(41).await, "over_quota");
    assert_eq!(submit(30).await, "parked");
    scene.complete(job, 60).await;
    scene.weir.is_clean().await;
    assert_eq!(scene.submit(11).await, None);
    let extend = "SELECT outcome FROM weir_extend((SELECT max(job_id) FROM quota_reservations), 1, $1)";
    scene
        .weir
        .start_elsewhere(
            client
                .query_one("SELECT max(job_id) FROM quota_reservations", &[])
                .await
                .unwrap()
                .get(0),
        )
        .await;
    for (more, outcome) in [(11_i64, "over_quota"), (10, "extended")] {
        let row = client.query_one(extend, &[&more]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), outcome);
    }
    assert_eq!(scene.left().await, [0]);
    scene.weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_window_row_is_rebuilt_from_usage() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let user = weir.user("free").await;
    let by_day = "UPDATE plan_limits SET day = 50 WHERE event_type = 'analysis'";
    client.batch_execute(by_day).await.unwrap();
    let submit = async |amount: i64| -> i64 {
        let args = json!({ "files": [{ "path": format!("{amount}_test.go"), "content": GO_TESTS }] });
        let submit = "SELECT job_id FROM weir_submit($1, 'analysis', $2, $3)";
        let row = client
            .query_one(submit, &[&user.to_string(), &args, &amount])
            .await;
        row.unwrap().get(0)
    };
    let (used, waits) = (submit(40).await, submit(0).await);
    weir.start_elsewhere(used).await;
    let complete = "SELECT outcome FROM weir_complete($1, 1)";
    client.query_one(complete, &[&used]).await.unwrap();
    // Nine days pass.
    client
        .batch_execute(
            "UPDATE quota_reservations SET created_at = created_at - interval '9 days'; \
             UPDATE usage_events SET created_at = created_at - interval '9 days', \
                 reserved_at = reserved_at - interval '9 days'; \
             UPDATE window_balances SET period_start = period_start - interval '9 days' WHERE span = 'day'",
        )
        .await
        .unwrap();
    let forget = include_str!("../../../ledger/src/reconciliation/sql/clean_windows.sql");
    assert_eq!(client.execute(forget, &[&1000_i64]).await.unwrap(), 1);
    weir.start_elsewhere(waits).await;
    let extend = async |more: i64| -> String {
        let extend = "SELECT outcome FROM weir_extend($1, 1, $2)";
        client.query_one(extend, &[&waits, &more]).await.unwrap().get(0)
    };
    assert_eq!(extend(11).await, "over_quota", "of that day");
    assert_eq!(extend(10).await, "extended");
    assert!(
        weir.complaints().await.is_empty(),
        "{:#?}",
        weir.complaints().await
    );
    client.query_one(complete, &[&waits]).await.unwrap();
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_with_unreadable_expiry_are_refused() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute(
            "INSERT INTO users (id) VALUES ('00000000-0000-4000-8000-000000000001'); \
             INSERT INTO grants (user_id, event_type, amount, reason) \
             VALUES ('00000000-0000-4000-8000-000000000001', 'analysis', 5, 'a test')",
        )
        .await
        .unwrap();
    for moment in ["infinity", "-infinity", "9999-12-31"] {
        let update = format!("UPDATE grants SET expires_at = '{moment}'");
        let error = client.batch_execute(&update).await.unwrap_err();
        let constraint = error.as_db_error().and_then(|error| error.constraint());
        assert_eq!(constraint, Some("grants_expires_at_exists"), "{moment}");
    }
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_returns_to_grants_what_they_paid_for() {
    let scene = Scene::new(5).await;
    scene.grant(10, None).await;
    let job = scene.submit(12).await.unwrap();
    scene.complete(job, 12).await;
    assert_eq!((scene.billed().await, scene.left().await), ([57, 7, 0], vec![3]));
    let refund = scene.adjust(-12, Credit::Grants).await;
    assert_eq!((refund.used, refund.from_grants), (45, -7));
    assert_eq!((scene.billed().await, scene.left().await), ([45, 0, 0], vec![10]));
    assert_eq!(scene.quota().await, [45, 0, 15]);
    assert_eq!(scene.weir.complaints().await, Vec::<String>::new());

    // A part, of the plan first and of grants first.
    let job = scene.submit(12).await.unwrap();
    scene.complete(job, 12).await;
    let refund = scene.adjust(-2, Credit::Plan).await;
    assert_eq!((refund.from_grants, scene.left().await), (0, vec![3]));
    let refund = scene.adjust(-3, Credit::Grants).await;
    assert_eq!((refund.from_grants, scene.left().await), (-3, vec![6]));
    assert_eq!(scene.billed().await, [52, 4, 0]);
    assert_eq!(scene.weir.complaints().await, Vec::<String>::new());
    scene.weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_makes_a_used_up_grant_usable_again() {
    let scene = Scene::new(0).await;
    scene.grant(4, Some(HOUR)).await;
    scene.grant(5, None).await;
    let job = scene.submit(9).await.unwrap();
    scene.complete(job, 9).await;
    assert_eq!((scene.left().await, scene.submit(1).await), (vec![], None));
    let client = scene.weir.client().await;
    client
        .batch_execute(
            "UPDATE grants SET expires_at = now() - interval '1 second' WHERE expires_at IS NOT NULL",
        )
        .await
        .unwrap();
    // To the grant that can still be used.
    assert_eq!(scene.adjust(-3, Credit::Grants).await.from_grants, -3);
    assert_eq!(scene.left().await, [3]);
    let job = scene.submit(3).await.unwrap();
    scene.cancel(job).await;
    // More than that goes to the expired one, and lapses.
    assert_eq!(scene.adjust(-5, Credit::Grants).await.from_grants, -5);
    assert_eq!(scene.left().await, [5]);
    assert_eq!(scene.weir.complaints().await, Vec::<String>::new());
    scene.weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_is_taken_back_down_to_what_is_used() {
    let scene = Scene::new(0).await;
    scene.grant(10, None).await;
    let grant = scene.grants().await[0].id;
    let job = scene.submit(3).await.unwrap();
    scene.complete(job, 3).await;
    let job = scene.submit(2).await.unwrap();
    let lowered = async |amount: i64| {
        let granted = scene.lower(grant, amount).await.unwrap();
        (granted.amount, granted.left)
    };
    assert_eq!(lowered(8).await, (8, 3));
    assert_eq!(lowered(9).await, (8, 3), "it is not raised");
    assert_eq!(lowered(4).await, (5, 0), "used or reserved");
    assert_eq!(scene.submit(1).await, None);
    assert_eq!(lowered(0).await, (5, 0));
    assert_eq!(lowered(0).await, (5, 0), "again");
    scene.cancel(job).await;
    assert_eq!(scene.quota().await[2], 0, "what returns to an ended grant lapses");
    assert_eq!(scene.submit(1).await, None);
    assert_eq!(scene.weir.complaints().await, Vec::<String>::new());

    let log = "SELECT reason, before ->> 'amount', after ->> 'amount' FROM admin_log WHERE action = 'grant.lower' ORDER BY id";
    let rows = scene.weir.client().await.query(log, &[]).await.unwrap();
    let changes: Vec<[String; 3]> = rows.iter().map(|row| [0, 1, 2].map(|at| row.get(at))).collect();
    assert_eq!(
        changes,
        [["refund", "10", "8"], ["refund", "8", "5"], ["refund", "5", "5"]]
    );
    let missing = scene.lower(Uuid::new_v4(), 0).await;
    assert!(
        matches!(missing, Err(ControlError::GrantNotFound(_))),
        "{missing:?}"
    );
    assert!(matches!(
        scene.lower(grant, -1).await,
        Err(ControlError::Invalid(_))
    ));
    // A grant of another user.
    let holders = Holders::load(&scene.weir.client().await).await.unwrap();
    let stranger = User::of(holders, scene.weir.user("free").await.into());
    let mut client = scene.weir.client().await;
    let refused = control::lower_grant(&mut client, "shell:test", &stranger, grant, 0, "refund").await;
    assert!(
        matches!(refused, Err(ControlError::GrantNotFound(_))),
        "{refused:?}"
    );
    scene.weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_grant_is_taken_back_as_a_whole() {
    let scene = Scene::new(0).await;
    scene.grant(10, None).await;
    let grant = scene.grants().await[0].id;
    let granted = scene.lower(grant, 0).await.unwrap();
    assert_eq!((granted.amount, granted.left), (0, 0));
    assert!(granted.expires_at.is_some());
    assert_eq!((scene.left().await, scene.submit(1).await), (vec![], None));
    assert_eq!(scene.weir.complaints().await, Vec::<String>::new());
    scene.weir.end().await;
}

//! Upgrades: a database of an earlier schema with jobs in every state is migrated, and everything goes on.

use crate::common::{Weir, Who};
use serde_json::json;
use uuid::Uuid;
use weir_ledger::database::Database;
use weir_ledger::migrate;

const FREE: Uuid = Uuid::from_u128(1);
const PRO: Uuid = Uuid::from_u128(2);

/// A user whose id was made from its subject by SHA-1, with usage, a job that waits for later, and a subscription.
const USER_OF_V7: &str = r#"
    INSERT INTO users (id, subject) VALUES ('5e1f0c1a-7a43-5a6e-9b1d-2f3c4d5e6f70', 'auth0|anne');
    INSERT INTO user_subscriptions (user_id, plan_id)
    SELECT '5e1f0c1a-7a43-5a6e-9b1d-2f3c4d5e6f70', id FROM subscription_plans WHERE tier = 'pro';
    INSERT INTO usage_events (user_id, event_type, quota_amount)
    VALUES ('5e1f0c1a-7a43-5a6e-9b1d-2f3c4d5e6f70', 'analysis', 7);
    INSERT INTO river_job (id, args, kind, max_attempts, queue, state)
    VALUES (1, '{"user_id": "auth0|anne", "files": [{"path": "a_test.go", "content": "func TestA(t *testing.T) {}"}]}',
            'analysis:analyze', 3, 'analysis_priority', 'available');
    INSERT INTO quota_reservations (user_id, event_type, reserved_amount, job_id)
    VALUES ('5e1f0c1a-7a43-5a6e-9b1d-2f3c4d5e6f70', 'analysis', 2, 1);
    INSERT INTO submissions (job_id, holder, user_id, event_type, reserved_amount)
    VALUES (1, '5e1f0c1a-7a43-5a6e-9b1d-2f3c4d5e6f70', '5e1f0c1a-7a43-5a6e-9b1d-2f3c4d5e6f70', 'analysis', 2)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn users_whose_ids_were_made_by_another_hash_keep_all_they_have() {
    let weir = Weir::made(&[], async |url| {
        let database = Database::at(url).unwrap();
        migrate::migrate_to(&database, 9).await.unwrap();
        database
            .connect()
            .await
            .unwrap()
            .batch_execute(USER_OF_V7)
            .await
            .unwrap();
        migrate::migrate(&database).await.unwrap();
    })
    .await;
    let who = Who::Subject("auth0|anne");
    let usage = weir.get("/api/usage", who).await.body;
    assert_eq!(
        (
            &usage["tier"],
            &usage["analysis"]["used"],
            &usage["analysis"]["reserved"]
        ),
        (&json!("pro"), &json!(7), &json!(2))
    );
    let working = weir.work().await;
    assert_eq!(weir.finished(1, who).await["charged"], 2);
    weir.released(who, "analysis").await;
    assert_eq!(weir.count("users").await, 1);
    working.stop().await;
    weir.end().await;
}

/// One job a state, as the first version of Weir wrote them: a Free user with one running and two parked jobs, a Pro
/// user with jobs before and between attempts and with some that are over.
const JOBS_OF_V1: &str = r#"
    INSERT INTO users (id) VALUES ('00000000-0000-0000-0000-000000000001'), ('00000000-0000-0000-0000-000000000002');
    INSERT INTO user_subscriptions (user_id, plan_id)
    SELECT u.id, p.id FROM users u JOIN subscription_plans p
        ON p.tier = CASE u.id WHEN '00000000-0000-0000-0000-000000000001' THEN 'free' ELSE 'pro' END::plan_tier;
    INSERT INTO processes (client_id, beat_at) VALUES ('died-in-the-upgrade', now() - interval '5 seconds');

    CREATE TEMP TABLE jobs (id bigint, user_id uuid, state river_job_state, attempt int, queue text, holds text);
    INSERT INTO jobs VALUES
        (101, '00000000-0000-0000-0000-000000000001', 'running',   1, 'analysis_default',  'slot'),
        (102, '00000000-0000-0000-0000-000000000001', 'pending',   0, 'analysis_default',  'place'),
        (103, '00000000-0000-0000-0000-000000000001', 'pending',   0, 'analysis_default',  'place'),
        (201, '00000000-0000-0000-0000-000000000002', 'available', 0, 'analysis_priority', 'slot'),
        (202, '00000000-0000-0000-0000-000000000002', 'retryable', 1, 'analysis_priority', 'quota'),
        (203, '00000000-0000-0000-0000-000000000002', 'scheduled', 0, 'analysis_priority', 'quota'),
        (204, '00000000-0000-0000-0000-000000000002', 'completed', 1, 'analysis_priority', NULL),
        (205, '00000000-0000-0000-0000-000000000002', 'discarded', 3, 'analysis_priority', NULL),
        (206, '00000000-0000-0000-0000-000000000002', 'cancelled', 0, 'analysis_priority', NULL);
    INSERT INTO river_job (id, args, kind, max_attempts, metadata, queue, state, attempt, attempted_at, attempted_by,
                           scheduled_at, finalized_at, errors)
    SELECT id, jsonb_build_object('user_id', user_id, 'files',
                   jsonb_build_array(jsonb_build_object('path', 'a_test.go', 'content', 'func TestA(t *testing.T) {}'))),
           'analysis:analyze', 3,
           CASE WHEN state = 'completed' THEN '{"output": {"tests": [], "count": 0}}' ELSE '{}' END::jsonb,
           queue, state, attempt,
           CASE WHEN attempt > 0 THEN now() - interval '4 seconds' END,
           CASE WHEN attempt > 0 THEN ARRAY['died-in-the-upgrade'] END,
           now() + CASE WHEN state IN ('retryable', 'scheduled') THEN interval '1 second' ELSE interval '0' END,
           CASE WHEN state IN ('completed', 'discarded', 'cancelled') THEN now() - interval '1 minute' END,
           CASE WHEN state IN ('retryable', 'discarded') THEN ARRAY['{"at": "2026-01-01T00:00:00Z", "attempt": 1, "error": "no", "trace": ""}'::jsonb] END
    FROM jobs;
    SELECT setval('river_job_id_seq', 1000);
    INSERT INTO submissions (job_id, holder, user_id, event_type, reserved_amount, idempotency_key, request_hash)
    SELECT id, user_id, user_id, 'analysis', 1, 'key-' || id, decode('00', 'hex') FROM jobs;
    INSERT INTO quota_reservations (user_id, event_type, reserved_amount, job_id, holder, admitted_at, parked_at)
    SELECT user_id, 'analysis', 1, id, user_id, CASE WHEN holds = 'slot' THEN now() END,
           CASE WHEN holds = 'place' THEN now() END
    FROM jobs WHERE holds IS NOT NULL;
    INSERT INTO usage_events (user_id, event_type, quota_amount, job_id)
    SELECT user_id, 'analysis', 1, id FROM jobs WHERE state = 'completed';
"#;

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_every_state_go_on_after_an_upgrade_from_the_first_schema() {
    let weir = Weir::made(&[], async |url| {
        let database = Database::at(url).unwrap();
        migrate::migrate_to(&database, 1).await.unwrap();
        let client = database.connect().await.unwrap();
        assert!(
            !migrate::is_current(&client).await.unwrap(),
            "a process of now would not start on it"
        );
        client.batch_execute(JOBS_OF_V1).await.unwrap();
        let applied = migrate::migrate(&database).await.unwrap();
        assert!(applied.weir.len() >= 2, "{applied:?}");
        assert!(migrate::is_current(&client).await.unwrap());
    })
    .await;
    // What lives keeps its quota and its place.
    for (user, reserved, used) in [(FREE, 3, 0), (PRO, 3, 1)] {
        let quota = weir.quota(Who::User(user), "analysis").await;
        assert_eq!(
            (&quota["reserved"], &quota["used"]),
            (&json!(reserved), &json!(used)),
            "{quota}"
        );
    }
    let working = weir.work().await;
    let stopped = tokio_util::sync::CancellationToken::new();
    let reconciling = tokio::spawn(weir::work::reconcile::run(weir.another(&[]), stopped.clone()));
    for (user, ids, status) in [
        (FREE, 101..=103, "completed"),
        (PRO, 201..=204, "completed"),
        (PRO, 205..=205, "failed"),
        (PRO, 206..=206, "cancelled"),
    ] {
        for id in ids {
            let job = weir.finished(id, Who::User(user)).await;
            assert_eq!(job["status"], status, "{job}");
            assert_eq!(job["charged"], i32::from(status == "completed"), "{job}");
        }
    }
    for (user, used) in [(FREE, 3), (PRO, 4)] {
        weir.released(Who::User(user), "analysis").await;
        assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], used);
    }
    stopped.cancel();
    reconciling.await.unwrap();
    working.stop().await;
    weir.end().await;
}

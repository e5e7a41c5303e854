//! The documented example of `weir_ledger::reservation::reserve`: a reservation inside the caller's transaction.

#[path = "../../../ledger/examples/own_transaction.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "it is a separate program")]
mod example;

use crate::common::{Weir, Who};

#[tokio::test(flavor = "multi_thread")]
async fn the_job_and_the_callers_row_commit_together() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    client
        .batch_execute("CREATE TABLE uploads (user_id uuid NOT NULL, path text NOT NULL UNIQUE)")
        .await
        .unwrap();
    let user = weir.user("free").await;
    let who = Who::User(user);
    let count = async |table: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM {table}");
        client.query_one(&sql, &[]).await.unwrap().get(0)
    };

    let database = &weir.context.database;
    let first = example::upload(database, user, "a_test.go")
        .await
        .unwrap()
        .unwrap();
    assert_eq!((count("uploads").await, count("river_job").await), (1, 1));
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 1);
    assert_eq!(
        weir.get(&format!("/api/jobs/{first}"), who).await.body["waiting_for"],
        "worker"
    );
    // The Free plan has one slot.
    let second = example::upload(database, user, "b_test.go")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        weir.get(&format!("/api/jobs/{second}"), who).await.body["waiting_for"],
        "slot"
    );

    // The caller's own statement fails: no job.
    assert!(example::upload(database, user, "a_test.go").await.is_err());
    assert_eq!((count("uploads").await, count("river_job").await), (2, 2));
    // Over the quota: no row.
    weir.use_up(user, "analysis", 48).await;
    assert_eq!(example::upload(database, user, "c_test.go").await.unwrap(), None);
    assert_eq!((count("uploads").await, count("river_job").await), (2, 2));

    let working = weir.work().await;
    assert_eq!(weir.finished(second, who).await["status"], "completed");
    weir.all_finished().await;
    working.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_book_the_callers_later_writes() {
    use weir_ledger::reservation::{Submission, reserve};
    let weir = Weir::new().await;
    let user = uuid::Uuid::new_v4();
    let submission = Submission {
        holder: weir_ledger::holder::Holders::user(user),
        subject: None,
        service: "analysis".to_owned(),
        meter: weir_ledger::meter::Meter::named("analysis"),
        kind: "analysis:analyze".to_owned(),
        max_attempts: 3,
        args: serde_json::json!({ "user_id": user }),
        metadata: serde_json::json!({}),
        amount: 2,
        idempotency: None,
        unique_key: None,
        run_at: None,
        priority: 1,
    };
    let mut client = weir.client().await;
    let transaction = client.transaction().await.unwrap();
    // An unknown user.
    reserve(&transaction, &submission).await.unwrap();
    transaction
        .execute(
            "SELECT weir_charge($1::uuid::text, 'analysis', 5, gen_random_uuid()::text, now())",
            &[&user],
        )
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let quota = weir.quota(Who::User(user), "analysis").await;
    assert_eq!((&quota["used"], &quota["reserved"]), (&5.into(), &2.into()));
    weir.end().await;
}

/// A product's trigger on `river_job` runs inside Weir's transactions. What it writes counts as any other's, and what it
/// submits sees the job that fired it.
#[tokio::test(flavor = "multi_thread")]
async fn writes_and_submissions_of_triggers_on_jobs_are_counted() {
    let weir = Weir::new().await;
    let (user, client) = (weir.user("free").await, weir.client().await);
    client
        .batch_execute(&format!(
            "CREATE TABLE follow_ups (outcome text NOT NULL);
             CREATE FUNCTION follow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF pg_trigger_depth() = 1 THEN
                     INSERT INTO follow_ups
                     SELECT outcome FROM weir_submit('{user}', 'specview', jsonb_build_object('n', NEW.id), 30);
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER follow AFTER INSERT ON river_job FOR EACH ROW EXECUTE FUNCTION follow();
             CREATE FUNCTION bill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM weir_charge('{user}', 'specview', 7, gen_random_uuid()::text, now());
                 RETURN NULL;
             END $$;
             CREATE TRIGGER bill AFTER UPDATE ON river_job FOR EACH ROW
             WHEN (OLD.state <> 'completed' AND NEW.state = 'completed') EXECUTE FUNCTION bill()"
        ))
        .await
        .unwrap();
    let limit = "UPDATE plan_limits SET month = 50 WHERE event_type = 'specview'";
    client.batch_execute(limit).await.unwrap();
    let submit = format!("SELECT outcome, job_id FROM weir_submit('{user}', 'specview', '{{}}', 30)");
    let row = client.query_one(&submit, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>("outcome"), "admitted");
    let row_of_trigger = client
        .query_one("SELECT outcome FROM follow_ups", &[])
        .await
        .unwrap();
    assert_eq!(row_of_trigger.get::<_, &str>("outcome"), "over_quota");
    assert_eq!(weir.quota(Who::User(user), "specview").await["reserved"], 30);

    let id: i64 = row.get("job_id");
    weir.start_elsewhere(id).await;
    let complete = format!("SELECT outcome FROM weir_complete({id}, 1, used => 4)");
    client.query_one(&complete, &[]).await.unwrap();
    let quota = weir.quota(Who::User(user), "specview").await;
    assert_eq!((&quota["used"], &quota["reserved"]), (&11.into(), &0.into()));
    let complaints = weir.complaints().await;
    assert!(complaints.is_empty(), "{complaints:#?}");
    weir.abandon().await;
}

/// The processes' sessions count their own writes, and nothing that triggers add, at whatever change of a job they fire.
#[tokio::test(flavor = "multi_thread")]
async fn writes_of_triggers_are_counted_at_every_change_of_a_job() {
    let weir = Weir::new().await;
    let (user, client) = (weir.user("free").await, weir.client().await);
    client
        .batch_execute(&format!(
            "CREATE FUNCTION bill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM weir_charge('{user}', 'specview', 1, gen_random_uuid()::text, now());
                 RETURN NULL;
             END $$;
             CREATE TRIGGER bill AFTER UPDATE ON river_job FOR EACH ROW
             WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION bill();
             CREATE CONSTRAINT TRIGGER bill_at_commit AFTER INSERT OR UPDATE ON river_job DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION bill()"
        ))
        .await
        .unwrap();
    let who = Who::User(user);
    let id = weir.analyse(who, "a_test.go", crate::common::GO_TESTS).await;
    weir.start_elsewhere(id).await;
    let fail = format!("SELECT weir_fail({id}, 1, 'a test')");
    client.batch_execute(&fail).await.unwrap();
    let is_due = format!("UPDATE quota_reservations SET due_at = now() WHERE job_id = {id}");
    client.batch_execute(&is_due).await.unwrap();
    weir.reconcile().await;
    let working = weir.work().await;
    assert_eq!(weir.finished(id, who).await["status"], "completed");
    weir.all_finished().await;
    working.stop().await;
    let sums = "SELECT (SELECT sum(quota_amount) FROM usage_events WHERE event_type = 'specview')::bigint AS written,
                       (SELECT used FROM quota_balances WHERE event_type = 'specview') AS used";
    let row = client.query_one(sums, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>("used"), row.get::<_, i64>("written"));
    assert_eq!(weir.complaints().await, [""; 0]);
    weir.abandon().await;
}

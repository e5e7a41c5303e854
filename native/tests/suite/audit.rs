//! The audit names every violation of every invariant. The tests cause each one on purpose.

use crate::common;
use crate::common::{GO_TESTS, Weir, Who};
use uuid::Uuid;

/// A Free user with one job that has its slot, and one that waits for it.
struct Scene {
    weir: Weir,
    user: Uuid,
    job: i64,
}

impl Scene {
    async fn new() -> Self {
        let weir = Weir::new().await;
        let user = weir.user("free").await;
        let job = weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
        weir.analyse(Who::User(user), "b_test.go", GO_TESTS).await;
        weir.is_clean().await;
        Self { weir, user, job }
    }
}

/// A change (`$user` and `$job` are replaced), and the audit's finding.
const VIOLATIONS: [(&str, &str, &str); 40] = [
    (
        "used + reserved over the limit",
        "INSERT INTO usage_events (user_id, event_type, quota_amount, period_start) \
         VALUES ('$user', 'analysis', 60, period_start_of('$user', now()))",
        "I1: user $user, analysis",
    ),
    (
        "more slots than the plan has",
        "UPDATE quota_reservations SET admitted_at = now(), parked_at = NULL WHERE holder = '$user'",
        "I2: holder $user, analysis: 2 slots in use, limit 1",
    ),
    (
        "a job that runs without a slot",
        "UPDATE river_job SET state = 'running', attempt = 1, attempted_by = '{other}', attempted_at = now() WHERE id = $job; \
         UPDATE quota_reservations SET admitted_at = NULL WHERE job_id = $job",
        "I2: job $job of holder $user (analysis:analyze) runs without a slot",
    ),
    (
        "a completed job that is not charged",
        "UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = $job; \
         $ended",
        "I3: job $job (completed) of user $user: charged 0 time(s)",
    ),
    (
        "a cancelled job that is charged",
        "UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = $job; \
         $ended; \
         INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start) \
         VALUES ('$user', 'analysis', 1, $job, period_start_of('$user', now()))",
        "I3: job $job (cancelled) of user $user: charged 1 time(s)",
    ),
    (
        "a discarded job that is charged",
        "UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE id = $job; \
         $ended; \
         INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start) \
         VALUES ('$user', 'analysis', 1, $job, period_start_of('$user', now()))",
        "I3: job $job (discarded) of user $user: charged 1 time(s)",
    ),
    (
        "a completed job that is charged too much",
        "UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = $job; \
         $ended; \
         INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start) \
         VALUES ('$user', 'analysis', 7, $job, period_start_of('$user', now()))",
        "I3: job $job (completed) of user $user: charged 1 time(s), 7 in all, should be 1",
    ),
    (
        "a job that was due long ago",
        "UPDATE river_job SET state = 'pending' WHERE id = $job; \
         UPDATE quota_reservations SET admitted_at = NULL, due_at = now() - interval '1 min' WHERE job_id = $job",
        "I5: job $job of holder $user (pending) has been due since",
    ),
    (
        "a reservation of a job that ended",
        "UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = $job",
        "I4: job $job (cancelled): reservation of 1",
    ),
    (
        "a reservation of a job that is gone",
        "DELETE FROM river_job WHERE id = $job",
        "I4: job $job (gone): reservation of 1",
    ),
    (
        "a reservation that expired under a living job",
        "UPDATE quota_reservations SET expires_at = now() - interval '1 second' WHERE job_id = $job",
        "I4: job $job (available): expired",
    ),
    (
        "a waiting job of a deleted user",
        "UPDATE river_job SET state = 'pending' WHERE id = $job; DELETE FROM users WHERE id = '$user'",
        "I5: job $job (pending) is unfinished and has no reservation",
    ),
    (
        "a job that stays parked while a slot is free",
        "UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = $job; \
         $ended",
        "I5: holder $user, analysis: 1 job(s) wait although 0 of 1 slots are in use",
    ),
    (
        "a running job of an unregistered process",
        "UPDATE river_job SET state = 'running', attempt = 1, attempted_by = '{weir_gone}', attempted_at = now() WHERE id = $job",
        "I5: job $job runs in weir_gone, which is not registered",
    ),
    (
        "a running job of a dead process",
        "INSERT INTO processes (client_id, beat_at) VALUES ('weir_dead', now() - interval '5 minutes'); \
         UPDATE river_job SET state = 'running', attempt = 1, attempted_by = '{weir_dead}', \
             attempted_at = now() - interval '5 minutes' WHERE id = $job",
        "I5: job $job runs in weir_dead, which has been silent",
    ),
    (
        "a job with a slot that no worker runs and that does not wait for a worker",
        "UPDATE river_job SET state = 'pending' WHERE id = $job; \
         UPDATE quota_reservations SET admitted_at = now() - interval '1 minute' WHERE job_id = $job",
        "I5: job $job of holder $user holds a slot without a running attempt",
    ),
    (
        "a job that failed long ago and keeps its slot",
        "UPDATE river_job SET state = 'retryable', attempt = 1, scheduled_at = now() + interval '1 hour', \
             errors = ARRAY[jsonb_build_object('at', now() - interval '11 minutes', 'attempt', 1, 'error', 'x', 'trace', '')] \
         WHERE id = $job",
        "I5: job $job of holder $user waits for its next attempt and keeps a slot",
    ),
    (
        "a job that was snoozed long ago and keeps its slot",
        "UPDATE river_job SET state = 'scheduled', attempted_at = now() - interval '71 minutes', \
             scheduled_at = now() + interval '1 hour' WHERE id = $job",
        "I5: job $job of holder $user waits for its next attempt and keeps a slot",
    ),
    (
        "a job that has no slot and is in no line",
        "UPDATE river_job SET state = 'pending' WHERE id = $job; \
         UPDATE quota_reservations SET admitted_at = NULL WHERE job_id = $job",
        "I5: job $job of holder $user (pending) waits for nothing",
    ),
    (
        "an outstanding attempt past its deadline",
        "UPDATE river_job SET state = 'pending', attempt = 1, attempted_by = '{other}' WHERE id = $job; \
         INSERT INTO outstanding_attempts (job_id, claim, patience, deadline_at) \
             VALUES ($job, '1.1', '1 minute', now() - interval '1 minute')",
        "I5: job $job: its handler should have answered by",
    ),
    (
        "an outstanding attempt without a slot",
        "UPDATE river_job SET state = 'pending', attempt = 1, attempted_by = '{other}', attempted_at = now() WHERE id = $job; \
         INSERT INTO outstanding_attempts (job_id, claim, patience, deadline_at) \
             VALUES ($job, '1.1', '1 minute', now() + interval '1 minute'); \
         UPDATE quota_reservations SET admitted_at = NULL WHERE job_id = $job",
        "I2: job $job of holder $user (analysis:analyze) runs without a slot",
    ),
    (
        "a slot counter that lies",
        "UPDATE holders SET slots_in_use = 0 WHERE holder = '$user'",
        "I6: holder $user, analysis: slots 0, counted 1",
    ),
    (
        "a counter of waiting jobs that lies",
        "UPDATE holders SET parked = 5 WHERE holder = '$user'",
        "I6: holder $user, analysis: slots 1, counted 1; parked 5, counted 1",
    ),
    (
        "a start of promotion behind a parked job",
        "UPDATE holders SET parked_from = 9223372036854775807 WHERE holder = '$user'",
        "I6: holder $user, analysis: slots 1, counted 1; parked 1, counted 1; parked from 9223372036854775807, first ",
    ),
    (
        "a balance that lies",
        "UPDATE holders SET reserved = 0, used = 3 WHERE holder = '$user'",
        "I6: user $user, analysis",
    ),
    (
        "a grant with usage that nothing drew",
        "INSERT INTO grants (id, user_id, event_type, amount, reserved, reason) \
         VALUES ('$user', '$user', 'analysis', 10, 4, 'a test')",
        "I7: grant $user of user $user, analysis: 10 given; reserved 4, drawn 0",
    ),
    (
        "a grant that is never drawn",
        "INSERT INTO grants (id, user_id, event_type, amount, reason) \
         VALUES ('$user', '$user', 'analysis', 10, 'a test')",
        "I7: grant $user of user $user, analysis has 10 left, but holders.has_grants is false",
    ),
    (
        "usage that grants paid for, and no grant did",
        "INSERT INTO usage_events (user_id, event_type, quota_amount, from_grants, period_start) \
         VALUES ('$user', 'analysis', 5, 5, period_start_of('$user', now()))",
        "I7: user $user, analysis: reservations have 0 from grants, which have 0; usage has 5, grants 0",
    ),
    (
        "a job that was deleted with its reservation",
        "$ended; DELETE FROM river_job WHERE id = $job",
        "I5: job $job of holder $user was accepted and is lost",
    ),
    (
        "a job that was discarded without an attempt",
        "UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE id = $job; \
         $ended",
        "I5: job $job of holder $user was discarded without an attempt",
    ),
    (
        "a charge to another user",
        "$charged; UPDATE usage_events SET user_id = '$other'",
        "I3: job $job: charged to user $other, analysis",
    ),
    (
        "a charge to another meter",
        "$charged; UPDATE usage_events SET event_type = 'specview'",
        "I3: job $job: charged to user $user, specview",
    ),
    (
        "a charge to the next month",
        "$charged; UPDATE usage_events SET period_start = period_start + interval '1 month'",
        "I3: job $job: submitted at",
    ),
    (
        "a charge to the month before",
        "$charged; UPDATE usage_events SET period_start = period_start - interval '1 month'",
        "I3: job $job: submitted at",
    ),
    (
        "a charge to a period between two",
        "$charged; UPDATE usage_events SET period_start = period_start - interval '1 day'",
        "I3: job $job: submitted at",
    ),
    (
        "a slot in a queue that no service works",
        "UPDATE river_job SET queue = 'nowhere' WHERE id = $job",
        "I5: job $job of holder $user holds a slot in the queue nowhere",
    ),
    (
        "a slot of a kind that no service works",
        "UPDATE river_job SET kind = 'nothing' WHERE id = $job",
        "I5: job $job of holder $user holds a slot in the queue analysis_default with the kind nothing",
    ),
    (
        "a reservation that asks for a slot in 2099",
        "UPDATE river_job SET state = 'pending' WHERE id = $job; \
         UPDATE quota_reservations SET admitted_at = NULL, due_at = '2099-01-01Z' WHERE job_id = $job",
        "I5: job $job of holder $user (pending) is due at",
    ),
    (
        "an available job with a slot that starts in 2099",
        "UPDATE river_job SET scheduled_at = '2099-01-01Z' WHERE id = $job",
        "I5: job $job of holder $user holds a slot and starts at 2099",
    ),
    (
        "a scheduled job with a slot that starts in 2099",
        "UPDATE river_job SET state = 'scheduled', scheduled_at = '2099-01-01Z' WHERE id = $job",
        "I5: job $job of holder $user holds a slot and starts at 2099",
    ),
];

/// The job holds nothing.
const ENDED: &str = "UPDATE weir_jobs SET ended_at = now(), admitted_at = NULL, parked_at = NULL, due_at = NULL WHERE job_id = $job";

/// The job was completed and charged.
const CHARGED: &str = "UPDATE river_job SET state = 'completed', attempt = 1, finalized_at = now() WHERE id = $job; \
    $ended; \
    INSERT INTO usage_events (user_id, event_type, quota_amount, job_id, period_start) \
         VALUES ('$user', 'analysis', 1, $job, period_start_of('$user', now()))";

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_names_every_deliberate_violation() {
    let mut unseen = Vec::new();
    for (what, sql, wanted) in VIOLATIONS {
        let Scene { weir, user, job } = Scene::new().await;
        let other = weir.user("free").await;
        let with_names = |text: &str| {
            text.replace("$charged", CHARGED)
                .replace("$ended", ENDED)
                .replace("$user", &user.to_string())
                .replace("$other", &other.to_string())
                .replace("$job", &job.to_string())
        };
        weir.client().await.batch_execute(&with_names(sql)).await.unwrap();
        let wanted = with_names(wanted);
        // The counters are right, unless they are the violation.
        if !wanted.starts_with("I6") && !sql.contains("UPDATE holders") {
            weir.recount().await;
        }
        let complaints = weir.complaints().await;
        if !complaints.iter().any(|one| one.starts_with(&wanted)) {
            unseen.push(format!("{what}: wanted {wanted:?}, got {complaints:#?}"));
        }
        // These can be repaired.
        if wanted.starts_with("I6") {
            let repaired = weir_ledger::audit::repair(&mut weir.client().await).await;
            assert_eq!(repaired.unwrap(), 1, "{what}");
            assert_eq!(weir.complaints().await, [""; 0], "{what}");
        }
        weir.abandon().await;
    }
    assert!(unseen.is_empty(), "{}", unseen.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charged_job_that_ran_again_is_not_a_violation() {
    let scene = Scene::new().await;
    let (weir, job) = (&scene.weir, scene.job);
    weir.start_elsewhere(job).await;
    weir.ended_by_other_client(job, "completed").await;
    weir.reconcile().await;
    weir.is_clean().await;
    // An operator retries it. This time it either has everything already, or it fails.
    for (state, used) in [("completed", "0"), ("cancelled", "1"), ("discarded", "1")] {
        let again = format!(
            "UPDATE river_job SET state = '{state}', attempt = attempt + 1, attempted_at = now(), \
                    finalized_at = now(), metadata = metadata || '{{\"weir:used\": {used}}}' WHERE id = {job}"
        );
        weir.client().await.batch_execute(&again).await.unwrap();
        assert_eq!(weir.complaints().await, [""; 0], "{state}");
    }
    scene.weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_deleted_after_its_cancellation_is_not_lost() {
    let Scene { weir, user, job } = Scene::new().await;
    let path = format!("/api/jobs/{job}");
    let answer = weir.call("DELETE", &path, Who::User(user), &[], Vec::new()).await;
    assert_eq!(answer.body["status"], "cancelled", "{}", answer.body);
    let client = weir.client().await;
    weir.until("its reservation to end", async || {
        let reserved = "SELECT FROM quota_reservations WHERE job_id = $1";
        client
            .query(reserved, &[&job])
            .await
            .unwrap()
            .is_empty()
            .then_some(())
    })
    .await;
    client
        .execute("DELETE FROM river_job WHERE id = $1", &[&job])
        .await
        .unwrap();
    assert_eq!(weir.complaints().await, [""; 0]);
    weir.abandon().await;
}

/// Anonymous jobs are not charged, so only their submission shows that they ended.
#[tokio::test(flavor = "multi_thread")]
async fn an_anonymous_job_that_is_deleted_before_its_end_is_lost() {
    let weir = Weir::new().await;
    let client = weir.client().await;
    let delete = async |job: i64| {
        let gone = format!(
            "UPDATE weir_jobs SET ended_at = now(), admitted_at = NULL, parked_at = NULL, due_at = NULL WHERE job_id = {job}; DELETE FROM river_job WHERE id = {job}; \
             UPDATE weir_jobs SET submitted_at = now() - interval '10 minutes' WHERE job_id = {job}"
        );
        client.batch_execute(&gone).await.unwrap();
    };
    let who = Who::Address("198.51.100.7");
    let done = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let working = weir.work().await;
    assert_eq!(weir.finished(done, who).await["status"], "completed");
    working.stop().await;
    weir.reconcile().await;
    delete(done).await;
    assert_eq!(weir.complaints().await, [""; 0], "an operator may delete it");
    let lost = weir.analyse(who, "a_test.go", GO_TESTS).await;
    let row = client
        .query_one("SELECT holder::text FROM weir_jobs WHERE job_id = $1", &[&lost])
        .await
        .unwrap();
    let holder: &str = row.get(0);
    delete(lost).await;
    weir.recount().await;
    assert_eq!(
        weir.complaints().await,
        [format!(
            "I5: job {lost} of holder {holder} was accepted and is lost"
        )]
    );
    weir.abandon().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repairs_during_reservations_do_not_deadlock() {
    let weir = Weir::new().await;
    let mut users = Vec::new();
    for _ in 0..10 {
        users.push(weir.user("enterprise").await);
    }
    for user in &users {
        weir.analyse(Who::User(*user), "a_test.go", GO_TESTS).await;
    }
    let mut client = weir.client().await;
    for round in 0..5 {
        let drift = "UPDATE holders SET parked = parked + 1, used = used + 1";
        client.batch_execute(drift).await.unwrap();
        let body = common::files(&[("a_test.go", GO_TESTS)]);
        let submissions = users
            .iter()
            .map(|user| weir.post("/api/jobs/analysis", Who::User(*user), &body));
        let (answers, repaired) = tokio::join!(
            futures_util::future::join_all(submissions),
            weir_ledger::audit::repair(&mut client)
        );
        assert!(repaired.unwrap() >= 1, "round {round}");
        assert!(answers.iter().all(|answer| answer.status == 202));
    }
    weir_ledger::audit::repair(&mut client).await.unwrap();
    // While the counter was too high, submissions were parked although slots were free.
    weir.reconcile().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_set_back_during_a_submission_violates_nothing() {
    let weir = Weir::new().await;
    let who = Who::User(weir.user("free").await);
    let job = weir.analyse(who, "a_test.go", GO_TESTS).await;
    weir.ended_by_other_client(job, "completed").await;
    weir.reconcile().await;
    let client = weir.client().await;
    // The transaction started in the next period by the clock, and the charge came later.
    let ahead = "UPDATE weir_jobs SET submitted_at = submitted_at + interval '40 days'; \
                 UPDATE usage_events SET created_at = created_at + interval '41 days'";
    client.batch_execute(ahead).await.unwrap();
    weir.is_clean().await;
    let both = "UPDATE weir_jobs SET reserved_at = reserved_at + interval '40 days'";
    client.batch_execute(both).await.unwrap();
    let found = weir.complaints().await;
    let expected = format!("I3: job {job}: submitted at");
    assert!(found.iter().any(|found| found.contains(&expected)), "{found:?}");
    weir.abandon().await;
}

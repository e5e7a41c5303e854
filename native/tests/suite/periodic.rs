//! Periodic jobs are enqueued once per tick, with any number of schedulers.

use crate::common::Weir;
use crate::common::services_file::ServicesFile;
use weir::config::Settings;
use weir::work::{Role, Working};

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_enqueue_one_job_per_tick() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/periodic.toml")]).await;
    let client = weir.client().await;
    let mut schedulers = Vec::new();
    for _ in 0..2 {
        let context = weir.another(&[]);
        schedulers.push(Working::start(&context, Role::Lead, &[]).await.unwrap());
    }
    let context = weir.another(&[]);
    let working = Working::start(&context, Role::Work, &context.settings.services)
        .await
        .unwrap();
    let at_least = async |jobs: i64| {
        weir.until("some ticks", async || {
            let done: i64 = client
                .query_one("SELECT count(*) FROM river_job WHERE state = 'completed'", &[])
                .await
                .unwrap()
                .get(0);
            (done >= jobs).then_some(())
        })
        .await;
    };
    at_least(4).await;
    let leader: String = client
        .query_one("SELECT leader_id FROM river_leader", &[])
        .await
        .unwrap()
        .get(0);
    let leads = schedulers.iter().position(|one| one.id() == leader).unwrap();
    let now = async || -> jiff::Timestamp {
        let row = client.query_one("SELECT clock_timestamp()", &[]).await.unwrap();
        row.get(0)
    };
    let leaves = now().await;
    schedulers.remove(leads).stop().await;
    let left = now().await;
    at_least(8).await;
    for scheduler in schedulers {
        scheduler.stop().await;
    }
    working.stop().await;
    let row = client
        .query_one(
            "SELECT count(*), count(DISTINCT scheduled_at), \
                    count(*) FILTER (WHERE extract(microseconds FROM scheduled_at)::bigint % 1000000 <> 0), \
                    count(*) FILTER (WHERE kind <> 'test:sweep' OR queue <> 'sweep_scheduled' OR max_attempts <> 4 \
                                     OR args <> '{\"folder\": \"spool\"}' \
                                     OR NOT metadata @> '{\"periodic\": true, \"river:periodic_job_id\": \"sweep-often\"}'), \
                    (SELECT count(*) FROM quota_reservations) + (SELECT count(*) FROM holders) \
             FROM river_job",
            &[],
        )
        .await
        .unwrap();
    let counts: Vec<i64> = (0..5).map(|n| row.get(n)).collect();
    assert_eq!(counts[0], counts[1], "one job a tick");
    assert_eq!(
        counts[2..],
        [0, 0, 0],
        "on whole seconds, as in River, and without a holder"
    );
    // No tick is missing, except those without a leader: between the last tick of one leader and the first of the next.
    // A leader enqueues a tick a little ahead of its time.
    let ticks: Vec<jiff::Timestamp> = client
        .query("SELECT scheduled_at FROM river_job ORDER BY scheduled_at", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    let second = std::time::Duration::from_secs(1);
    for pair in ticks.windows(2) {
        let takeover = pair[0] <= left + second && pair[1] >= leaves;
        assert!(
            pair[1] == pair[0] + second || takeover,
            "between {} and {}: {ticks:?}",
            pair[0],
            pair[1]
        );
    }
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missed_tick_is_enqueued_once_within_a_minute() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/periodic.toml")]).await;
    let client = weir.client().await;
    // No scheduler ran for ten minutes. One of an earlier version, which does not write this row, has enqueued a tick
    // already.
    client
        .batch_execute(
            "INSERT INTO periodic_jobs VALUES ('sweep-often', now() - interval '10 minutes'); \
             INSERT INTO river_job (kind, queue, args, max_attempts, metadata, scheduled_at) \
             VALUES ('test:sweep', 'sweep_scheduled', '{}', 4, '{\"river:periodic_job_id\": \"sweep-often\"}', \
                     date_trunc('second', now()) - interval '20 seconds')",
        )
        .await
        .unwrap();
    let began: jiff::Timestamp = client
        .query_one("SELECT clock_timestamp()", &[])
        .await
        .unwrap()
        .get(0);
    let scheduler = Working::start(&weir.another(&[]), Role::Lead, &[]).await.unwrap();
    weir.until("the tick after the start", async || {
        let after = "SELECT 1 FROM river_job WHERE scheduled_at > $1 LIMIT 1";
        client.query_opt(after, &[&began]).await.unwrap()
    })
    .await;
    scheduler.stop().await;
    let row = client
        .query_one(
            "SELECT count(*), count(DISTINCT scheduled_at), \
                    extract(epoch FROM max(scheduled_at) - min(scheduled_at))::bigint + 1, \
                    count(*) FILTER (WHERE scheduled_at < $1::timestamptz - interval '61 seconds') \
             FROM river_job",
            &[&began],
        )
        .await
        .unwrap();
    let [all, ticks, seconds, late] = [0, 1, 2, 3].map(|n| row.get::<_, i64>(n));
    assert!(
        all == ticks && ticks == seconds && late == 0,
        "{all} {ticks} {seconds} {late}"
    );
    assert!(all >= 30, "{all}");
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_ahead_does_not_end_a_periodic_job() {
    let weir = Weir::with(&[("WEIR_CONFIG", "tests/periodic.toml")]).await;
    let client = weir.client().await;
    client
        .batch_execute("INSERT INTO periodic_jobs VALUES ('sweep-often', now() + interval '1 year')")
        .await
        .unwrap();
    let schedulers = [
        Working::start(&weir.another(&[]), Role::Lead, &[]).await.unwrap(),
        Working::start(&weir.another(&[]), Role::Lead, &[]).await.unwrap(),
    ];
    let made = weir
        .until("a few ticks", async || {
            let jobs = "SELECT count(*), count(DISTINCT scheduled_at) FROM river_job";
            let row = client.query_one(jobs, &[]).await.unwrap();
            let made: [i64; 2] = [row.get(0), row.get(1)];
            (made[0] >= 3).then_some(made)
        })
        .await;
    assert_eq!(made[0], made[1], "one job a tick");
    for scheduler in schedulers {
        scheduler.stop().await;
    }
    weir.end().await;
}

#[test]
fn errors_in_periodic_jobs_are_listed() {
    let services =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/periodic.toml")).unwrap();
    let wrong = "\n[[periodic]]\nid = 'a'\nservice = 'swep'\nevery = '1h'\n\
                 [[periodic]]\nid = 'a'\nservice = 'sweep'\nschedule = 'at noon'\n\
                 [[periodic]]\nid = 'b'\nservice = 'sweep'\nevery = '10ms'\nargs = { user_id = 'x' }\n";
    let file = ServicesFile::new(&(services + wrong));
    let variables = [(
        "DATABASE_URL".to_owned(),
        "postgres://weir@127.0.0.1/weir".to_owned(),
    )];
    let error = Settings::read(&variables.into(), file.path()).unwrap_err();
    let text = error.to_string();
    for fault in [
        "unknown service \"swep\"",
        "already taken",
        "invalid periodic cron expression \"at noon\"",
        "every is \"10ms\"",
        "has no holder",
    ] {
        assert!(text.contains(fault), "{fault}: {text}");
    }
    assert_eq!(error.faults.len(), 5, "{text}");
}

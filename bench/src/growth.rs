//! `growth`: the cost of a large database in use and at rest.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde_json::Value;
use tokio_postgres::Client;
use uuid::Uuid;

use super::cost::{Cpu, wal};
use super::faults::{Fault, Latencies, begin, lives};
use super::process::{Process, Services};
use super::progress::progress;
use super::report::{BenchError, Effort, Line, Report, conditions, median, percentile};
use super::stage::Stage;
use weir::config::Settings;
use weir::status::{lanes, overview};
use weir::telemetry::gauges::Gauges;
use weir_ledger::settlement::{Ended, Settler, Success};

/// The number of waiting users with completed jobs while promotion is measured.
const WORKED: usize = 10;

/// The number of jobs of each.
const JOBS: i64 = 50;

/// The number of measurements of each read.
const READS: usize = 9;

/// The number of intervals in which the cost at rest is measured, in a full and in a quick run.
const WINDOWS: usize = 7;
const QUICK_WINDOWS: usize = 3;

/// The months with usage events.
const MONTHS: i32 = 12;

/// The number of connections that insert them.
const FILLERS: i32 = 2;

/// The maximum number of measurements, or intervals, in which a month is archived.
const ARCHIVE_TURNS: u32 = 15;

/// The maximum ratio of the large database's cost to the small one's.
const MAX_RATIO: f64 = 1.3;

/// The size of a database.
#[derive(Clone, Copy)]
struct Size {
    parked: i64,
    /// Users with waiting jobs.
    waiting: i64,
    /// All users. The others have only a history.
    users: i64,
    events: i64,
}

const SMALL: Size = Size {
    parked: 1000,
    waiting: 10,
    users: 1000,
    events: 1000,
};

impl Size {
    fn large(effort: Effort, events: Option<u32>) -> Self {
        // Filling takes longer than all measurements.
        let history = match events {
            Some(_) => effort.history / 10,
            None if effort.is_quick => effort.history / 5,
            None => effort.history,
        };
        Self {
            parked: history,
            waiting: history / 100,
            users: history,
            events: events.map_or(history * 10, i64::from),
        }
    }
}

/// Runs the benchmark.
///
/// # Errors
///
/// When the database cannot be used. The benchmark's databases may then be left on the server.
pub(crate) async fn growth(
    settings: &Settings,
    effort: Effort,
    weir: &Path,
    events: Option<u32>,
) -> Result<Report, BenchError> {
    let size = Size::large(effort, events);
    let (large, small) = (
        Arc::new(Stage::new(settings).await?),
        Arc::new(Stage::new(settings).await?),
    );
    let mut conditions = conditions(&large.database.connect().await?).await?;
    conditions.push(format!(
        "{} waiting jobs of {} of {} users and {} usage events, against {} of {} of {} and {}; {} turns of {} s",
        size.parked,
        size.waiting,
        size.users,
        size.events,
        SMALL.parked,
        SMALL.waiting,
        SMALL.users,
        SMALL.events,
        effort.turns,
        effort.span.as_secs_f64()
    ));
    progress("filling a large database and a small one");
    let waiting = [fill(&large, size).await?, fill(&small, SMALL).await?];
    let stages = [&large, &small];
    let mut lines = Vec::new();
    lines.extend(used(stages, &waiting, effort).await?);
    lines.extend(read(settings, stages).await?);
    lines.extend(at_rest(stages, effort, weir).await?);
    lines.extend(archived(&large, effort, weir).await?);
    for stage in [large, small] {
        if let Some(stage) = Arc::into_inner(stage) {
            stage.end().await?;
        }
    }
    Ok(Report { conditions, lines })
}

/// Inserts users with a used slot and waiting jobs among many users without, and a long history for all of them.
/// Returns some of the waiting users.
async fn fill(stage: &Stage, size: Size) -> Result<Vec<Uuid>, BenchError> {
    let all = stage.users(size.users).await?;
    let users = &all[..usize::try_from(size.waiting).unwrap_or_default()];
    let client = stage.database.connect().await?;
    client.batch_execute("SET synchronous_commit = off").await?;
    // The measurement at rest is about Weir, and not about PostgreSQL's clean-up after this.
    client
        .batch_execute(
            "DO $$ DECLARE name text; BEGIN \
                 FOR name IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables \
                             WHERE schemaname NOT IN ('pg_catalog', 'information_schema') \
                 LOOP EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = false)', name); END LOOP; END $$",
        )
        .await?;
    // First, because the jobs' reservations are renewed after half an hour.
    history(stage, &client, &all, size.events).await?;
    client
        .execute(
            "WITH j AS (INSERT INTO river_job (args, kind, max_attempts, queue, state) \
                        SELECT jsonb_build_object('user_id', ($1::uuid[])[1 + n % cardinality($1::uuid[])]), \
                               'analysis:analyze', 3, 'analysis_default', \
                               CASE WHEN n < cardinality($1::uuid[]) THEN 'available' ELSE 'pending' END::river_job_state \
                        FROM generate_series(0, $2::bigint - 1) n \
                        RETURNING id, (args ->> 'user_id')::uuid AS user_id, state) \
             INSERT INTO weir_jobs (holder, user_id, event_type, reserved_amount, job_id, submitted_at, period_start, \
                                    admitted_at, parked_at) \
             SELECT user_id, user_id, 'analysis', 1, id, now(), date_trunc('month', now(), 'UTC'), \
                    CASE WHEN state = 'available' THEN now() END, CASE WHEN state = 'pending' THEN now() END \
             FROM j",
            &[&users, &size.parked],
        )
        .await?;
    client
        .batch_execute(
            "UPDATE holders h SET slots_in_use = 1, granted_slots = 1, parked = r.n - 1, period_start = r.period_start, \
                    reserved = r.n, granted_limit = 2000000000 \
             FROM (SELECT holder, period_start, count(*) AS n FROM quota_reservations GROUP BY 1, 2) r \
             WHERE h.holder = r.holder",
        )
        .await?;
    // If few rows are dead, VACUUM leaves their index entries, and a later reader has to write the page.
    client.batch_execute("VACUUM (ANALYZE, INDEX_CLEANUP ON)").await?;
    client.batch_execute("CHECKPOINT").await?;
    Ok(users.iter().copied().take(WORKED).collect())
}

/// Inserts the usage events of a month and its balances. Their jobs have ids below all others.
/// Parameters: $1 users, $2 how many, $3 the month, $4 all months.
const FILL_MONTH: &str = "
WITH month AS (
    SELECT m AS start, make_interval(secs => extract(epoch FROM m + interval '1 month' - m) / $2::bigint) AS step
    FROM (SELECT date_trunc('month', now(), 'UTC') + make_interval(months => $3::int - $4::int - 1) AS m) m
), e AS (
    INSERT INTO usage_events (user_id, event_type, quota_amount, created_at, job_id, period_start)
    SELECT ($1::uuid[])[1 + n % cardinality($1::uuid[])], 'analysis', 1, m.start + n * m.step,
           n + $2::bigint * ($3::int - $4::int), m.start
    FROM month m, generate_series(0, $2::bigint - 1) n
    RETURNING user_id, period_start
)
INSERT INTO window_balances (user_id, event_type, span, period_start, used, granted_limit)
SELECT user_id, 'analysis', 'month', period_start, count(*), 2000000000 FROM e GROUP BY 1, 4 ORDER BY 1";

/// Inserts a year of usage that ended a month ago, and its balances.
async fn history(stage: &Stage, client: &Client, users: &[Uuid], events: i64) -> Result<(), BenchError> {
    // Indexes are built at the end, and no trigger runs.
    client
        .batch_execute(
            "CREATE TEMP TABLE later AS \
                 SELECT format('ALTER TABLE usage_events ADD CONSTRAINT %I %s', conname, pg_get_constraintdef(oid)) AS make, \
                        format('ALTER TABLE usage_events DROP CONSTRAINT %I', conname) AS remove \
                 FROM pg_constraint WHERE conrelid = 'usage_events'::regclass AND contype IN ('p', 'u') \
                 UNION ALL \
                 SELECT pg_get_indexdef(i.indexrelid), format('DROP INDEX %s', i.indexrelid::regclass) \
                 FROM pg_index i WHERE i.indrelid = 'usage_events'::regclass \
                   AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid); \
             DO $$ DECLARE each text; BEGIN FOR each IN SELECT remove FROM later LOOP EXECUTE each; END LOOP; END $$",
        )
        .await?;
    try_join_all((0..FILLERS).map(async |filler| {
        let client = stage.database.connect().await?;
        client
            .batch_execute("SET session_replication_role = replica; SET synchronous_commit = off")
            .await?;
        for month in (0..MONTHS).filter(|month| month % FILLERS == filler) {
            progress(&format!("usage events, month {} of {MONTHS}", month + 1));
            let each = events / i64::from(MONTHS);
            client
                .execute(FILL_MONTH, &[&users, &each, &month, &MONTHS])
                .await?;
        }
        Ok::<_, BenchError>(())
    }))
    .await?;
    progress("indexes of usage events");
    client
        .batch_execute(
            "DO $$ DECLARE each text; BEGIN FOR each IN SELECT make FROM later LOOP EXECUTE each; END LOOP; END $$",
        )
        .await?;
    Ok(())
}

/// Submissions and settlements of other users, and the jobs of waiting users.
async fn used(
    stages: [&Arc<Stage>; 2],
    waiting: &[Vec<Uuid>; 2],
    effort: Effort,
) -> Result<Vec<Line>, BenchError> {
    let mut latencies = [Latencies::default(), Latencies::default()];
    let mut promotions = [Vec::new(), Vec::new()];
    for turn in 0..effort.turns {
        progress(&format!(
            "submissions and settlements, turn {} of {}",
            turn + 1,
            effort.turns
        ));
        for (side, stage) in stages.into_iter().enumerate() {
            lives(stage, effort.span, [Fault::None; 3], &mut latencies[side]).await?;
            // The small database has enough jobs for one turn only.
            if turn == 0 {
                promotions[side] = promoted(stage, &waiting[side]).await?;
            }
        }
    }
    let [large, small] = &mut latencies;
    let [large_promotions, small_promotions] = &mut promotions;
    let mut lines = Vec::new();
    for (what, large, small) in [
        ("a submission", &mut large.submissions, &mut small.submissions),
        ("a settlement", &mut large.settlements, &mut small.settlements),
        (
            "a settlement that promotes a job",
            large_promotions,
            small_promotions,
        ),
    ] {
        for (name, of) in [("p50", 0.5), ("p99", 0.99)] {
            let (large, small) = (percentile(large, of), percentile(small, of));
            lines.push(Line::at_most(
                format!("{what}, {name}"),
                large,
                small,
                "ms",
                MAX_RATIO,
            ));
        }
    }
    Ok(lines)
}

/// The time to settle jobs of users with a waiting next job.
async fn promoted(stage: &Arc<Stage>, users: &[Uuid]) -> Result<Vec<Duration>, BenchError> {
    let settler = Settler::start(&stage.database);
    let each = users.iter().map(|&user| {
        let (stage, settler) = (Arc::clone(stage), settler.clone());
        tokio::spawn(async move {
            let client = stage.database.connect().await?;
            client.batch_execute("SET synchronous_commit = off").await?;
            // The first job holds the slot, and the others are promoted in this order.
            let jobs = client
                .query(
                    "SELECT job_id FROM weir_jobs WHERE holder = $1 ORDER BY job_id LIMIT $2",
                    &[&user, &JOBS],
                )
                .await?;
            let mut took = Vec::new();
            for row in &jobs {
                let job_id = row.get("job_id");
                begin(&client, job_id).await?;
                let started = Instant::now();
                let success = Success {
                    attempt: 1,
                    job_created_at: None,
                    output: Value::Null,
                    used: None,
                };
                settler
                    .settle(Ended {
                        job_id,
                        holder: Some(user),
                        success: Some(success),
                    })
                    .await
                    .map_err(std::io::Error::other)?;
                took.push(started.elapsed());
            }
            Ok::<_, BenchError>(took)
        })
    });
    let mut all = Vec::new();
    for took in try_join_all(each).await? {
        all.extend(took?);
    }
    Ok(all)
}

/// The reads of people and monitors.
async fn read(settings: &Settings, stages: [&Arc<Stage>; 2]) -> Result<Vec<Line>, BenchError> {
    progress("status, lanes and metrics");
    let gauges = Gauges::new(&settings.services, &settings.catalogue);
    let mut times = [[const { Vec::new() }; 3], [const { Vec::new() }; 3]];
    for (side, stage) in stages.into_iter().enumerate() {
        let client = stage.database.connect().await?;
        for _ in 0..READS {
            let started = Instant::now();
            overview(&client, settings).await?;
            let overview_took = started.elapsed();
            let started = Instant::now();
            lanes(&client, &settings.services).await?;
            let lanes_took = started.elapsed();
            let started = Instant::now();
            gauges.refresh(&client).await?;
            for (times, took) in times[side]
                .iter_mut()
                .zip([overview_took, lanes_took, started.elapsed()])
            {
                times.push(took.as_secs_f64() * 1000.0);
            }
        }
    }
    let [large, small] = times;
    let names = ["`weir status`", "`/api/lanes`", "`/metrics`"];
    Ok(names
        .into_iter()
        .zip(large.into_iter().zip(small))
        .map(|(name, (large, small))| Line::compared(name, median(large), median(small), "ms"))
        .collect())
}

/// The cost of a scheduler and an API without any load.
async fn at_rest(stages: [&Arc<Stage>; 2], effort: Effort, weir: &Path) -> Result<Vec<Line>, BenchError> {
    let services = Services::new(1, r#"["true"]"#)?;
    let count = if effort.is_quick { QUICK_WINDOWS } else { WINDOWS };
    let mut costs = [[0.0; 3]; 2];
    for (side, stage) in stages.into_iter().enumerate() {
        progress(["at rest, large", "at rest, small"][side]);
        let process = Process::start(weir, &stage.url, &services, &["schedule"], &[])?;
        // The first rounds clean up after the benchmark.
        tokio::time::sleep(effort.span * 2).await;
        let client = stage.database.connect().await?;
        let mut windows = [const { Vec::new() }; 3];
        // PostgreSQL's remaining clean-up falls into some of the intervals only.
        for _ in 0..count {
            let processes = [None, Some(process.id())];
            let (cpu, written) = (Cpu::read(&client, processes).await, wal(&client).await?);
            let started = Instant::now();
            tokio::time::sleep(effort.span).await;
            let took = started.elapsed().as_secs_f64();
            let [_, scheduler, postgres] = Cpu::read(&client, processes).await.since(&cpu);
            let percent = |time: Duration| time.as_secs_f64() / took * 100.0;
            let written = (wal(&client).await? - written) / took;
            for (window, cost) in windows
                .iter_mut()
                .zip([percent(scheduler), percent(postgres), written])
            {
                window.push(cost);
            }
        }
        costs[side] = windows.map(median);
    }
    let [large, small] = costs;
    let names = [
        ("at rest: CPU of the scheduler", "%"),
        ("at rest: CPU of PostgreSQL", "%"),
        ("at rest: WAL a second", "bytes"),
    ];
    Ok(names
        .into_iter()
        .zip(large.into_iter().zip(small))
        .map(|((name, unit), (large, small))| Line::at_most(name, large, small, unit, 1.5))
        .collect())
}

/// The cost of archiving a month of usage events, alone and to submissions and settlements.
async fn archived(stage: &Arc<Stage>, effort: Effort, weir: &Path) -> Result<Vec<Line>, BenchError> {
    let services = Services::new(1, r#"["true"]"#)?;
    let client = stage.database.connect().await?;
    client
        .batch_execute("ALTER TABLE usage_events RESET (autovacuum_enabled)")
        .await?;
    let file = std::env::temp_dir().join(format!("weir-bench-{}.ndjson", Uuid::new_v4().simple()));
    let to = file.to_string_lossy();
    let start = async |months: i32| {
        let before: String = client
            .query_one(
                "SELECT to_char(date_trunc('month', now(), 'UTC') AT TIME ZONE 'UTC' + make_interval(months => $1::int - $2::int), \
                                'YYYY-MM-DD\"T00:00:00Z\"')",
                &[&months, &MONTHS],
            )
            .await?
            .get(0);
        let arguments = ["usage", "archive", "--before", &before, "--to", &to];
        Process::start(weir, &stage.url, &services, &arguments, &[])
    };
    let moved = async || -> Result<i64, BenchError> {
        let sum = "SELECT coalesce(sum((after ->> 'events')::bigint), 0)::bigint FROM admin_log WHERE action = 'usage.archive'";
        Ok(client.query_one(sum, &[]).await?.get(0))
    };
    progress("archiving a month");
    let (began, wal_before) = (Instant::now(), wal(&client).await?);
    let mut process = start(0).await?;
    while !process.has_ended() && began.elapsed() < effort.span * ARCHIVE_TURNS {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(process);
    let took = began.elapsed().as_secs_f64();
    let events = moved().await? as f64;
    let mut lines = vec![
        Line::printed("usage events archived", events, ""),
        Line::printed("usage events archived a second", events / took, ""),
        Line::printed(
            "archiving: WAL an event",
            (wal(&client).await? - wal_before) / events,
            "bytes",
        ),
    ];
    let (mut quiet, mut busy) = (Latencies::default(), Latencies::default());
    for _ in 0..effort.turns {
        lives(stage, effort.span, [Fault::None; 3], &mut quiet).await?;
    }
    progress("submissions and settlements while a month is archived");
    let mut process = start(1).await?;
    for _ in 0..ARCHIVE_TURNS {
        lives(stage, effort.span, [Fault::None; 3], &mut busy).await?;
        if process.has_ended() {
            break;
        }
    }
    drop(process);
    let _ = std::fs::remove_file(&file);
    for (what, busy, quiet) in [
        ("a submission", &mut busy.submissions, &mut quiet.submissions),
        ("a settlement", &mut busy.settlements, &mut quiet.settlements),
    ] {
        for (name, of) in [("p50", 0.5), ("p99", 0.99)] {
            lines.push(Line::compared(
                format!("{what} while usage is archived, {name}"),
                percentile(busy, of),
                percentile(quiet, of),
                "ms",
            ));
        }
    }
    Ok(lines)
}

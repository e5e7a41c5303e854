//! `reserve`: group admission against a literal implementation of the decision, and against River without any quota.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, try_join_all};
use riverqueue::JobArgs;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::cost::wal;
use super::progress::progress;
use super::proxy::Proxy;
use super::report::{BenchError, Effort, Line, Report, conditions, median, percentile};
use super::stage::{KIND, Stage, arguments, submission};
use weir::config::Settings;
use weir_ledger::audit;
use weir_ledger::database::Database;
use weir_ledger::reservation::Reserver;

const CALLERS: usize = 64;

/// One caller, which makes one reservation per call.
trait Caller: Send {
    fn call(&mut self, user: Uuid) -> BoxFuture<'_, Result<(), BenchError>>;
}

struct Weir(Reserver);

impl Caller for Weir {
    fn call(&mut self, user: Uuid) -> BoxFuture<'_, Result<(), BenchError>> {
        Box::pin(async move {
            self.0.submit(submission(user)).await?;
            Ok(())
        })
    }
}

/// ADR-21 as written, with the three reads of its product: begin, lock, plan, used, reserved, insert, insert, commit.
/// Each one waits for the previous one.
struct Literal {
    client: tokio_postgres::Client,
    statements: Vec<tokio_postgres::Statement>,
}

impl Literal {
    async fn new(database: &Database) -> Result<Self, BenchError> {
        let client = database.connect().await?;
        let statements = try_join_all(
            [
                "SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE",
                "SELECT l.month, s.current_period_start, s.current_period_end \
                 FROM user_subscriptions s JOIN plan_limits l ON l.plan_id = s.plan_id AND l.event_type = 'analysis' \
                 WHERE s.user_id = $1 AND s.status = 'active'",
                "SELECT coalesce(sum(quota_amount), 0)::bigint FROM usage_events \
                 WHERE user_id = $1 AND event_type = 'analysis' AND created_at >= $2 AND created_at < $3",
                "SELECT coalesce(sum(reserved_amount), 0)::bigint FROM literal_reservations \
                 WHERE user_id = $1 AND event_type = 'analysis' AND expires_at > now()",
                "INSERT INTO river_job (args, kind, max_attempts, metadata, priority, queue, state, tags) \
                 VALUES ($1, $2, 3, '{}', 1, 'analysis_default', 'available', '{}') RETURNING id",
                "INSERT INTO literal_reservations (user_id, event_type, reserved_amount, job_id, expires_at) \
                 VALUES ($1, 'analysis', 1, $2, now() + interval '1 hour')",
            ]
            .map(|sql| client.prepare(sql)),
        )
        .await?;
        Ok(Self { client, statements })
    }

    /// The table with exactly the columns and indexes of the decision.
    async fn prepare(stage: &Stage) -> Result<(), BenchError> {
        let client = stage.database.connect().await?;
        client
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS literal_reservations ( \
                     id uuid PRIMARY KEY DEFAULT gen_random_uuid(), \
                     user_id uuid NOT NULL REFERENCES users ON DELETE CASCADE, \
                     event_type usage_event_type NOT NULL, \
                     reserved_amount int NOT NULL CHECK (reserved_amount > 0), \
                     job_id bigint NOT NULL UNIQUE, \
                     expires_at timestamptz NOT NULL, \
                     created_at timestamptz NOT NULL DEFAULT now()); \
                 CREATE INDEX IF NOT EXISTS literal_sum ON literal_reservations (user_id, event_type, expires_at)",
            )
            .await?;
        Ok(())
    }
}

impl Caller for Literal {
    fn call(&mut self, user: Uuid) -> BoxFuture<'_, Result<(), BenchError>> {
        Box::pin(async move {
            let [lock, plan, used, reserved, job, reservation] = &self.statements[..] else {
                unreachable!("six were prepared")
            };
            let client = &self.client;
            client.batch_execute("BEGIN").await?;
            client.query_one(lock, &[&user]).await?;
            let row = client.query_one(plan, &[&user]).await?;
            let limit: Option<i64> = row.get(0);
            let (start, end): (jiff::Timestamp, jiff::Timestamp) = (row.get(1), row.get(2));
            let used: i64 = client.query_one(used, &[&user, &start, &end]).await?.get(0);
            let reserved: i64 = client.query_one(reserved, &[&user]).await?.get(0);
            if limit.is_none_or(|limit| used + reserved < limit) {
                let id: i64 = client.query_one(job, &[&arguments(user), &KIND]).await?.get(0);
                client.execute(reservation, &[&user, &id]).await?;
            }
            client.batch_execute("COMMIT").await?;
            Ok(())
        })
    }
}

/// River's own client, without any quota.
struct Bare(riverqueue::Client);

#[derive(Serialize, Deserialize)]
pub(super) struct BareArgs {
    user_id: Uuid,
    owner: String,
    repo: String,
    commit_sha: String,
}

impl BareArgs {
    pub(super) fn user(&self) -> Uuid {
        self.user_id
    }

    pub(super) fn of(user: Uuid) -> Self {
        Self {
            user_id: user,
            owner: "acme".to_owned(),
            repo: "widgets".to_owned(),
            commit_sha: "abc1234".to_owned(),
        }
    }
}

impl JobArgs for BareArgs {
    const KIND: &'static str = KIND;
}

impl Caller for Bare {
    fn call(&mut self, user: Uuid) -> BoxFuture<'_, Result<(), BenchError>> {
        Box::pin(async move {
            let args = BareArgs::of(user);
            self.0
                .insert(args)
                .opts(riverqueue::InsertOpts::default().with_queue("analysis_default"))
                .await?;
            Ok(())
        })
    }
}

/// Two inserts and a commit, in as few round trips as possible: the minimum cost of any reservation.
struct TwoInserts {
    client: tokio_postgres::Client,
    job: tokio_postgres::Statement,
    reservation: tokio_postgres::Statement,
}

impl TwoInserts {
    async fn new(database: &Database) -> Result<Self, BenchError> {
        let literal = Literal::new(database).await?;
        let [.., job, reservation] = &literal.statements[..] else {
            unreachable!("six were prepared")
        };
        Ok(Self {
            job: job.clone(),
            reservation: reservation.clone(),
            client: literal.client,
        })
    }
}

impl Caller for TwoInserts {
    fn call(&mut self, user: Uuid) -> BoxFuture<'_, Result<(), BenchError>> {
        Box::pin(async move {
            let args = arguments(user);
            let job: [&(dyn postgres_types::ToSql + Sync); 2] = [&args, &KIND];
            let ((), row) = tokio::try_join!(
                biased;
                self.client.batch_execute("BEGIN"),
                self.client.query_one(&self.job, &job)
            )?;
            let id: i64 = row.get(0);
            let reservation: [&(dyn postgres_types::ToSql + Sync); 2] = [&user, &id];
            tokio::try_join!(
                biased;
                self.client.execute(&self.reservation, &reservation),
                self.client.batch_execute("COMMIT")
            )?;
            Ok(())
        })
    }
}

/// Calls a second by all callers together, and the latencies. Each caller continues as soon as it has its answer.
async fn rate(
    callers: &mut Vec<Box<dyn Caller>>,
    users: &Arc<Vec<Uuid>>,
    span: Duration,
) -> Result<(f64, Vec<Duration>), BenchError> {
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (index, mut caller) in callers.drain(..).enumerate() {
        let (users, done) = (Arc::clone(users), Arc::clone(&done));
        tasks.spawn(async move {
            let mut next = index * 7919;
            let mut latencies = Vec::new();
            while started.elapsed() < span {
                let begun = Instant::now();
                caller.call(users[next % users.len()]).await?;
                latencies.push(begun.elapsed());
                done.fetch_add(1, Ordering::Relaxed);
                next += CALLERS;
            }
            Ok::<_, BenchError>((caller, latencies))
        });
    }
    let mut latencies = Vec::new();
    while let Some(task) = tasks.join_next().await {
        let (caller, its) = task??;
        callers.push(caller);
        latencies.extend(its);
    }
    let rate = done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    Ok((rate, latencies))
}

/// Both sides in turns, and the medians of their rates.
async fn compare(
    what: &str,
    ours: &mut Vec<Box<dyn Caller>>,
    theirs: &mut Vec<Box<dyn Caller>>,
    users: &Arc<Vec<Uuid>>,
    effort: Effort,
) -> Result<(f64, f64), BenchError> {
    let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
    for turn in 1..=effort.turns {
        progress(&format!("{what}, turn {turn} of {}", effort.turns));
        our_rates.push(rate(ours, users, effort.span).await?.0);
        their_rates.push(rate(theirs, users, effort.span).await?.0);
    }
    Ok((median(our_rates), median(their_rates)))
}

fn weir(reserver: &Reserver, callers: usize) -> Vec<Box<dyn Caller>> {
    (0..callers)
        .map(|_| Box::new(Weir(reserver.clone())) as Box<dyn Caller>)
        .collect()
}

async fn literal(database: &Database, callers: usize) -> Result<Vec<Box<dyn Caller>>, BenchError> {
    let mut made: Vec<Box<dyn Caller>> = Vec::new();
    for _ in 0..callers {
        made.push(Box::new(Literal::new(database).await?));
    }
    Ok(made)
}

/// Runs the benchmark.
///
/// # Errors
///
/// When the database cannot be used. The benchmark's database may then be left on the server.
pub(crate) async fn reserve(settings: &Settings, effort: Effort) -> Result<Report, BenchError> {
    let stage = Stage::new(settings).await?;
    let client = stage.database.connect().await?;
    let mut conditions = conditions(&client).await?;
    conditions.push(format!(
        "{CALLERS} callers by default; {} turns of {} s each side",
        effort.turns,
        effort.span.as_secs_f64()
    ));
    Literal::prepare(&stage).await?;
    let mut lines = Vec::new();
    let reserver = Reserver::start(&stage.database);
    let mut ours = weir(&reserver, CALLERS);

    let hot = Arc::new(stage.users(1).await?);
    let mut theirs = literal(&stage.database, CALLERS).await?;
    let name = "one hot user, against ADR-21's literal transaction";
    let (value, baseline) = compare(name, &mut ours, &mut theirs, &hot, effort).await?;
    lines.push(Line::at_least(name, value, baseline, "1/s", 20.0));

    let many = Arc::new(stage.users(1000).await?);
    let name = "1 000 users, against ADR-21's literal transaction";
    let (value, baseline) = compare(name, &mut ours, &mut theirs, &many, effort).await?;
    lines.push(Line::at_least(name, value, baseline, "1/s", 4.0));
    drop(theirs);

    let pool = stage.database.river_pool(CALLERS as u32)?;
    let bare = riverqueue::Client::builder(pool.clone()).build()?;
    let mut theirs: Vec<Box<dyn Caller>> = (0..CALLERS)
        .map(|_| Box::new(Bare(bare.clone())) as Box<dyn Caller>)
        .collect();
    let name = "1 000 users, against bare riverqueue inserts";
    let (value, baseline) = compare(name, &mut ours, &mut theirs, &many, effort).await?;
    lines.push(Line::at_least(name, value, baseline, "1/s", 1.0));
    drop(theirs);
    pool.close().await;

    lines.push(distant(&stage, &many, effort).await?);
    lines.extend(alone(&stage, &reserver, &many, effort).await?);
    lines.extend(written(&client, &reserver, &many, effort).await?);

    // The same again, next to a database with a history.
    let old = Stage::new(settings).await?;
    let mut old_client = old.database.connect().await?;
    let old_users = Arc::new(old.users(1000).await?);
    progress(&format!(
        "filling a database with {} usage events",
        effort.history
    ));
    fill(&mut old_client, &old_users, effort.history).await?;
    let old_reserver = Reserver::start(&old.database);
    let mut old_ours = weir(&old_reserver, CALLERS);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for turn in 1..=effort.turns {
        progress(&format!("with that history, turn {turn} of {}", effort.turns));
        with.push(rate(&mut old_ours, &old_users, effort.span).await?.0);
        without.push(rate(&mut ours, &many, effort.span).await?.0);
    }
    let name = format!(
        "with {} usage events and {} outstanding reservations, against without",
        effort.history,
        effort.history / 10
    );
    lines.push(Line::at_least(name, median(with), median(without), "1/s", 0.9));
    drop((old_ours, old_reserver, old_client));
    old.end().await?;

    drop((ours, reserver, client));
    stage.end().await?;
    Ok(Report { conditions, lines })
}

/// Reservations a second by all callers, on a stage that is otherwise unused.
pub(super) async fn direct(stage: &Stage, users: &[Uuid], span: Duration) -> Result<f64, BenchError> {
    let reserver = Reserver::start(&stage.database);
    let mut callers = weir(&reserver, CALLERS);
    let users = Arc::new(users.to_vec());
    rate(&mut callers, &users, span / 4).await?;
    Ok(rate(&mut callers, &users, span).await?.0)
}

/// One caller behind a network.
async fn distant(stage: &Stage, users: &Arc<Vec<Uuid>>, effort: Effort) -> Result<Line, BenchError> {
    let proxy = Proxy::start(stage.address()?, Duration::from_millis(1))?;
    let database = Database::at(&stage.through(&proxy)?)?;
    let reserver = Reserver::start(&database);
    let mut ours = weir(&reserver, 1);
    let mut theirs = literal(&database, 1).await?;
    let name = "one caller, 1 ms of network each way, against ADR-21's literal transaction";
    let (value, baseline) = compare(name, &mut ours, &mut theirs, users, effort).await?;
    Ok(Line::at_least(name, value, baseline, "1/s", 3.0))
}

/// One caller on an idle server: the time of a reservation, next to the minimum of two inserts.
async fn alone(
    stage: &Stage,
    reserver: &Reserver,
    users: &Arc<Vec<Uuid>>,
    effort: Effort,
) -> Result<Vec<Line>, BenchError> {
    let mut ours = weir(reserver, 1);
    let mut theirs: Vec<Box<dyn Caller>> = vec![Box::new(TwoInserts::new(&stage.database).await?)];
    let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
    for turn in 1..=effort.turns {
        progress(&format!("one caller, turn {turn} of {}", effort.turns));
        our_times.extend(rate(&mut ours, users, effort.span / 2).await?.1);
        their_times.extend(rate(&mut theirs, users, effort.span / 2).await?.1);
    }
    Ok([("p50", 0.5), ("p99", 0.99)]
        .into_iter()
        .map(|(name, of)| {
            let (value, baseline) = (percentile(&mut our_times, of), percentile(&mut their_times, of));
            Line {
                name: format!("one caller, {name}, compared with a plain transaction of two inserts"),
                value,
                unit: "ms",
                baseline: Some(baseline),
                ratio: Some(value / baseline),
                target: None,
                holds: None,
            }
        })
        .collect())
}

/// The writes of one reservation.
async fn written(
    client: &tokio_postgres::Client,
    reserver: &Reserver,
    users: &Arc<Vec<Uuid>>,
    effort: Effort,
) -> Result<Vec<Line>, BenchError> {
    let mut lines = Vec::new();
    for callers in [1, CALLERS] {
        progress(&format!("WAL of one reservation, {callers} caller(s)"));
        client.batch_execute("CHECKPOINT").await?;
        // After a checkpoint, PostgreSQL writes each page in full once. That is not part of a reservation's cost.
        rate(&mut weir(reserver, callers), users, effort.span / 2).await?;
        let before = wal(client).await?;
        let (_, latencies) = rate(&mut weir(reserver, callers), users, effort.span).await?;
        let after = wal(client).await?;
        let each = (after - before) / latencies.len() as f64;
        lines.push(Line::printed(
            format!("WAL of one reservation, {callers} caller(s)"),
            each,
            "bytes",
        ));
    }
    Ok(lines)
}

/// A long history: usage events, and outstanding reservations of waiting jobs.
async fn fill(client: &mut tokio_postgres::Client, users: &[Uuid], events: i64) -> Result<(), BenchError> {
    client
        .execute(
            "INSERT INTO usage_events (user_id, event_type, quota_amount, period_start) \
             SELECT u, 'analysis', 1, period_start_of(u, now()) \
             FROM (SELECT ($1::uuid[])[1 + n % cardinality($1::uuid[])] AS u FROM generate_series(1, $2::bigint) n) n",
            &[&users, &events],
        )
        .await?;
    client
        .execute(
            "WITH j AS (INSERT INTO river_job (args, kind, max_attempts, queue, state) \
                        SELECT jsonb_build_object('user_id', ($1::uuid[])[1 + n % cardinality($1::uuid[])]), 'analysis:analyze', 3, \
                               'analysis_default', 'pending' FROM generate_series(1, $2::bigint) n \
                        RETURNING id, (args ->> 'user_id')::uuid AS user_id) \
             INSERT INTO weir_jobs (holder, user_id, event_type, reserved_amount, job_id, period_start, parked_at) \
             SELECT user_id, user_id, 'analysis', 1, id, period_start_of(user_id, now()), now() FROM j",
            &[&users, &(events / 10)],
        )
        .await?;
    audit::repair(client).await?;
    client.batch_execute("ANALYZE").await?;
    Ok(())
}

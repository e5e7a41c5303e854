//! `snapshot --peers`: the cost of a held snapshot to other queues, all in one run.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use uuid::Uuid;

use super::super::cost::Cpu;
use super::super::path::snapshot::Plan;
use super::super::progress::progress;
use super::super::report::{BenchError, Effort, conditions, percentile};
use super::arena::{AT_ONCE, Arena, CONNECTIONS, Event, Producer, User, Worker};
use super::measure::{Number, in_no_order, user};
use super::program::{self, Program, Rescue, versions};
use super::table::{Field, Row, row};
use weir::config::Settings;

/// Jobs a second. Not all of these programs reach 500 on two cores.
const RATE: usize = 200;

/// The number of users that share the workers.
const USERS: u128 = 300;

/// Jobs that are due are inserted together, this often.
const TICK: Duration = Duration::from_millis(50);

/// The warm-up time of each turn.
const WARM_UP: Duration = Duration::from_secs(2);

/// One interval of the load.
struct Slice {
    done: f64,
    /// p50 and p99 of the time from insertion to start, in milliseconds.
    started: [f64; 2],
    /// The number of cores that PostgreSQL used.
    cores: f64,
}

/// Runs the benchmark.
///
/// # Errors
///
/// When a program cannot be built or fails, or the database cannot be used. Their databases may then be left on the
/// server.
pub(crate) async fn snapshot(settings: &Settings, effort: Effort) -> Result<Field, BenchError> {
    let plan = Plan::of(effort);
    let programs = program::of_known_queues().await?;
    let mut conditions = conditions(&settings.database()?.connect().await?).await?;
    conditions.push(format!(
        "open loop, {USERS} users, no-op jobs; each program has a process to insert with {CONNECTIONS} callers, one job a \
         call, and one to work {AT_ONCE} jobs at once; one turn of each program at {RATE} jobs/s, {} s without the snapshot \
         and {} s with it; a user's starts count in the order of their insertions",
        plan.free.as_secs(),
        plan.held(plan.slices),
    ));
    let mut turns = Vec::new();
    for program in &programs {
        turns.push(turn(settings, program, &plan).await?);
    }
    let rows = compared(&plan, &turns);
    Ok(Field {
        conditions,
        programs: versions(&programs),
        rows,
    })
}

/// The rows: each slice of all programs.
fn compared(plan: &Plan, turns: &[Vec<Slice>]) -> Vec<Row> {
    let mut rows = Vec::new();
    for number in 0..=plan.slices {
        let numbers = |of: fn(&Slice) -> f64| {
            let slices = turns.iter().map(|slices| slices.get(number as usize));
            slices
                .map(|slice| slice.map(|slice| Number::Is(of(slice))))
                .collect()
        };
        let held = plan.held(number);
        let named = |what: &str| format!("snapshot held for {held} s: {what}");
        rows.push(row(named("done"), "1/s", numbers(|slice| slice.done)));
        rows.push(row(named("start, p50"), "ms", numbers(|slice| slice.started[0])));
        rows.push(row(named("start, p99"), "ms", numbers(|slice| slice.started[1])));
        rows.push(row(named("PostgreSQL's cores"), "", numbers(|slice| slice.cores)));
    }
    rows
}

/// One program, first without the snapshot.
async fn turn(settings: &Settings, program: &Program, plan: &Plan) -> Result<Vec<Slice>, BenchError> {
    let users: Vec<User> = (0..USERS).map(user).collect();
    let arena = Arena::new(settings, program, &users, Rescue::Default).await?;
    let client = arena.connect().await?;
    let mut load = Load {
        producer: arena.producer()?,
        worker: arena.worker(0).await?,
        users,
        inserted: 0,
        waiting: HashMap::new(),
    };
    load.run(&client, WARM_UP).await?;
    let holder = arena.connect().await?;
    let mut slices = Vec::new();
    for number in 0..=plan.slices {
        let span = plan.start(number, &holder).await?;
        let slice = load.run(&client, span).await?;
        progress(&format!(
            "{}, snapshot held for {} s: {:.0} jobs/s, start {:.1} and {:.0} ms (p50 and p99), \
             PostgreSQL {:.2} cores",
            program.name,
            plan.held(number),
            slice.done,
            slice.started[0],
            slice.started[1],
            slice.cores,
        ));
        slices.push(slice);
    }
    holder.batch_execute("ROLLBACK").await?;
    load.worker.stop().await?;
    drop(load.producer);
    arena.end().await?;
    Ok(slices)
}

/// Insertions at a fixed rate, and the jobs that wait for their start.
struct Load {
    producer: Producer,
    worker: Worker,
    users: Vec<User>,
    inserted: usize,
    /// Each user's insertions that have not started.
    waiting: HashMap<Uuid, VecDeque<i64>>,
}

impl Load {
    /// Inserts at this rate for this long. A program that is slower than the rate inserts what is due as soon as it can.
    async fn run(&mut self, client: &Client, span: Duration) -> Result<Slice, BenchError> {
        // Jobs of the time before also start, and their users' later jobs must not be taken for them.
        let earlier = self.worker.take_events();
        self.started(&earlier);
        let (cpu, started) = (Cpu::read(client, [None, None]).await, Instant::now());
        let mut ticks = tokio::time::interval(TICK);
        let mut inserted = 0;
        while started.elapsed() < span {
            ticks.tick().await;
            let due = (started.elapsed().min(span).as_secs_f64() * RATE as f64) as usize - inserted;
            let jobs: Vec<User> = in_no_order(&self.users, self.inserted, due).collect();
            let (at, _) = self.producer.insert(jobs.iter().copied()).await?;
            for (user, _) in jobs {
                self.waiting.entry(user).or_default().push_back(at);
            }
            inserted += due;
            self.inserted += due;
        }
        let seconds = started.elapsed().as_secs_f64();
        let [_, _, postgres] = Cpu::read(client, [None, None]).await.since(&cpu);
        let events = self.worker.take_events();
        Ok(Slice {
            done: events.iter().filter(|event| !event.began).count() as f64 / seconds,
            started: self.waits(&events),
            cores: postgres.as_secs_f64() / seconds,
        })
    }

    /// The waits of the jobs that started, and so far of those that did not.
    fn waits(&mut self, events: &[Event]) -> [f64; 2] {
        let mut waits = self.started(events);
        let now = jiff::Timestamp::now().as_microsecond();
        waits.extend(
            self.waiting
                .values()
                .flatten()
                .map(|&inserted| wait(inserted, now)),
        );
        [0.5, 0.99].map(|of| percentile(&mut waits, of))
    }

    /// The waits of the jobs that started. They wait no longer.
    fn started(&mut self, events: &[Event]) -> Vec<Duration> {
        let started = events.iter().filter(|event| event.began);
        started
            .filter_map(|event| {
                let waiting = self.waiting.get_mut(&event.user)?;
                Some(wait(waiting.pop_front()?, event.at))
            })
            .collect()
    }
}

/// The time between two moments in microseconds.
fn wait(from: i64, to: i64) -> Duration {
    Duration::from_micros(to.saturating_sub(from).try_into().unwrap_or(0))
}

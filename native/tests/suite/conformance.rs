//! The conformance suite: one table of faults, and workers in every language. The test knows no language. It provokes
//! each fault by SQL or by a signal, and compares what the database says. The table is part of
//! docs/how-to/any-language.md. To write it again: `UPDATE_SNAPSHOTS=1 npm test -- conformance`.
//!
//! The workers in native/tests/workers and native/tests/go/conforming read from a job's arguments what its attempts do:
//!
//! | argument | |
//! |---|---|
//! | `attempts` | how many attempts do what follows. Default: 1. Later ones end at once |
//! | `seconds` | how long an attempt runs, unless it has to stop |
//! | `ignores` | it does not stop |
//! | `file` | while it runs, it appends its job, its number and the time, 20 times a second |
//! | `fails` | it fails at once: `nul` and `half` with text that PostgreSQL cannot store, `network` and `statement` with errors that look like Weir's, `connection` by the end of its connection |
//! | `nul`, `size` | the output of all attempts has NUL, or this many letters |

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::common::fleet::{Maintenance, row_count};
use crate::common::process::{KilledOnDrop, command};
use crate::common::programs::{self, GO_MODULE, GoProgram};
use crate::common::server::Server;
use crate::common::skip::skip;
use crate::common::{Weir, Who};

const SETTINGS: [(&str, &str); 2] = [
    (
        "WEIR_CONFIG",
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance.toml"),
    ),
    ("WEIR_DRAIN_TIMEOUT", "60s"),
];
const WORKERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/workers");

/// Long enough for a busy machine. No test waits for it.
const PATIENCE: Duration = Duration::from_secs(180);

/// The time within which a worker finds that it has lost the answer to a claim: ten seconds, and more on a busy machine.
const LOST_WITHIN: Duration = Duration::from_secs(40);

/// A language, and how its worker is started. `weir work` has no program.
struct Language {
    name: &'static str,
    program: Vec<PathBuf>,
}

/// All languages; `None` if one of them is missing here.
async fn languages(go: &mut Option<GoProgram>) -> Option<Vec<Language>> {
    let made = tokio::task::spawn_blocking(|| programs::python("psycopg-3.3.9", &["psycopg[binary]==3.3.9"]));
    let (python, node) = (made.await.unwrap()?, programs::node()?);
    *go = Some(GoProgram::built(GO_MODULE, "./conforming").await?);
    let workers = PathBuf::from(WORKERS);
    let of = |name, program: &[PathBuf]| Language {
        name,
        program: program.to_vec(),
    };
    Some(vec![
        of("`weir work`", &[]),
        of(
            "Python",
            &[python.clone(), workers.join("python.py"), "sync".into()],
        ),
        of(
            "Python, asyncio",
            &[python, workers.join("python.py"), "async".into()],
        ),
        of(
            "TypeScript, postgres",
            &[node.clone(), workers.join("typescript.ts"), "postgres".into()],
        ),
        of(
            "TypeScript, pg",
            &[node, workers.join("typescript.ts"), "pg".into()],
        ),
        of("Go", std::slice::from_ref(&go.as_ref()?.path)),
    ])
}

/// How a job's end reads in the table.
const DONE: &str = "the job is completed";
const AGAIN: &str = "another attempt completes the job";
const FAILED: &str = "the job fails, and is not charged";
const CANCELLED: &str = "the job is cancelled, and not charged";
const LAST: &str = "it completes the job, starts no other, and ends";

/// The fault, how it is provoked while the job runs, the job's arguments, and the result.
const FAULTS: &str = r#"
the answer to a claim is lost; lost claim; {}; again
the attempt takes longer than the service's `timeout`; -; {"brief": 1, "seconds": 600}; again
the job is cancelled; cancellation; {"seconds": 600}; cancelled
the job is cancelled, and the handler completes it; cancellation; {"seconds": 10, "ignores": true}; done
another attempt takes the job over; take-over; {"seconds": 600}; again
the claim meets a deadlock (40P01); -; {"deadlock": "running"}; done
the completion meets a deadlock (40P01); -; {"deadlock": "completed"}; again
the handler's error has NUL; -; {"fails": "nul"}; again
the handler's error is no Unicode; -; {"fails": "half"}; again
the handler's error is that of a network; -; {"fails": "network"}; again
the handler's statement exceeds its time; -; {"fails": "statement"}; again
the handler's connection ends; -; {"fails": "connection"}; again
the output has NUL; -; {"nul": true}; failed
the output has 4 MB; -; {"size": 4000000}; done
the output has more than 4 MiB; -; {"size": 4194305}; failed
the database ends all connections; cut; {"seconds": 8}; again
the worker is killed; kill; {"seconds": 600}; again
the worker gets SIGTERM; sigterm; {"seconds": 8, "attempts": 9}; last
the server is away for ten seconds; restart; {"seconds": 600}; again
"#;

struct Fault {
    name: &'static str,
    provoked: &'static str,
    args: Value,
    expected: &'static str,
}

fn faults() -> Vec<Fault> {
    let ends = [
        ("again", AGAIN),
        ("done", DONE),
        ("failed", FAILED),
        ("cancelled", CANCELLED),
        ("last", LAST),
    ];
    let read = |line: &'static str| {
        let [name, provoked, args, end] = line.split("; ").collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let args = serde_json::from_str(args).unwrap();
        let expected = HashMap::from(ends)[end];
        Fault {
            name,
            provoked,
            args,
            expected,
        }
    };
    FAULTS.trim().lines().map(read).collect()
}

/// A handler inserts a result. While its transaction is open, others see its lock.
///
/// One statement of Weir's meets a deadlock: that which moves a job to this state for the first time.
const SETUP: &str = "CREATE TABLE results (job bigint NOT NULL, attempt int NOT NULL); \
    CREATE FUNCTION show() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        PERFORM pg_advisory_xact_lock_shared(NEW.job); RETURN NULL; END $$; \
    CREATE TRIGGER show AFTER INSERT ON results FOR EACH ROW EXECUTE FUNCTION show(); \
    CREATE SEQUENCE running_deadlocks; CREATE SEQUENCE completed_deadlocks; \
    CREATE FUNCTION deadlock() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
        IF nextval(format('public.%s_deadlocks', NEW.state)) = 1 THEN RAISE deadlock_detected; END IF; \
        RETURN NEW; END $$; \
    CREATE TRIGGER deadlock BEFORE UPDATE OF state ON river_job FOR EACH ROW \
        WHEN (NEW.args ->> 'deadlock' = NEW.state::text) EXECUTE FUNCTION deadlock()";

/// One language's worker, its database and maintenance.
struct Bench<'a> {
    weir: Weir,
    client: Client,
    language: &'a Language,
}

impl<'a> Bench<'a> {
    async fn new(language: &'a Language) -> Self {
        Self::of(language, Weir::with(&SETTINGS).await).await
    }

    async fn of(language: &'a Language, weir: Weir) -> Self {
        let client = weir.client().await;
        client.batch_execute(SETUP).await.unwrap();
        Self {
            weir,
            client,
            language,
        }
    }

    /// Starts a worker. It is registered when this returns, with its name.
    async fn worker(&self) -> (KilledOnDrop, String) {
        let before = self.names().await;
        let mut starts = match self.language.program.split_first() {
            None => command(&self.weir, &["work"]),
            Some((program, arguments)) => {
                let mut starts = Command::new(program);
                starts.args(arguments).env("DATABASE_URL", self.weir.url());
                starts
            }
        };
        let quiet = std::env::var_os("WEIR_CONFORMANCE_LOG").is_none();
        if quiet {
            starts.stdout(Stdio::null()).stderr(Stdio::null());
        }
        let worker = KilledOnDrop(starts.spawn().unwrap());
        let started = Instant::now();
        loop {
            if let Some(name) = self.names().await.into_iter().find(|name| !before.contains(name)) {
                return (worker, name);
            }
            self.wait(started, "the worker to register").await;
        }
    }

    async fn names(&self) -> Vec<String> {
        let rows = self
            .client
            .query("SELECT client_id FROM processes", &[])
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn wait(&self, started: Instant, what: &str) {
        assert!(
            started.elapsed() < PATIENCE,
            "{}: waited for {what}",
            self.language.name
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Submits a job. If its claim is lost, it has started before any worker can claim it.
    async fn submit(&self, user: Uuid, args: &Value, claimed_by: Option<&str>) -> i64 {
        let service = if args["brief"].is_null() {
            "lasting"
        } else {
            "brief"
        };
        let claims = "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now(), \
                      attempted_by = ARRAY[$2::text] WHERE id = $1";
        let mut client = self.weir.client().await;
        let submits = client.transaction().await.unwrap();
        let submit = "SELECT job_id FROM weir_submit($1, $2, $3)";
        let row = submits
            .query_one(submit, &[&user.to_string(), &service, args])
            .await
            .unwrap();
        let job = row.get(0);
        if let Some(name) = claimed_by {
            submits.execute(claims, &[&job, &name]).await.unwrap();
        }
        submits.commit().await.unwrap();
        job
    }

    /// Waits until a job is in one of these states.
    async fn until(&self, job: i64, states: &[&str]) {
        let started = Instant::now();
        let is_there = "SELECT FROM river_job WHERE id = $1 AND state::text = ANY ($2)";
        while self
            .client
            .query_opt(is_there, &[&job, &states])
            .await
            .unwrap()
            .is_none()
        {
            self.wait(started, &format!("job {job} to be {states:?}")).await;
        }
    }

    /// Waits until the job's handler has inserted its result. The programs of `weir work` insert none.
    async fn until_handled(&self, job: i64) {
        let started = Instant::now();
        let is_handled = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = $1::bigint::oid \
                          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        while !self.language.program.is_empty()
            && self
                .client
                .query_opt(is_handled, &[&job])
                .await
                .unwrap()
                .is_none()
        {
            self.wait(started, &format!("the handler of job {job}")).await;
        }
    }

    /// How the job ends, as it reads in the table.
    async fn end(&self, job: i64) -> String {
        self.until(job, &["completed", "cancelled", "discarded"]).await;
        let started = Instant::now();
        while row_count(&self.client, &format!("quota_reservations WHERE job_id = {job}")).await > 0 {
            self.wait(started, "the settlement").await;
        }
        let end = "SELECT j.state::text, j.attempt > 1, \
                          (SELECT coalesce(sum(u.quota_amount), 0)::bigint FROM usage_events u WHERE u.job_id = j.id), \
                          ARRAY(SELECT r.attempt FROM results r WHERE r.job = j.id) <@ \
                              CASE WHEN j.state = 'completed' THEN ARRAY[j.attempt::int] ELSE '{}' END, \
                          (j.args ->> 'fails' IN ('nul', 'half')) IS NOT TRUE OR j.errors[1] ->> 'error' LIKE '%out of %paper%' \
                   FROM river_job j WHERE j.id = $1";
        let row = self.client.query_one(end, &[&job]).await.unwrap();
        let (state, again, charged): (&str, bool, i64) = (row.get(0), row.get(1), row.get(2));
        let text = match state {
            "completed" if again => AGAIN,
            "completed" => DONE,
            "cancelled" => CANCELLED,
            _ => FAILED,
        };
        let mut text = text.to_owned();
        if charged != i64::from(state == "completed") {
            write!(text, "; it is charged {charged}").unwrap();
        }
        if !row.get::<_, bool>(3) {
            text.push_str("; other attempts wrote results");
        }
        if !row.get::<_, bool>(4) {
            text.push_str("; its error is lost");
        }
        text
    }

    /// Submits the job of a fault. Its handler runs when this returns.
    async fn running(&self, fault: &Fault) -> (i64, Uuid) {
        let user = Weir::user_by(&self.client, "free").await;
        let job = self.submit(user, &fault.args, None).await;
        self.until(job, &["running"]).await;
        self.until_handled(job).await;
        (job, user)
    }

    /// Provokes a fault beside others, and returns what becomes of the job.
    async fn result(&self, fault: &Fault, worker: &str) -> String {
        let job = match fault.provoked {
            "lost claim" => {
                let job = self
                    .submit(
                        Weir::user_by(&self.client, "free").await,
                        &fault.args,
                        Some(worker),
                    )
                    .await;
                return self.after_a_lost_claim(job).await;
            }
            "cancellation" => {
                let (job, user) = self.running(fault).await;
                let path = format!("/api/jobs/{job}");
                let answer = self
                    .weir
                    .call("DELETE", &path, Who::User(user), &[], Vec::new())
                    .await;
                assert_eq!(answer.status, 200, "{}", answer.body);
                job
            }
            "take-over" => {
                let (job, _) = self.running(fault).await;
                self.take_over(&[job]).await;
                job
            }
            _ => {
                self.submit(Weir::user_by(&self.client, "free").await, &fault.args, None)
                    .await
            }
        };
        self.end(job).await
    }

    async fn after_a_lost_claim(&self, job: i64) -> String {
        let started = Instant::now();
        let lost = format!("river_job WHERE id = {job} AND attempt = 1");
        while started.elapsed() < LOST_WITHIN && row_count(&self.client, &lost).await > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if row_count(&self.client, &lost).await == 0 {
            return self.end(job).await;
        }
        let age = "UPDATE river_job SET attempted_at = attempted_at - interval '11 minutes', metadata = \
                   metadata - 'weir:started' WHERE id = $1 AND attempt = 1";
        self.client.execute(age, &[&job]).await.unwrap();
        format!("{}, after the service's `timeout`", self.end(job).await)
    }

    /// Takes over running jobs, as `weir schedule` does when their worker is dead.
    async fn take_over(&self, jobs: &[i64]) {
        let take_over = "UPDATE river_job SET state = 'available', scheduled_at = now(), \
                                errors = array_append(errors, attempt_error(attempt, clock_timestamp(), 'taken over')) \
                         WHERE state = 'running' AND id = ANY ($1)";
        self.client.execute(take_over, &[&jobs]).await.unwrap();
    }

    async fn after_the_end_of_connections(&self, fault: &Fault, worker: &mut KilledOnDrop) -> String {
        let (job, _) = self.running(fault).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
        self.client.execute(end, &[]).await.unwrap();
        self.end_beside(job, worker).await
    }

    /// How the job ends, and whether the worker ended before.
    async fn end_beside(&self, job: i64, worker: &mut KilledOnDrop) -> String {
        let result = self.end(job).await;
        match worker.0.try_wait().unwrap() {
            None => result,
            Some(status) => format!("{result}; the worker ends: {status}"),
        }
    }

    /// Kills the worker, and returns another one.
    async fn after_a_kill(&self, fault: &Fault, mut worker: KilledOnDrop) -> (String, KilledOnDrop) {
        let (job, _) = self.running(fault).await;
        worker.0.kill().unwrap();
        let (other, _) = self.worker().await;
        (self.end(job).await, other)
    }

    async fn after_sigterm(&self, fault: &Fault, worker: KilledOnDrop) -> String {
        let (running, user) = self.running(fault).await;
        let waiting = self.submit(user, &fault.args, None).await;
        let succeeds = self.ends_by_sigterm(worker).await;
        let untouched = row_count(
            &self.client,
            &format!("river_job WHERE id = {waiting} AND attempt = 0"),
        )
        .await
            == 1;
        let end = self.end(running).await;
        if succeeds && untouched && end == DONE {
            return LAST.to_owned();
        }
        format!(
            "{end}; the next job did not start: {untouched}; the worker ended without an error: {succeeds}"
        )
    }

    /// Returns whether the worker ended without an error.
    async fn ends_by_sigterm(&self, mut worker: KilledOnDrop) -> bool {
        kill(Pid::from_raw(worker.0.id().cast_signed()), Signal::SIGTERM).unwrap();
        self.ends(&mut worker).await.success()
    }

    async fn ends(&self, worker: &mut KilledOnDrop) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = worker.0.try_wait().unwrap() {
                return status;
            }
            self.wait(started, "the worker to end").await;
        }
    }

    /// `weir work` ends when it has been without the database for eight seconds, and its service manager starts it again.
    /// The other workers wait for the database.
    async fn start_again(&self, worker: &mut KilledOnDrop) {
        if self.language.program.is_empty() {
            assert_eq!(self.ends(worker).await.code(), Some(70));
            *worker = self.worker().await.0;
        }
    }
}

/// What becomes of each fault's job in this language, but of the last fault, which all languages meet at once.
async fn column(language: &Language) -> Vec<String> {
    let bench = Bench::new(language).await;
    let maintenance = Maintenance::of(&bench.weir);
    let (mut worker, name) = bench.worker().await;
    let faults = faults();
    let (together, [cut, killed, stopped, _]) = faults.split_last_chunk().unwrap();
    let mut results = join_all(together.iter().map(|fault| bench.result(fault, &name))).await;
    let ended = worker.0.try_wait().unwrap();
    assert!(
        ended.is_none(),
        "{}: the worker has ended: {ended:?}",
        language.name
    );
    results.push(bench.after_the_end_of_connections(cut, &mut worker).await);
    let (result, worker) = bench.after_a_kill(killed, worker).await;
    results.push(result);
    results.push(bench.after_sigterm(stopped, worker).await);
    maintenance.end().await;
    bench.weir.end().await;
    results
}

/// The result of a running job in each language when its server is away for longer than an attempt may run without it.
async fn after_an_outage(languages: &[Language], mut server: Server) -> Vec<String> {
    let faults = faults();
    let fault = faults.last().unwrap();
    let start = async |language| {
        let bench = Bench::of(language, Weir::on(&server, &SETTINGS).await).await;
        let (worker, _) = bench.worker().await;
        (Maintenance::of(&bench.weir), bench, worker)
    };
    let started = join_all(languages.iter().map(start)).await;
    // Only now, so that all jobs run at the same time.
    let jobs = join_all(started.iter().map(|(_, bench, _)| bench.running(fault))).await;
    server.restart(Duration::from_secs(10)).await;
    let end = async |((maintenance, mut bench, mut worker), (job, _)): ((_, Bench<'_>, _), (i64, Uuid))| {
        bench.client = bench.weir.client().await;
        bench.start_again(&mut worker).await;
        let result = bench.end_beside(job, &mut worker).await;
        Maintenance::end(maintenance).await;
        bench.weir.end().await;
        result
    };
    join_all(std::iter::zip(started, jobs).map(end)).await
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/any-language.md");
const MARKS: [&str; 2] = ["<!-- The table of conformance.rs -->\n", "<!-- Its end -->\n"];

#[tokio::test(flavor = "multi_thread")]
async fn workers_in_all_languages_bear_the_same_faults() {
    let mut go = None;
    let Some(languages) = languages(&mut go).await else {
        return;
    };
    let Some(server) = Server::start(
        &[("max_connections", "300")],
        "host all all 127.0.0.1/32 trust\nlocal all all trust\n",
        &[],
    )
    .await
    else {
        return skip("the programs of the server cannot be run here");
    };
    let mut columns = join_all(languages.iter().map(column)).await;
    for (column, result) in columns.iter_mut().zip(after_an_outage(&languages, server).await) {
        column.push(result);
    }
    let names: Vec<&str> = languages.iter().map(|language| language.name).collect();
    let mut table = format!(
        "| fault | result | {} |\n|---|---{}|\n",
        names.join(" | "),
        "|---".repeat(names.len())
    );
    for (row, Fault { name, expected, .. }) in faults().iter().enumerate() {
        write!(table, "| {name} | {expected} |").unwrap();
        for column in &columns {
            let cell = if column[row] == *expected {
                "yes"
            } else {
                &column[row]
            };
            write!(table, " {cell} |").unwrap();
        }
        table.push('\n');
    }
    println!("{table}");
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(MARKS[0]).unwrap();
    let (present, after) = rest.split_once(MARKS[1]).unwrap();
    let wanted = format!("\n{table}\n");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(PAGE, [before, MARKS[0], &wanted, MARKS[1], after].concat()).unwrap();
        return;
    }
    let other: Vec<&str> = wanted.lines().filter(|line| !present.contains(line)).collect();
    assert!(
        wanted == present,
        "the page differs in these rows. Run UPDATE_SNAPSHOTS=1 npm test -- conformance if they are right:\n{}",
        other.join("\n")
    );
}

/// The jobs that a worker loses at once.
const ROUND: usize = 20;

/// Takes over this many running jobs. Returns how long after that the attempts still had effects, in seconds, latest
/// last.
async fn effects_after_take_overs(language: &Language, take_overs: usize) -> Vec<f64> {
    let bench = Bench::new(language).await;
    let maintenance = Maintenance::of(&bench.weir);
    let file = std::env::temp_dir().join(format!("weir-effects-{}", Uuid::new_v4().simple()));
    // The other one works the jobs that one of them loses.
    let workers = [bench.worker().await.0, bench.worker().await.0];
    let effects = || std::fs::read_to_string(&file).unwrap_or_default();
    let mut taken_over = HashMap::new();
    while taken_over.len() < take_overs {
        let mut jobs = Vec::new();
        for _ in 0..ROUND.min(take_overs - taken_over.len()) {
            let user = bench.weir.user("free").await;
            jobs.push(
                bench
                    .submit(user, &json!({ "seconds": 600, "file": file }), None)
                    .await,
            );
        }
        let started = Instant::now();
        while jobs.iter().any(|job| !effects().contains(&format!("{job} 1 "))) {
            bench.wait(started, "the jobs to run").await;
        }
        bench.take_over(&jobs).await;
        for job in jobs {
            assert_eq!(bench.end(job).await, AGAIN);
            let at = "SELECT extract(epoch FROM (errors[1] ->> 'at')::timestamptz)::float8 FROM river_job WHERE id = $1";
            taken_over.insert(
                job.to_string(),
                bench
                    .client
                    .query_one(at, &[&job])
                    .await
                    .unwrap()
                    .get::<_, f64>(0),
            );
        }
    }
    // Once they have ended, no attempt runs.
    for worker in workers {
        assert!(bench.ends_by_sigterm(worker).await);
    }
    let mut late: Vec<f64> = effects()
        .lines()
        .filter_map(|line| {
            let (attempt, at) = line.rsplit_once(' ').unwrap();
            let after = at.parse::<f64>().unwrap() - taken_over[attempt.strip_suffix(" 1")?];
            (after > 0.0).then_some(after)
        })
        .collect();
    late.sort_by(f64::total_cmp);
    std::fs::remove_file(&file).unwrap();
    maintenance.end().await;
    bench.weir.end().await;
    late
}

/// `WEIR_TAKE_OVERS` is their number per language; the claim is about 200.
#[tokio::test(flavor = "multi_thread")]
async fn attempts_that_are_taken_over_have_no_effects_for_long() {
    let mut go = None;
    let Some(languages) = languages(&mut go).await else {
        return;
    };
    let take_overs = std::env::var("WEIR_TAKE_OVERS").map_or(ROUND, |text| text.parse().unwrap());
    // One language after the other, because they would slow each other down.
    for language in &languages {
        let effects = effects_after_take_overs(language, take_overs).await;
        let later = effects.iter().filter(|after| **after > 2.0).count();
        let last = effects.last().copied().unwrap_or_default();
        let name = language.name;
        println!(
            "{name}: {take_overs} take-overs, {later} effects later than 2 s, the last after {last:.2} s"
        );
        // More than two seconds on a busy machine.
        assert!(last < 8.0, "{name}: an effect {last} s after the take-over");
    }
}

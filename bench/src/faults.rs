//! `faults`: the cost of three users' simultaneous failures to all others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::progress::progress;
use super::report::{BenchError, Effort, Line, Report, conditions, percentile};
use super::stage::{Stage, submission};
use weir::config::Settings;
use weir_ledger::audit;
use weir_ledger::reservation::{Answer, Reserver};
use weir_ledger::settlement::{Ended, Settler, Success};

/// Users without a fault, each with one job at a time.
const OTHERS: usize = 16;

/// The pause between two jobs of a user. The database should be busy, but the pause is not measured.
const PAUSE: Duration = Duration::from_millis(20);

/// The fault of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// An open transaction has inserted a usage event of the user, and so holds the user's lock.
    Locked,
    /// The count of the user's slots is too low, so that a release fails its check.
    Drifted,
    /// PostgreSQL refuses the output of each of the user's jobs.
    Refused,
}

/// The durations of submissions and settlements.
#[derive(Default)]
pub(super) struct Latencies {
    pub(super) submissions: Vec<Duration>,
    pub(super) settlements: Vec<Duration>,
}

/// The parts that every user's loop needs.
struct Scene {
    stage: Arc<Stage>,
    reserver: Reserver,
    settler: Settler,
    over: CancellationToken,
}

/// Runs the benchmark.
///
/// # Errors
///
/// When the database cannot be used. The benchmark's database may then be left on the server.
pub(crate) async fn faults(settings: &Settings, effort: Effort) -> Result<Report, BenchError> {
    let stage = Arc::new(Stage::new(settings).await?);
    let mut conditions = conditions(&stage.database.connect().await?).await?;
    conditions.push(format!(
        "{OTHERS} users and three more, each submitting and settling one job after the other, with {} ms between; \
         {} turns of {} s with and without faults",
        PAUSE.as_millis(),
        effort.turns,
        (effort.span * 2).as_secs_f64()
    ));
    let (mut sound, mut faulty) = (Latencies::default(), Latencies::default());
    for number in 1..=effort.turns {
        progress(&format!(
            "without and with faults, turn {number} of {}",
            effort.turns
        ));
        turn(&stage, effort.span * 2, [Fault::None; 3], &mut sound).await?;
        let faults = [Fault::Locked, Fault::Drifted, Fault::Refused];
        turn(&stage, effort.span * 2, faults, &mut faulty).await?;
    }
    let mut lines = Vec::new();
    for (what, with, without) in [
        ("submission", &mut faulty.submissions, &mut sound.submissions),
        ("settlement", &mut faulty.settlements, &mut sound.settlements),
    ] {
        let name =
            |which: &str| format!("{what}, {which}, next to one locked, one drifted and one refused user");
        let (p50, quiet) = (percentile(with, 0.5), percentile(without, 0.5));
        lines.push(Line::compared(name("p50"), p50, quiet, "ms"));
        let (p99, quiet) = (percentile(with, 0.99), percentile(without, 0.99));
        lines.push(Line::at_most(name("p99"), p99, quiet, "ms", 1.5));
        let (most, quiet) = (percentile(with, 1.0), percentile(without, 1.0));
        lines.push(Line::compared(name("longest"), most, quiet, "ms"));
    }
    let mut client = stage.database.connect().await?;
    audit::repair(&mut client).await?;
    let findings = audit::audit(&mut client, Duration::ZERO).await?;
    let violations: usize = findings.iter().map(|finding| finding.violations.len()).sum();
    lines.push(Line {
        target: Some("0".to_owned()),
        holds: Some(violations == 0),
        ..Line::printed(
            "violations that the audit finds afterwards",
            violations as f64,
            "",
        )
    });
    drop(client);
    if let Some(stage) = Arc::into_inner(stage) {
        stage.end().await?;
    }
    Ok(Report { conditions, lines })
}

async fn turn(
    stage: &Arc<Stage>,
    span: Duration,
    faults: [Fault; 3],
    into: &mut Latencies,
) -> Result<(), BenchError> {
    stage.clear().await?;
    lives(stage, span, faults, into).await
}

/// Users that each submit and settle one job after the other, next to the rest of the load.
pub(super) async fn lives(
    stage: &Arc<Stage>,
    span: Duration,
    faults: [Fault; 3],
    into: &mut Latencies,
) -> Result<(), BenchError> {
    let scene = Arc::new(Scene {
        reserver: Reserver::start(&stage.database),
        settler: Settler::start(&stage.database),
        stage: Arc::clone(stage),
        over: CancellationToken::new(),
    });
    let users = stage.users(OTHERS as i64 + 3).await?;
    let latencies = Arc::new(Mutex::new(Latencies::default()));
    let lives = users.into_iter().enumerate().map(|(place, user)| {
        let fault = faults.get(place).copied();
        let seen = fault.is_none().then(|| Arc::clone(&latencies));
        tokio::spawn(live(Arc::clone(&scene), user, fault.unwrap_or(Fault::None), seen))
    });
    let lives: Vec<_> = lives.collect();
    // The first jobs open connections and prepare statements and plans.
    tokio::time::sleep(Duration::from_millis(500)).await;
    *latencies.lock() = Latencies::default();
    tokio::time::sleep(span).await;
    let mut measured = std::mem::take(&mut *latencies.lock());
    into.submissions.append(&mut measured.submissions);
    into.settlements.append(&mut measured.settlements);
    scene.over.cancel();
    for life in try_join_all(lives).await? {
        life?;
    }
    Ok(())
}

/// Submits, starts and ends one job after the other. Measures only users without a fault, which must not fail.
async fn live(
    scene: Arc<Scene>,
    user: Uuid,
    fault: Fault,
    seen: Option<Arc<Mutex<Latencies>>>,
) -> Result<(), BenchError> {
    let client = scene.stage.database.connect().await?;
    // The simulated workers and faults do not wait for the disk, and nothing waits for them.
    client.batch_execute("SET synchronous_commit = off").await?;
    let mut operator = scene.stage.database.connect().await?;
    let open = operator.transaction().await?;
    if fault == Fault::Locked {
        open.execute(
            "SELECT weir_charge($1::uuid::text, 'analysis', 1, gen_random_uuid()::text, now())",
            &[&user],
        )
        .await?;
    }
    while !scene.over.is_cancelled() {
        tokio::time::sleep(PAUSE).await;
        let submitted = Instant::now();
        let answer = tokio::select! {
            answer = scene.reserver.submit(submission(user)) => answer,
            // A locked-out user waits for seconds.
            () = scene.over.cancelled() => break,
        };
        let submission_took = submitted.elapsed();
        let job_id = match answer {
            Ok(Answer::Accepted { job, .. }) => job.id,
            Err(error) if fault == Fault::None => return Err(error.into()),
            Ok(_) | Err(_) => continue,
        };
        begin(&client, job_id).await?;
        let output = match fault {
            Fault::Refused => json!("a NUL character: \u{0}"),
            _ => Value::Null,
        };
        if fault == Fault::Drifted {
            client
                .execute("UPDATE holders SET slots_in_use = 0 WHERE holder = $1", &[&user])
                .await?;
        }
        let ended = Instant::now();
        let success = Success {
            attempt: 1,
            job_created_at: None,
            output,
            used: None,
        };
        let settled = scene
            .settler
            .settle(Ended {
                job_id,
                holder: Some(user),
                success: Some(success),
            })
            .await;
        let settlement_took = ended.elapsed();
        if let Some(seen) = &seen {
            let mut seen = seen.lock();
            seen.submissions.push(submission_took);
            seen.settlements.push(settlement_took);
        }
        if settled.is_err() {
            give_up(&scene, &client, user, job_id).await?;
        }
    }
    open.rollback().await?;
    Ok(())
}

/// Starts a job as a worker's claim does.
pub(super) async fn begin(client: &tokio_postgres::Client, job_id: i64) -> Result<(), BenchError> {
    client
        .execute(
            "UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now(), attempted_by = '{bench}' \
             WHERE id = $1",
            &[&job_id],
        )
        .await?;
    Ok(())
}

/// Discards a job as a worker does when the result cannot be stored.
async fn give_up(
    scene: &Scene,
    client: &tokio_postgres::Client,
    user: Uuid,
    job_id: i64,
) -> Result<(), BenchError> {
    client
        .execute(
            "UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE id = $1",
            &[&job_id],
        )
        .await?;
    let ended = Ended {
        job_id,
        holder: Some(user),
        success: None,
    };
    // An error affects only this user, and reconciliation handles it.
    let _ = scene.settler.settle(ended).await;
    Ok(())
}

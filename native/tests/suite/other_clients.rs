//! River's other clients on the same database: their jobs are subject to the limits, and their cancellations and pauses
//! take effect.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::programs::{self, GO_MODULE, GoProgram, run};
use crate::common::{GO_TESTS, Weir, Who};
use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::work::{Role, Working};
use weir_ledger::holder::Holder;

/// Pinned, so that the test is reproducible. The folder is named after the first and the last one.
const PYTHON_PACKAGES: [&str; 4] = [
    "riverqueue==0.7.0",
    "SQLAlchemy==2.1.9",
    "greenlet==3.5.6",
    "psycopg2-binary==2.9.13",
];

/// Counts concurrent jobs and all jobs.
#[derive(Default)]
struct Counting {
    now: AtomicUsize,
    most: AtomicUsize,
    ran: Mutex<Vec<i64>>,
}

#[async_trait]
impl Handler for Counting {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        self.ran.lock().unwrap().push(attempt.job_id);
        let running = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        Ok(Outcome {
            output: json!({}),
            used: None,
        }
        .into())
    }
}

/// Works the lanes and reconciles, as `weir up` does.
struct Up {
    working: Working,
    stopped: CancellationToken,
    reconciling: tokio::task::JoinHandle<()>,
}

impl Up {
    async fn start(weir: &Weir, counting: &Arc<Counting>) -> Self {
        let context = weir
            .another(&[])
            .with_handler("analysis:analyze", Arc::clone(counting) as Arc<dyn Handler>);
        let working = Working::start(&context, Role::Both, &context.settings.services)
            .await
            .unwrap();
        let stopped = CancellationToken::new();
        let reconciling = tokio::spawn(weir::work::reconcile::run(context, stopped.clone()));
        Self {
            working,
            stopped,
            reconciling,
        }
    }

    async fn stop(self) {
        self.stopped.cancel();
        self.reconciling.await.unwrap();
        self.working.stop().await;
    }
}

async fn finished(weir: &Weir, jobs: i64) {
    let client = weir.client().await;
    weir.until("all jobs to complete", async || {
        let done: i64 = client
            .query_one("SELECT count(*) FROM river_job WHERE state = 'completed'", &[])
            .await
            .unwrap()
            .get(0);
        (done == jobs).then_some(())
    })
    .await;
}

/// A Python with River's client; `None` if it cannot be created here.
fn python() -> Option<PathBuf> {
    programs::python("riverqueue-0.7.0-psycopg2-2.9.13", &PYTHON_PACKAGES)
}

/// Makes the program insert 30 jobs of one Free user, then works them in a lane with more workers than that user's
/// slots.
async fn limits_hold_for_jobs_of(mut inserts: Command) {
    let weir = Weir::new().await;
    let counting = Arc::new(Counting::default());
    let user = weir.user("free").await;
    run(inserts.args([weir.url(), &user.to_string(), "30"])).unwrap();
    let up = Up::start(&weir, &counting).await;
    finished(&weir, 30).await;
    assert_eq!(counting.most.load(Ordering::SeqCst), 1, "one at a time");
    assert_eq!(counting.ran.lock().unwrap().len(), 30);
    up.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_inserted_by_rivers_python_client_keep_the_limits() {
    let Some(python) = tokio::task::spawn_blocking(python).await.unwrap() else {
        return;
    };
    let mut inserts = Command::new(python);
    inserts.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/insert.py"));
    limits_hold_for_jobs_of(inserts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_inserted_by_rivers_go_client_keep_the_limits() {
    if let Some(program) = GoProgram::built(GO_MODULE, ".").await {
        limits_hold_for_jobs_of(Command::new(&program.path)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_paused_through_river_does_not_start_jobs_until_resumed() {
    let weir = Weir::new().await;
    let counting = Arc::new(Counting::default());
    let user = weir.user("free").await;
    let up = Up::start(&weir, &counting).await;
    let river = weir.river();
    river.queues().pause("analysis_default").await.unwrap();
    for _ in 0..3 {
        weir.analyse(Who::User(user), "a_test.go", GO_TESTS).await;
    }
    let other = weir.user("pro").await;
    let other_job = weir.analyse(Who::User(other), "a_test.go", GO_TESTS).await;
    weir.finished(other_job, Who::User(other)).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(
        *counting.ran.lock().unwrap(),
        [other_job],
        "only the lane that is not paused"
    );
    weir.is_clean().await;
    river.queues().resume("analysis_default").await.unwrap();
    finished(&weir, 4).await;
    assert_eq!(counting.most.load(Ordering::SeqCst), 1);
    up.stop().await;
    weir.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_job_cancelled_through_river_releases_its_reservation() {
    let weir = Weir::new().await;
    let counting = Arc::new(Counting::default());
    let who = Who::User(weir.user("free").await);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(weir.analyse(who, "a_test.go", GO_TESTS).await);
    }
    let river = weir.river();
    river.jobs().cancel(ids[1]).await.unwrap();
    weir.reconcile().await;
    assert_eq!(weir.quota(who, "analysis").await["reserved"], 2);
    let job = weir.get(&format!("/api/jobs/{}", ids[1]), who).await.body;
    assert_eq!(
        (&job["status"], &job["reserved"]),
        (&json!("cancelled"), &json!(0)),
        "{job}"
    );
    // This one holds the slot, which goes to the remaining one.
    river.jobs().cancel(ids[0]).await.unwrap();
    let up = Up::start(&weir, &counting).await;
    weir.finished(ids[2], who).await;
    assert_eq!(*counting.ran.lock().unwrap(), [ids[2]]);
    assert_eq!(weir.quota(who, "analysis").await["used"], 1);
    up.stop().await;
    weir.end().await;
}

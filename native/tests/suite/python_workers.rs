//! Workers in Python that run several jobs at a time, inside other programs.

use crate::common::fleet::{CLIENTS, output, row_count, worker_at_work};
use crate::common::programs;
use crate::common::{Weir, Who};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::process::Child;

/// A Python with psycopg and these packages; `None` if it cannot be created here.
async fn python(packages: &[&'static str]) -> Option<PathBuf> {
    let all = [&["psycopg[binary]==3.3.9"], packages].concat();
    let name = all.join("-").replace("[binary]", "").replace("==", "-");
    tokio::task::spawn_blocking(move || programs::python(&name, &all))
        .await
        .unwrap()
}

fn program(python: &std::path::Path, code: &str) -> Vec<PathBuf> {
    vec![python.to_owned(), "-c".into(), code.into(), CLIENTS.into()]
}

async fn submit(weir: &Weir, plan: &str, jobs: i32) -> uuid::Uuid {
    let user = weir.user(plan).await;
    let submit = "SELECT weir_submit($1, 'analysis', '{}') FROM generate_series(1, $2)";
    let client = weir.client().await;
    client.query(submit, &[&user.to_string(), &jobs]).await.unwrap();
    user
}

/// A process that is killed if it has not ended.
struct Killed<'a>(&'a mut Child);

impl Drop for Killed<'_> {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// Sends SIGTERM once, and returns whether the process ended without an error. Kills it if the test fails.
async fn ends_by_one_sigterm(weir: &Weir, child: &mut Child) -> bool {
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    let child = Killed(child);
    let ended = weir.until("the process to end", async || child.0.try_wait().unwrap());
    ended.await.success()
}

/// Four handlers wait for each other. Prints the maximum of running jobs.
const TOGETHER: &str = r#"
import os, sys, threading
sys.path.insert(0, sys.argv[1] + "/python")
from weir import Weir

together, counts = threading.Barrier(4), []

def handle(connection, job):
    together.wait(600)
    counts.append(connection.execute("SELECT count(*) FROM river_job WHERE state = 'running'").fetchone()[0])
    together.wait(600)

Weir().work(os.environ["DATABASE_URL"], ["analysis_priority"], handle, concurrency=4, until=lambda: len(counts) >= 8)
print(len(counts), max(counts))
"#;

const TOGETHER_ASYNC: &str = r#"
import asyncio, os, sys
sys.path.insert(0, sys.argv[1] + "/python")
from weir import AsyncWeir

arrived, counts = [], []

async def all_of(group):
    group.append(1)
    last = (len(group) + 3) // 4 * 4
    while len(group) < last:
        await asyncio.sleep(0.01)

async def handle(connection, job):
    await asyncio.wait_for(all_of(arrived), 600)
    found = await connection.execute("SELECT count(*) FROM river_job WHERE state = 'running'")
    counts.append((await found.fetchone())[0])
    await asyncio.wait_for(all_of(counts_seen), 600)

counts_seen = []
url, until = os.environ["DATABASE_URL"], lambda: len(counts) >= 8
asyncio.run(AsyncWeir().work(url, ["analysis_priority"], handle, concurrency=4, until=until))
print(len(counts), max(counts))
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_runs_jobs_concurrently() {
    let Some(python) = python(&[]).await else { return };
    for code in [TOGETHER, TOGETHER_ASYNC] {
        let weir = Weir::new().await;
        for _ in 0..2 {
            submit(&weir, "enterprise", 4).await;
        }
        assert_eq!(output(&weir, &program(&python, code), &[]).await, "8 4");
        let client = weir.client().await;
        let completed = row_count(&client, "river_job WHERE state = 'completed' AND attempt = 1").await;
        assert_eq!(completed, 8, "the last ones are completed before the worker ends");
        weir.end().await;
    }
}

const LENT: &str = r#"
import os, sys
sys.path.insert(0, sys.argv[1] + "/python")
from weir import Weir

counts = []

def handle(connection, job):
    counts.append(connection.execute("SELECT count(*) FROM river_job WHERE state = 'running'").fetchone()[0])

Weir().work(os.environ["DATABASE_URL"], ["analysis_default"], handle, concurrency=2, poll=0.2, until=lambda: len(counts) >= 2)
print(*counts)
"#;

/// Another worker has the user's slot. One of two handlers works the parked jobs, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_python_worker_keeps_one_handler_for_jobs_with_a_slot() {
    let Some(python) = python(&[]).await else { return };
    let weir = Weir::new().await;
    let client = weir.client().await;
    let submit = "UPDATE plan_limits SET burst = 5; \
                  SELECT weir_submit('alice', 'analysis', '{}') FROM generate_series(1, 3); \
                  SELECT weir_claim('analysis_default', 'another')";
    client.batch_execute(submit).await.unwrap();
    assert_eq!(output(&weir, &program(&python, LENT), &[]).await, "2 2");
    weir.abandon().await;
}

/// Three workers, and one that starts when the job ends, after or before the signal.
const THREE: &str = r#"
import asyncio, os, sys
sys.path.insert(0, sys.argv[1] + "/python")
from weir import AsyncWeir

late = []

def work():
    return AsyncWeir().work(os.environ["DATABASE_URL"], ["analysis_default"], handle, stop_on_signals=True)

async def handle(connection, job):
    await asyncio.sleep(1)
    late.append(asyncio.create_task(work()))

async def main():
    await asyncio.gather(work(), work(), work())
    await asyncio.gather(*late)

asyncio.run(main())
"#;

#[tokio::test(flavor = "multi_thread")]
async fn one_sigterm_ends_all_python_workers_of_a_process() {
    let Some(python) = python(&[]).await else { return };
    let weir = Weir::new().await;
    let user = submit(&weir, "free", 1).await;
    let mut child = worker_at_work(&weir, &program(&python, THREE)).await;
    assert!(ends_by_one_sigterm(&weir, &mut child).await);
    assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 1);
    weir.end().await;
}

/// The job runs until the signal arrives. Fails unless the program's own handler of the signal runs.
const OWN_HANDLER: &str = r#"
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1] + "/python")
from weir import Weir

stop, called = threading.Event(), []

def handler(*_):
    called.append(1)
    threading.Thread(target=stop.set).start()

signal.signal(signal.SIGTERM, handler)
def handle(connection, job):
    assert stop.wait(600)

Weir().work(os.environ["DATABASE_URL"], ["analysis_default"], handle, stop=stop)
assert called and signal.getsignal(signal.SIGTERM) is handler
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_leaves_signals_to_its_program() {
    let Some(python) = python(&[]).await else { return };
    let weir = Weir::new().await;
    let user = submit(&weir, "free", 2).await;
    let mut child = worker_at_work(&weir, &program(&python, OWN_HANDLER)).await;
    assert!(ends_by_one_sigterm(&weir, &mut child).await);
    assert_eq!(
        weir.quota(Who::User(user), "analysis").await["used"],
        1,
        "the running job ends, and no other one starts"
    );
    weir.abandon().await;
}

/// A web application with a worker, which its lifespan starts and ends. The job runs until then.
const LIFESPAN: &str = r#"
import asyncio, os, sys
sys.path.insert(0, sys.argv[1] + "/python")
import uvicorn
from weir import AsyncWeir

stop = asyncio.Event()

async def handle(connection, job):
    await stop.wait()

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    worker = AsyncWeir().work(os.environ["DATABASE_URL"], ["analysis_default"], handle, stop=stop)
    work = asyncio.create_task(worker)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    stop.set()
    await work
    await send({"type": "lifespan.shutdown.complete"})

uvicorn.run(app, port=0)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn one_sigterm_ends_uvicorn_with_a_worker() {
    let Some(python) = python(&["uvicorn==0.54.0"]).await else {
        return;
    };
    let weir = Weir::new().await;
    let user = submit(&weir, "free", 2).await;
    let mut child = worker_at_work(&weir, &program(&python, LIFESPAN)).await;
    // Uvicorn ends by the signal once it has shut down.
    ends_by_one_sigterm(&weir, &mut child).await;
    assert_eq!(weir.quota(Who::User(user), "analysis").await["used"], 1);
    weir.abandon().await;
}

/// The program cancels the worker while two jobs run.
const CANCELLED: &str = r#"
import asyncio, os, sys
sys.path.insert(0, sys.argv[1] + "/python")
from weir import AsyncWeir

running = []

async def handle(connection, job):
    running.append(job.id)
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        await connection.execute("SELECT 1")
        print("cancelled")
        raise

async def main():
    worker = AsyncWeir().work(os.environ["DATABASE_URL"], ["analysis_priority"], handle, concurrency=2)
    work = asyncio.create_task(worker)
    while len(running) < 2:
        await asyncio.sleep(0)
    work.cancel()
    try:
        await work
    except asyncio.CancelledError:
        print("ended")

asyncio.run(main())
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_python_worker_cancels_its_handlers() {
    let Some(python) = python(&[]).await else { return };
    let weir = Weir::new().await;
    submit(&weir, "enterprise", 2).await;
    let printed = output(&weir, &program(&python, CANCELLED), &[]).await;
    assert_eq!(printed, "cancelled\ncancelled\nended");
    let client = weir.client().await;
    let running = row_count(&client, "river_job WHERE state = 'running'").await;
    assert_eq!(running, 2, "other workers take them over");
    weir.abandon().await;
}

/// Each mistake ends the worker, and the error says what to correct. A URL of SQLAlchemy is none.
const MISTAKES: &str = r#"
import asyncio, os, sys
sys.path.insert(0, sys.argv[1] + "/python")
import psycopg
from weir import AsyncWeir, Weir

url = os.environ["DATABASE_URL"]

async def handle(connection, job):
    pass

def attempted():
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT count(errors) FROM river_job").fetchone()[0]

try:
    Weir().work(url, ["analysis_default"], handle)
except TypeError as error:
    print(error)
Weir().work(url, ["analysis_default"], lambda connection, job: handle(connection, job), until=attempted)
for work in (
    lambda: Weir().work(url.replace("://", "+psycopg2://"), ["analysis_defualt"], print, poll=0.1),
    lambda: asyncio.run(AsyncWeir().work(url.replace("://", "+asyncpg://"), ["analysis_defualt"], handle, poll=0.1)),
):
    try:
        work()
    except Exception as error:
        print(error.diag.message_primary)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn python_workers_name_mistakes_in_their_arguments() {
    let Some(python) = python(&[]).await else { return };
    let weir = Weir::new().await;
    submit(&weir, "free", 1).await;
    let printed = output(&weir, &program(&python, MISTAKES), &[]).await;
    let no_queue = "no service has the queue analysis_defualt";
    let expected = ["the handler is asynchronous; use AsyncWeir", no_queue, no_queue];
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    let error = "SELECT errors[1] ->> 'error' FROM river_job";
    let error: String = weir.client().await.query_one(error, &[]).await.unwrap().get(0);
    assert_eq!(error, expected[0]);
    weir.end().await;
}

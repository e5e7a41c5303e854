//! Workers of River's client that count the jobs that run at once.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use riverqueue::{Job, JobArgs, WorkContext, WorkOutcome, Workers};

/// The number of running jobs, and the most so far.
#[derive(Default)]
pub struct Running {
    now: usize,
    most: usize,
}

/// Workers for one kind. Each job takes 30 ms.
pub fn counting<Args: JobArgs>() -> (Workers, Arc<Mutex<Running>>) {
    let running = Arc::new(Mutex::new(Running::default()));
    let seen = Arc::clone(&running);
    let mut workers = Workers::new();
    workers
        .add_fn::<Args, _, _, _>(move |_: WorkContext, _: Job<Args>| {
            let seen = Arc::clone(&seen);
            async move {
                {
                    let mut seen = seen.lock().unwrap();
                    seen.now += 1;
                    seen.most = seen.most.max(seen.now);
                }
                tokio::time::sleep(Duration::from_millis(30)).await;
                seen.lock().unwrap().now -= 1;
                Ok::<_, Infallible>(WorkOutcome::Complete)
            }
        })
        .unwrap();
    (workers, running)
}

/// The most jobs that ran at once.
pub fn most(running: &Mutex<Running>) -> usize {
    running.lock().unwrap().most
}

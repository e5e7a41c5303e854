//! Jobs that run until the test releases them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use uuid::Uuid;
use weir::context::Context;
use weir::handler::{Attempt, Handler, HandlerError, Outcome, Refusal, Worked};
use weir::work::{Role, Working};
use weir_ledger::holder::Holder;

use super::Weir;

/// The kind of `weir.toml` with jobs that stop at the gate.
pub const KIND: &str = "analysis:analyze";

/// Holds every attempt until it is opened, and records which ran at the same time.
pub struct Gate {
    attempts: Mutex<Attempts>,
    open: watch::Sender<Open>,
}

#[derive(Default)]
struct Open {
    for_all: bool,
    users: BTreeSet<Uuid>,
}

#[derive(Default)]
struct Attempts {
    now: HashMap<i64, Option<Uuid>>,
    most: usize,
    fail_at_first: BTreeSet<i64>,
}

impl Gate {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            attempts: Mutex::default(),
            open: watch::Sender::new(Open::default()),
        })
    }

    /// Works all lanes of the context, with this gate before every job.
    pub async fn work(self: &Arc<Self>, context: Context, role: Role) -> Working {
        let context = context.with_handler(KIND, Arc::clone(self) as Arc<dyn Handler>);
        Working::start(&context, role, &context.settings.services)
            .await
            .unwrap()
    }

    /// Makes the job's first attempt fail, without waiting at the gate.
    pub fn fail_at_first(&self, job: i64) {
        self.attempts.lock().unwrap().fail_at_first.insert(job);
    }

    pub fn open(&self) {
        self.open.send_modify(|open| open.for_all = true);
    }

    /// Opens it for the jobs of these users alone.
    pub fn open_for(&self, users: &[Uuid]) {
        self.open.send_modify(|open| open.users.extend(users));
    }

    /// The running jobs.
    pub fn running(&self) -> BTreeSet<i64> {
        self.attempts.lock().unwrap().now.keys().copied().collect()
    }

    /// The holders of the running jobs.
    pub fn holders(&self) -> Vec<Option<Uuid>> {
        self.attempts.lock().unwrap().now.values().copied().collect()
    }

    /// The users among these with a running job.
    pub fn running_of(&self, users: &[Uuid]) -> Vec<Uuid> {
        let running: BTreeSet<Uuid> = self.holders().into_iter().flatten().collect();
        users
            .iter()
            .copied()
            .filter(|user| running.contains(user))
            .collect()
    }

    /// The highest number of concurrent jobs so far.
    pub fn most(&self) -> usize {
        self.attempts.lock().unwrap().most
    }

    pub async fn until_running(&self, weir: &Weir, count: usize) {
        weir.until("jobs to start", async || {
            (self.running().len() == count).then_some(())
        })
        .await;
    }

    pub async fn until_running_of(&self, weir: &Weir, users: &[Uuid], count: usize) {
        weir.until("jobs of these users to start", async || {
            (self.running_of(users).len() == count).then_some(())
        })
        .await;
    }
}

#[async_trait]
impl Handler for Gate {
    async fn reserve(&self, _holder: Holder, _args: &Map<String, Value>) -> Result<i64, Refusal> {
        Ok(1)
    }

    async fn work(&self, attempt: Attempt) -> Result<Worked, HandlerError> {
        let holder = attempt.holder.map(|holder| holder.id);
        let fails = {
            let mut attempts = self.attempts.lock().unwrap();
            attempts.now.insert(attempt.job_id, holder);
            attempts.most = attempts.most.max(attempts.now.len());
            attempt.attempt == 1 && attempts.fail_at_first.contains(&attempt.job_id)
        };
        let is_open = |open: &Open| open.for_all || holder.is_some_and(|user| open.users.contains(&user));
        if !fails {
            let _ = self.open.subscribe().wait_for(is_open).await;
        }
        self.attempts.lock().unwrap().now.remove(&attempt.job_id);
        if fails {
            return Err(HandlerError::Failed("as the test wants it".to_owned()));
        }
        Ok(Outcome {
            output: json!({}),
            used: None,
        }
        .into())
    }
}

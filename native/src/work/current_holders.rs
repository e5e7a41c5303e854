//! Whose the jobs are that run in this process: what the guard looked up, for the worker that runs inside it, and what
//! the arguments say.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use riverqueue::JobRow;
use serde::Deserialize;
use weir_ledger::holder::Holder;

/// Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct CurrentHolders(Arc<Mutex<HashMap<i64, Option<Holder>>>>);

impl CurrentHolders {
    /// Remembers the holder of a job until the result is dropped; `None` is a job that did not come through Weir.
    pub(super) fn enter(&self, job_id: i64, holder: Option<Holder>) -> Entered<'_> {
        self.0.lock().insert(job_id, holder);
        Entered {
            current: self,
            job_id,
        }
    }

    /// The holder of a job that runs.
    pub(super) fn of(&self, job_id: i64) -> Option<Holder> {
        self.0.lock().get(&job_id).copied().flatten()
    }
}

pub(super) struct Entered<'a> {
    current: &'a CurrentHolders,
    job_id: i64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.current.0.lock().remove(&self.job_id);
    }
}

/// ADR-10's UserJobExtractor: the text `user_id` of the arguments; absent and empty are nobody.
pub(super) fn user_id(job: &JobRow) -> Option<String> {
    #[derive(Deserialize)]
    struct WithUser {
        user_id: Option<String>,
    }
    let args: WithUser = serde_json::from_str(job.encoded_args.get()).ok()?;
    args.user_id.filter(|user| !user.is_empty())
}

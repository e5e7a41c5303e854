//! The holder of the current task's attempt: from the reservation that the guard read, or from the job's arguments.

use riverqueue::JobRow;
use serde::Deserialize;
use weir_ledger::holder::Holder;

tokio::task_local! {
    static HOLDER: Option<Holder>;
}

/// Runs an attempt with the reservation of `holder`; `None` for a job without a reservation.
pub(super) async fn scope<F: Future>(holder: Option<Holder>, attempt: F) -> F::Output {
    HOLDER.scope(holder, attempt).await
}

/// The holder of the reservation of the current task's attempt.
pub(super) fn get() -> Option<Holder> {
    HOLDER.try_with(|holder| *holder).ok().flatten()
}

/// ADR-10's UserJobExtractor: the text `user_id` of the arguments; `None` when it is absent or empty.
pub(super) fn user_id(job: &JobRow) -> Option<String> {
    #[derive(Deserialize)]
    struct WithUser {
        user_id: Option<String>,
    }
    let args: WithUser = serde_json::from_str(job.encoded_args.get()).ok()?;
    args.user_id.filter(|user| !user.is_empty())
}

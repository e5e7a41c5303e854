//! River's notifications: new jobs, resumed queues and cancelled jobs.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use weir_ledger::database::DatabaseError;
use weir_ledger::database::listener::{CONTROL, INSERT, Listener};

use super::worker::Worker;
use crate::context::Context;

/// The pause before another connection is opened. Polls find jobs in the meantime.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A notification of either topic. River's clients ignore what they do not know.
#[derive(Deserialize)]
struct Notification {
    action: Option<String>,
    queue: Option<String>,
    job_id: Option<i64>,
}

pub(super) async fn listen(context: &Context) -> Result<Listener, DatabaseError> {
    context.database.listen(&[INSERT, CONTROL]).await
}

/// Receives notifications for as long as it is polled.
pub(super) async fn receive(worker: &Arc<Worker>, mut listener: Listener) -> std::convert::Infallible {
    loop {
        while let Some(text) = listener.next().await {
            if let Ok(notification) = serde_json::from_str(&text) {
                handle(worker, notification);
            }
        }
        tracing::warn!(
            "the connection for notifications has ended; new jobs are found later until it is open again"
        );
        listener = loop {
            tokio::time::sleep(RETRY_PAUSE).await;
            match listen(&worker.context).await {
                Ok(listener) => break listener,
                Err(error) => tracing::debug!(%error, "could not listen to notifications"),
            }
        };
        // Those in the meantime are lost.
        worker.lanes.resume(None);
    }
}

fn handle(worker: &Arc<Worker>, notification: Notification) {
    let queue = notification.queue.as_deref().filter(|queue| *queue != "*");
    match (notification.action.as_deref(), notification.job_id) {
        (Some("cancel"), Some(job)) if worker.under_way.has(job) => {
            // Any role of the database can send this, so only the mark in the job's metadata counts.
            let worker = Arc::clone(worker);
            tokio::spawn(async move {
                let Worker { context, id, .. } = &*worker;
                if let Err(error) = worker.under_way.check(context, id, job).await {
                    tracing::warn!(job, %error, "could not check a cancellation");
                }
            });
        }
        (None, _) => worker.lanes.wake(queue),
        (Some("resume"), _) => worker.lanes.resume(queue),
        _ => {}
    }
}

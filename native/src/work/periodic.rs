//! Enqueues the periodic jobs, independent of River's leader. Every scheduler tries, and the database enqueues each
//! tick once.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use riverqueue::PeriodicSchedule;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use weir_ledger::database::DatabaseError;
use weir_ledger::periodic::{self as ledger, Tick};
use weir_policy::lane::Lane;

use crate::config::periodic::Periodic;
use crate::context::Context;

/// A tick missed because no scheduler ran is enqueued late within this time, and skipped afterwards.
const LATEST: SignedDuration = SignedDuration::from_mins(1);

/// Maximum number of skipped ticks counted at once.
const MAX_SKIPPED: usize = 10_000;

/// The maximum time between two checks of the clock.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Before the next try when the database did not respond.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Runs until it is stopped, including through outages.
pub(super) async fn run(context: Context, stopped: CancellationToken) {
    if context.settings.periodic.is_empty() {
        return;
    }
    loop {
        let mut pause = MAX_PAUSE;
        for periodic in &context.settings.periodic {
            match enqueue(&context, periodic).await {
                Ok(next) => pause = pause.min(next),
                // Periodic jobs are independent: a failure does not stop the others.
                Err(error) => {
                    tracing::warn!(periodic = periodic.id, %error, "could not enqueue a periodic job");
                    pause = pause.min(RETRY_PAUSE);
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stopped.cancelled() => return,
        }
    }
}

/// Enqueues the due ticks. Returns the time until the next one.
async fn enqueue(context: &Context, periodic: &Periodic) -> Result<Duration, DatabaseError> {
    let Some(service) = context.settings.service(&periodic.service) else {
        return Ok(MAX_PAUSE);
    };
    let queue = service.queue(Lane::Scheduled);
    let args = Value::Object(periodic.args.clone());
    let enqueuing = context.pool.with(async |client| {
        let (now, until) = ledger::enqueued_until(client, &periodic.id).await?;
        let from = until.max(now - LATEST);
        let skipped = count_skipped(periodic, until, from);
        if skipped > 0 && ledger::skip(client, &periodic.id, until, from).await? {
            tracing::warn!(periodic = periodic.id, skipped, %until, "ticks of a periodic job were skipped because no \
                 scheduler was running");
            let id = periodic.id.clone();
            metrics::counter!("weir_skipped_ticks_total", "periodic" => id).increment(skipped);
        }
        let mut next = periodic.schedule.next(from);
        while let Some(at) = next.filter(|at| *at <= now) {
            let tick = Tick {
                id: &periodic.id,
                at,
                kind: &service.kind,
                queue: &queue,
                max_attempts: service.max_attempts,
                args: &args,
            };
            ledger::enqueue(client, &tick).await?;
            next = periodic.schedule.next(at);
        }
        Ok::<_, DatabaseError>((now, next))
    });
    let (now, next) = enqueuing.await?;
    Ok(next.map_or(MAX_PAUSE, |next| time_until(now, next)))
}

/// The number of ticks after `after` and up to `until`.
fn count_skipped(periodic: &Periodic, after: Timestamp, until: Timestamp) -> u64 {
    let next = |at: &Timestamp| periodic.schedule.next(*at);
    std::iter::successors(next(&after), next)
        .take(MAX_SKIPPED)
        .take_while(|at| *at <= until)
        .fold(0, |count, _| count + 1)
}

fn time_until(now: Timestamp, next: Timestamp) -> Duration {
    Duration::try_from(next.duration_since(now)).unwrap_or_default()
}

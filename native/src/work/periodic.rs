//! Enqueues the periodic jobs, whoever leads River. Every scheduler tries, and the database has each tick enqueued once.

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

/// A tick that nobody enqueued in time, since no scheduler ran, is made up for within this long, and skipped after.
const LATEST: SignedDuration = SignedDuration::from_mins(1);

/// The most skipped ticks that are counted at once.
const MAX_SKIPPED: usize = 10_000;

/// Between two looks at the clock, however far the next tick is.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Before the next try when the database did not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Goes on until it is stopped, also through outages.
pub(super) async fn run(context: Context, stopped: CancellationToken) {
    if context.settings.periodic.is_empty() {
        return;
    }
    loop {
        let mut pause = MAX_PAUSE;
        for periodic in &context.settings.periodic {
            match enqueue(&context, periodic).await {
                Ok(next) => pause = pause.min(next),
                // Each on its own: what one of them cannot do keeps no other from going on.
                Err(error) => {
                    tracing::warn!(periodic = periodic.id, %error, "a periodic job could not be enqueued");
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

/// Enqueues what is due. Returns how long it is until the next tick.
async fn enqueue(context: &Context, periodic: &Periodic) -> Result<Duration, DatabaseError> {
    let Some(service) = context.settings.service(&periodic.service) else {
        return Ok(MAX_PAUSE);
    };
    let queue = service.queue(Lane::Scheduled);
    let args = Value::Object(periodic.args.clone());
    let enqueuing = context.pool.with(async |client| {
        let (now, until) = ledger::enqueued_until(client, &periodic.id).await?;
        let from = until.max(now - LATEST);
        let skipped = skipped(periodic, until, from);
        if skipped > 0 && ledger::skip(client, &periodic.id, until, from).await? {
            tracing::warn!(periodic = periodic.id, skipped, %until, "ticks of a periodic job were skipped: no scheduler ran");
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
    Ok(next.map_or(MAX_PAUSE, |next| until(now, next)))
}

/// How many ticks are after the one time and not after the other.
fn skipped(periodic: &Periodic, after: Timestamp, until: Timestamp) -> u64 {
    let next = |at: &Timestamp| periodic.schedule.next(*at);
    std::iter::successors(next(&after), next)
        .take(MAX_SKIPPED)
        .take_while(|at| *at <= until)
        .fold(0, |count, _| count + 1)
}

fn until(now: Timestamp, next: Timestamp) -> Duration {
    Duration::try_from(next.duration_since(now)).unwrap_or_default()
}

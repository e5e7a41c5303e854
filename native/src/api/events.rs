//! Server-sent events: a job's changes, and the lanes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream;

use super::caller::Caller;
use super::job::Job;
use super::{Api, ApiError, ProblemDetails, jobs, system};
use crate::holder::Holder;

/// Between two looks at a job.
const JOB_PAUSE: Duration = Duration::from_millis(250);

/// Between two looks at the lanes.
const LANES_PAUSE: Duration = Duration::from_secs(1);

/// Often enough that proxies do not take the stream for dead.
fn keep_alive() -> KeepAlive {
    KeepAlive::new().interval(Duration::from_secs(15))
}

/// One event `job` at each change, the first at once; ends after the last state.
#[utoipa::path(
    get,
    path = "/api/jobs/{id}/events",
    params(("id" = i64, Path, description = "The job's id")),
    responses(
        (status = 200, description = "Events `job`, each with a Job as its data", content_type = "text/event-stream"),
        (status = 401, body = ProblemDetails, description = "The request did not come through the edge", content_type = "application/problem+json"),
        (status = 404, body = ProblemDetails, description = "The caller has no such job", content_type = "application/problem+json"),
        (status = 503, body = ProblemDetails, description = "The database cannot be reached", content_type = "application/problem+json"),
    )
)]
pub(super) async fn job(
    State(api): State<Arc<Api>>,
    id: Result<Path<i64>, PathRejection>,
    caller: Caller,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let Ok(Path(id)) = id else {
        return Err(ApiError::NoJob);
    };
    let first = jobs::find(&api, caller.holder, id).await?;
    let start = Following {
        api,
        holder: caller.holder,
        last: None,
        next: Some(first),
    };
    Ok(Sse::new(stream::unfold(start, Following::step)).keep_alive(keep_alive()))
}

struct Following {
    api: Arc<Api>,
    holder: Holder,
    last: Option<Job>,
    next: Option<Job>,
}

impl Following {
    async fn step(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.last.as_ref().is_some_and(Job::is_finished) {
            return None;
        }
        loop {
            if let Some(job) = self.next.take() {
                let event = Event::default().event("job").json_data(&job).unwrap_or_default();
                self.last = Some(job);
                return Some((Ok(event), self));
            }
            tokio::select! {
                () = tokio::time::sleep(JOB_PAUSE) => {}
                () = self.api.stopping.cancelled() => return None,
            }
            let id = self.last.as_ref()?.id;
            match jobs::find(&self.api, self.holder, id).await {
                Ok(job) if Some(&job) != self.last.as_ref() => self.next = Some(job),
                Ok(_) => {}
                // An outage passes; the stream goes on then.
                Err(ApiError::Unavailable(_)) => {}
                Err(_) => return None,
            }
        }
    }
}

/// One event `lanes` about once a second.
#[utoipa::path(
    get,
    path = "/api/lanes/events",
    responses(
        (status = 200, description = "Events `lanes`, each with a Lanes as its data", content_type = "text/event-stream"),
        (status = 401, body = ProblemDetails, description = "The request did not come through the edge", content_type = "application/problem+json"),
    )
)]
pub(super) async fn lanes(
    State(api): State<Arc<Api>>,
    _caller: Caller,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let events = stream::unfold((api, true), |(api, first)| async move {
        if !first {
            tokio::select! {
                () = tokio::time::sleep(LANES_PAUSE) => {}
                () = api.stopping.cancelled() => return None,
            }
        }
        let event = match system::look(&api).await {
            Ok(lanes) => Event::default()
                .event("lanes")
                .json_data(lanes)
                .unwrap_or_default(),
            Err(_) => Event::default().comment("the database cannot be reached"),
        };
        Some((Ok(event), (api, false)))
    });
    Sse::new(events).keep_alive(keep_alive())
}

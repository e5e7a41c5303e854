//! Server-sent events: changes of one job or of all the caller's jobs, and the lanes.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::answers::{
    LacksScope, ManyStreams, NoSubject, NoSuchJob, OutOfRange, Unauthenticated, Unavailable,
};
use super::caller::Caller;
use super::feed::{NEWEST, Watch};
use super::holder_limiter::Permit;
use super::job::Job;
use super::problem::ApiError;
use super::state::Api;
use super::{jobs, system};
use weir_ledger::holder::Holder;
use weir_policy::token::LEEWAY_SECS;

/// The pause before jobs are read again after an error.
const OUTAGE_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause of a stream that has no room for its event. Each look reads the whole output again.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The longest duration of a stream. The client reconnects and is verified again, so that a deleted account does not
/// keep its streams.
const MAX_STREAM: Duration = Duration::from_secs(10 * 60);

/// The maximum number of jobs that a stream remembers as sent.
const REMEMBERED: usize = 2000;

/// One event of a stream.
type Sent = Result<Event, Infallible>;

/// The interval between two events of the lanes.
const LANES_INTERVAL: Duration = Duration::from_secs(1);

/// Often enough that proxies do not consider the stream dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The longest duration of a stream. It ends when its caller's token expires. Service keys are checked again and again.
fn longest(token_expires_at: Option<u64>, now_unix_secs: u64) -> Duration {
    let left = token_expires_at.map(|at| at.saturating_add(LEEWAY_SECS).saturating_sub(now_unix_secs));
    left.map_or(MAX_STREAM, |left| Duration::from_secs(left).min(MAX_STREAM))
}

/// When a stream must end.
struct Limits {
    api: Arc<Api>,
    token_expires_at: Option<u64>,
    key: Option<String>,
}

impl Limits {
    fn of(api: &Arc<Api>, caller: &Caller) -> Self {
        Self {
            api: Arc::clone(api),
            token_expires_at: caller.token_expires_at,
            key: caller.key.clone(),
        }
    }

    /// Waits for the time limit, the end of the service key, or the stop of the process.
    async fn reached(self) {
        let now = jiff::Timestamp::now().as_second().unsigned_abs();
        let key_ends = async {
            match &self.key {
                Some(key) => self.api.live_keys.end_of(key).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(longest(self.token_expires_at, now)) => {}
            () = key_ends => {}
            () = self.api.stopping.cancelled() => {}
        }
    }
}

/// The response. It ends at its limits, even while it waits for an event.
fn answer(limits: Limits, events: impl Stream<Item = Sent> + Send + 'static) -> impl IntoResponse {
    let events = events.take_until(Box::pin(limits.reached()));
    let stream = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    // nginx buffers responses by default, and an event would wait until the buffer is full.
    ([("x-accel-buffering", "no")], stream)
}

fn event(name: &str, data: impl Serialize) -> Event {
    Event::default().event(name).json_data(data).unwrap_or_default()
}

/// Streams one job as server-sent events.
///
/// Sends an event `job` immediately and at each change. The stream ends after the final state.
#[utoipa::path(
    get,
    path = "/api/jobs/{id}/events",
    operation_id = "streamJob",
    tag = "Jobs",
    params(
        ("id" = i64, Path, description = "The job's id", minimum = 1),
        ("token" = Option<String>, Query, description = "The job's token. Required for anonymous callers", min_length = 1),
    ),
    responses(
        (status = 200, description = "Events `job`, each with a Job as its data", content_type = "text/event-stream"),
        Unauthenticated, LacksScope, NoSuchJob, NoSubject, ManyStreams, Unavailable,
    )
)]
pub(super) async fn job(
    State(api): State<Arc<Api>>,
    id: Result<Path<i64>, PathRejection>,
    caller: Caller,
) -> Result<impl IntoResponse, ApiError> {
    let Ok(Path(id)) = id else {
        return Err(ApiError::NoJob);
    };
    // A stream takes a permit only if the caller has such a job.
    jobs::by_id(&api, &caller, id).await?;
    let watch = api.feed.watch(caller.holder.id, Some(id));
    let watch = watch.ok_or(ApiError::TooManyStreams)?;
    let limits = Limits::of(&api, &caller);
    let start = Following {
        api,
        caller,
        watch,
        id,
        sent: None,
        sending: None,
    };
    let events = stream::unfold(start, Following::step);
    Ok(answer(limits, events))
}

struct Following {
    api: Arc<Api>,
    caller: Caller,
    watch: Watch,
    id: i64,
    /// The job as it was last sent.
    sent: Option<SentJob>,
    /// The room for the event that is being sent.
    sending: Option<Permit>,
}

/// A job as it was sent.
struct SentJob {
    hash: u64,
    /// Whether it was in a final state.
    is_over: bool,
}

impl Following {
    async fn step(mut self) -> Option<(Sent, Self)> {
        // The next event is polled only after the previous one was sent.
        self.sending = None;
        let mut pause = OUTAGE_PAUSE;
        loop {
            if self.sent.as_ref().is_some_and(|sent| sent.is_over) {
                return None;
            }
            // The watch starts before the first look, so that no change is missed in between.
            let changed = match self.sent {
                Some(_) => self.watch.changed().await,
                None => vec![self.id],
            };
            let found = jobs::by_id(&self.api, &self.caller, self.id).await;
            match found.and_then(|job| self.event_for(&job)) {
                Ok(Some(event)) => return Some((Ok(event), self)),
                Ok(None) => {}
                // The stream continues after an outage.
                Err(ApiError::Database(_)) => {
                    tokio::time::sleep(OUTAGE_PAUSE).await;
                    self.watch.mark_changed(&changed);
                }
                // The stream continues when large answers have been sent.
                Err(ApiError::Unavailable(_)) => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                    self.watch.mark_changed(&changed);
                }
                Err(_) => return None,
            }
        }
    }

    /// The event for a job, if it has changed since it was last sent.
    fn event_for(&mut self, job: &Job) -> Result<Option<Event>, ApiError> {
        let text = serde_json::to_string(job).unwrap_or_default();
        let (hash, is_over) = (hash_of(&text), job.is_over());
        if let Some(sent) = self.sent.as_mut().filter(|sent| sent.hash == hash) {
            sent.is_over = is_over;
            return Ok(None);
        }
        self.sending = self.api.sending.room(self.caller.holder.id, text.len())?;
        self.sent = Some(SentJob { hash, is_over });
        Ok(Some(Event::default().event("job").data(text)))
    }
}

fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Options of the first event.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct FirstEvent {
    /// The maximum number of jobs in the first event. Default: 100.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<i64>,
}

/// Streams all of the caller's jobs as server-sent events.
///
/// The first event, `jobs`, has the newest jobs as `GET /api/jobs` lists them. An event `job` follows at each change of
/// one of the newest 100 jobs, and of every job submitted later, until it finishes. An event `gone` follows when a job
/// is deleted. Events have no ids: after a reconnect, the stream starts with `jobs` again.
#[utoipa::path(
    get,
    path = "/api/jobs/events",
    operation_id = "streamJobs",
    tag = "Jobs",
    params(FirstEvent),
    responses(
        (status = 200, description = "An event `jobs` with an array of Jobs as its data; then events `job`, each with a Job, and `gone`, with the `id` of a job", content_type = "text/event-stream"),
        Unauthenticated, LacksScope, OutOfRange, ManyStreams, Unavailable,
    )
)]
pub(super) async fn jobs(
    State(api): State<Arc<Api>>,
    first: Result<Query<FirstEvent>, QueryRejection>,
    caller: Caller,
) -> Result<impl IntoResponse, ApiError> {
    let limit = first.map_or(0, |Query(first)| first.limit.unwrap_or(NEWEST));
    if !(1..=NEWEST).contains(&limit) {
        return Err(ApiError::Unprocessable(
            "limit must be a whole number from 1 to 100".to_owned(),
        ));
    }
    caller.signed_in()?;
    // Before the list is read, so that no change is missed in between.
    let watch = api.feed.watch(caller.holder.id, None);
    let watch = watch.ok_or(ApiError::TooManyStreams)?;
    let newest = jobs::newest_first(&api, caller.holder, None, limit).await?;
    let limits = Limits::of(&api, &caller);
    let mut start = Everything {
        api,
        holder: caller.holder,
        watch,
        sent: BTreeMap::new(),
        next: VecDeque::from([event("jobs", &newest)]),
    };
    for job in &newest {
        start.is_new(job);
    }
    let events = stream::unfold(start, Everything::step);
    Ok(answer(limits, events))
}

struct Everything {
    api: Arc<Api>,
    holder: Holder,
    watch: Watch,
    /// Hashes of the jobs as they were sent: the first event may already contain a change that a look finds.
    sent: BTreeMap<i64, u64>,
    next: VecDeque<Event>,
}

impl Everything {
    async fn step(mut self) -> Option<(Sent, Self)> {
        loop {
            if let Some(event) = self.next.pop_front() {
                return Some((Ok(event), self));
            }
            let changed = self.watch.changed().await;
            let Ok(found) = jobs::by_ids(&self.api, self.holder, &changed).await else {
                // The stream continues after an outage.
                tokio::time::sleep(OUTAGE_PAUSE).await;
                self.watch.mark_changed(&changed);
                continue;
            };
            for id in changed {
                match found.iter().find(|job| job.id == id) {
                    Some(job) if self.is_new(job) => self.next.push_back(event("job", job)),
                    Some(_) => {}
                    None => {
                        self.sent.remove(&id);
                        self.next
                            .push_back(event("gone", serde_json::json!({ "id": id })));
                    }
                }
            }
        }
    }

    /// Whether the job has changed since it was last sent. Remembers it.
    fn is_new(&mut self, job: &Job) -> bool {
        let hash = hash_of(&serde_json::to_string(job).unwrap_or_default());
        let before = self.sent.insert(job.id, hash);
        while self.sent.len() > REMEMBERED {
            self.sent.pop_first();
        }
        before != Some(hash)
    }
}

/// Streams the state of all lanes as server-sent events.
///
/// Sends an event `lanes` about once a second.
#[utoipa::path(
    get,
    path = "/api/lanes/events",
    operation_id = "streamLanes",
    tag = "Lanes",
    responses(
        (status = 200, description = "Events `lanes`, each with a Lanes as its data", content_type = "text/event-stream"),
        Unauthenticated, LacksScope, NoSubject, ManyStreams,
    )
)]
pub(super) async fn lanes(
    State(api): State<Arc<Api>>,
    caller: Caller,
) -> Result<impl IntoResponse, ApiError> {
    let permit = api.live_view.stream(caller.holder.id);
    let permit = permit.ok_or(ApiError::TooManyStreams)?;
    let limits = Limits::of(&api, &caller);
    let events = stream::unfold((api, permit, true), |(api, permit, first)| async move {
        if !first {
            tokio::time::sleep(LANES_INTERVAL).await;
        }
        let event = match system::live_view(&api).await {
            Ok(lanes) => event("lanes", lanes),
            Err(_) => Event::default().comment("the database cannot be reached"),
        };
        Some((Ok(event), (api, permit, false)))
    });
    Ok(answer(limits, events))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_ends_with_its_token_and_within_ten_minutes() {
        let lasts = |expires_at| longest(expires_at, 1000).as_secs();
        assert_eq!(lasts(None), 600);
        assert_eq!(lasts(Some(1060)), 60 + LEEWAY_SECS);
        assert_eq!(lasts(Some(900)), 0);
        assert_eq!([lasts(Some(5000)), lasts(Some(u64::MAX))], [600, 600]);
    }
}

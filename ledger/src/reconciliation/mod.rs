//! Queries of reconciliation: jobs that ended without a settlement, jobs of dead processes, reservations to renew, and
//! rows to delete.
//!
//! Each query handles a bounded slice and returns the start of the next one. So a round's cost depends on its slices
//! and not on the size of the database.

mod adoption;

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Error;
use uuid::Uuid;

use crate::database::PreparedClient;
use crate::meter::Meter;
use crate::pass::Slice;
use crate::processes::DEAD_AFTER;

pub use adoption::{Adopted, MadeAvailable, adopt};

/// The maximum number of ended jobs that one query returns.
pub const MAX_ENDED: i64 = 10_000;

/// The number of slices in a sweep of all reservations. Each reservation is checked every ten minutes, well within its
/// time to live, and the cost at rest is close to zero.
const SLICES_OF_A_SWEEP: i64 = 1200;

/// The minimum number of reservations in a slice of the sweep. The sweep frees the slots of retries that other clients
/// record.
const MIN_SWEPT: i64 = 1000;

/// The maximum number of reservations in a slice.
const MAX_SWEPT: i64 = 20_000;

/// The number of rows in a slice of cleaning.
const CLEAN_SLICE: i64 = 5000;

/// The number of holders in a slice that is searched for addresses that hold nothing. Its order is not that of the
/// table.
const HOLDERS_SLICE: i64 = 500;

/// The number of submissions in a slice that is searched for deleted accounts.
const ABANDONED_SLICE: i64 = 1000;

/// The maximum number of jobs that are taken over at once.
const MAX_TAKEN_OVER: i64 = 10_000;

/// The time by the database's clock.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn now(client: &PreparedClient) -> Result<Timestamp, Error> {
    let row = client.query_one("SELECT clock_timestamp() AS now", &[]).await?;
    Ok(row.get("now"))
}

/// The longest wait of [`await_unclaimed`].
pub const MAX_UNCLAIMED_WAIT: Duration = Duration::from_secs(1);

/// A queue with a job that no idle worker has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnclaimedQueue {
    /// The queue.
    pub queue: String,
    /// Changes with the jobs that wait.
    pub mark: i64,
}

/// Waits for jobs that no idle worker has claimed: available ones, because their transactions did not notify workers, and
/// parked ones that lent workers could start. Empty after [`MAX_UNCLAIMED_WAIT`] without any. Must run outside of a transaction.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn await_unclaimed(client: &PreparedClient) -> Result<Vec<UnclaimedQueue>, Error> {
    let wait = i32::try_from(MAX_UNCLAIMED_WAIT.as_millis()).unwrap_or(i32::MAX);
    let row = client
        .query_one("CALL await_unclaimed($1, NULL, NULL)", &[&wait])
        .await?;
    let queues: Option<Vec<String>> = row.get("queues");
    let marks: Option<Vec<i64>> = row.get("marks");
    let found = std::iter::zip(queues.unwrap_or_default(), marks.unwrap_or_default());
    Ok(found
        .map(|(queue, mark)| UnclaimedQueue { queue, mark })
        .collect())
}

/// The times from now until jobs need a step; `None` when no job waits for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextSteps {
    /// Until the next job asks for a slot.
    pub due: Option<Duration>,
    /// Until the next job expires. Zero while a job runs that has expired.
    pub expiry: Option<Duration>,
}

/// When the next jobs are due and expire.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn next_steps(client: &PreparedClient) -> Result<NextSteps, Error> {
    let row = client.query_one(include_str!("sql/next_steps.sql"), &[]).await?;
    let wait = |column| {
        let wait: Option<f64> = row.get(column);
        wait.map(|wait| Duration::from_secs_f64(wait.clamp(0.0, 86_400.0)))
    };
    Ok(NextSteps {
        due: wait("due"),
        expiry: wait("expiry"),
    })
}

/// A job that has ended before its reservation, and the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsettledJob {
    /// River's job id.
    pub job_id: i64,
    /// The reservation's holder.
    pub holder: Uuid,
}

/// Jobs that ended and still have a reservation.
#[derive(Debug, Default)]
pub struct EndedJobs {
    /// The jobs.
    pub jobs: Vec<UnsettledJob>,
    /// Whether a process other than Weir's worked any of them.
    pub by_others: bool,
}

/// Jobs that ended since this time and still have a reservation, without these jobs, at most [`MAX_ENDED`].
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn ended_since(
    client: &PreparedClient,
    since: Timestamp,
    without: &[i64],
) -> Result<EndedJobs, Error> {
    let rows = client
        .query(
            include_str!("sql/ended_recently.sql"),
            &[&since, &MAX_ENDED, &without],
        )
        .await?;
    let jobs = rows.iter().map(|row| UnsettledJob {
        job_id: row.get("job_id"),
        holder: row.get("holder"),
    });
    Ok(EndedJobs {
        jobs: jobs.collect(),
        by_others: rows.iter().any(|row| row.get("by_others")),
    })
}

/// Cancels jobs that still wait after their time to start, at most [`MAX_ENDED`]. They hold their quota and slot until
/// they are settled.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn expire(client: &PreparedClient) -> Result<Vec<UnsettledJob>, Error> {
    let rows = client
        .query(include_str!("sql/expire.sql"), &[&MAX_ENDED])
        .await?;
    let jobs = rows.iter().map(|row| UnsettledJob {
        job_id: row.get("job_id"),
        holder: row.get("holder"),
    });
    Ok(jobs.collect())
}

/// The reservations in a slice that are no longer justified by their jobs.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Jobs that have ended, or that hold a slot while they wait for a retry.
    pub ended: Vec<UnsettledJob>,
    /// Jobs that were deleted.
    pub orphans: Vec<UnsettledJob>,
    /// The start of the next slice; 0 after the last one.
    pub next: i64,
    /// The last job of this slice.
    pub last: i64,
    /// The number of reservations in the slice.
    pub size: i64,
    /// Whether one of them is past half of its time to live.
    pub wants_renewal: bool,
}

/// Renews the reservations of unfinished jobs for `ttl`, in the slice of jobs after `after` up to `last`.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn renew(client: &PreparedClient, after: i64, last: i64, ttl: Duration) -> Result<(), Error> {
    client
        .execute(
            include_str!("sql/renew.sql"),
            &[&after, &last, &ttl.as_secs_f64()],
        )
        .await?;
    Ok(())
}

/// Checks the slice of all reservations after this job. `total` is their number at the last count. `ttl` is their time
/// to live.
///
/// # Errors
///
/// When the database cannot be queried.
pub async fn sweep(client: &PreparedClient, after: i64, total: i64, ttl: Duration) -> Result<Sweep, Error> {
    let wanted = (total / SLICES_OF_A_SWEEP).clamp(MIN_SWEPT, MAX_SWEPT);
    let row = client
        .query_one(
            include_str!("sql/sweep.sql"),
            &[&after, &wanted, &ttl.as_secs_f64()],
        )
        .await?;
    let (last, size): (Option<i64>, i64) = (row.get("last"), row.get("size"));
    let Some(last) = last else {
        return Ok(Sweep::default());
    };
    let unsettled = |jobs, holders| -> Vec<UnsettledJob> {
        let pairs = std::iter::zip(row.get::<_, Vec<i64>>(jobs), row.get::<_, Vec<Uuid>>(holders));
        pairs
            .map(|(job_id, holder)| UnsettledJob { job_id, holder })
            .collect()
    };
    Ok(Sweep {
        last,
        ended: unsettled("ended", "of_ended"),
        orphans: unsettled("orphans", "of_orphans"),
        next: if size == wanted { last } else { 0 },
        size,
        wants_renewal: row.get("wants_renewal"),
    })
}

/// A job that was taken over.
#[derive(Clone, Debug)]
pub struct TakenOverJob {
    /// River's job id.
    pub job_id: i64,
    /// River's id of the client that ran it.
    pub client_id: Option<String>,
    /// Its new state.
    pub state: String,
}

/// Takes over the jobs of processes without a heartbeat, and jobs that another River client has been running for longer
/// than their kind may take. The attempt counts, because it may have done most of its work.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn take_over(
    client: &PreparedClient,
    max_durations: &[(&str, Duration)],
) -> Result<Vec<TakenOverJob>, Error> {
    let (kinds, seconds): (Vec<&str>, Vec<f64>) = max_durations
        .iter()
        .map(|(kind, duration)| (*kind, duration.as_secs_f64()))
        .unzip();
    let rows = client
        .query(
            include_str!("sql/take_over.sql"),
            &[&DEAD_AFTER.as_secs_f64(), &kinds, &seconds, &MAX_TAKEN_OVER],
        )
        .await?;
    Ok(rows
        .iter()
        .map(|row| TakenOverJob {
            job_id: row.get("job_id"),
            client_id: row.get("client_id"),
            state: row.get("state"),
        })
        .collect())
}

async fn slice_of_jobs(
    client: &PreparedClient,
    sql: &'static str,
    after: i64,
    size: i64,
) -> Result<Slice<i64>, Error> {
    let row = client.query_one(sql, &[&after, &size]).await?;
    Ok(Slice {
        next: row.get("last"),
        done: row.get("done"),
    })
}

/// Deletes old submissions from the slice after this job.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn clean_submissions(client: &PreparedClient, after: i64) -> Result<Slice<i64>, Error> {
    slice_of_jobs(
        client,
        include_str!("sql/clean_submissions.sql"),
        after,
        CLEAN_SLICE,
    )
    .await
}

/// The start of a slice of finished jobs: the time and the id of the last job in the previous slice.
pub type FinishedCursor = (Timestamp, i64);

/// Before every finished job.
pub const FIRST_FINISHED: FinishedCursor = (Timestamp::UNIX_EPOCH, 0);

/// Copies users' jobs that ended in this state, from the slice after this one. Returns the start of the next slice, if
/// there is one.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn keep_finished(
    client: &PreparedClient,
    state: &str,
    after: FinishedCursor,
) -> Result<Option<FinishedCursor>, Error> {
    let row = client
        .query_one(
            include_str!("sql/keep_finished.sql"),
            &[&state, &after.0, &after.1, &CLEAN_SLICE],
        )
        .await?;
    let ended: Option<Timestamp> = row.get("finalized_at");
    Ok(ended.map(|ended| (ended, row.get("id"))))
}

/// Deletes finished jobs that plans no longer keep.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn clean_finished(client: &PreparedClient) -> Result<(), Error> {
    client
        .execute(include_str!("sql/clean_finished.sql"), &[&CLEAN_SLICE])
        .await?;
    Ok(())
}

/// Deletes large outputs of deleted jobs, from the slice after this job.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn clean_outputs(client: &PreparedClient, after: i64) -> Result<Slice<i64>, Error> {
    slice_of_jobs(client, include_str!("sql/clean_outputs.sql"), after, CLEAN_SLICE).await
}

/// Cancels jobs of deleted users, and makes other pending jobs without a reservation reserve again, from the slice of
/// submissions after this job.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn cancel_abandoned(client: &PreparedClient, after: i64) -> Result<Slice<i64>, Error> {
    slice_of_jobs(
        client,
        include_str!("sql/cancel_abandoned.sql"),
        after,
        ABANDONED_SLICE,
    )
    .await
}

/// The start of a slice of holders: a holder and one of its meters.
pub type HolderCursor = (Uuid, Meter);

/// Before every holder.
pub const FIRST_HOLDER: HolderCursor = (Uuid::nil(), Meter::named(""));

/// Deletes client addresses that hold nothing, from the slice of addresses after this one.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn clean_holders(
    client: &PreparedClient,
    after: HolderCursor,
) -> Result<Slice<HolderCursor>, Error> {
    let row = client
        .query_one(
            include_str!("sql/clean_holders.sql"),
            &[&after.0, &after.1, &HOLDERS_SLICE],
        )
        .await?;
    let last: Option<Uuid> = row.get("last");
    Ok(Slice {
        next: last.map(|holder| (holder, row.get("last_event_type"))),
        done: row.get("done"),
    })
}

/// Deletes the records of users that were deleted more than 30 days ago.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn clean_deleted_users(client: &PreparedClient) -> Result<(), Error> {
    let forget = "DELETE FROM deleted_users WHERE deleted_at < now() - interval '30 days'";
    client.execute(forget, &[]).await?;
    Ok(())
}

/// Deletes the expired keys of folded submissions.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn clean_folded(client: &PreparedClient) -> Result<(), Error> {
    client
        .execute(include_str!("sql/clean_folded.sql"), &[&CLEAN_SLICE])
        .await?;
    Ok(())
}

/// Deletes windows shorter than a month that ended long ago.
///
/// # Errors
///
/// When the database cannot be used.
pub async fn clean_windows(client: &PreparedClient) -> Result<(), Error> {
    client
        .execute(include_str!("sql/clean_windows.sql"), &[&CLEAN_SLICE])
        .await?;
    Ok(())
}

//! Claims: River's own statement, which starts later in the queue while a claim of the whole queue is slow (see
//! [`ClaimStart`]).
//!
//! The traits are meant for River's companion crates and may change with any version. The workspace pins the version.
//! Without this module, River would claim in the same way from the whole queue.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use riverqueue::__private::{
    ClaimedJob, DatabaseConnection, Pilot, PilotDatabase, PilotError, PilotProducer, ProducerClaimContext,
    ProducerClaimNext, ProducerStartContext,
};
use riverqueue::sqlx::Postgres;
use riverqueue::sqlx::pool::PoolConnection;
use weir_ledger::database::{ConnectionPool, NarrowConnections};
use weir_ledger::read;

use super::claim_pace::ClaimPace;
use super::claim_start::{ClaimStart, Scope};

/// River's first priority.
const FIRST_PRIORITY: i16 = 1;

/// Claims the jobs of a process.
pub(super) struct Claims {
    pub(super) pace: ClaimPace,
    /// Connections for slow claims.
    pub(super) narrow: NarrowConnections,
    pub(super) pool: ConnectionPool,
}

#[async_trait]
impl Pilot for Claims {
    async fn start_producer(
        &self,
        _context: ProducerStartContext,
    ) -> Result<Option<Box<dyn PilotProducer>>, PilotError> {
        Ok(Some(Box::new(QueueClaims {
            pace: self.pace.clone(),
            narrow: self.narrow.clone(),
            pool: self.pool.clone(),
            start: Arc::new(Mutex::new(ClaimStart::new(Instant::now()))),
        })))
    }
}

/// Claims the jobs of one queue.
struct QueueClaims {
    pace: ClaimPace,
    narrow: NarrowConnections,
    pool: ConnectionPool,
    start: Arc<Mutex<ClaimStart>>,
}

#[async_trait]
impl PilotProducer for QueueClaims {
    fn intercepts_claim(&self) -> bool {
        true
    }

    async fn claim(
        &self,
        context: ProducerClaimContext<'_>,
        next: ProducerClaimNext<'_>,
    ) -> Result<Vec<ClaimedJob>, PilotError> {
        let connect = self.connect(context.database);
        let Some(connected) = context.claim_stop.run_until_cancelled(connect).await else {
            return Ok(Vec::new());
        };
        let (mut connection, scope, now) = connected?;
        let began = Instant::now();
        let claimed = next.claim(DatabaseConnection::Postgres(&mut connection)).await;
        drop(connection);
        let time = began.elapsed();
        let jobs = match claimed {
            Ok(jobs) => jobs,
            Err(error) => {
                if matches!(scope, Scope::From(_)) {
                    self.narrow.pause();
                }
                return Err(error.into());
            }
        };
        let until = now.map(|now| claimed_until(&jobs, context.limit, now));
        self.start.lock().claimed(scope, time, jobs.len(), until);
        self.pace.took(time, jobs.len());
        self.look(context.queue, context.kinds);
        Ok(jobs)
    }
}

impl QueueClaims {
    /// A connection for the next claim, and what that reads. Also the database's time, if claims are slow. If no connection
    /// can skip jobs, the claim reads the whole queue.
    async fn connect(
        &self,
        database: &PilotDatabase,
    ) -> Result<(PoolConnection<Postgres>, Scope, Option<Timestamp>), PilotError> {
        let scope = self.start.lock().scope();
        if let Scope::From(from) = scope
            && let Some((connection, now)) = self.narrow.connect(from).await
        {
            return Ok((connection, scope, Some(now)));
        }
        let pool = database.pool().postgres();
        let pool = pool.ok_or("River's database is not PostgreSQL")?;
        let (scope, now) = match scope {
            Scope::All => (Scope::All, None),
            Scope::SlowAll | Scope::From(_) => (Scope::SlowAll, Some(read::lanes::clock(&self.pool).await?)),
        };
        Ok((pool.acquire().await?, scope, now))
    }

    /// If it is due, looks for available jobs before the start of claims. Claims continue during the look.
    fn look(&self, queue: &str, kinds: Option<&[String]>) {
        let Some(before) = self.start.lock().look(Instant::now()) else {
            return;
        };
        let (start, pool) = (Arc::clone(&self.start), self.pool.clone());
        let (queue, kinds) = (queue.to_owned(), kinds.map(<[String]>::to_vec));
        tokio::spawn(async move {
            let began = Instant::now();
            let looked = read::lanes::has_earlier(&pool, &queue, before, kinds.as_deref()).await;
            if let Err(error) = &looked {
                tracing::warn!(%error, queue, "could not look for earlier jobs, so the next claim reads the whole queue");
            }
            start.lock().looked(began.elapsed(), looked.ok(), Instant::now());
        });
    }
}

/// All jobs that start before this time are claimed, after a claim that began at `now` and found these jobs. A claim that
/// found as many as it may has left later ones.
fn claimed_until(jobs: &[ClaimedJob], limit: usize, now: Timestamp) -> Timestamp {
    if jobs.len() < limit {
        return now;
    }
    let first = jobs
        .iter()
        .filter_map(ClaimedJob::job)
        .filter(|job| job.priority == FIRST_PRIORITY);
    first.map(|job| job.scheduled_at).max().unwrap_or(now)
}

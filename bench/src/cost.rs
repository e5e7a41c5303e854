//! The cost of a job: processor time by process, and PostgreSQL's writes.

use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::report::{BenchError, Line};

/// The processor time so far of the origin, the workers, and PostgreSQL with all its processes.
pub(super) struct Cpu([Duration; 3]);

const PROCESSES: [&str; 3] = ["origin", "workers", "PostgreSQL"];

impl Cpu {
    /// A process that does not exist, or that may not be inspected, counts as zero.
    pub(super) async fn read(client: &Client, processes: [Option<u32>; 2]) -> Self {
        let postgres = postmaster(client).await;
        let [origin, workers] = processes.map(|id| id.and_then(own_time).unwrap_or_default());
        Self([origin, workers, postgres.map(family_time).unwrap_or_default()])
    }

    /// The processor time since `before`.
    pub(super) fn since(&self, before: &Self) -> [Duration; 3] {
        std::array::from_fn(|index| self.0[index].saturating_sub(before.0[index]))
    }

    /// The cost per job since `before`.
    pub(super) fn each(&self, before: &Self, jobs: usize) -> Vec<Cost> {
        let spent = self.since(before);
        PROCESSES
            .iter()
            .zip(spent)
            .filter(|(_, spent)| !spent.is_zero())
            .map(|(process, spent)| Cost::of_time(process, spent, jobs))
            .collect()
    }
}

/// A backend ends within this time after its client.
const GONE: Duration = Duration::from_secs(5);

/// PostgreSQL's writes so far.
pub(super) struct Written(Vec<f64>);

const WRITTEN: [(&str, &str); 6] = [
    ("transactions", ""),
    ("WAL", "bytes"),
    ("rows inserted", ""),
    ("rows updated", ""),
    ("of them without a new index entry", ""),
    ("rows deleted", ""),
];

impl Written {
    /// Waits for the other backends of this database to end, because a backend reports all its counts when it ends.
    pub(super) async fn read(client: &Client) -> Result<Self, BenchError> {
        let others = "SELECT count(*) FROM pg_stat_activity \
                      WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
        let started = Instant::now();
        while started.elapsed() < GONE && client.query_one(others, &[]).await?.get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        client.batch_execute("SELECT pg_stat_clear_snapshot()").await?;
        let row = client
            .query_one(
                "SELECT ARRAY[d.xact_commit, pg_current_wal_insert_lsn() - '0/0'::pg_lsn, \
                              t.inserted, t.updated, t.hot, t.deleted]::float8[] \
                 FROM pg_stat_database d, \
                      (SELECT sum(n_tup_ins) AS inserted, sum(n_tup_upd) AS updated, \
                              sum(n_tup_hot_upd) AS hot, sum(n_tup_del) AS deleted \
                       FROM pg_stat_user_tables) t \
                 WHERE d.datname = current_database()",
                &[],
            )
            .await?;
        Ok(Self(row.get(0)))
    }

    /// The writes per job since `before`.
    pub(super) fn each(&self, before: &Self, jobs: usize) -> Vec<Cost> {
        let written = self.0.iter().zip(&before.0).map(|(now, then)| now - then);
        WRITTEN
            .iter()
            .zip(written)
            .map(|((what, unit), written)| Cost {
                what: (*what).to_owned(),
                each: written / jobs.max(1) as f64,
                unit,
            })
            .collect()
    }
}

/// The WAL that the server has written so far, in bytes.
pub(super) async fn wal(client: &Client) -> Result<f64, BenchError> {
    let row = client
        .query_one(
            "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8",
            &[],
        )
        .await?;
    Ok(row.get(0))
}

/// One cost of one job.
pub(super) struct Cost {
    what: String,
    each: f64,
    unit: &'static str,
}

impl Cost {
    /// The processor time per job of a process.
    pub(super) fn of_time(process: &str, spent: Duration, jobs: usize) -> Self {
        Self {
            what: format!("CPU of {process}"),
            each: spent.as_secs_f64() * 1e6 / jobs.max(1) as f64,
            unit: "µs",
        }
    }

    pub(super) fn line(&self, of: &str) -> Line {
        Line::printed(format!("{of}: {}", self.what), self.each, self.unit)
    }
}

/// The process id of a server on this machine, if the role may read it.
async fn postmaster(client: &Client) -> Option<u32> {
    let row = client
        .query_one(
            "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)",
            &[],
        )
        .await
        .ok()?;
    let id: u32 = row.get::<_, &str>(0).parse().ok()?;
    let name = std::fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
    name.starts_with("postgres").then_some(id)
}

/// Fields of `/proc/PID/stat` after the name, counted as in proc(5) from the third.
fn stat(id: u32) -> Option<Vec<u64>> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    Some(
        rest.split_whitespace()
            .map(|field| field.parse().unwrap_or(0))
            .collect(),
    )
}

/// Clock ticks are hundredths of a second on every Linux.
fn ticks(count: u64) -> Duration {
    Duration::from_millis(count * 10)
}

fn own_time(id: u32) -> Option<Duration> {
    let stat = stat(id)?;
    Some(ticks(stat.get(11)? + stat.get(12)?))
}

/// The processor time of a process, its living children and its ended ones.
pub(super) fn family_time(id: u32) -> Duration {
    let mut sum = stat(id).map_or(0, |stat| stat.get(11..15).map_or(0, |times| times.iter().sum()));
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let child = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(stat) = child.and_then(stat)
            && stat.get(1) == Some(&u64::from(id))
        {
            sum += stat.get(11).unwrap_or(&0) + stat.get(12).unwrap_or(&0);
        }
    }
    ticks(sum)
}

//! headgate: a partition for each user, and a queue for each number of slots, because a queue has one ceiling for all
//! of its partitions.

use std::sync::Arc;
use std::time::Duration;

use headgate::{BackoffConfig, JobCtx, Registry, Worker, WorkerConfig, prepare_envelope};
use headgate_core::{CodecError, ConcurrencyLimitConfig, Envelope, SaturationStrategy, Store, Task};
use headgate_migrate::{Direction, MigrateOptions, migrate_postgres};
use headgate_postgres::PgStore;
use peers::{Failure, database_url, job, number, produce, rescues_soon, takes, until_stdin_ends};
use tokio_postgres::NoTls;
use uuid::Uuid;

/// The queue for users with this many slots.
const QUEUES: [(&str, u64); 2] = [("one", 1), ("three", 3)];

struct Work(Uuid);

impl Task for Work {
    const TYPE: &'static str = "work";

    fn encode(&self) -> Result<Vec<u8>, CodecError> {
        Ok(self.0.as_bytes().to_vec())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        // The rest distinguishes jobs of one user, because a fingerprint covers the payload.
        Uuid::from_slice(bytes.get(..16).unwrap_or_default())
            .map(Self)
            .map_err(|error| CodecError::Malformed(error.to_string()))
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let callers = number("PEER_CALLERS");
    let store = Arc::new(PgStore::connect(&database_url(), callers)?);
    match std::env::args().nth(1).as_deref() {
        Some("setup") => setup(&store).await,
        Some("produce") => {
            produce(callers, move |user, slots| {
                let store = store.clone();
                async move {
                    let id = Uuid::now_v7();
                    let envelope = prepare_envelope(Envelope {
                        id: id.to_string(),
                        kind: Work::TYPE.into(),
                        payload: [*user.as_bytes(), *id.as_bytes()].concat(),
                        queue: if slots == 1 { "one" } else { "three" }.into(),
                        partition_key: user.to_string(),
                        max_attempts: 25,
                        ..Default::default()
                    })?;
                    store.enqueue(&[envelope]).await?;
                    Ok(())
                }
            })
            .await
        }
        _ => work(store).await,
    }
}

async fn setup(store: &Arc<PgStore>) -> Result<(), Failure> {
    let (mut client, connection) = tokio_postgres::connect(&database_url(), NoTls).await?;
    tokio::spawn(connection);
    migrate_postgres(&mut client, Direction::Up, MigrateOptions::default()).await?;
    let inspect = store.as_inspect().ok_or("this store has no ceilings")?;
    for (queue, max_concurrent) in QUEUES {
        inspect
            .upsert_concurrency_limit(&ConcurrencyLimitConfig {
                name: queue.into(),
                queue: queue.into(),
                max_concurrent,
                on_saturated: SaturationStrategy::Queue,
            })
            .await?;
    }
    Ok(())
}

async fn work(store: Arc<PgStore>) -> Result<(), Failure> {
    let takes = takes();
    let mut registry = Registry::new();
    registry.register::<Work, _, _>(move |ctx: JobCtx, Work(user): Work| async move {
        job(user, ctx.job_id(), takes).await;
        Ok(())
    })?;
    let mut config = WorkerConfig {
        queues: QUEUES.map(|(queue, _)| queue.to_owned()).to_vec(),
        capacity: number("PEER_WORKERS") as u32,
        poll: BackoffConfig {
            floor: Duration::from_millis(1),
            ..BackoffConfig::default()
        },
        ..WorkerConfig::default()
    };
    if rescues_soon() {
        config.lease = Duration::from_secs(2);
    }
    let (worker, handle) = Worker::new(store, registry, config);
    let working = tokio::spawn(worker.run());
    until_stdin_ends().await?;
    handle.shutdown();
    working.await??;
    Ok(())
}

//! Makes room for the next job while the last one is being settled.
//!
//! An attempt keeps its place in River's pool until its settlement is committed, since River would otherwise record
//! its result first, unfenced. The handler has long finished by then, so for that time the pool is one larger: the
//! number of handlers at work stays what was configured, and the commit costs no throughput.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use riverqueue::Client;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Room(Arc<Inner>);

#[derive(Default)]
struct Inner {
    settling: Mutex<HashMap<String, usize>>,
    changed: Notify,
}

/// An attempt that is being settled.
pub(super) struct Settling<'a> {
    room: &'a Room,
    queue: &'a str,
}

impl Room {
    /// The handler is done; until the answer is dropped its place does not count.
    pub(super) fn settling<'a>(&'a self, queue: &'a str) -> Settling<'a> {
        self.change(queue, |count| count + 1);
        Settling { room: self, queue }
    }

    fn change(&self, queue: &str, change: impl FnOnce(usize) -> usize) {
        let mut settling = self.0.settling.lock().unwrap_or_else(PoisonError::into_inner);
        match settling.get_mut(queue) {
            Some(count) => *count = change(*count),
            None => {
                settling.insert(queue.to_owned(), change(0));
            }
        }
        drop(settling);
        self.0.changed.notify_one();
    }

    /// Keeps the pools of this client as large as they should be.
    pub(super) fn start(&self, client: Client, stopped: CancellationToken) -> tokio::task::JoinHandle<()> {
        let room = self.clone();
        tokio::spawn(async move {
            let queues = client.local_queues();
            let configured = queues.configs();
            let mut applied: HashMap<String, usize> = HashMap::new();
            loop {
                tokio::select! {
                    () = room.0.changed.notified() => {}
                    () = stopped.cancelled() => return,
                }
                let settling = room
                    .0
                    .settling
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                for (queue, extra) in settling {
                    let Some(config) = configured.get(&queue) else {
                        continue;
                    };
                    // Never more than twice the pool: settlements that do not come through must stop the intake.
                    let size = config.max_workers() + extra.min(config.max_workers());
                    if applied.insert(queue.clone(), size) != Some(size)
                        && let Err(error) = queues.update(&queue, config.clone().with_max_workers(size))
                    {
                        tracing::debug!(%error, queue, "could not make room");
                    }
                }
            }
        })
    }
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        self.room.change(self.queue, |count| count.saturating_sub(1));
    }
}

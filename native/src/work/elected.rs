//! Who does the duties of all: the process whose session holds a lock in the database, until it ends.

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use weir_ledger::database::{DatabaseError, keep_alive};
use weir_ledger::duties;

use super::host;
use super::step::{STEP_TIMEOUT, within};
use crate::context::Context;

/// How often the process that does the duties says so.
const SAY_INTERVAL: Duration = Duration::from_secs(3);

/// How often the leader's session is used at least: well within the time after which it is ended when it is idle.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(3);

/// Any number, the same everywhere. The lock's key is made of it and of a table, since each Weir of a database has one
/// leader.
const LOCK: i64 = 0x77_65_69_73 << 32;

const ELECT: &str =
    "SELECT pg_try_advisory_lock($1 | 'quota_reservations'::regclass::oid::bigint) AS elected";

/// How long a lock is waited for.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// A connection, whether it holds the lock, and when it last said so.
pub(super) struct Elected {
    pub(super) client: Client,
    is_elected: bool,
    said: Option<Instant>,
}

impl Elected {
    pub(super) async fn open(context: &Context) -> Result<Self, DatabaseError> {
        let opened = async {
            let client = context.database.connect_bookkeeper(LOCK_TIMEOUT).await?;
            // A process that vanishes with its machine, or stands still, must not keep the lock.
            client
                .batch_execute(
                    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; \
                     SET idle_session_timeout = '10s'",
                )
                .await?;
            Ok(client)
        };
        Ok(Self {
            client: in_time(opened).await?,
            is_elected: false,
            said: None,
        })
    }

    /// Does some of the duties. Settlements go on over other connections, and may take longer than this session may be
    /// idle.
    pub(super) async fn during<T>(&self, duty: impl Future<Output = T>) -> T {
        keep_alive(&self.client, KEEP_ALIVE_INTERVAL, duty).await
    }

    /// Says whose the duties are. Returns whether the connection is still of use.
    pub(super) async fn say(&mut self) -> bool {
        if self.said.is_some_and(|said| said.elapsed() < SAY_INTERVAL) {
            return true;
        }
        let said = async { Ok(duties::done(&self.client, &process()).await?) };
        if within("duties", said).await {
            self.said = Some(Instant::now());
            return true;
        }
        false
    }

    /// Says that nobody does them, until somebody else does.
    pub(super) async fn leave(self) {
        if self.said.is_some() {
            let left = async { Ok(duties::leave(&self.client, &process()).await?) };
            within("duties", left).await;
        }
    }

    pub(super) async fn is_elected(&mut self) -> Result<bool, DatabaseError> {
        if !self.is_elected {
            let asked = async { Ok(self.client.query_one(ELECT, &[&LOCK]).await?) };
            self.is_elected = in_time(asked).await?.get("elected");
        }
        Ok(self.is_elected)
    }
}

async fn in_time<T>(asked: impl Future<Output = Result<T, DatabaseError>>) -> Result<T, DatabaseError> {
    tokio::time::timeout(STEP_TIMEOUT, asked)
        .await
        .unwrap_or(Err(DatabaseError::Timeout(STEP_TIMEOUT)))
}

/// What people look for when they look for this process.
fn process() -> String {
    format!("{}:{}", host::name(), std::process::id())
}

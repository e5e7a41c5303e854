//! Connections on which River's client sees only the later part of its table.
//!
//! River's statements name the table without a schema. On these connections, a temporary view with that name selects
//! the jobs that start at a certain time or later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
use tokio_postgres::error::SqlState;

use super::connect::Database;
use super::error::DatabaseError;

/// The maximum number of connections.
const CONNECTIONS: u32 = 2;

/// Creates a connection's view. The comparison of rows has the order of the index that River's claims use. 1 is
/// River's first priority, so jobs of later priorities are always visible. By default, a view would check the rights of
/// its owner.
const CREATE_VIEW: &str = "CREATE TEMPORARY VIEW river_job WITH (security_invoker = true) AS \
     SELECT * FROM river_job j \
     WHERE (j.priority, j.scheduled_at, j.id) >= \
           (1::smallint, current_setting('weir.claims_from')::timestamptz, 0::bigint); \
     SELECT set_config('search_path', concat_ws(', ', 'pg_temp', nullif(current_setting('search_path'), '')), false)";

/// The time between two tries after an error.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// A process's connections with the view. Cheap to clone.
#[derive(Clone)]
pub struct NarrowConnections {
    pool: PgPool,
    retry_at: Arc<Mutex<Instant>>,
}

impl NarrowConnections {
    /// Opens no connection yet. `leave`: see [`Database::river_pool_of_worker`].
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn new(database: &Database, leave: fn()) -> Result<Self, DatabaseError> {
        Ok(Self {
            pool: database.river_pool_of_worker(CONNECTIONS, leave)?,
            retry_at: Arc::new(Mutex::new(Instant::now())),
        })
    }

    /// A connection on which River's client sees the jobs of the first priority that start at `from` or later, and all
    /// jobs of other priorities. Also returns the database's time.
    ///
    /// Returns `None` if there is no such connection, for instance because Weir's role must not create temporary views.
    pub async fn connect(&self, from: Timestamp) -> Option<(PoolConnection<Postgres>, Timestamp)> {
        if Instant::now() < *self.retry_at.lock() {
            return None;
        }
        let connection = async {
            let mut connection = self.pool.acquire().await?;
            let now = narrow(&mut connection, from).await?;
            Ok::<_, sqlx::Error>((connection, now))
        };
        match connection.await {
            Ok(connection) => Some(connection),
            Err(error) => {
                self.pause();
                let code = error.as_database_error().and_then(|error| error.code());
                let remedy = if code.as_deref() == Some(SqlState::INSUFFICIENT_PRIVILEGE.code()) {
                    "; to fix this: GRANT TEMPORARY ON DATABASE … TO …"
                } else {
                    ""
                };
                tracing::warn!(%error, "slow claims read all jobs that an old snapshot keeps{remedy}");
                None
            }
        }
    }

    /// Uses no such connection for a while, after an error.
    pub fn pause(&self) {
        *self.retry_at.lock() = Instant::now() + RETRY_AFTER;
    }
}

/// Sets which jobs the connection shows. Returns the database's time.
async fn narrow(connection: &mut PgConnection, from: Timestamp) -> Result<Timestamp, sqlx::Error> {
    let (has_view, micros): (bool, i64) = sqlx::query_as(
        "SELECT to_regclass('pg_temp.river_job') IS NOT NULL, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint \
         FROM set_config('weir.claims_from', $1, false)",
    )
    .bind(from.to_string())
    .fetch_one(&mut *connection)
    .await?;
    if !has_view {
        sqlx::raw_sql(CREATE_VIEW).execute(connection).await?;
    }
    Timestamp::from_microsecond(micros).map_err(|error| sqlx::Error::Decode(error.into()))
}

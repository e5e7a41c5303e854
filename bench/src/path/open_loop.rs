//! Submissions at a fixed rate, by many users, one of whom submits a fifth of the jobs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio_postgres::Client;

use super::super::report::BenchError;
use super::connection::Connection;
use super::load::{Target, User};

/// The number of users. One of them submits a fifth of all jobs.
pub(super) const USERS: i64 = 300;
pub(super) const SHARE_OF_ONE: usize = 5;

/// Connections of the load generator. It opens more when all of them wait for a response.
const CONNECTIONS: usize = 16;

/// The id of the newest job; 0 without any.
pub(super) async fn last_job(client: &Client) -> Result<i64, BenchError> {
    let newest = "SELECT coalesce(max(id), 0) FROM river_job";
    Ok(client.query_one(newest, &[]).await?.get(0))
}

/// The time until later jobs started, p50 and p99 in milliseconds.
pub(super) async fn starts(client: &Client, first: i64) -> Result<[f64; 2], BenchError> {
    let row = client
        .query_one(
            "SELECT percentile_cont(ARRAY[0.5, 0.99]) \
                 WITHIN GROUP (ORDER BY 1000 * extract(epoch FROM coalesce(attempted_at, now()) - created_at)::float8) \
             FROM river_job WHERE id > $1",
            &[&first],
        )
        .await?;
    let both: Option<Vec<f64>> = row.get(0);
    Ok(both.and_then(|both| both.try_into().ok()).unwrap_or_default())
}

/// Submits at a fixed rate, whether or not earlier submissions have a response.
pub(super) struct OpenLoop {
    target: Arc<Target>,
    users: Arc<Vec<User>>,
    /// The one that has been unused for longest comes first, because the server closes idle connections.
    connections: Arc<Mutex<VecDeque<Connection>>>,
}

impl OpenLoop {
    pub(super) async fn open(target: &Arc<Target>, users: &Arc<Vec<User>>) -> Result<Self, BenchError> {
        let mut connections = VecDeque::new();
        for _ in 0..CONNECTIONS {
            connections.push_back(Connection::open(target.address).await?);
        }
        Ok(Self {
            target: Arc::clone(target),
            users: Arc::clone(users),
            connections: Arc::new(Mutex::new(connections)),
        })
    }

    /// Returns the time of each submission, from when it was due.
    pub(super) async fn run(&self, rate: usize, span: Duration) -> Result<Vec<Duration>, BenchError> {
        let started = tokio::time::Instant::now();
        let count = (rate as f64 * span.as_secs_f64()) as usize;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..count {
            let due = started + Duration::from_secs_f64(n as f64 / rate as f64);
            tokio::time::sleep_until(due).await;
            let request = self.target.request(self.user(n))?;
            let (connections, address) = (Arc::clone(&self.connections), self.target.address);
            tasks.spawn(async move {
                let free = connections.lock().pop_front();
                let mut connection = match free {
                    Some(connection) => connection,
                    None => Connection::open(address).await?,
                };
                let status = connection.send(&request).await?;
                if status != StatusCode::ACCEPTED {
                    let what = format!("a submission was answered with {status}");
                    return Err(std::io::Error::other(what));
                }
                connections.lock().push_back(connection);
                Ok(due.elapsed())
            });
        }
        let mut latencies = Vec::new();
        while let Some(task) = tasks.join_next().await {
            latencies.push(task??);
        }
        Ok(latencies)
    }

    fn user(&self, n: usize) -> &User {
        match n % SHARE_OF_ONE {
            0 => &self.users[0],
            _ => &self.users[1 + n * 7919 % (self.users.len() - 1)],
        }
    }
}

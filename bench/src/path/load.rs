//! Clients of the origin: persistent connections, each with one pending submission.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{StatusCode, header};
use uuid::Uuid;
use weir_policy::assertion::{self, AssertionKey, Caller};
use weir_policy::token;

use super::super::report::BenchError;
use super::super::stage::arguments;
use super::connection::Connection;

/// The number of connections that submit concurrently.
pub(super) const CONNECTIONS: usize = 64;

/// An assertion is reused for this long. It is valid for 30 s. The edge signs one for each request, in a separate
/// process. Tokens last longer.
const FRESH: Duration = Duration::from_secs(10);

/// The lifetime of a token, in seconds.
const TOKEN_TTL: u64 = 3600;

/// A user of the load generator.
pub(super) struct User {
    pub(super) id: Uuid,
    body: String,
}

impl User {
    pub(super) fn new(id: Uuid) -> Self {
        Self {
            id,
            body: arguments(id).to_string(),
        }
    }
}

/// The address and the credentials for submissions.
pub(super) struct Target {
    pub(super) address: SocketAddr,
    pub(super) path: &'static str,
    pub(super) credential: Credential,
}

/// The credentials of a submission.
#[derive(Clone)]
pub(super) enum Credential {
    /// No credentials.
    None,
    /// An assertion, as the edge would sign it.
    Assertion(AssertionKey),
    /// A token for the edge to verify, signed with this secret.
    Token(&'static str),
}

impl Target {
    /// The header with the credentials.
    fn header(&self, user: Uuid) -> Result<Option<(&'static str, String)>, BenchError> {
        let now = jiff::Timestamp::now().as_second().unsigned_abs();
        let header = match &self.credential {
            Credential::None => return Ok(None),
            Credential::Assertion(key) => {
                let caller = Caller {
                    user: Some(user.into()),
                    client_address: "192.0.2.1".to_owned(),
                    token_expires_at: None,
                };
                assertion::sign(key, &caller, "POST", self.path, "bench", now)
                    .map(|assertion| (assertion::HEADER, assertion))
                    .map_err(std::io::Error::other)
            }
            Credential::Token(secret) => {
                token::issue(secret.as_bytes(), &user.into(), now, now + TOKEN_TTL, None, None)
                    .map(|token| (header::AUTHORIZATION.as_str(), format!("Bearer {token}")))
                    .map_err(std::io::Error::other)
            }
        };
        Ok(Some(header?))
    }

    /// The bytes of a user's submission.
    pub(super) fn request(&self, user: &User) -> Result<Vec<u8>, BenchError> {
        let User { id, body } = user;
        let mut request = format!(
            "POST {} HTTP/1.1\r\nhost: origin\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
            self.path,
            body.len()
        );
        if let Some((name, value)) = self.header(*id)? {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(body);
        Ok(request.into_bytes())
    }
}

/// Submits for this long over all connections. Each connection continues as soon as it has its response. Returns the
/// time of each submission.
pub(super) async fn submit(
    target: &Arc<Target>,
    users: &Arc<Vec<User>>,
    span: Duration,
) -> Result<Vec<Duration>, BenchError> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(Connection::open(target.address).await?);
    }
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for (index, connection) in connections.into_iter().enumerate() {
        let (target, users) = (Arc::clone(target), Arc::clone(users));
        tasks.spawn(one(target, users, index, connection, started + span));
    }
    let mut latencies = Vec::new();
    while let Some(task) = tasks.join_next().await {
        latencies.extend(task??);
    }
    Ok(latencies)
}

/// One connection. It has its own users, so that their credentials are signed once.
async fn one(
    target: Arc<Target>,
    users: Arc<Vec<User>>,
    index: usize,
    mut connection: Connection,
    until: Instant,
) -> Result<Vec<Duration>, BenchError> {
    let own: Vec<&User> = users.iter().skip(index).step_by(CONNECTIONS).collect();
    let mut requests = Vec::new();
    let mut signed = Instant::now();
    let mut latencies = Vec::new();
    while Instant::now() < until {
        let n = latencies.len() % own.len();
        if n == 0 && (requests.is_empty() || signed.elapsed() > FRESH) {
            signed = Instant::now();
            requests = own
                .iter()
                .map(|user| target.request(user))
                .collect::<Result<_, _>>()?;
        }
        let begun = Instant::now();
        let status = connection.send(&requests[n]).await?;
        if status != StatusCode::ACCEPTED {
            return Err(std::io::Error::other(format!("a submission was answered with {status}")).into());
        }
        latencies.push(begun.elapsed());
    }
    Ok(latencies)
}

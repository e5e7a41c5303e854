//! Connections to PostgreSQL: `tokio-postgres` for Weir's own statements, SQLx for River's.

mod connect;
mod connection_pool;
mod error;
pub mod listener;
mod notifier;
mod parameters;
mod prepared;
mod recent_commits;
mod relay;
mod schemas;
pub(crate) mod session;
mod settings;
mod tls;

pub use connect::Database;
pub use connection_pool::{ConnectionPool, FromDatabase};
pub use error::DatabaseError;
pub(crate) use error::{Failure, Phase, message_of, unstorable};
pub(crate) use notifier::Notifier;
pub use parameters::with_environment;
pub use prepared::PreparedClient;
pub use schemas::{MAX_RIVER_SCHEMA, Schemas};
pub use tls::client_config;

//! Connections to PostgreSQL: `tokio-postgres` for Weir's own statements, SQLx for River's.

mod connect;
mod error;
mod read_pool;
pub(crate) mod session;
mod tls;

pub use connect::Database;
pub use error::DatabaseError;
pub(crate) use error::{Failure, Phase};
pub use read_pool::ReadPool;
pub use tls::client_config;

//! Connections to PostgreSQL: `tokio-postgres` for Weir's own statements, SQLx for River's.

mod connect;
mod error;
mod keep_alive;
mod read_pool;
mod schemas;
pub(crate) mod session;
mod tls;

pub use connect::Database;
pub use error::DatabaseError;
pub(crate) use error::{Failure, Phase, said};
pub use keep_alive::keep_alive;
pub use read_pool::ReadPool;
pub use schemas::{LONGEST_RIVER_SCHEMA, Schemas};
pub use tls::client_config;

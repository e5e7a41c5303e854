//! The native side of Weir: the origin's API, the workers and the scheduler, around the ledger.

pub mod api;
pub mod config;
pub mod context;
mod derived_keys;
pub mod handler;
mod http_client;
pub mod lane_pause;
pub mod outbound;
pub mod status;
pub mod telemetry;
pub mod token;
pub mod webhooks;
pub mod work;

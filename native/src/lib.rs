//! The native side of Weir: the origin's API, the workers, the scheduler, and the transactions they share.
//!
//! [`reservation`] and [`settlement`] are what Weir exists for; the rest wraps them for people and for River.

pub mod api;
pub mod audit;
mod batch;
pub mod bench;
pub mod config;
pub mod database;
pub mod gauges;
pub mod handler;
pub mod holder;
pub mod migrate;
pub mod periodic;
pub mod probes;
pub mod reconcile;
pub mod reservation;
pub mod serve;
pub mod service;
pub mod settlement;
pub mod status;
pub mod telemetry;
pub mod token;
pub mod traces;
pub mod unique;
pub mod work;

//! The transactions that reserve quota and slots, settle them, and keep them correct.
//!
//! This crate uses PostgreSQL and River's tables. It knows nothing about HTTP, the environment or the work of a job. A
//! [`Reserver`](reservation::Reserver) admits submissions in groups; [`reservation::reserve`] does the same inside the
//! caller's transaction. A [`Settler`](settlement::Settler) releases the quota and slot of an ended job.
//! [`reconciliation`] finds jobs that other clients ended, and [`audit`] checks that the sums are correct.

mod access_log;
pub mod attempts;
pub mod audit;
pub mod catalogue;
mod committer;
pub mod control;
pub mod database;
pub mod hold_off;
pub mod holder;
pub mod job_metadata;
pub mod json;
pub mod maintenance;
pub mod meter;
pub mod middleware;
pub mod migrate;
#[cfg(test)]
mod model;
pub mod pass;
pub mod periodic;
pub mod plans;
pub mod processes;
pub mod raw_json;
pub mod read;
pub mod reconciliation;
pub mod reservation;
pub mod rules;
pub mod settlement;
pub mod unique_key;

//! Who holds what: the transactions that reserve quota and slots, settle them, and keep them right.
//!
//! This crate knows PostgreSQL and River's tables, and nothing of HTTP, of the environment or of what a job does. A
//! [`Reserver`](reservation::Reserver) admits submissions in groups; [`reservation::reserve`] does the same inside a
//! transaction of the caller's own. A [`Settler`](settlement::Settler) ends what a job held. [`reconciliation`] finds
//! what ended elsewhere, and [`audit`] proves that all of it adds up.

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
pub mod lookup;
pub mod maintenance;
pub mod meter;
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
pub mod specview_cache;
pub mod unique_key;

//! The catalogue: the meters, each plan's limits for them, and the services that they count.
//!
//! It is written in `weir.toml`, and `weir migrate` copies it to the database. Transactions read meters and plans
//! there, so a change takes effect for every process immediately. The services are there for the SQL functions.

mod apply;
mod definition;
pub mod services;

pub use apply::{CatalogueError, apply, load};
pub use definition::{Catalogue, PLAN_ATTRIBUTES, PlanAttribute, PlanEntry, PlanLimits};

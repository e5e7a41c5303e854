//! The catalogue: which meters there are, what each plan allows of them, and which services are counted by them.
//!
//! It is written in `weir.toml` and brought into the database by `weir migrate`. Transactions read meters and plans there,
//! so a change holds for every process at once. The services are there for the SQL functions.

mod apply;
mod definition;
pub mod services;

pub use apply::{CatalogueError, apply, load};
pub use definition::{Catalogue, PLAN_ATTRIBUTES, PlanAttribute, PlanEntry, PlanLimits};

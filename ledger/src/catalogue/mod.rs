//! The catalogue: which meters there are, and what each plan allows of them.
//!
//! It is written in `weir.toml` and brought into the database by `weir migrate`. Transactions read it there, so a
//! change holds for every process at once.

mod apply;
mod definition;

pub use apply::{CatalogueError, apply, load};
pub use definition::{Catalogue, PlanEntry, PlanLimits};

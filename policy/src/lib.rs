//! The rules of Weir, shared by the edge Worker and the origin.
//!
//! Everything here is a plain function over plain data: no I/O, no clock and no async, so that each rule can be
//! tested by itself and behaves the same in wasm and natively. Times are arguments.
//!
//! The modules below are in their order: each one imports only from modules above it.

pub mod cidr;
pub mod circuit_breaker;
pub mod counts;
pub mod grants;
pub mod header;
pub mod jwt;
pub mod misspelling;
pub mod problem;
pub mod span;
pub mod subject;
pub mod write_budget;

pub mod address;
pub mod admission;
pub mod assertion;
pub mod lane;
pub mod token;
pub mod window;

pub mod limit_cache;
pub mod prefix_counters;

pub mod limit_set;
pub mod route;

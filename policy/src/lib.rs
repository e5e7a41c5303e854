//! The rules of Weir, shared by the edge Worker and the origin.
//!
//! All of them are plain functions over plain data, without I/O, clock or async. Times are arguments. Each rule can be
//! tested alone and behaves the same in wasm and natively.
//!
//! The modules below are ordered: each one imports only from modules above it.

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

pub mod address;
pub mod admission;
pub mod assertion;
pub mod lane;
pub mod namespace;
pub mod token;
pub mod window;

pub mod limit_set;

pub mod limit_cache;
pub mod route;

//! Exact limits for Workers: the Durable Object that counts, and the limits of a Worker's own code.
//!
//! The edge contains this crate. It is also a module on its own, a fraction as large, for Workers that only limit
//! (`limiter/entry/`). `src/limits.mjs` is the JavaScript of both.
//!
//! The modules below are ordered: each one imports only from modules above it.

pub mod bindings;
pub mod clock;
pub mod error;

pub mod own;

pub mod counter;

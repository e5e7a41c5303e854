//! The rules of Weir, shared by the edge Worker and the origin.
//!
//! Everything here is a plain function over plain data: no I/O, no clock and no async, so that a rule can be
//! tested by itself and means the same in wasm and natively. Times come in as arguments.

pub mod address;
pub mod admission;
pub mod assertion;
pub mod counts;
mod jwt;
pub mod lane;
pub mod problem;
pub mod purse;
pub mod recent;
pub mod route;
pub mod tier;
pub mod token;
pub mod window;

//! `weir bench`: what the numbers in `docs/performance.md` come from.
//!
//! Every claim is a ratio of two things measured in the same run, in turns, against a database of its own on the
//! server of `DATABASE_URL`. Absolute numbers are printed with the conditions, since they mean nothing without.

mod cost;
mod crash;
mod fairness;
mod faults;
mod growth;
mod languages;
mod path;
mod peers;
mod process;
mod proxy;
mod report;
mod reserve;
mod stage;
mod work;

pub use fairness::fairness;
pub use faults::faults;
pub use growth::growth;
pub use languages::languages;
pub use path::{Part, part, path};
pub use peers::{Field, PeerPart, peer_part, peers};
pub use report::{BenchError, Effort, Line, Report};
pub use reserve::reserve;
pub use work::work;

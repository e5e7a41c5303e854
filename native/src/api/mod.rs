//! The origin's HTTP API.

mod access;
pub mod admin;
mod answers;
mod attempts;
mod batch;
mod caller;
mod changes;
mod console;
mod edge;
mod edge_reports;
mod events;
mod feed;
mod headers;
mod job;
mod job_token;
mod jobs;
pub mod listen;
mod live_view;
mod places;
pub mod probes;
mod problem;
mod quota;
mod receiving;
mod router;
mod sending;
pub mod serve;
mod service_key;
mod state;
mod system;
mod usage;
mod when;
mod wrong_keys;

pub use feed::Feed;
pub use job::Job;
pub use problem::ApiError;
pub use receiving::MAX_BODY;

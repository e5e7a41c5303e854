//! The status: lanes, pools, slots, parked jobs.

mod held_back;
mod lanes;
mod look;
mod overview;
mod short;
mod text;
mod vacuum;

pub use held_back::HeldBack;
pub use lanes::{LaneState, Lanes, ServiceLanes, lanes};
pub use look::cache_duration;
pub use overview::{
    Failures, LastMinute, Leader, Maintenance, Overview, TopHolder, WaitingDeliveries, held_back_in, overview,
};
pub(crate) use short::{duration, number, per_second, slots};
pub(crate) use text::{all_workers, is_idle, workers_text};
pub use text::{overview_text, wrapped};
pub use vacuum::Vacuum;

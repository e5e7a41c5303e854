//! Settlement: ends a reservation after its job's attempt has ended.
//!
//! One transaction completes the job (fenced by attempt), charges its usage, releases the rest, and promotes the
//! holder's oldest parked job. Jobs that finish together are settled together.

mod ended;
mod promotion;
mod queue;
mod statements;
mod transaction;

pub use ended::{Ended, SettleError, Settled, Success, charged_by};
pub use promotion::Promoter;
pub use queue::Settler;
pub use transaction::MAX_PROMOTED;

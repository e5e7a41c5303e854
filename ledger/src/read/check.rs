//! Dry runs of submissions.

use uuid::Uuid;

use super::{rows, statements};
use crate::meter::Meter;

rows! {
    /// The result of a dry run.
    pub struct Check {
        /// `admitted`, `parked`, `over_quota`, `too_large` or `too_many_waiting`.
        pub outcome: String,
        /// The current quota of the billing period, as the API returns it; with the full windows in `windows` when over
        /// quota. `None` for an address.
        pub quota: Option<serde_json::Value>,
    }
}

statements! {
    /// Checks a submission of this holder with this amount. Takes no lock and writes nothing.
    pub fn check(holder: Uuid, user: Option<Uuid>, meter: Meter, amount: i64) -> Check =
        "SELECT outcome, quota FROM check_submission($1, $2, $3::usage_event_type, $4)";
}

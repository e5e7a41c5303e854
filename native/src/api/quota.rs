//! A quota as the API answers it.

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use weir_ledger::reservation;

/// What a plan allows in the current billing period and what of it is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Quota {
    /// Charged in this period.
    pub used: i64,
    /// Held by unfinished jobs.
    pub reserved: i64,
    /// The plan's limit; null is unlimited.
    pub limit: Option<i64>,
    /// What is left; null is unlimited.
    pub remaining: Option<i64>,
    /// When the next period starts.
    pub reset_at: Timestamp,
}

impl From<reservation::Quota> for Quota {
    fn from(quota: reservation::Quota) -> Self {
        let reservation::Quota {
            used,
            reserved,
            limit,
            remaining,
            reset_at,
        } = quota;
        Self {
            used,
            reserved,
            limit,
            remaining,
            reset_at,
        }
    }
}

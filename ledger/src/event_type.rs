//! Event types: what work is counted as.

use serde::Deserialize;

/// The column `event_type` of the quota tables.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Deserialize,
    postgres_types::ToSql,
    postgres_types::FromSql,
)]
#[serde(rename_all = "snake_case")]
#[postgres(name = "usage_event_type", rename_all = "snake_case", allow_mismatch)]
pub enum EventType {
    /// Unit: analyses.
    Analysis,
    /// Unit: test cases.
    Specview,
}

impl EventType {
    /// Every event type.
    pub const ALL: [Self; 2] = [Self::Analysis, Self::Specview];

    /// The name in the database, in labels and in answers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Analysis => "analysis",
            Self::Specview => "specview",
        }
    }
}

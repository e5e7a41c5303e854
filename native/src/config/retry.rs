//! A service's retry policy, as the services file has it.

use std::time::Duration;

use serde::Deserialize;

/// No answer's `Retry-After` puts a job off for longer.
pub(crate) const MAX_AFTER: Duration = Duration::from_hours(24);

/// A service's own retry policy: the first pause, and how it grows.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// The pause after the first failure.
    #[serde(with = "humantime_serde")]
    pub base: Duration,
    /// By how much each further pause is longer.
    #[serde(default = "Retry::default_factor")]
    pub factor: f64,
    /// The longest pause.
    #[serde(default = "Retry::default_max", with = "humantime_serde")]
    pub max: Duration,
}

impl Retry {
    fn default_factor() -> f64 {
        2.0
    }

    fn default_max() -> Duration {
        Duration::from_hours(1)
    }

    /// What is wrong with it, if anything is.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if !(1.0..=100.0).contains(&self.factor) {
            return Some("retry.factor must be from 1 to 100");
        }
        (self.max < self.base || self.max > MAX_AFTER)
            .then_some("retry.max must be at least retry.base and at most 24h")
    }
}

//! A service's retry policy in the services file.

use std::time::Duration;

use serde::Deserialize;

/// The longest delay that a response's `Retry-After` can request.
pub(crate) const MAX_AFTER: Duration = Duration::from_hours(24);

/// A service's retry policy: the first pause, and its growth.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// The pause after the first failure.
    #[serde(with = "humantime_serde")]
    pub base: Duration,
    /// The factor by which each further pause grows.
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

    /// The error in the policy, if there is one.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if !(1.0..=100.0).contains(&self.factor) {
            return Some("retry.factor must be from 1 to 100");
        }
        (self.max < self.base || self.max > MAX_AFTER)
            .then_some("retry.max must be at least retry.base and at most 24h")
    }
}

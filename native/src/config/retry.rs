//! A service's retry policy in the services file.

use std::time::Duration;

use serde::Deserialize;

/// The longest delay that a response's `Retry-After` can request.
pub(crate) const MAX_AFTER: Duration = Duration::from_hours(24);

/// A service's retry policy: the first pause, and its growth by a factor or by a power of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// The pause after the first failure.
    #[serde(with = "humantime_serde")]
    pub base: Duration,
    /// The factor by which each further pause grows. Default: 2, without `power`.
    pub factor: Option<f64>,
    /// The power of the attempt by which the pause is multiplied: with 2, the pauses are 1, 4 and 9 times `base`.
    pub power: Option<f64>,
    /// The longest pause.
    #[serde(default = "Retry::default_max", with = "humantime_serde")]
    pub max: Duration,
}

impl Retry {
    fn default_max() -> Duration {
        Duration::from_hours(1)
    }

    /// The factor and the power of its growth: factor^(attempt - 1) * attempt^power.
    #[must_use]
    pub fn growth(&self) -> (f64, f64) {
        match self.power {
            Some(power) => (1.0, power),
            None => (self.factor.unwrap_or(2.0), 0.0),
        }
    }

    /// The error in the policy, if there is one.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.factor.is_some() && self.power.is_some() {
            return Some("retry takes factor or power, not both");
        }
        let (factor, power) = self.growth();
        if !(1.0..=100.0).contains(&factor) {
            return Some("retry.factor must be from 1 to 100");
        }
        if !(0.0..=10.0).contains(&power) {
            return Some("retry.power must be from 0 to 10");
        }
        (self.max < self.base || self.max > MAX_AFTER)
            .then_some("retry.max must be at least retry.base and at most 24h")
    }
}

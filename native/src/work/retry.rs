//! When a failed job is retried.

use std::time::Duration;

use crate::config::retry::{MAX_AFTER, Retry};

/// The longest pause, in seconds: about 290 years, as River's.
const LONGEST: f64 = 9.2e9;

/// The pause before the next attempt: by the service's policy, else by River's. `errors` is how often the job failed before, and
/// `jitter` is from 0 to 1. The pause is never shorter than `after`, which the endpoint requested. SQL: `retry_pause`.
pub(super) fn pause(retry: Option<Retry>, errors: usize, after: Option<Duration>, jitter: f64) -> Duration {
    let errors = i32::try_from(errors).unwrap_or(i32::MAX);
    let seconds = match retry {
        None => f64::from(errors.saturating_add(1)).powi(4),
        Some(retry) => {
            let (factor, power) = retry.growth();
            let attempt = f64::from(errors.saturating_add(1));
            (retry.base.as_secs_f64() * factor.powi(errors) * attempt.powf(power))
                .min(retry.max.as_secs_f64())
        }
    };
    let seconds = seconds.min(LONGEST);
    // Spread by a tenth, as River does, so that jobs that failed together do not return together.
    let spread = seconds * (0.9 + 0.2 * jitter);
    let pause = Duration::try_from_secs_f64(spread).unwrap_or(MAX_AFTER);
    pause.max(after.unwrap_or_default().min(MAX_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: Retry = Retry {
        base: Duration::from_secs(1),
        factor: Some(3.0),
        power: None,
        max: Duration::from_secs(20),
    };

    /// The pauses after the first failures, without the spread.
    fn pauses(retry: Retry, count: usize) -> Vec<f64> {
        let pause = |errors| pause(Some(retry), errors, None, 0.5).as_secs_f64().round();
        (0..count).map(pause).collect()
    }

    #[test]
    fn pauses_grow_up_to_the_maximum() {
        assert_eq!(pauses(RETRY, 5), [1.0, 3.0, 9.0, 20.0, 20.0]);
        assert_eq!(pause(Some(RETRY), usize::MAX, None, 0.5), RETRY.max);
    }

    #[test]
    fn pauses_grow_with_a_power_of_the_attempt() {
        let squares = Retry {
            base: Duration::from_secs(10),
            factor: None,
            power: Some(2.0),
            max: Duration::from_secs(100),
        };
        assert_eq!(pauses(squares, 4), [10.0, 40.0, 90.0, 100.0]);
        assert_eq!(
            pause(Some(squares), usize::MAX, None, 0.5),
            Duration::from_secs(100)
        );
    }

    #[test]
    fn retry_after_of_an_endpoint_is_respected_up_to_a_day() {
        let minute = Duration::from_secs(60);
        assert_eq!(pause(Some(RETRY), 0, Some(minute), 0.5), minute);
        assert_eq!(pause(None, 0, Some(minute), 0.5), minute);
        assert_eq!(pause(None, 2, Some(minute), 0.5), Duration::from_secs(81));
        assert_eq!(pause(None, 0, Some(Duration::MAX), 0.5), MAX_AFTER);
        assert_eq!(
            pause(None, 7, None, 0.5),
            Duration::from_secs(4096),
            "River's own policy"
        );
    }
}

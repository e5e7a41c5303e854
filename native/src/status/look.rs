//! Limits how often the status queries the database, regardless of the number of clients.

use std::time::Duration;

/// Minimum time for which a result is cached.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// A result is also cached for this many times the duration of its query. The query counts the waiting jobs, perhaps a
/// million, and must not take more than a twentieth of the time.
const CACHE_FACTOR: u32 = 20;

/// Maximum time for which a result is cached.
const MAX_INTERVAL: Duration = Duration::from_secs(10);

/// The time to cache the result of a query that lasted `took`.
#[must_use]
pub fn cache_duration(took: Duration) -> Duration {
    (took * CACHE_FACTOR).clamp(MIN_INTERVAL, MAX_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_take_at_most_a_twentieth_of_the_time_and_results_expire() {
        let shown = |millis| cache_duration(Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 3, 50].map(shown), [1000, 1000, 1000]);
        assert_eq!([100, 300, 500].map(shown), [2000, 6000, 10_000]);
        assert_eq!(shown(60_000), 10_000);
    }
}

//! Whether to call a service that has failed several times in a row.

/// The number of consecutive failures that opens the breaker.
const MAX_FAILURES: u32 = 3;

/// The pause after the last failure, in milliseconds.
pub const PAUSE_MS: u64 = 10_000;

/// The recent failures of one service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CircuitBreaker {
    failures: u32,
    ask_at: u64,
}

impl CircuitBreaker {
    /// Whether to call the service at `now_ms` (milliseconds since the Unix epoch). After a pause, one caller may try.
    pub fn may_ask(&mut self, now_ms: u64) -> bool {
        // After the clock has jumped back, a pause must not last longer than usual.
        let pauses = now_ms < self.ask_at && self.ask_at <= now_ms + PAUSE_MS;
        if self.failures >= MAX_FAILURES {
            if pauses {
                return false;
            }
            self.ask_at = now_ms + PAUSE_MS;
        }
        true
    }

    /// Records a success.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Records a failure at `now_ms`.
    pub fn failed(&mut self, now_ms: u64) {
        self.failures = self.failures.saturating_add(1);
        self.ask_at = now_ms + PAUSE_MS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_three_failures_the_breaker_opens_and_one_caller_retries() {
        let mut breaker = CircuitBreaker::default();
        for _ in 0..2 {
            breaker.failed(1_000);
        }
        breaker.succeeded();
        for _ in 0..3 {
            assert!(breaker.may_ask(1_000));
            breaker.failed(1_000);
        }
        assert!(!breaker.may_ask(1_000 + PAUSE_MS - 1));
        assert!(breaker.may_ask(1_000 + PAUSE_MS));
        assert!(!breaker.may_ask(1_000 + PAUSE_MS), "another one is trying");
        breaker.failed(1_000 + PAUSE_MS);
        assert!(!breaker.may_ask(1_000 + PAUSE_MS));
        breaker.succeeded();
        assert!(breaker.may_ask(1_000 + PAUSE_MS));
    }

    #[test]
    fn a_clock_that_jumps_back_does_not_extend_the_pause() {
        let mut breaker = CircuitBreaker::default();
        for _ in 0..3 {
            breaker.failed(1_000_000);
        }
        assert!(breaker.may_ask(1_000));
    }
}

//! The rate limit fields of a response (draft-ietf-httpapi-ratelimit-headers-11).

use weir_policy::window::{LimitResult, Policy};

/// A policy as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedPolicy {
    /// Its name in the fields.
    pub(crate) name: &'static str,
    pub(crate) policy: Policy,
}

/// What a response tells a client about its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyStatus {
    /// The policy that was applied.
    pub(crate) named: NamedPolicy,
    /// How much is left. `None` when the native limiter decided, which only answers yes or no.
    pub(crate) result: Option<LimitResult>,
}

impl PolicyStatus {
    /// The field `RateLimit-Policy`.
    pub(crate) fn policy_field(&self) -> String {
        let NamedPolicy { name, policy } = self.named;
        format!("\"{name}\";q={};w={}", policy.limit, seconds(policy.window_ms))
    }

    /// The field `RateLimit`, if it is known how much is left.
    pub(crate) fn limit_field(&self) -> Option<String> {
        let result = self.result.as_ref()?;
        let remaining = result.remaining(self.named.policy.limit);
        Some(format!(
            "\"{}\";r={remaining};t={}",
            self.named.name,
            seconds(result.reset_after_ms)
        ))
    }

    /// The value of `Retry-After` in seconds, at least 1: the end of the window, or its length if that is not known.
    pub(crate) fn retry_after(&self) -> u64 {
        let delay_ms = self
            .result
            .map_or(self.named.policy.window_ms, |result| result.reset_after_ms);
        seconds(delay_ms).max(1)
    }
}

/// Whole seconds, rounded up, so that a client that waits this long has waited long enough.
fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_policy::window::Algorithm;

    const ANON: NamedPolicy = NamedPolicy {
        name: "anon",
        policy: Policy {
            limit: 10,
            window_ms: 60_000,
            algorithm: Algorithm::Fixed,
        },
    };

    #[test]
    fn the_fields_follow_the_draft() {
        let result = LimitResult {
            admitted: true,
            used: 3,
            reset_after_ms: 41_001,
        };
        let status = PolicyStatus {
            named: ANON,
            result: Some(result),
        };
        assert_eq!(status.policy_field(), r#""anon";q=10;w=60"#);
        assert_eq!(status.limit_field().as_deref(), Some(r#""anon";r=7;t=42"#));
    }

    #[test]
    fn retry_after_is_never_too_early() {
        for (reset_after_ms, retry_after) in [(41_001, 42), (42_000, 42), (1, 1), (0, 1)] {
            let result = Some(LimitResult {
                admitted: false,
                used: 10,
                reset_after_ms,
            });
            assert_eq!(PolicyStatus { named: ANON, result }.retry_after(), retry_after);
        }
    }

    #[test]
    fn without_a_count_nothing_is_claimed_about_the_remainder() {
        let status = PolicyStatus {
            named: ANON,
            result: None,
        };
        assert_eq!(status.limit_field(), None);
        assert_eq!(status.retry_after(), 60);
    }
}

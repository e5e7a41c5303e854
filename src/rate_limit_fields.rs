//! The rate limit fields of a response (draft-ietf-httpapi-ratelimit-headers-11).

use weir_policy::window::{LimitResult, Policy};

/// The longest period of a native limiter, in seconds. Cloudflare has two: 10 and 60.
const MAX_NATIVE_PERIOD_SECS: u64 = 60;

/// A policy as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedPolicy {
    /// Its name in the fields.
    pub(crate) name: &'static str,
    pub(crate) policy: Policy,
}

/// The status of a policy for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyStatus {
    /// The policy that was applied.
    pub(crate) named: NamedPolicy,
    /// The remaining amount. `None` when the native limiter decided, which only answers yes or no. Its limit and
    /// period, which are in `wrangler.toml` alone, may differ from the policy's.
    pub(crate) result: Option<LimitResult>,
}

impl PolicyStatus {
    /// The fields `RateLimit-Policy` and `RateLimit`, if the policy was applied.
    pub(crate) fn fields(&self) -> Option<(String, String)> {
        let NamedPolicy { name, policy } = self.named;
        let result = self.result.as_ref()?;
        let remaining = result.remaining(policy.limit);
        Some((
            format!("\"{name}\";q={};w={}", policy.limit, seconds(policy.window_ms)),
            format!("\"{name}\";r={remaining};t={}", seconds(result.reset_after_ms)),
        ))
    }

    /// The requests left; `None`, less than any number, if that is not known.
    pub(crate) fn remaining(&self) -> Option<u32> {
        Some(self.result?.remaining(self.named.policy.limit))
    }

    /// The value of `Retry-After` in seconds, at least 1: the end of the window, or the longest period that a native
    /// limiter can have.
    pub(crate) fn retry_after(&self) -> u64 {
        self.result.map_or(MAX_NATIVE_PERIOD_SECS, |result| {
            seconds(result.reset_after_ms).max(1)
        })
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
        let fields = (r#""anon";q=10;w=60"#.to_owned(), r#""anon";r=7;t=42"#.to_owned());
        assert_eq!(status.fields(), Some(fields));
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
    fn decisions_of_the_native_limiter_do_not_report_a_policy() {
        let mut status = PolicyStatus {
            named: ANON,
            result: None,
        };
        status.named.policy.window_ms = 3_600_000;
        assert_eq!(status.fields(), None);
        assert_eq!(status.retry_after(), 60);
    }
}

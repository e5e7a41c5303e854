//! The rate limit fields of an answer (draft-ietf-httpapi-ratelimit-headers-11).

use weir_policy::window::{Policy, Verdict};

/// A policy as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    /// Its name in the fields.
    pub(crate) name: &'static str,
    /// What it allows.
    pub(crate) policy: Policy,
}

/// What an anonymous request is told about its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// The policy that it fell under.
    pub(crate) named: Named,
    /// How much is left, where that is known: a native limiter says only yes or no.
    pub(crate) verdict: Option<Verdict>,
}

impl Allowance {
    /// The field `RateLimit-Policy`.
    pub(crate) fn policy_field(&self) -> String {
        let Named { name, policy } = self.named;
        format!("\"{name}\";q={};w={}", policy.limit, seconds(policy.window_ms))
    }

    /// The field `RateLimit`.
    pub(crate) fn limit_field(&self) -> Option<String> {
        let verdict = self.verdict.as_ref()?;
        let remaining = verdict.remaining(self.named.policy.limit);
        Some(format!(
            "\"{}\";r={remaining};t={}",
            self.named.name,
            seconds(verdict.reset_after_ms)
        ))
    }

    /// In how many seconds a denied request may come again: never too early, and a window's length at most.
    pub(crate) fn retry_after(&self) -> u64 {
        let wait_ms = self
            .verdict
            .map_or(self.named.policy.window_ms, |verdict| verdict.reset_after_ms);
        seconds(wait_ms).max(1)
    }
}

/// Whole seconds, rounded up: who waits that long has waited long enough.
fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_policy::window::Algorithm;

    const ANON: Named = Named {
        name: "anon",
        policy: Policy {
            limit: 10,
            window_ms: 60_000,
            algorithm: Algorithm::Fixed,
        },
    };

    #[test]
    fn the_fields_are_those_of_the_draft() {
        let verdict = Verdict {
            admitted: true,
            used: 3,
            reset_after_ms: 41_001,
        };
        let allowance = Allowance {
            named: ANON,
            verdict: Some(verdict),
        };
        assert_eq!(allowance.policy_field(), r#""anon";q=10;w=60"#);
        assert_eq!(allowance.limit_field().as_deref(), Some(r#""anon";r=7;t=42"#));
    }

    #[test]
    fn a_denied_request_is_told_to_wait_at_least_as_long_as_it_takes() {
        for (reset_after_ms, retry_after) in [(41_001, 42), (42_000, 42), (1, 1), (0, 1)] {
            let verdict = Some(Verdict {
                admitted: false,
                used: 10,
                reset_after_ms,
            });
            assert_eq!(Allowance { named: ANON, verdict }.retry_after(), retry_after);
        }
    }

    #[test]
    fn a_limiter_that_says_only_no_makes_no_claim_about_what_is_left() {
        let allowance = Allowance {
            named: ANON,
            verdict: None,
        };
        assert_eq!(allowance.limit_field(), None);
        assert_eq!(allowance.retry_after(), 60);
    }
}

//! A quota as the API returns it.

use axum::http::HeaderName;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;
use weir_ledger::meter::Meter;
use weir_ledger::reservation::{self, Quotas};
use weir_policy::span::Span;

/// A plan's quota in a billing period, and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Quota {
    /// Charged in this window.
    pub used: i64,
    /// Reserved by unfinished jobs.
    pub reserved: i64,
    /// The plan's limit; null is unlimited.
    pub limit: Option<i64>,
    /// The ceiling of a soft limit: submissions above the limit are accepted up to here. Null for a hard limit.
    pub ceiling: Option<i64>,
    /// The part of `used` and `reserved` that exceeds a soft limit and is not covered by grants.
    pub overage: i64,
    /// The amount that would still be accepted; null is unlimited.
    pub remaining: Option<i64>,
    /// When the next window starts.
    pub reset_at: Timestamp,
}

impl From<reservation::Quota> for Quota {
    fn from(quota: reservation::Quota) -> Self {
        let reservation::Quota {
            window,
            used,
            reserved,
            limit,
            ceiling,
            overage,
            remaining,
            granted: _,
        } = quota;
        Self {
            used,
            reserved,
            limit,
            ceiling,
            overage,
            remaining,
            reset_at: window.end,
        }
    }
}

/// A plan's quota in a window, and how much of it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct WindowQuota {
    /// `month` is the billing period; `day`, `hour` and `minute` are in UTC.
    #[schema(value_type = String, example = "month")]
    pub window: Span,
    /// Charged in this window.
    pub used: i64,
    /// Reserved by unfinished jobs.
    pub reserved: i64,
    /// The plan's limit; null is unlimited.
    pub limit: Option<i64>,
    /// The ceiling of a soft limit: submissions above the limit are accepted up to here. Null for a hard limit.
    pub ceiling: Option<i64>,
    /// The part of `used` and `reserved` that exceeds a soft limit and is not covered by grants.
    pub overage: i64,
    /// The amount that would still be accepted; null is unlimited.
    pub remaining: Option<i64>,
    /// When the next window starts.
    pub reset_at: Timestamp,
}

impl From<reservation::Quota> for WindowQuota {
    fn from(quota: reservation::Quota) -> Self {
        let window = quota.window.span;
        let Quota {
            used,
            reserved,
            limit,
            ceiling,
            overage,
            remaining,
            reset_at,
        } = quota.into();
        Self {
            window,
            used,
            reserved,
            limit,
            ceiling,
            overage,
            remaining,
            reset_at,
        }
    }
}

/// The name of a quota's policy, in the fields and in problems.
pub(super) fn policy(meter: Meter, quota: &reservation::Quota) -> String {
    format!("{meter}-{}", quota.window.span.as_str())
}

/// The fields `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11) of an answer to a user, with
/// an item for each window that has a limit. Without limits, there are none.
pub(super) fn fields(meter: Meter, quotas: Option<&Quotas>) -> Vec<(HeaderName, String)> {
    let now = Timestamp::now().as_second();
    let (mut policies, mut limits) = (Vec::new(), Vec::new());
    for quota in quotas.into_iter().flat_map(Quotas::iter) {
        let Some((limit, remaining)) = quota.limit.zip(quota.remaining) else {
            continue;
        };
        let most = quota.ceiling.unwrap_or(limit);
        let name = policy(meter, quota);
        let (start, end) = (quota.window.start.as_second(), quota.window.end.as_second());
        policies.push(format!("\"{name}\";q={most};w={}", end - start));
        limits.push(format!("\"{name}\";r={remaining};t={}", (end - now).max(0)));
    }
    if policies.is_empty() {
        return Vec::new();
    }
    vec![
        (HeaderName::from_static("ratelimit-policy"), policies.join(", ")),
        (HeaderName::from_static("ratelimit"), limits.join(", ")),
    ]
}

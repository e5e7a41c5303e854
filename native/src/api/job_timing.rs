//! When to run a submitted job, until when, and its priority: the headers `Weir-Run-At`, `Weir-Expires-In` and
//! `Weir-Priority`.

use axum::http::HeaderMap;
use jiff::{SignedDuration, Timestamp};
use weir_ledger::reservation::{FIRST_PRIORITY, LAST_PRIORITY};

use super::headers::single;
use super::problem::ApiError;

/// The latest time for which a job can be scheduled or retried.
pub const MAX_AHEAD: SignedDuration = SignedDuration::from_hours(366 * 24);

/// When to run a job, and its priority among the jobs that are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobTiming {
    /// `None` means immediately.
    pub(super) run_at: Option<Timestamp>,
    /// The time in `Weir-Run-At`, even if it has passed.
    pub(super) requested_run_at: Option<Timestamp>,
    /// The seconds after which a job that still waits is cancelled.
    pub(super) expires_in: Option<u32>,
    /// River's priority, from 1 to 4.
    pub(super) priority: i16,
}

impl JobTiming {
    /// Reads the headers. A time in the past means immediately.
    pub(super) fn parse(headers: &HeaderMap, now: Timestamp) -> Result<Self, ApiError> {
        let run_at = single(headers, "weir-run-at", |text| text.parse::<Timestamp>().ok()).map_err(|_| {
            ApiError::Unprocessable("Weir-Run-At must be one time, such as 2027-01-31T08:00:00Z.".to_owned())
        })?;
        if run_at.is_some_and(|at| at.duration_since(now) > MAX_AHEAD) {
            return Err(ApiError::Unprocessable(
                "Weir-Run-At must be within 366 days.".to_owned(),
            ));
        }
        let expires_in = single(headers, "weir-expires-in", |text| {
            let seconds = text.parse::<u32>().ok();
            seconds.filter(|seconds| *seconds > 0 && i64::from(*seconds) <= MAX_AHEAD.as_secs())
        })
        .map_err(|_| {
            ApiError::Unprocessable(
                "Weir-Expires-In must be one number of seconds, from 1 to 31622400 (366 days).".to_owned(),
            )
        })?;
        let priority = single(headers, "weir-priority", |text| {
            text.parse::<i16>()
                .ok()
                .filter(|priority| (FIRST_PRIORITY..=LAST_PRIORITY).contains(priority))
        })
        .map_err(|_| {
            ApiError::Unprocessable("Weir-Priority must be one number from 1 (first) to 4.".to_owned())
        })?;
        Ok(Self {
            run_at: run_at.filter(|at| *at > now),
            requested_run_at: run_at,
            expires_in,
            priority: priority.unwrap_or(FIRST_PRIORITY),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_number_of_seconds_up_to_366_days() {
        let expiry = |text: &str| {
            let headers = HeaderMap::from_iter([("weir-expires-in".parse().unwrap(), text.parse().unwrap())]);
            let timing = JobTiming::parse(&headers, Timestamp::UNIX_EPOCH).ok()?;
            timing.expires_in
        };
        assert_eq!(expiry("90"), Some(90));
        assert_eq!(expiry("31622400"), Some(31_622_400));
        for bad in ["0", "-1", "1.5", "soon", "31622401", "99999999999"] {
            assert_eq!(expiry(bad), None, "{bad}");
        }
    }

    fn when(pairs: &[(&'static str, &str)]) -> Option<(Option<i64>, i16)> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        let JobTiming { run_at, priority, .. } = JobTiming::parse(&headers, Timestamp::UNIX_EPOCH).ok()?;
        Some((run_at.map(Timestamp::as_second), priority))
    }

    #[test]
    fn jobs_without_a_future_start_time_run_immediately() {
        assert_eq!(when(&[]), Some((None, 1)));
        assert_eq!(
            when(&[("weir-run-at", "1970-01-01T00:01:00Z")]),
            Some((Some(60), 1))
        );
        assert_eq!(
            when(&[("weir-run-at", "1970-01-01T01:01:00+01:00")]),
            Some((Some(60), 1))
        );
        assert_eq!(when(&[("weir-run-at", "1969-01-01T00:00:00Z")]), Some((None, 1)));
        assert_eq!(when(&[("weir-priority", "4")]), Some((None, 4)));
        for bad in [
            &[("weir-run-at", "soon")][..],
            &[("weir-run-at", "1971-03-01T00:00:00Z")],
            &[
                ("weir-run-at", "1970-01-01T00:01:00Z"),
                ("weir-run-at", "1970-01-01T00:02:00Z"),
            ],
            &[("weir-priority", "0")],
            &[("weir-priority", "5")],
            &[("weir-priority", "high")],
        ] {
            assert_eq!(when(bad), None, "{bad:?}");
        }
    }
}

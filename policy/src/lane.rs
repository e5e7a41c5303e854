//! Lanes: the queue of a service that a job is inserted into (ADR-16).

use serde::{Deserialize, Serialize};

/// One of the three queues of every service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Jobs of holders on a plan with this lane: in ADR-16, paying users.
    Priority,
    /// Jobs of all other holders.
    Default,
    /// Periodic and background jobs.
    Scheduled,
}

/// The longest queue name that River accepts, in bytes.
const RIVER_QUEUE_NAME_MAX: usize = 64;

impl Lane {
    /// All lanes, in display order.
    pub const ALL: [Self; 3] = [Self::Priority, Self::Default, Self::Scheduled];

    /// The lane of a job by ADR-16: `Scheduled` for scheduled jobs, else the lane of its holder's plan, or `Default`
    /// without a plan.
    #[must_use]
    pub fn select(plan: Option<Self>, is_scheduled: bool) -> Self {
        if is_scheduled {
            return Self::Scheduled;
        }
        plan.unwrap_or(Self::Default)
    }

    /// The lane of this name; `None` for an unknown name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|lane| lane.as_str() == name)
    }

    /// The lane's name, the last part of its queue's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Priority => "priority",
            Self::Default => "default",
            Self::Scheduled => "scheduled",
        }
    }

    /// The River queue of this lane: `{service}_{lane}`.
    #[must_use]
    pub fn queue(self, service: &str) -> String {
        format!("{service}_{}", self.as_str())
    }
}

/// Whether River accepts this queue name: at most 64 lower-case letters and digits, with single `_`, `-` or `|` between
/// them.
#[must_use]
pub fn is_queue_name(name: &str) -> bool {
    let separator = |byte: u8| matches!(byte, b'_' | b'-' | b'|');
    let bytes = name.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= RIVER_QUEUE_NAME_MAX
        && bytes
            .iter()
            .all(|&byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || separator(byte))
        && !separator(bytes[0])
        && !separator(bytes[bytes.len() - 1])
        && !bytes
            .windows(2)
            .any(|pair| separator(pair[0]) && separator(pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduled_lane_takes_precedence_over_the_plans() {
        for plan in [None, Some(Lane::Priority), Some(Lane::Default)] {
            assert_eq!(Lane::select(plan, true), Lane::Scheduled);
        }
    }

    #[test]
    fn jobs_use_their_plans_lane_or_the_default() {
        assert_eq!(Lane::select(Some(Lane::Priority), false), Lane::Priority);
        assert_eq!(Lane::select(Some(Lane::Default), false), Lane::Default);
        assert_eq!(Lane::select(None, false), Lane::Default);
    }

    #[test]
    fn every_lane_is_parsed_from_its_name() {
        for lane in Lane::ALL {
            assert_eq!(Lane::parse(lane.as_str()), Some(lane));
        }
        assert_eq!(Lane::parse("express"), None);
    }

    #[test]
    fn queue_names_follow_adr_16_and_river_accepts_them() {
        let names: Vec<_> = Lane::ALL.iter().map(|lane| lane.queue("specview")).collect();
        assert_eq!(
            names,
            ["specview_priority", "specview_default", "specview_scheduled"]
        );
        assert!(names.iter().all(|name| is_queue_name(name)));
    }

    #[test]
    fn names_that_river_rejects_are_rejected() {
        for name in [
            "",
            "analysis:priority",
            "Analysis",
            "a__b",
            "_a",
            "a_",
            "a b",
            &"a".repeat(65),
        ] {
            assert!(!is_queue_name(name), "{name:?}");
        }
        assert!(is_queue_name("a-b_c|d9"));
    }
}

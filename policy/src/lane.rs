//! Lanes: which queue of a service a job goes to (ADR-16).

use serde::{Deserialize, Serialize};

use crate::tier::Tier;

/// One of the three queues that every service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lane {
    /// Jobs of paying users.
    Priority,
    /// Everybody else's.
    Default,
    /// Periodic and background jobs.
    Scheduled,
}

/// The most characters that River takes in a queue name.
const RIVER_QUEUE_NAME_MAX: usize = 64;

impl Lane {
    /// Every lane, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Priority, Self::Default, Self::Scheduled];

    /// ADR-16's table: scheduled wins; a paid tier goes to priority; everything else, a user of unknown tier
    /// too, to default.
    #[must_use]
    pub fn select(tier: Option<Tier>, is_scheduled: bool) -> Self {
        if is_scheduled {
            return Self::Scheduled;
        }
        match tier {
            Some(Tier::Pro | Tier::ProPlus | Tier::Enterprise) => Self::Priority,
            Some(Tier::Free) | None => Self::Default,
        }
    }

    /// The lane's name, which is also the ending of its queue's name.
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

/// Whether River takes this as a queue name: lower-case letters and digits, with single `_`, `-` or `|` between
/// them, at most 64 characters.
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
    fn the_scheduled_lane_wins_over_every_tier() {
        for tier in Tier::ALL {
            assert_eq!(Lane::select(Some(tier), true), Lane::Scheduled);
        }
        assert_eq!(Lane::select(None, true), Lane::Scheduled);
    }

    #[test]
    fn paying_users_go_to_priority_and_all_others_to_default() {
        assert_eq!(Lane::select(Some(Tier::Free), false), Lane::Default);
        assert_eq!(Lane::select(None, false), Lane::Default);
        for tier in [Tier::Pro, Tier::ProPlus, Tier::Enterprise] {
            assert_eq!(Lane::select(Some(tier), false), Lane::Priority);
        }
    }

    #[test]
    fn queue_names_are_those_of_adr_16_and_river_takes_them() {
        let names: Vec<_> = Lane::ALL.iter().map(|lane| lane.queue("specview")).collect();
        assert_eq!(
            names,
            ["specview_priority", "specview_default", "specview_scheduled"]
        );
        assert!(names.iter().all(|name| is_queue_name(name)));
    }

    #[test]
    fn names_that_river_refuses_are_refused() {
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

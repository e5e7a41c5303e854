//! The leader, and recently ended jobs.

use jiff::Timestamp;

use super::{rows, statements};
use crate::control::DELIVERY_KIND;

rows! {
    /// The leader, the process that runs maintenance, and the last failover.
    pub struct Leaders {
        /// The id of the River client that leads.
        pub leader_id: Option<String>,
        /// When it was elected.
        pub elected_at: Option<Timestamp>,
        /// The host and process id of the process that runs Weir's maintenance.
        pub process: Option<String>,
        /// When it started to run it.
        pub since: Option<Timestamp>,
        /// The server's timeline, after a failover or a restore.
        pub timeline: Option<i32>,
        /// When Weir noticed that timeline.
        pub seen_at: Option<Timestamp>,
    }

    /// Jobs of services that ended within the last minute.
    pub struct LastMinute {
        /// With success.
        pub completed: i64,
        /// Cancelled.
        pub cancelled: i64,
        /// Without success, after their last attempt.
        pub failed: i64,
    }

    /// How soon jobs start.
    pub struct StartTime {
        /// The 99th percentile, in milliseconds; `None` if no job ended within the last minute.
        pub start_p99_ms: Option<i64>,
    }
}

impl Leaders {
    /// Whether River's leader is not a Weir process.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.leader_id.as_ref().is_some_and(|id| !id.starts_with("weir_"))
    }
}

statements! {
    /// The leader and the maintenance process.
    pub fn leaders() -> Leaders = include_str!("sql/leaders.sql");

    /// The number of enabled webhooks.
    pub fn enabled_webhooks() -> i64 =
        "SELECT count(*) FROM webhooks WHERE disabled_at IS NULL AND removed_at IS NULL";

    /// The number of disabled webhooks.
    pub fn disabled_webhooks() -> i64 =
        "SELECT count(*) FROM webhooks WHERE disabled_at IS NOT NULL AND removed_at IS NULL";

    /// The jobs that ended within the last minute. Webhook deliveries do not count.
    pub fn last_minute() -> LastMinute = include_str!("sql/last_minute.sql"), [DELIVERY_KIND];

    /// How soon the jobs started that ended within the last minute.
    pub fn start_p99() -> StartTime = include_str!("sql/start_p99.sql"), [DELIVERY_KIND];
}

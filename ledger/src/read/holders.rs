//! Holders: whether they exist, and their slots and jobs.

use uuid::Uuid;

use super::{rows, statements};
use crate::meter::Meter;

rows! {
    /// The user and the holder with an id.
    pub struct Known {
        /// Whether it is a user.
        pub is_user: bool,
        /// The user's subject, unless that is the id.
        pub subject: Option<String>,
        /// Whether it is a holder, of any kind.
        pub is_holder: bool,
    }

    /// A holder's jobs of a meter.
    pub struct HolderCounts {
        /// The meter.
        pub meter: Meter,
        /// Jobs that hold a slot.
        pub slots_in_use: i64,
        /// Jobs that wait for a slot.
        pub parked: i64,
    }

    /// A holder's jobs of a meter, with the running ones.
    pub struct HolderSlots {
        /// The meter.
        pub meter: Meter,
        /// Jobs that hold a slot, including those that wait for a worker.
        pub slots_in_use: i64,
        /// Jobs that wait for a slot.
        pub parked: i64,
        /// Jobs that run.
        pub running: i64,
        /// The slots of a client address; `None` for a user, or if slots are not counted.
        pub slots_of_address: Option<i64>,
    }

    /// A holder with unfinished jobs.
    pub struct BusyHolder {
        /// The holder.
        pub holder: Uuid,
        /// The user's subject, unless that is the id.
        pub subject: Option<String>,
        /// The user's current plan, or `anonymous`.
        pub plan: String,
        /// Jobs that do not run.
        pub waiting: i64,
        /// Of these, jobs that wait for a slot.
        pub parked: i64,
        /// Jobs that run.
        pub running: i64,
        /// The wait of the oldest parked job for a slot, in milliseconds.
        pub oldest_turn_ms: i64,
    }

    /// A user's usage of a meter in the current month.
    pub struct HeavyHolder {
        /// The holder.
        pub holder: Uuid,
        /// The user's subject, unless that is the id.
        pub subject: Option<String>,
        /// The user's current plan.
        pub plan: String,
        /// The meter.
        pub meter: Meter,
        /// The amount charged.
        pub used: i64,
        /// The amount that unfinished jobs reserve.
        pub reserved: i64,
    }
}

impl BusyHolder {
    /// The user's subject, or else the holder's id.
    #[must_use]
    pub fn name(&self) -> String {
        self.subject.clone().unwrap_or_else(|| self.holder.to_string())
    }
}

statements! {
    /// The user and the holder with this id.
    pub fn known(id: Uuid) -> Known = include_str!("sql/known_holder.sql");

    /// A holder's jobs of each meter.
    pub fn counts(holder: Uuid) -> Vec<HolderCounts> =
        "SELECT event_type AS meter, slots_in_use::bigint AS slots_in_use, parked::bigint AS parked \
         FROM holders WHERE holder = $1";

    /// A holder's jobs of each meter, with the running ones. Slower than [`counts`], because it reads all running jobs.
    pub fn slots(holder: Uuid) -> Vec<HolderSlots> = include_str!("sql/holder_slots.sql");

    /// The holders with the most running or the most waiting jobs, at most `limit`.
    pub fn busiest(by_running: bool, limit: i64) -> Vec<BusyHolder> = include_str!("sql/busiest_holders.sql");

    /// The users with the most usage of any meter in their current month, at most `limit`.
    pub fn heaviest(limit: i64) -> Vec<HeavyHolder> = include_str!("sql/heaviest_holders.sql");

    /// Whether another transaction holds a lock on one of the holder's rows.
    pub fn is_locked(holder: Uuid) -> bool = include_str!("sql/is_locked.sql");
}

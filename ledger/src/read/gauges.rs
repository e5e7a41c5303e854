//! Counts by plan, in the `plan` column, which is the metrics' label. Each is one pass over the unfinished jobs.

use super::{rows, statements};

rows! {
    /// The unparked jobs of a queue and a plan.
    pub struct PlanJobs {
        /// The queue.
        pub queue: String,
        /// The owner's current plan; `anonymous`, or `unknown` for a job of another River client that no worker has
        /// seen.
        pub plan: String,
        /// Jobs that wait for a worker, a retry or their time.
        pub queued: f64,
        /// Jobs that run.
        pub running: f64,
        /// Jobs with an outstanding answer.
        pub outstanding: f64,
        /// Jobs on lent workers.
        pub lent: f64,
        /// The wait of the oldest job that could run, in seconds.
        pub oldest_wait: f64,
    }

    /// The reservations of a meter and a plan, for owners with their oldest parked job in the same queue.
    pub struct PlanReservations {
        /// The meter's name.
        pub meter: String,
        /// The owner's current plan, or `anonymous`.
        pub plan: String,
        /// The queue of the owners' oldest parked jobs; null for owners without parked jobs.
        pub parked_in: Option<String>,
        /// Reservations with a slot.
        pub admitted: f64,
        /// Reservations of parked jobs.
        pub parked: f64,
        /// Reservations of jobs between two attempts.
        pub between_attempts: f64,
        /// The wait of the oldest parked job for a slot, in seconds.
        pub oldest_parked: f64,
    }

    /// The deliveries to all enabled webhooks.
    pub struct WaitingDeliveries {
        /// Deliveries that wait for an attempt. Counts at most 100 000 of each webhook.
        pub waiting: i64,
        /// The longest time that one of the webhooks has received no event although one waits, in seconds.
        pub undelivered_seconds: f64,
    }
}

statements! {
    /// The unparked jobs by queue and plan.
    pub fn jobs() -> Vec<PlanJobs> = include_str!("sql/plan_jobs.sql");

    /// The deliveries that wait.
    pub fn deliveries() -> WaitingDeliveries = include_str!("sql/waiting_deliveries.sql");

    /// The reservations by meter and plan.
    pub fn reservations() -> Vec<PlanReservations> = include_str!("sql/plan_reservations.sql");
}

//! Queues, workers and slots.

use jiff::Timestamp;

use super::{rows, statements};
use crate::meter::Meter;
use crate::processes::DEAD_AFTER;

rows! {
    /// The unparked jobs of a queue.
    pub struct LaneJobs {
        /// The queue.
        pub queue: String,
        /// Jobs that wait for a worker, a retry or their time.
        pub queued: i64,
        /// Jobs that run.
        pub running: i64,
        /// The running jobs with an outstanding answer.
        pub outstanding: i64,
        /// The running jobs on lent workers.
        pub lent: i64,
        /// The wait of the oldest job that could run, in milliseconds.
        pub oldest_wait_ms: i64,
    }

    /// The reasons why jobs of a queue wait.
    pub struct LaneWaiting {
        /// The queue.
        pub queue: String,
        /// Whether a job could run now.
        pub due: bool,
        /// Whether a job waits for a slot.
        pub parked: bool,
        /// The number of jobs that wait for their next attempt.
        pub retrying: i64,
        /// Whether a job waits for its time.
        pub later: bool,
    }

    /// The workers of a queue.
    pub struct LaneWorkers {
        /// The queue.
        pub queue: String,
        /// The number of workers in all living processes.
        pub workers: i64,
    }

    /// A service, as the last `weir migrate` wrote it.
    pub struct StoredService {
        /// Its name.
        pub name: String,
        /// Its meter.
        pub meter: Meter,
        /// River's kind of its jobs.
        pub kind: String,
        /// The maximum number of attempts at a job.
        pub max_attempts: i16,
    }

    /// The slots of a meter.
    pub struct MeterSlots {
        /// The meter.
        pub meter: Meter,
        /// Jobs that hold a slot.
        pub slots_in_use: i64,
        /// Jobs that wait for a slot.
        pub parked: i64,
        /// The wait of the oldest parked job, in milliseconds.
        pub oldest_turn_ms: i64,
    }

    /// The slots of a queue. Other services have the same meter as the service of this queue.
    pub struct QueueSlots {
        /// The queue.
        pub queue: String,
        /// Jobs that hold a slot.
        pub slots_in_use: i64,
        /// Jobs that wait for a slot.
        pub parked: i64,
    }
}

statements! {
    /// Now, by the database's clock.
    pub fn clock() -> Timestamp = "SELECT clock_timestamp()";

    /// All services.
    pub fn services() -> Vec<StoredService> =
        "SELECT name, event_type AS meter, kind, max_attempts FROM weir_services ORDER BY name";

    /// The unparked jobs by queue.
    pub fn jobs() -> Vec<LaneJobs> = include_str!("sql/lane_jobs.sql");

    /// The reasons why jobs of each of these queues wait.
    pub fn waiting(queues: &[String]) -> Vec<LaneWaiting> = include_str!("sql/lane_waiting.sql");

    /// Whether a queue has an available job of these kinds (null: any) that starts before a time.
    pub fn has_earlier(queue: &str, time: Timestamp, kinds: Option<&[String]>) -> bool =
        include_str!("sql/has_earlier.sql");

    /// The workers by queue.
    pub fn workers() -> Vec<LaneWorkers> = include_str!("sql/lane_workers.sql"), [DEAD_AFTER.as_secs_f64()];

    /// The workers of other programs by queue, for these queues. Each process counts as one worker.
    pub fn external_workers(queues: &[String]) -> Vec<LaneWorkers> =
        include_str!("sql/external_workers.sql"), [DEAD_AFTER.as_secs_f64()];

    /// The number of living Weir processes.
    pub fn processes() -> i64 =
        "SELECT count(*) FROM processes \
         WHERE client_id LIKE 'weir\\_%' AND beat_at > clock_timestamp() - make_interval(secs => $1)",
        [DEAD_AFTER.as_secs_f64()];

    /// The slots by meter.
    pub fn slots() -> Vec<MeterSlots> = include_str!("sql/meter_slots.sql");

    /// The slots of these meters by queue.
    pub fn shared_slots(meters: &[&str]) -> Vec<QueueSlots> = include_str!("sql/shared_meter_slots.sql");

    /// The queues that are paused.
    pub fn paused() -> Vec<String> = "SELECT name FROM river_queue WHERE paused_at IS NOT NULL";
}

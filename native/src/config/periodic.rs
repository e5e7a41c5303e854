//! Periodic jobs: what `weir.toml` has the schedulers enqueue into a service's scheduled lane.
//!
//! Ticks are whole seconds that follow from the clock alone, not from when a scheduler was started, and the database has
//! each tick enqueued once, whatever number of schedulers there are.

use std::time::Duration;

use jiff::Timestamp;
use riverqueue::{CronSchedule, CronTimeZone, PeriodicSchedule};
use serde_json::{Map, Value};

use super::table::Table;
use super::variables::Reader;

/// One periodic job.
#[derive(Clone, Debug)]
pub struct Periodic {
    /// Names it in the job's metadata, as River's `river:periodic_job_id`.
    pub id: String,
    /// The service that does the work.
    pub service: String,
    /// When.
    pub schedule: Schedule,
    /// The job's arguments.
    pub args: Map<String, Value>,
}

/// When a periodic job is due.
#[derive(Clone, Debug)]
pub enum Schedule {
    /// Whenever the Unix time is a multiple of this many seconds.
    Every(i64),
    /// River's cron, in UTC unless it says `CRON_TZ=`.
    Cron(CronSchedule),
}

impl PeriodicSchedule for Schedule {
    fn next(&self, current: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(seconds) => {
                let tick = current.as_second().div_euclid(*seconds).checked_add(1)?;
                Timestamp::from_second(tick.checked_mul(*seconds)?).ok()
            }
            Self::Cron(cron) => cron.next(current),
        }
    }
}

/// Checks what the file says. `services` are the names that it gives to services.
pub(super) fn check<'a>(
    reader: &mut Reader<'_>,
    tables: impl Iterator<Item = Table<'a>>,
    services: &[String],
) -> Vec<Periodic> {
    let mut checked: Vec<Periodic> = Vec::new();
    for mut table in tables {
        let id: Option<String> = table.need(reader, "id");
        let service: Option<String> = table.need(reader, "service");
        let is_timed = table.has("schedule") || table.has("every");
        let cron: Option<String> = table.take(reader, "schedule");
        let every: Option<String> = table.take(reader, "every");
        let args: Map<String, Value> = table.take(reader, "args").unwrap_or_default();
        table.rest(reader);
        if let Some(id) = &id
            && (id.is_empty() || checked.iter().any(|other| other.id == *id))
        {
            table.fault(reader, "id", "the id is empty or already taken");
        }
        if let Some(service) = &service
            && !services.contains(service)
        {
            let all = services.join(", ");
            table.fault(
                reader,
                "service",
                &format!("there is no service {service:?}; there are {all}"),
            );
        }
        if args.contains_key("user_id") {
            table.fault(
                reader,
                "args",
                "args has a user_id, but a periodic job belongs to nobody",
            );
        }
        if is_timed && cron.is_none() && every.is_none() {
            // What it has is no text, which is a fault already.
            continue;
        }
        match schedule(cron.as_deref(), every.as_deref()) {
            Ok(schedule) => {
                if let (Some(id), Some(service)) = (id, service) {
                    checked.push(Periodic {
                        id,
                        service,
                        schedule,
                        args,
                    });
                }
            }
            Err(fault) => table.fault(reader, if cron.is_some() { "schedule" } else { "every" }, &fault),
        }
    }
    checked
}

fn schedule(cron: Option<&str>, every: Option<&str>) -> Result<Schedule, String> {
    match (cron, every) {
        (Some(cron), None) => {
            let parsed = CronSchedule::parse(cron).map_err(|error| error.to_string())?;
            if cron.trim_start().starts_with("@every") {
                return Err(format!(
                    "schedule is {cron:?}; write every = {:?} instead",
                    cron.trim_start().trim_start_matches("@every").trim()
                ));
            }
            // The machines that lead in turn may be set to different zones.
            let zoned = cron.starts_with("TZ=") || cron.starts_with("CRON_TZ=");
            Ok(Schedule::Cron(if zoned {
                parsed
            } else {
                parsed.with_time_zone(CronTimeZone::Utc)
            }))
        }
        (None, Some(every)) => humantime::parse_duration(every)
            .ok()
            .filter(|every| *every >= Duration::from_secs(1) && every.subsec_nanos() == 0)
            .and_then(|every| i64::try_from(every.as_secs()).ok())
            .map(Schedule::Every)
            .ok_or_else(|| {
                format!("every is {every:?}, but must be a duration of whole seconds such as 30s or 1h")
            }),
        _ => Err("it needs either schedule, such as \"0 3 * * *\", or every, such as \"1h\"".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &Schedule, at: &str) -> String {
        schedule.next(at.parse().unwrap()).unwrap().to_string()
    }

    #[test]
    fn ticks_do_not_depend_on_when_one_asks() {
        let every = schedule(None, Some("1h")).unwrap();
        assert_eq!(next(&every, "2026-11-21T12:00:00Z"), "2026-11-21T13:00:00Z");
        assert_eq!(next(&every, "2026-11-21T12:59:59.9Z"), "2026-11-21T13:00:00Z");
        let cron = schedule(Some("30 3 * * *"), None).unwrap();
        assert_eq!(next(&cron, "2026-11-21T12:00:00Z"), "2026-11-22T03:30:00Z");
    }

    #[test]
    fn a_bad_schedule_is_refused() {
        for (cron, every) in [
            (Some("every day"), None),
            (Some("@every 90s"), None),
            (None, Some("100ms")),
            (None, Some("1500ms")),
            (None, None),
            (Some("@daily"), Some("1h")),
        ] {
            assert!(schedule(cron, every).is_err(), "{cron:?} {every:?}");
        }
    }
}

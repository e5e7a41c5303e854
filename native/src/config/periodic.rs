//! Periodic jobs: `weir.toml` lists jobs that the schedulers enqueue into a service's scheduled lane.
//!
//! Ticks are whole seconds that depend on the clock alone, not on when a scheduler started. The database enqueues each
//! tick once, with any number of schedulers.

use std::time::Duration;

use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{Timestamp, ToSpan};
use riverqueue::{CronSchedule, CronTimeZone, PeriodicSchedule};
use serde_json::{Map, Number, Value};

use super::table::Table;
use super::variables::Reader;

/// One periodic job.
#[derive(Clone, Debug)]
pub struct Periodic {
    /// The id in the job's metadata, as River's `river:periodic_job_id`.
    pub id: String,
    /// The service that does the work.
    pub service: String,
    /// The schedule.
    pub schedule: Schedule,
    /// The job's arguments.
    pub args: Map<String, Value>,
}

/// When a periodic job is due.
#[derive(Clone, Debug)]
pub enum Schedule {
    /// At every Unix time that is a multiple of this many seconds.
    Every(i64),
    /// River's cron, in UTC unless `CRON_TZ=` sets another zone.
    Cron(CronSchedule),
    /// Cron at certain hours in a time zone. The schedule itself is in UTC. A local time that a clock change skips is due
    /// at the change, and one that it repeats is due the first time.
    Local(CronSchedule, TimeZone),
}

impl PeriodicSchedule for Schedule {
    fn next(&self, current: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Every(seconds) => {
                let tick = current.as_second().div_euclid(*seconds).checked_add(1)?;
                Timestamp::from_second(tick.checked_mul(*seconds)?).ok()
            }
            Self::Cron(cron) => cron.next(current),
            Self::Local(cron, zone) => next_local(cron, zone, current),
        }
    }
}

fn next_local(cron: &CronSchedule, zone: &TimeZone, current: Timestamp) -> Option<Timestamp> {
    let mut local = zone.to_datetime(current);
    loop {
        local = Offset::UTC.to_datetime(cron.next(Offset::UTC.to_timestamp(local).ok()?)?);
        let due = match zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(local).ok()?,
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(local).ok()?,
            AmbiguousOffset::Gap { before, .. } => {
                let after_change = before.to_timestamp(local).ok()? + 1.second();
                zone.preceding(after_change).next()?.timestamp()
            }
        };
        // In the repeated hour, earlier ones of the same local time are over.
        if due > current {
            return Some(due);
        }
    }
}

/// Checks a table of the file. `services` are the names of the file's services.
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
        let args: Option<toml::Table> = table.take(reader, "args");
        table.rest(reader);
        let args = object(args.unwrap_or_default()).unwrap_or_else(|fault| {
            table.fault(reader, "args", &format!("args: {fault}"));
            Map::new()
        });
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
                &format!("unknown service {service:?}; expected one of {all}"),
            );
        }
        if args.contains_key("user_id") {
            table.fault(
                reader,
                "args",
                "args has a user_id, but a periodic job has no holder",
            );
        }
        if is_timed && cron.is_none() && every.is_none() {
            // The member is not text, which is reported already.
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

/// Converts a TOML table to JSON, or returns the value that JSON cannot represent.
fn object(table: toml::Table) -> Result<Map<String, Value>, String> {
    let members = table.into_iter();
    members.map(|(name, value)| Ok((name, json(value)?))).collect()
}

fn json(value: toml::Value) -> Result<Value, String> {
    Ok(match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => Number::from_f64(number)
            .ok_or_else(|| format!("JSON cannot represent {number}"))?
            .into(),
        toml::Value::Boolean(is) => is.into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(values) => values.into_iter().map(json).collect::<Result<_, _>>()?,
        toml::Value::Table(table) => object(table)?.into(),
    })
}

/// Parses River's cron syntax, provided that the ticks depend on the clock alone.
fn from_cron(cron: &str) -> Result<Schedule, String> {
    // Machines that lead in turn may be set to different zones.
    let is_zoned = cron.starts_with("TZ=") || cron.starts_with("CRON_TZ=");
    let rest = if is_zoned {
        cron.split_once(' ').map_or("", |(_, rest)| rest)
    } else {
        cron
    };
    if let Some(every) = rest.trim_start().strip_prefix("@every") {
        return Err(format!(
            "schedule is {cron:?}; write every = {:?} instead",
            every.trim()
        ));
    }
    if rest.split('/').skip(1).any(is_long_step) {
        return Err(format!(
            "schedule is {cron:?}, which has a step larger than its field"
        ));
    }
    let parsed = CronSchedule::parse(cron).map_err(|error| error.to_string())?;
    if is_zoned && parsed.time_zone() == CronTimeZone::Local {
        return Err(format!(
            "schedule is {cron:?}, which depends on the machine; name a time zone, such as CRON_TZ=Europe/Berlin"
        ));
    }
    let schedule = if is_zoned {
        parsed
    } else {
        parsed.with_time_zone(CronTimeZone::Utc)
    };
    // River searches the next five years, minute by minute if no minute matches. A scheduler would do so every few
    // seconds.
    let is_nothing = |field: &str| field.bytes().all(|byte| byte == b',');
    if rest.split_whitespace().any(is_nothing) || schedule.next(Timestamp::UNIX_EPOCH).is_none() {
        return Err(format!("schedule is {cron:?}, which never occurs"));
    }
    // A schedule of every hour follows the clock through a change.
    let hours = rest.split_whitespace().nth(1);
    let is_hourly = rest.trim() == "@hourly" || hours.is_some_and(|hours| hours.starts_with(['*', '?']));
    Ok(match schedule.time_zone() {
        CronTimeZone::Named(zone) if !is_hourly => {
            Schedule::Local(schedule.with_time_zone(CronTimeZone::Utc), zone)
        }
        _ => Schedule::Cron(schedule),
    })
}

/// Whether the step after a `/` is too large for River, which adds steps in 32 bits.
fn is_long_step(text: &str) -> bool {
    let digits = text.trim_start_matches('+');
    digits.bytes().take_while(u8::is_ascii_digit).count() > 9
}

fn schedule(cron: Option<&str>, every: Option<&str>) -> Result<Schedule, String> {
    match (cron, every) {
        (Some(cron), None) => from_cron(cron),
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
    fn ticks_do_not_depend_on_the_current_time() {
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
            (Some("CRON_TZ=UTC @every 90s"), None),
            (None, Some("100ms")),
            (None, Some("1500ms")),
            (None, None),
            (Some("@daily"), Some("1h")),
        ] {
            assert!(schedule(cron, every).is_err(), "{cron:?} {every:?}");
        }
    }

    #[test]
    fn schedules_use_their_named_time_zone() {
        let cron = schedule(Some("CRON_TZ=Europe/Berlin 30 3 * * *"), None).unwrap();
        assert_eq!(next(&cron, "2026-11-21T12:00:00Z"), "2026-11-22T02:30:00Z");
        assert_eq!(next(&cron, "2026-07-21T12:00:00Z"), "2026-07-22T01:30:00Z");
    }

    /// This many ticks after a time.
    fn ticks(cron: &str, after: &str, count: usize) -> Vec<String> {
        let schedule = schedule(Some(cron), None).unwrap();
        let first = schedule.next(after.parse().unwrap());
        std::iter::successors(first, |at| schedule.next(*at))
            .take(count)
            .map(|at| at.to_string())
            .collect()
    }

    #[test]
    fn a_skipped_local_time_is_due_at_the_clock_change() {
        let before = "2027-03-27T12:00:00Z";
        assert_eq!(
            ticks("CRON_TZ=Europe/Berlin 0,30 2 * * *", before, 3),
            [
                "2027-03-28T01:00:00Z",
                "2027-03-29T00:00:00Z",
                "2027-03-29T00:30:00Z"
            ]
        );
        assert_eq!(
            ticks("CRON_TZ=Europe/Berlin 30 2,3 * * *", before, 3),
            [
                "2027-03-28T01:00:00Z",
                "2027-03-28T01:30:00Z",
                "2027-03-29T00:30:00Z"
            ]
        );
        // Clocks change at midnight here.
        assert_eq!(
            ticks("CRON_TZ=Africa/Cairo @daily", "2027-04-29T12:00:00Z", 2),
            ["2027-04-29T22:00:00Z", "2027-04-30T21:00:00Z"]
        );
    }

    #[test]
    fn a_repeated_local_time_is_due_once() {
        let cron = "CRON_TZ=Europe/Berlin 30 2 * * *";
        let once = ["2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"];
        assert_eq!(ticks(cron, "2027-10-30T12:00:00Z", 2), once);
        // In the second of the two hours.
        for now in [
            "2027-10-31T01:05:00Z",
            "2027-10-31T01:30:00Z",
            "2027-10-31T01:45:00Z",
        ] {
            assert_eq!(ticks(cron, now, 1), once[1..]);
        }
    }

    #[test]
    fn schedules_of_every_hour_follow_the_clock() {
        for cron in ["CRON_TZ=Europe/Berlin 0 * * * *", "CRON_TZ=Europe/Berlin @hourly"] {
            assert_eq!(
                ticks(cron, "2027-10-30T23:30:00Z", 3),
                [
                    "2027-10-31T00:00:00Z",
                    "2027-10-31T01:00:00Z",
                    "2027-10-31T02:00:00Z"
                ]
            );
            assert_eq!(
                ticks(cron, "2027-03-28T00:30:00Z", 2),
                ["2027-03-28T01:00:00Z", "2027-03-28T02:00:00Z"]
            );
        }
    }

    #[test]
    fn the_local_time_zone_is_refused() {
        for cron in ["CRON_TZ=Local 30 3 * * *", "TZ=Local @daily"] {
            let fault = schedule(Some(cron), None).unwrap_err();
            assert!(fault.contains("Europe/Berlin"), "{fault}");
        }
    }
}

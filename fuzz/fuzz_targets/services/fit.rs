//! The requirements of an accepted services file, written independently of the code that accepts it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use riverqueue::PeriodicSchedule as _;
use weir::config::Settings;
use weir::config::periodic::Schedule;
use weir::config::service::{Amount, HandlerSpec, Service};
use weir_policy::lane::is_queue_name;

/// The maximum amount that one job may reserve.
const MAX_AMOUNT: i64 = 1_000_000_000_000_000;

pub fn check(settings: &Settings) {
    assert!(!settings.services.is_empty());
    let names: BTreeSet<&str> = settings.services.iter().map(|one| one.name.as_str()).collect();
    let kinds: BTreeSet<&str> = settings.services.iter().map(|one| one.kind.as_str()).collect();
    assert_eq!(names.len(), settings.services.len(), "a name is one service's");
    assert_eq!(kinds.len(), settings.services.len(), "a kind is one service's");
    settings.services.iter().for_each(service);
    for service in &settings.services {
        assert!(
            settings
                .catalogue
                .meters
                .contains_key(service.meter.as_str())
        );
    }
    let ids: BTreeSet<&str> = settings.periodic.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids.len(), settings.periodic.len(), "an id is one periodic job's");
    for periodic in &settings.periodic {
        assert!(names.contains(periodic.service.as_str()));
        assert!(!periodic.args.contains_key("user_id"));
        storable(&periodic.id);
        storable(
            &serde_json::to_string(&periodic.args)
                .expect("JSON")
                .replace("\\u0000", "\0"),
        );
        ticks(&periodic.schedule);
    }
    let plans = &settings.catalogue.plans;
    assert_eq!(plans.values().filter(|plan| plan.is_default).count(), 1);
    for (name, plan) in plans {
        storable(name);
        assert_eq!(
            plan.meters.keys().collect::<BTreeSet<_>>(),
            settings.catalogue.meters.keys().collect()
        );
        for limits in plan.meters.values() {
            assert!((1..=10_000).contains(&limits.slots));
            assert!(limits.limits.values().all(|limit| *limit >= 0));
            for (span, ceiling) in &limits.ceilings {
                assert!(limits.limits[span] < *ceiling && *ceiling <= MAX_AMOUNT);
            }
        }
    }
    for (name, unit) in &settings.catalogue.meters {
        storable(name);
        storable(unit);
    }
}

/// Schedulers that check at different times must find the same ticks.
fn ticks(schedule: &Schedule) {
    let now = Timestamp::from_second(1_800_000_000).expect("a time");
    let Some(next) = schedule.next(now) else { return };
    assert!(next > now, "{schedule:?}: a tick is in the future");
    let later = Timestamp::from_second(next.as_second() - 1).expect("between the two");
    assert_eq!(
        schedule.next(later),
        Some(next),
        "{schedule:?}: it depends on who asks when"
    );
}

fn service(service: &Service) {
    for (_, queue, workers) in service.queues() {
        assert!(is_queue_name(&queue), "{queue:?}");
        assert_eq!(workers == 0, service.is_external());
        assert!(workers <= 10_000);
    }
    // A constraint of River's table.
    assert!(
        (1..128).contains(&service.kind.chars().count()),
        "{:?}",
        service.kind
    );
    storable(&service.kind);
    service.unique_by.iter().for_each(|member| storable(member));
    assert!((1..=100).contains(&service.max_attempts));
    assert!(service.timeout > Duration::ZERO, "the time limit is 0");
    assert!(
        service.timeout <= Duration::from_hours(366 * 24),
        "a worker adds to it"
    );
    if let Some(retry) = service.retry {
        assert!(retry.base <= retry.max && retry.max <= Duration::from_hours(24));
        let (factor, power) = retry.growth();
        assert!((1.0..=100.0).contains(&factor) && (0.0..=10.0).contains(&power));
    }
    if let HandlerSpec::Exec { command, .. } = &service.handler {
        assert!(
            command.first().is_some_and(|program| !program.is_empty()),
            "{command:?}"
        );
        command.iter().for_each(|part| storable(part));
    }
    match service.handler.amount() {
        Some(Amount::Fixed(amount)) => assert!((1..=MAX_AMOUNT).contains(amount), "{amount}"),
        Some(Amount::Member { member }) => storable(member),
        None => {}
    }
}

/// Neither PostgreSQL nor a program's arguments can contain a NUL.
fn storable(text: &str) {
    assert!(!text.contains('\0'), "{text:?}");
}

/// Whether the JSON has the same meaning as the TOML.
pub fn is_same(toml: &toml::Value, json: &serde_json::Value) -> bool {
    match toml {
        toml::Value::String(text) => json.as_str() == Some(text),
        toml::Value::Integer(number) => json.as_i64() == Some(*number),
        toml::Value::Float(number) => json.is_f64() && json.as_f64() == Some(*number),
        toml::Value::Boolean(is) => json.as_bool() == Some(*is),
        toml::Value::Datetime(time) => json.as_str() == Some(&time.to_string()),
        toml::Value::Array(values) => json.as_array().is_some_and(|others| {
            values.len() == others.len() && values.iter().zip(others).all(|(one, other)| is_same(one, other))
        }),
        toml::Value::Table(table) => json.as_object().is_some_and(|others| {
            let has = |(name, value): (&String, &toml::Value)| {
                others.get(name).is_some_and(|other| is_same(value, other))
            };
            table.len() == others.len() && table.iter().all(has)
        }),
    }
}

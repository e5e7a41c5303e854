//! The services file, `weir.toml`: reads and checks it. `catalogue.rs` reads the catalogue in it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;
use toml::de::DeTable;
use weir_ledger::catalogue::Catalogue;
use weir_ledger::meter::Meter;
use weir_policy::lane::{Lane, is_queue_name};

use super::catalogue::{self, Metered};
use super::periodic::{self, Periodic};
use super::retry::Retry;
use super::service::{Amount, HandlerSpec, MAX_AMOUNT, MAX_WORKERS, Service, Wake};
use super::table::{Members, Source, Table};
use super::variables::{Reader, SECRETS};
use super::wording::reword;
use crate::outbound::{self, Reach, Unreachable};

/// Unknown members are errors too, but the known ones are still checked.
#[derive(Default, Deserialize)]
struct File {
    #[serde(default)]
    service: Vec<Spanned<Members>>,
    #[serde(default)]
    periodic: Vec<Spanned<Members>>,
    #[serde(default)]
    meter: Vec<Spanned<Members>>,
    #[serde(default)]
    plan: Vec<Spanned<Members>>,
}

/// The valid contents of the file.
#[derive(Default)]
pub(crate) struct Defined {
    pub(crate) services: Vec<Service>,
    pub(crate) periodic: Vec<Periodic>,
    pub(crate) catalogue: Catalogue,
}

/// The tables that a file may contain.
const TABLES: &str = "[[service]], [[periodic]], [[meter]] or [[plan]]";

/// The prefix of Weir's own job kinds, such as webhook deliveries.
const OWN_KINDS: &str = "weir:";

/// Maximum length of a job kind in River's tables, in characters.
const MAX_KIND: usize = 127;

/// Maximum time limit of an attempt, so that sums with it do not overflow.
const MAX_TIMEOUT: Duration = Duration::from_hours(366 * 24);

/// The catalogue of files that define none.
const DEFAULT_CATALOGUE: &str = include_str!("default_catalogue.toml");

#[derive(Clone, Copy, Deserialize)]
#[serde(transparent)]
struct Timeout(#[serde(with = "humantime_serde")] Duration);

/// Reads the file and leaves out invalid entries. `allow_private`: whether endpoints may be in private networks without
/// `private`.
pub(crate) fn read(reader: &mut Reader<'_>, path: &Path, allow_private: bool) -> Defined {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            reader.fault(format!(
                "cannot read {}: {error}; set WEIR_CONFIG to the file that defines the services",
                path.display()
            ));
            return Default::default();
        }
    };
    let source = Source { path, text: &text };
    let (_, errors) = DeTable::parse_recoverable(&text);
    for error in &errors {
        fault(reader, source, error);
    }
    if !errors.is_empty() {
        return Default::default();
    }
    match toml::from_str::<BTreeMap<Spanned<String>, IgnoredAny>>(&text) {
        Ok(members) => {
            for member in members.keys() {
                if !matches!(
                    member.get_ref().as_str(),
                    "service" | "periodic" | "meter" | "plan"
                ) {
                    let place = source.place(Some(member.span()));
                    reader.fault(format!(
                        "{place}: unknown member {}; expected {TABLES}",
                        member.get_ref()
                    ));
                }
            }
        }
        Err(error) => fault(reader, source, &error),
    }
    let Some(file) = parsed(reader, source) else {
        return Default::default();
    };
    if file.service.is_empty() {
        reader.fault(format!("{} defines no service", path.display()));
    }
    let (of_catalogue, meters, plans) = if file.meter.is_empty() && file.plan.is_empty() {
        let path = Path::new("the default catalogue");
        let default = Source {
            path,
            text: DEFAULT_CATALOGUE,
        };
        let file = parsed(reader, default).unwrap_or_default();
        (default, file.meter, file.plan)
    } else {
        (source, file.meter, file.plan)
    };
    let meter_names = names_of(&meters);
    let (mut services, mut names, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    for members in file.service {
        let table = Table::new(source, "service", "name", members);
        services.extend(service(
            reader,
            table,
            &meter_names,
            allow_private,
            &mut names,
            &mut kinds,
        ));
    }
    let periodic = file
        .periodic
        .into_iter()
        .map(|members| Table::new(source, "periodic", "id", members));
    let periodic = periodic::check(reader, periodic, &names);
    let metered: Vec<Metered<'_>> = services
        .iter()
        .map(|service: &Service| Metered {
            name: &service.name,
            meter: service.meter.as_str(),
        })
        .collect();
    let meters = meters
        .into_iter()
        .map(|members| Table::new(of_catalogue, "meter", "name", members));
    let plans = plans
        .into_iter()
        .map(|members| Table::new(of_catalogue, "plan", "name", members));
    let catalogue = catalogue::read(reader, meters, plans, &metered);
    Defined {
        services,
        periodic,
        catalogue,
    }
}

/// The names of the tables that have one.
fn names_of(tables: &[Spanned<Members>]) -> Vec<String> {
    let names = tables.iter().filter_map(|members| members.get_ref().get("name"));
    names
        .filter_map(|name| name.get_ref().as_str())
        .map(str::to_owned)
        .collect()
}

/// Parses the file into tables without checking their members.
fn parsed(reader: &mut Reader<'_>, source: Source<'_>) -> Option<File> {
    toml::from_str(source.text)
        .map_err(|error: toml::de::Error| {
            let (place, fault) = (source.place(error.span()), reword(error.message()));
            reader.fault(format!("{place}: {fault}; expected {TABLES}"));
        })
        .ok()
}

fn fault(reader: &mut Reader<'_>, source: Source<'_>, error: &toml::de::Error) {
    let what = error.message().trim().replace('\n', ", ");
    reader.fault(format!("{}: {what}", source.place(error.span())));
}

/// Reads a service, which one of these meters counts. `names` and `kinds` are those of the previous services, including
/// invalid ones.
fn service(
    reader: &mut Reader<'_>,
    mut table: Table<'_>,
    meters: &[String],
    allow_private: bool,
    names: &mut Vec<String>,
    kinds: &mut Vec<String>,
) -> Option<Service> {
    let name: Option<String> = table.need(reader, "name");
    let (member, meter) = meter(reader, &mut table);
    let kind: Option<String> = table.need(reader, "kind");
    let mut handler: Option<HandlerSpec> = table.need(reader, "handler");
    if let Some(HandlerSpec::Http { private, .. }) = &mut handler {
        *private |= allow_private;
    }
    let is_external = matches!(handler, Some(HandlerSpec::External { .. }));
    let pools = pools(reader, &mut table, is_external);
    let headroom: Option<u32> = table.take(reader, "headroom");
    let timeout: Option<Timeout> = table.need(reader, "timeout");
    let expires_in: Option<Timeout> = table.take(reader, "expires_in");
    let wake: Option<Wake> = table.take(reader, "wake");
    let max_attempts: Option<i16> = table.need(reader, "max_attempts");
    let unique_by: Option<Vec<String>> = table.take(reader, "unique_by");
    let retry: Option<Retry> = table.take(reader, "retry");
    table.rest(reader);

    if let Some(meter) = &meter
        && !meters.contains(meter)
    {
        let fault = format!("unknown meter {meter}; expected one of {}", meters.join(", "));
        table.fault(reader, member, &fault);
    }
    if let Some(name) = &name {
        check_name(reader, &table, name, names);
        names.push(name.clone());
    }
    if let Some(kind) = &kind {
        check_kind(reader, &table, kind, kinds);
        kinds.push(kind.clone());
    }
    if headroom.is_some_and(|headroom| headroom > MAX_WORKERS) {
        table.fault(
            reader,
            "headroom",
            &format!("headroom must be from 0 to {MAX_WORKERS}"),
        );
    }
    if wake.is_some() && is_external {
        table.fault(
            reader,
            "wake",
            "Weir does not start the jobs of an external service; leave wake out",
        );
    }
    for (member, duration) in [("timeout", timeout), ("expires_in", expires_in)] {
        if duration.is_some_and(|Timeout(duration)| duration.is_zero() || duration > MAX_TIMEOUT) {
            let fault = format!("{member} must be more than 0 and at most 366days");
            table.fault(reader, member, &fault);
        }
    }
    if let Some(attempts) = max_attempts
        && !(1..=100).contains(&attempts)
    {
        let fault = format!("max_attempts is {attempts}, but must be from 1 to 100");
        table.fault(reader, "max_attempts", &fault);
    }
    if let Some(fault) = handler.as_ref().and_then(unusable) {
        table.fault(reader, "handler", &fault);
    }
    if let Some(fault) = retry.and_then(|retry| retry.fault()) {
        table.fault(reader, "retry", fault);
    }
    let [priority, default, scheduled] = pools;
    Some(Service {
        name: name?,
        meter: Meter::of(&meter?),
        kind: kind?,
        pools: [priority?, default?, scheduled?],
        headroom,
        timeout: timeout?.0,
        expires_in: expires_in.map(|Timeout(duration)| duration),
        wake: wake.unwrap_or_default(),
        max_attempts: max_attempts?,
        unique_by: unique_by.unwrap_or_default(),
        retry,
        handler: handler?,
    })
}

/// The member that names the service's meter, and its value.
fn meter(reader: &mut Reader<'_>, table: &mut Table<'_>) -> (&'static str, Option<String>) {
    let member = if table.has("meter") { "meter" } else { "event_type" };
    let meter: Option<String> = table.need(reader, member);
    if member == "meter" && table.has("event_type") {
        table.fault(
            reader,
            "meter",
            "meter and event_type are the same; leave one out",
        );
        let _: Option<String> = table.take(reader, "event_type");
    }
    (member, meter)
}

/// The numbers of workers of the three lanes, which variables override. An external service needs none, and ignores them.
fn pools(reader: &mut Reader<'_>, table: &mut Table<'_>, is_external: bool) -> [Option<u32>; 3] {
    let workers: Option<String> = table.need_unless(reader, "workers", is_external);
    [
        ("priority_workers", "PRIORITY"),
        ("default_workers", "DEFAULT"),
        ("scheduled_workers", "SCHEDULED"),
    ]
    .map(|(member, lane)| {
        let size: Option<u32> = table.need_unless(reader, member, is_external);
        if let Some(size) = size
            && !(1..=MAX_WORKERS).contains(&size)
        {
            let fault = format!("{member} is {size}, but must be from 1 to {MAX_WORKERS}");
            table.fault(reader, member, &fault);
        }
        let size = workers.as_ref().map(|workers| {
            let variable = format!("{workers}_QUEUE_{lane}_WORKERS");
            reader.positive(&variable, size.unwrap_or(1), MAX_WORKERS)
        });
        if is_external { Some(0) } else { size }
    })
}

fn check_name(reader: &mut Reader<'_>, table: &Table<'_>, name: &str, names: &[String]) {
    for lane in Lane::ALL {
        let queue = lane.queue(name);
        if !is_queue_name(&queue) {
            let fault = format!(
                "River rejects the queue name {queue:?}; use lower-case letters, digits and single _ or -"
            );
            table.fault(reader, "name", &fault);
            break;
        }
    }
    if name == "events" {
        table.fault(
            reader,
            "name",
            "the name is reserved for the route /api/jobs/events",
        );
    }
    if names.iter().any(|other| other == name) {
        table.fault(reader, "name", "the name is already taken");
    }
}

fn check_kind(reader: &mut Reader<'_>, table: &Table<'_>, kind: &str, kinds: &[String]) {
    if !(1..=MAX_KIND).contains(&kind.chars().count()) {
        let fault = format!("kind must have 1 to {MAX_KIND} characters");
        table.fault(reader, "kind", &fault);
    }
    if kind.starts_with(OWN_KINDS) {
        let fault = format!("kinds that start with {OWN_KINDS} are reserved for Weir");
        table.fault(reader, "kind", &fault);
    }
    if kinds.iter().any(|other| other == kind) {
        table.fault(reader, "kind", &format!("the kind {kind:?} is already taken"));
    }
}

/// The error in a handler, if there is one.
fn unusable(handler: &HandlerSpec) -> Option<String> {
    match handler.amount() {
        Some(Amount::Fixed(..=0)) => return Some("amount must be at least 1".to_owned()),
        Some(Amount::Fixed(amount)) if *amount > MAX_AMOUNT => {
            return Some(format!("amount must be at most {MAX_AMOUNT}"));
        }
        _ => {}
    }
    match handler {
        HandlerSpec::Exec { command, .. } if command.first().is_none_or(String::is_empty) => {
            Some("an exec handler needs a non-empty command".to_owned())
        }
        HandlerSpec::Exec { env, .. } => env
            .iter()
            .find(|name| SECRETS.contains(&name.as_str()))
            .map(|secret| format!("env contains {secret}, which programs must not receive")),
        HandlerSpec::Http { url, private, .. } => {
            outbound::check(&url.0, Reach::of(*private))
                .err()
                .map(|error| match error {
                    Unreachable::Private => {
                        format!("{error}: set private = true in the handler to allow it")
                    }
                    error => error.to_string(),
                })
        }
        HandlerSpec::Builtin { .. } | HandlerSpec::External { .. } => None,
    }
}

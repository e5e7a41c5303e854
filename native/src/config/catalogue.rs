//! The catalogue in the services file: `[[meter]]` and `[[plan]]`.

use std::collections::BTreeMap;

use serde::Deserialize;
use weir_ledger::catalogue::{Catalogue, PLAN_ATTRIBUTES, PlanAttribute, PlanEntry, PlanLimits};
use weir_ledger::control::MAX_LIMIT;
use weir_policy::lane::Lane;
use weir_policy::span::Span;

use super::table::Table;
use super::variables::Reader;

/// Maximum number of slots that a holder may have.
pub(crate) const MAX_SLOTS: u32 = 10_000;

/// Members of `/api/usage` that are not meters.
const RESERVED_METERS: [&str; 4] = ["plan", "tier", "period", "meters"];

/// Placeholders for holders without a plan, where output is broken down by plan.
const RESERVED_PLANS: [&str; 2] = ["anonymous", "unknown"];

/// A hard or soft limit.
#[derive(Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Limit {
    Hard(i64),
    Soft(Soft),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Soft {
    limit: i64,
    ceiling: i64,
}

/// Without a window, the limit applies to the month.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a limit is a number per month, or a table with one or more of { month = 1000, day = 100, hour = 20, \
         minute = 5 }; each number may be a soft limit: { limit = 1000, ceiling = 1500 }"
)]
enum Limits {
    Month(Limit),
    BySpan(BTreeMap<Span, Limit>),
}

/// The jobs at once of a service's user.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "a service's slots are a number, or a table such as { slots = 2, burst = 8 }"
)]
enum AtOnce {
    Slots(u32),
    Burst(Burst),
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Burst {
    slots: u32,
    burst: u32,
}

impl AtOnce {
    fn slots(self) -> u32 {
        match self {
            Self::Slots(slots) | Self::Burst(Burst { slots, .. }) => slots,
        }
    }

    fn burst(self) -> Option<u32> {
        match self {
            Self::Slots(_) => None,
            Self::Burst(Burst { burst, .. }) => Some(burst),
        }
    }
}

/// The part of a service that plans refer to.
pub(super) struct Metered<'a> {
    pub(super) name: &'a str,
    pub(super) meter: &'a str,
}

/// Reads the file's catalogue and leaves out invalid entries.
pub(super) fn read<'a>(
    reader: &mut Reader<'_>,
    meters: impl Iterator<Item = Table<'a>>,
    plans: impl Iterator<Item = Table<'a>>,
    services: &[Metered<'_>],
) -> Catalogue {
    let mut catalogue = Catalogue::default();
    for table in meters {
        meter(reader, table, &mut catalogue);
    }
    let mut defaults = Vec::new();
    for table in plans {
        if let Some(name) = plan(reader, table, &mut catalogue, services) {
            defaults.push(name);
        }
    }
    if defaults.len() != 1 {
        reader.fault(format!(
            "exactly one [[plan]] needs default = true, for holders without a subscription; {}",
            match defaults.len() {
                0 => "none has it".to_owned(),
                _ => format!("{} have it", defaults.join(" and ")),
            }
        ));
    }
    catalogue
}

fn meter(reader: &mut Reader<'_>, mut table: Table<'_>, catalogue: &mut Catalogue) {
    let name: Option<String> = table.need(reader, "name");
    let unit: Option<String> = table.need(reader, "unit");
    table.rest(reader);
    let Some(name) = name else { return };
    if !is_name(&name) {
        table.fault(reader, "name", NAMES);
    }
    if RESERVED_METERS.contains(&name.as_str()) {
        table.fault(reader, "name", "/api/usage already has a member of this name");
    }
    if unit.as_ref().is_some_and(|unit| unit.trim().is_empty()) {
        table.fault(
            reader,
            "unit",
            "the unit must be a plural noun, such as \"images\"",
        );
    }
    let unit = unit.unwrap_or_default();
    if catalogue.meters.insert(name, unit).is_some() {
        table.fault(reader, "name", "the name is already taken");
    }
}

/// Reads a plan. Returns its name if it is the default plan.
fn plan(
    reader: &mut Reader<'_>,
    mut table: Table<'_>,
    catalogue: &mut Catalogue,
    services: &[Metered<'_>],
) -> Option<String> {
    let name: Option<String> = table.need(reader, "name");
    let is_default: bool = table.take(reader, "default").unwrap_or_default();
    let lane: Option<String> = table.need(reader, "lane");
    let slots: Option<u32> = table.need(reader, "slots");
    let burst: Option<u32> = table.take(reader, "burst");
    let of_services: BTreeMap<String, AtOnce> = table.take(reader, "services").unwrap_or_default();
    let limits: BTreeMap<String, Limits> = table.take(reader, "limits").unwrap_or_default();
    let attributes: BTreeMap<&'static str, Option<i32>> = PLAN_ATTRIBUTES
        .into_iter()
        .map(|attribute| (attribute.name, table.take(reader, attribute.name)))
        .collect();
    table.rest(reader);

    if let Some(name) = &name {
        check_plan_name(reader, &table, name, catalogue);
    }
    let known_lane = lane.as_deref().and_then(Lane::parse);
    if let Some(lane) = &lane
        && !matches!(known_lane, Some(Lane::Priority | Lane::Default))
    {
        let fault = format!("lane is {lane:?}, but must be \"priority\" or \"default\"");
        table.fault(reader, "lane", &fault);
    }
    if slots.is_some_and(|slots| !(1..=MAX_SLOTS).contains(&slots)) {
        table.fault(reader, "slots", &format!("slots must be from 1 to {MAX_SLOTS}"));
    }
    if let (Some(slots), Some(burst)) = (slots, burst)
        && !(slots..=MAX_SLOTS).contains(&burst)
    {
        let fault = format!("burst is {burst}, but must be from slots ({slots}) to {MAX_SLOTS}");
        table.fault(reader, "burst", &fault);
    }
    for PlanAttribute { name, max, absent } in PLAN_ATTRIBUTES {
        if attributes[name].is_some_and(|value| !(1..=max).contains(&value)) {
            let fault = format!("{name} must be from 1 to {max}, or absent ({absent})");
            table.fault(reader, name, &fault);
        }
    }
    let of_meters = slots_of_meters(reader, &table, &of_services, services);
    check_meters(reader, &table, &limits, catalogue);
    let mut meters = BTreeMap::new();
    for meter in catalogue.meters.keys() {
        let (limits, ceilings) = plan_limits(reader, &table, meter, limits.get(meter));
        let (slots, burst) = match of_meters.get(meter.as_str()) {
            Some(own) => (
                own.slots(),
                own.burst().or(burst.filter(|burst| *burst > own.slots())),
            ),
            None => (slots.unwrap_or(1), burst),
        };
        meters.insert(
            meter.clone(),
            PlanLimits {
                limits,
                ceilings,
                slots,
                burst,
            },
        );
    }
    let name = name?;
    let entry = PlanEntry {
        lane: Lane::select(known_lane, false),
        is_default,
        attributes,
        meters,
    };
    catalogue.plans.insert(name.clone(), entry);
    is_default.then_some(name)
}

fn check_plan_name(reader: &mut Reader<'_>, table: &Table<'_>, name: &str, catalogue: &Catalogue) {
    if !is_name(name) {
        table.fault(reader, "name", NAMES);
    }
    if RESERVED_PLANS.contains(&name) {
        table.fault(reader, "name", "the name is reserved for holders without a plan");
    }
    if catalogue.plans.contains_key(name) {
        table.fault(reader, "name", "the name is already taken");
    }
}

/// Limits of a plan may only name existing meters.
fn check_meters(
    reader: &mut Reader<'_>,
    table: &Table<'_>,
    limits: &BTreeMap<String, Limits>,
    catalogue: &Catalogue,
) {
    for meter in limits
        .keys()
        .filter(|meter| !catalogue.meters.contains_key(*meter))
    {
        let known: Vec<&str> = catalogue.meters.keys().map(String::as_str).collect();
        let fault = format!(
            "limits: unknown meter {meter}; expected one of {}",
            known.join(", ")
        );
        table.fault(reader, "limits", &fault);
    }
}

/// Limits or ceilings by window.
type BySpan = BTreeMap<Span, i64>;

/// The limits of a plan's meter and the ceilings of the soft ones, by window.
fn plan_limits(
    reader: &mut Reader<'_>,
    table: &Table<'_>,
    meter: &str,
    limits: Option<&Limits>,
) -> (BySpan, BySpan) {
    let by_span = match limits {
        None => BTreeMap::new(),
        Some(Limits::Month(limit)) => BTreeMap::from([(Span::Month, *limit)]),
        Some(Limits::BySpan(limits)) => limits.clone(),
    };
    let (mut limits, mut ceilings) = (BTreeMap::new(), BTreeMap::new());
    for (span, limit) in by_span {
        match limit {
            Limit::Hard(limit) => {
                limits.insert(span, limit);
            }
            Limit::Soft(Soft { limit, ceiling }) => {
                if ceiling <= limit {
                    let fault =
                        format!("limits: {meter}: the ceiling {ceiling} must be more than the limit {limit}");
                    table.fault(reader, "limits", &fault);
                }
                limits.insert(span, limit);
                ceilings.insert(span, ceiling);
            }
        }
    }
    if limits.values().any(|limit| *limit < 0) {
        table.fault(reader, "limits", &format!("limits: {meter} is less than 0"));
    }
    if limits
        .values()
        .chain(ceilings.values())
        .any(|limit| *limit > MAX_LIMIT)
    {
        let fault = format!("limits: {meter} is more than {MAX_LIMIT}; leave it out for no limit");
        table.fault(reader, "limits", &fault);
    }
    (limits, ceilings)
}

/// The jobs at once that a plan sets per service, by meter. Each meter has one number, whichever services it counts.
fn slots_of_meters<'a>(
    reader: &mut Reader<'_>,
    table: &Table<'_>,
    of_services: &BTreeMap<String, AtOnce>,
    services: &[Metered<'a>],
) -> BTreeMap<&'a str, AtOnce> {
    let mut of_meters = BTreeMap::new();
    for (name, slots) in of_services {
        if !(1..=MAX_SLOTS).contains(&slots.slots()) {
            let fault = format!("services: the slots of {name} must be from 1 to {MAX_SLOTS}");
            table.fault(reader, "services", &fault);
        }
        if let Some(burst) = slots.burst()
            && !(slots.slots()..=MAX_SLOTS).contains(&burst)
        {
            let fault = format!(
                "services: the burst of {name} is {burst}, but must be from its slots ({}) to {MAX_SLOTS}",
                slots.slots()
            );
            table.fault(reader, "services", &fault);
        }
        let Some(service) = services.iter().find(|service| service.name == name) else {
            let known: Vec<&str> = services.iter().map(|service| service.name).collect();
            let fault = format!(
                "services: unknown service {name}; expected one of {}",
                known.join(", ")
            );
            table.fault(reader, "services", &fault);
            continue;
        };
        let same_meter = services.iter().filter(|other| other.meter == service.meter);
        let others: Vec<&str> = same_meter
            .filter(|other| of_services.get(other.name) != Some(slots))
            .map(|other| other.name)
            .collect();
        if !others.is_empty() {
            let fault = format!(
                "services: {name} shares its meter, and therefore its slots, with {}; give them all the same number",
                others.join(", ")
            );
            table.fault(reader, "services", &fault);
        }
        of_meters.insert(service.meter, *slots);
    }
    of_meters
}

const NAMES: &str = "a name must start with a letter, contain only lower-case letters, digits and _, and have at most 40 characters";

fn is_name(name: &str) -> bool {
    name.len() <= 40
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

//! The contents of a catalogue, and the differences between two of them.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::Serialize;
use weir_policy::lane::Lane;
use weir_policy::span::Span;

/// Meters and plans.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Catalogue {
    /// The unit of each meter, in the plural, by the meter's name.
    pub meters: BTreeMap<String, String>,
    /// The plans by their names, in the order of the file.
    pub plans: IndexMap<String, PlanEntry>,
}

/// An optional attribute of plans: a column of `subscription_plans` and a member of `[[plan]]` in weir.toml, with the same
/// name.
#[derive(Clone, Copy, Debug)]
pub struct PlanAttribute {
    /// Its name.
    pub name: &'static str,
    /// The largest value; the smallest is 1.
    pub max: i32,
    /// The meaning of its absence, for messages.
    pub absent: &'static str,
}

/// All attributes. Those that a decision needs are also in `submit_many.sql` and in [`weir_policy::admission`].
pub const PLAN_ATTRIBUTES: [PlanAttribute; 2] = [
    // The retention of results, in days.
    PlanAttribute {
        name: "retention_days",
        max: 36_500,
        absent: "unlimited",
    },
    // The maximum number of waiting jobs per holder and meter, parked or scheduled.
    PlanAttribute {
        name: "max_waiting",
        max: i32::MAX,
        absent: "unlimited",
    },
];

/// A plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanEntry {
    /// The lane of its holders' jobs.
    pub lane: Lane,
    /// Whether it is the plan of holders without a subscription. Exactly one plan is.
    pub is_default: bool,
    /// The value of each of [`PLAN_ATTRIBUTES`], by its name.
    #[serde(flatten)]
    pub attributes: BTreeMap<&'static str, Option<i32>>,
    /// The limits of each meter, by the meter's name.
    pub meters: BTreeMap<String, PlanLimits>,
}

/// A plan's limits for a meter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanLimits {
    /// The limit of each window. A window without a limit is unlimited.
    pub limits: BTreeMap<Span, i64>,
    /// The ceiling of each soft limit: usage between limit and ceiling is accepted as overage. A limit without a
    /// ceiling is hard.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ceilings: BTreeMap<Span, i64>,
    /// The number of jobs per holder that may run at once, however busy the workers are.
    pub slots: u32,
    /// The number that may run at once on workers that would be idle; `None`: as many as `slots`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl Catalogue {
    /// The plan of holders without a subscription.
    #[must_use]
    pub fn default_plan(&self) -> Option<&str> {
        let mut plans = self.plans.iter();
        plans.find_map(|(name, plan)| plan.is_default.then_some(name.as_str()))
    }

    /// Whether some plan limits the meter in such a window. Then all plans are counted in it.
    #[must_use]
    pub fn limits(&self, meter: &str, span: Span) -> bool {
        self.plans
            .values()
            .filter_map(|plan| plan.meters.get(meter))
            .any(|limits| limits.limits.contains_key(&span))
    }

    /// The changes that turn this catalogue into the other one, one per line.
    #[must_use]
    pub fn changes_to(&self, wanted: &Self) -> Vec<String> {
        let mut changes = Vec::new();
        for (name, unit) in &wanted.meters {
            match self.meters.get(name) {
                None => changes.push(format!("meter {name}: new, in {unit}")),
                Some(now) if now != unit => changes.push(format!("meter {name}: unit {now} -> {unit}")),
                Some(_) => {}
            }
        }
        for (name, plan) in &wanted.plans {
            let Some(now) = self.plans.get(name) else {
                changes.push(format!("plan {name}: new"));
                changes_of_meters(name, &BTreeMap::new(), plan, &mut changes);
                continue;
            };
            changes_of_plan(name, now, plan, &mut changes);
            changes_of_meters(name, &now.meters, plan, &mut changes);
        }
        for name in self.plans.keys().filter(|name| !wanted.plans.contains_key(*name)) {
            changes.push(format!("plan {name}: removed"));
        }
        for name in self
            .meters
            .keys()
            .filter(|name| !wanted.meters.contains_key(*name))
        {
            changes.push(format!("meter {name}: removed"));
        }
        changes
    }
}

fn change(name: &str, what: &str, from: String, to: String, changes: &mut Vec<String>) {
    if from != to {
        changes.push(format!("plan {name}: {what} {from} -> {to}"));
    }
}

fn changes_of_plan(name: &str, now: &PlanEntry, wanted: &PlanEntry, changes: &mut Vec<String>) {
    let mut change = |what: &str, from, to| change(name, what, from, to, changes);
    change("lane", now.lane.as_str().into(), wanted.lane.as_str().into());
    change(
        "default",
        now.is_default.to_string(),
        wanted.is_default.to_string(),
    );
    for attribute in PLAN_ATTRIBUTES {
        let text = |plan: &PlanEntry| match plan.attributes.get(attribute.name).copied().flatten() {
            Some(value) => value.to_string(),
            None => attribute.absent.to_owned(),
        };
        change(attribute.name, text(now), text(wanted));
    }
}

fn changes_of_meters(
    name: &str,
    now: &BTreeMap<String, PlanLimits>,
    wanted: &PlanEntry,
    changes: &mut Vec<String>,
) {
    let mut change = |what: &str, from, to| change(name, what, from, to, changes);
    for (meter, limits) in &wanted.meters {
        let before = now.get(meter);
        change(
            &format!("slots for {meter}"),
            before.map_or_else(|| "none".to_owned(), |before| before.slots.to_string()),
            limits.slots.to_string(),
        );
        let burst = |limits: &PlanLimits| {
            limits
                .burst
                .map_or_else(|| "none".to_owned(), |burst| burst.to_string())
        };
        change(
            &format!("burst for {meter}"),
            before.map_or_else(|| "none".to_owned(), burst),
            burst(limits),
        );
        for span in Span::ALL {
            let text = |limits: &PlanLimits| match (limits.limits.get(&span), limits.ceilings.get(&span)) {
                (None, _) => "unlimited".to_owned(),
                (Some(limit), None) => limit.to_string(),
                (Some(limit), Some(ceiling)) => format!("{limit} up to {ceiling}"),
            };
            change(
                &format!("{meter} per {}", span.as_str()),
                before.map_or_else(|| "unlimited".to_owned(), text),
                text(limits),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meter, its limits and its slots.
    type Allowed<'a> = (&'a str, &'a [(Span, i64)], u32);

    fn plan(limits: &[Allowed<'_>]) -> PlanEntry {
        let meters = limits.iter().map(|(meter, limits, slots)| {
            let limits = limits.iter().copied().collect();
            (
                (*meter).to_owned(),
                PlanLimits {
                    limits,
                    ceilings: BTreeMap::new(),
                    slots: *slots,
                    burst: None,
                },
            )
        });
        PlanEntry {
            lane: Lane::Default,
            is_default: true,
            attributes: BTreeMap::new(),
            meters: meters.collect(),
        }
    }

    fn catalogue(plans: &[(&str, PlanEntry)]) -> Catalogue {
        Catalogue {
            meters: BTreeMap::from([("renders".to_owned(), "images".to_owned())]),
            plans: plans
                .iter()
                .map(|(name, plan)| ((*name).to_owned(), plan.clone()))
                .collect(),
        }
    }

    #[test]
    fn every_difference_is_listed() {
        let now = catalogue(&[
            (
                "hobby",
                plan(&[("renders", &[(Span::Month, 10), (Span::Hour, 2)], 1)]),
            ),
            ("old", plan(&[])),
        ]);
        let mut hobby = plan(&[("renders", &[(Span::Month, 20)], 2)]);
        (hobby.lane, hobby.is_default) = (Lane::Priority, false);
        hobby.attributes = BTreeMap::from([("retention_days", Some(30)), ("max_waiting", Some(9))]);
        hobby.meters.get_mut("renders").unwrap().ceilings = BTreeMap::from([(Span::Month, 30)]);
        let tokens = plan(&[("tokens", &[(Span::Day, 100)], 3)]);
        hobby.meters.extend(tokens.meters.clone());
        let mut wanted = catalogue(&[("hobby", hobby), ("team", tokens)]);
        wanted.meters.insert("tokens".to_owned(), "tokens".to_owned());
        wanted.meters.insert("renders".to_owned(), "pictures".to_owned());
        assert_eq!(
            now.changes_to(&wanted),
            [
                "meter renders: unit images -> pictures",
                "meter tokens: new, in tokens",
                "plan hobby: lane default -> priority",
                "plan hobby: default true -> false",
                "plan hobby: retention_days unlimited -> 30",
                "plan hobby: max_waiting unlimited -> 9",
                "plan hobby: slots for renders 1 -> 2",
                "plan hobby: renders per month 10 -> 20 up to 30",
                "plan hobby: renders per hour 2 -> unlimited",
                "plan hobby: slots for tokens none -> 3",
                "plan hobby: tokens per day unlimited -> 100",
                "plan team: new",
                "plan team: slots for tokens none -> 3",
                "plan team: tokens per day unlimited -> 100",
                "plan old: removed",
            ]
        );
        assert_eq!(wanted.changes_to(&wanted), Vec::<String>::new());
    }

    #[test]
    fn missing_limits_are_listed_as_differences() {
        let wanted = catalogue(&[("hobby", plan(&[("renders", &[], 1)]))]);
        let now = catalogue(&[("hobby", plan(&[]))]);
        // Without limits, submissions are refused with the advice to migrate.
        assert_eq!(
            now.changes_to(&wanted),
            ["plan hobby: slots for renders none -> 1"]
        );
    }
}

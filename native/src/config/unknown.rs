//! Variables that look like settings of Weir but are not. A misspelt setting would otherwise be ignored silently.

use std::collections::{BTreeMap, BTreeSet};

use weir_policy::misspelling::suggestion;

use super::variables::Variables;

/// Variables of the scripts, of tests, and of handlers' programs.
const OTHER_VARIABLES: [&str; 10] = [
    "WEIR_CONFIG",
    "WEIR_EDGE_PORT",
    "WEIR_PG_PORT",
    "WEIR_STATE",
    "WEIR_RUN",
    "WEIR_CHROMIUM",
    "WEIR_IDEMPOTENCY_KEY",
    "WEIR_JOB_ID",
    "WEIR_ATTEMPT",
    "WEIR_PROCESS",
];

/// An error for each. `read` lists the variables that Weir reads, `passed` those that the services file passes on to
/// programs.
///
/// Other programs, service managers and Kubernetes (`WEIR_SERVICE_HOST`) set variables in the same environment. So only
/// three kinds count: names that nearly match a setting, names in the form of a pool size, and a setting of 0.1.0.
pub(super) fn faults(
    variables: &Variables,
    read: &BTreeMap<String, String>,
    passed: &BTreeSet<String>,
) -> Vec<String> {
    let ours: Vec<&str> = read
        .keys()
        .map(String::as_str)
        .filter(|name| is_distinct(name))
        .chain(["WEIR_CONFIG"])
        .collect();
    let stems: Vec<&str> = ours
        .iter()
        .filter_map(|name| name.find("_QUEUE_").map(|end| &name[..end + "_QUEUE_".len()]))
        .collect();
    let mut faults = Vec::new();
    for (name, value) in variables {
        let known =
            read.contains_key(name) || passed.contains(name) || OTHER_VARIABLES.contains(&name.as_str());
        if known
            || value.trim().is_empty()
            || name.starts_with("WEIR_TEST_")
            || belongs_to_other_program(name, value)
        {
            continue;
        }
        if let Some(meant) = suggestion(name, ours.iter().copied()) {
            faults.push(format!("{name} is not a setting; did you mean {meant}?"));
        } else if name == "FAIRNESS_SCOPE"
            || name.ends_with("_WORKERS") && stems.iter().any(|stem| name.starts_with(stem))
        {
            faults.push(format!(
                "{name} is not a setting; docs/reference/settings.md lists all of them"
            ));
        }
    }
    faults
}

/// Kubernetes describes each service of a namespace in the environment of all its pods.
fn belongs_to_other_program(name: &str, value: &str) -> bool {
    name.starts_with("OTEL_")
        || name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.contains("_PORT_")
        || value.starts_with("tcp://")
        || value.starts_with("udp://")
}

/// Whether only Weir has a variable of nearly this name. `DATABASE_URL` and `JWT_SECRET` resemble names of other
/// programs, and all programs share OpenTelemetry's.
fn is_distinct(name: &str) -> bool {
    name.starts_with("WEIR_")
        || name.starts_with("FAIRNESS_")
        || name.contains("_QUEUE_") && name.ends_with("_WORKERS")
        || matches!(
            name,
            "RESERVATION_TTL" | "LEND_IDLE_WORKERS" | "RIVER_LEADER" | "RIVER_SCHEMA"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(names: &[&str]) -> Vec<String> {
        let variables = names
            .iter()
            .map(|name| ((*name).to_owned(), "1".to_owned()))
            .collect();
        let read = [
            "ANALYZER_QUEUE_PRIORITY_WORKERS",
            "DATABASE_URL",
            "FAIRNESS_FREE_LIMIT",
            "FAIRNESS_PRO_LIMIT",
            "LEND_IDLE_WORKERS",
            "RESERVATION_TTL",
            "WEIR_DRAIN_TIMEOUT",
            "WEIR_ENV",
            "WEIR_ORIGIN_PORT",
        ];
        let read = read
            .iter()
            .map(|name| ((*name).to_owned(), String::new()))
            .collect();
        faults(&variables, &read, &BTreeSet::from(["WEIR_ENB".to_owned()]))
    }

    #[test]
    fn a_misspelt_setting_is_an_error_with_a_suggestion() {
        for (name, meant) in [
            ("FAIRNES_FREE_LIMIT", "FAIRNESS_FREE_LIMIT"),
            ("FAIRNESS_FREE_LIMITS", "FAIRNESS_FREE_LIMIT"),
            ("WEIR_DRAIN_TIMOUT", "WEIR_DRAIN_TIMEOUT"),
            ("WIER_ORIGIN_PORT", "WEIR_ORIGIN_PORT"),
            (
                "ANALYSER_QUEUE_PRIORITY_WORKERS",
                "ANALYZER_QUEUE_PRIORITY_WORKERS",
            ),
            ("LEND_IDLE_WORKER", "LEND_IDLE_WORKERS"),
            ("RESERVATION_TLL", "RESERVATION_TTL"),
        ] {
            assert_eq!(
                faults_of(&[name]),
                [format!("{name} is not a setting; did you mean {meant}?")]
            );
        }
        assert_eq!(
            faults_of(&["ANALYZER_QUEUE_URGENT_WORKERS"]).len(),
            1,
            "it is meant as the size of a pool"
        );
        assert_eq!(
            faults_of(&["FAIRNESS_SCOPE"]).len(),
            1,
            "a setting of the previous release"
        );
    }

    #[test]
    fn variables_of_other_programs_are_ignored() {
        let others = [
            "ANALYZER_QUEUE_PORT_80_TCP_ADDR",
            "ANALYZER_QUEUE_SERVICE_HOST",
            "ANALYZER_QUEUE_URL",
            "DATABASE_URI",
            "FAIRNESS_HOME",
            "FAIRNESS_SERVICE_HOST",
            "OTEL_BLRP_MAX_QUEUE_SIZE",
            "JWT_SECRETS",
            "PATH",
            "RESERVATION_URL",
            "RUST_LOG",
            "WEIR_ENB",
            "WEIR_HOME",
            "WEIR_IMAGE",
            "WEIR_PG_PORT",
            "WEIR_PORT",
            "WEIR_PORT_8080_TCP_ADDR",
            "WEIR_SERVICE_HOST",
            "WEIR_TEST_FOLDER",
        ];
        assert_eq!(faults_of(&others), Vec::<String>::new());
        let empty = Variables::from([("FAIRNES_FREE_LIMIT".to_owned(), String::new())]);
        assert!(faults(&empty, &BTreeMap::new(), &BTreeSet::new()).is_empty());
    }
}

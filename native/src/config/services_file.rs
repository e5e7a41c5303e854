//! The services file, `weir.toml`: reads it, and checks what it says.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use weir_ledger::event_type::EventType;
use weir_policy::lane::{Lane, is_queue_name};

use super::periodic::{self, Periodic};
use super::retry::Retry;
use super::service::{Amount, HandlerSpec, MOST_WORKERS, Service};
use super::variables::Reader;

/// What no program gets, whatever its service asks for.
const SECRETS: [&str; 4] = [
    "DATABASE_URL",
    "JWT_SECRET",
    "EDGE_SECRET",
    "EDGE_SECRET_PREVIOUS",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    service: Vec<Entry>,
    #[serde(default)]
    periodic: Vec<periodic::Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    event_type: EventType,
    kind: String,
    /// The stem of the variables with the pool sizes: `{workers}_QUEUE_PRIORITY_WORKERS` and so on.
    workers: String,
    priority_workers: u32,
    default_workers: u32,
    scheduled_workers: u32,
    #[serde(with = "humantime_serde")]
    timeout: Duration,
    max_attempts: i16,
    #[serde(default)]
    unique_by: Vec<String>,
    retry: Option<Retry>,
    handler: HandlerSpec,
}

pub(crate) fn read(reader: &mut Reader<'_>, path: &Path) -> (Vec<Service>, Vec<Periodic>) {
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
    let file: File = match toml::from_str(&text) {
        Ok(file) => file,
        Err(error) => {
            reader.fault(format!("{}: {}", path.display(), error.to_string().trim()));
            return Default::default();
        }
    };
    let mut services: Vec<Service> = Vec::new();
    for entry in file.service {
        let place = format!("{}, service {:?}", path.display(), entry.name);
        for lane in Lane::ALL {
            let queue = lane.queue(&entry.name);
            if !is_queue_name(&queue) {
                reader.fault(format!(
                    "{place}: River refuses the queue name {queue:?}; use lower-case letters, digits and single _ or -"
                ));
                break;
            }
        }
        if entry.name == "events" {
            reader.fault(format!(
                "{place}: the name is taken by the route /api/jobs/events"
            ));
        }
        if services
            .iter()
            .any(|other| other.name == entry.name || other.kind == entry.kind)
        {
            reader.fault(format!(
                "{place}: the name or the kind {:?} is already taken",
                entry.kind
            ));
        }
        if !(1..=100).contains(&entry.max_attempts) {
            reader.fault(format!(
                "{place}: max_attempts is {}, but must be from 1 to 100",
                entry.max_attempts
            ));
        }
        if let HandlerSpec::Exec { command, amount, .. } = &entry.handler
            && (command.is_empty() || matches!(amount, Amount::Fixed(..=0)))
        {
            reader.fault(format!(
                "{place}: an exec handler needs a command that is not empty and an amount of at least 1"
            ));
        }
        if let HandlerSpec::Exec { env, .. } = &entry.handler
            && let Some(secret) = env.iter().find(|name| SECRETS.contains(&name.as_str()))
        {
            reader.fault(format!("{place}: env has {secret}, which no program may have"));
        }
        if let HandlerSpec::Http {
            amount: Amount::Fixed(..=0),
            ..
        } = &entry.handler
        {
            reader.fault(format!("{place}: an http handler needs an amount of at least 1"));
        }
        if let Some(fault) = entry.retry.and_then(|retry| retry.fault()) {
            reader.fault(format!("{place}: {fault}"));
        }
        let pools = [
            ("priority", entry.priority_workers),
            ("default", entry.default_workers),
            ("scheduled", entry.scheduled_workers),
        ]
        .map(|(lane, size)| {
            if !(1..=MOST_WORKERS).contains(&size) {
                reader.fault(format!(
                    "{place}: {lane}_workers is {size}, but must be from 1 to {MOST_WORKERS}"
                ));
            }
            let variable = format!("{}_QUEUE_{}_WORKERS", entry.workers, lane.to_uppercase());
            reader.positive(&variable, size, MOST_WORKERS)
        });
        services.push(Service {
            name: entry.name,
            event_type: entry.event_type,
            kind: entry.kind,
            pools,
            timeout: entry.timeout,
            max_attempts: entry.max_attempts,
            unique_by: entry.unique_by,
            retry: entry.retry,
            handler: entry.handler,
        });
    }
    if services.is_empty() {
        reader.fault(format!("{} defines no service", path.display()));
    }
    let periodic = periodic::check(reader, path, file.periodic, &services);
    (services, periodic)
}

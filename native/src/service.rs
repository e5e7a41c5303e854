//! Services: what can be submitted, under which names River knows it, and who does the work.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use weir_policy::lane::{Lane, is_queue_name};

use crate::config::Reader;
use crate::periodic::{self, Periodic};
use crate::work::Retry;

/// The column `event_type` of the quota tables: what a service's work is counted as.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Deserialize,
    postgres_types::ToSql,
    postgres_types::FromSql,
)]
#[serde(rename_all = "snake_case")]
#[postgres(name = "usage_event_type", rename_all = "snake_case")]
pub enum EventType {
    /// Unit: analyses.
    Analysis,
    /// Unit: test cases.
    Specview,
}

impl EventType {
    /// Every event type.
    pub const ALL: [Self; 2] = [Self::Analysis, Self::Specview];

    /// The name in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Analysis => "analysis",
            Self::Specview => "specview",
        }
    }
}

/// One service, ready to be used.
#[derive(Clone, Debug)]
pub struct Service {
    /// The name in the route and the stem of its queues' names.
    pub name: String,
    /// What its work is counted as.
    pub event_type: EventType,
    /// River's job kind.
    pub kind: String,
    /// Workers per lane, in the order of [`Lane::ALL`].
    pub pools: [u32; 3],
    /// How long one attempt may take.
    pub timeout: Duration,
    /// How often a job is tried.
    pub max_attempts: i16,
    /// Members of the arguments by which a job is the same as a live one of the same user; empty: never.
    pub unique_by: Vec<String>,
    /// When a failed job is tried again; `None` leaves it to River.
    pub retry: Option<Retry>,
    /// Who does the work.
    pub handler: HandlerSpec,
}

impl Service {
    /// The queue of one of its lanes.
    #[must_use]
    pub fn queue(&self, lane: Lane) -> String {
        lane.queue(&self.name)
    }

    /// Its queues with their pool sizes.
    pub fn queues(&self) -> impl Iterator<Item = (Lane, String, u32)> + '_ {
        Lane::ALL
            .into_iter()
            .zip(self.pools)
            .map(|(lane, workers)| (lane, self.queue(lane), workers))
    }
}

/// Which handler does a service's work.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum HandlerSpec {
    /// One that is part of the binary.
    Builtin {
        /// `analyze` or `specview`.
        name: String,
    },
    /// A program: the job's arguments as JSON on its standard input, the output as JSON on its standard output.
    Exec {
        /// The program and its arguments.
        command: Vec<String>,
        /// How much one job reserves.
        #[serde(default)]
        amount: Amount,
    },
    /// An endpoint: the job's arguments as JSON in a `POST`, the output as JSON in the answer.
    Http {
        /// Where.
        url: Endpoint,
        /// How much one job reserves.
        #[serde(default)]
        amount: Amount,
    },
}

/// An endpoint's URL.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Endpoint(pub(crate) reqwest::Url);

impl TryFrom<String> for Endpoint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        reqwest::Url::parse(&text)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .map(Self)
            .ok_or_else(|| "url must be a URL such as https://example.com/work".to_owned())
    }
}

/// How much one job of a program or an endpoint reserves, in the event type's unit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// Always the same.
    Fixed(i32),
    /// What this member of the arguments says.
    Member {
        /// The member's name.
        member: String,
    },
}

impl Default for Amount {
    fn default() -> Self {
        Self::Fixed(1)
    }
}

impl Amount {
    /// The amount for these arguments.
    ///
    /// # Errors
    ///
    /// What the member must be, when it is not.
    pub fn of(&self, args: &Map<String, Value>) -> Result<i32, String> {
        match self {
            Self::Fixed(amount) => Ok(*amount),
            Self::Member { member } => args
                .get(member)
                .and_then(Value::as_i64)
                .and_then(|amount| i32::try_from(amount).ok())
                .filter(|amount| *amount >= 1)
                .ok_or_else(|| format!("{member:?} must be a whole number from 1 to {}", i32::MAX)),
        }
    }
}

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

/// What River takes at most.
pub(crate) const MOST_WORKERS: u32 = 10_000;

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
        if let HandlerSpec::Exec { command, amount } = &entry.handler
            && (command.is_empty() || matches!(amount, Amount::Fixed(..=0)))
        {
            reader.fault(format!(
                "{place}: an exec handler needs a command that is not empty and an amount of at least 1"
            ));
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
        if let HandlerSpec::Builtin { name } = &entry.handler
            && !crate::handler::BUILTIN.contains(&name.as_str())
        {
            reader.fault(format!(
                "{place}: there is no builtin handler {name:?}; there are {}",
                crate::handler::BUILTIN.join(" and ")
            ));
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

//! Services: what can be submitted, under which names River knows it, and who does the work.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use weir_ledger::catalogue::services::{ServiceAmount, ServiceEntry};
use weir_ledger::meter::Meter;
use weir_policy::lane::Lane;

use super::retry::Retry;

/// What River takes at most.
pub(crate) const MAX_WORKERS: u32 = 10_000;

/// What one job may reserve at most, so that the sums of thousands of such jobs are still numbers.
pub const MAX_AMOUNT: i64 = 1_000_000_000_000_000;

/// One service, ready to be used.
#[derive(Clone, Debug)]
pub struct Service {
    /// The name in the route and the stem of its queues' names.
    pub name: String,
    /// What its work is counted as.
    pub meter: Meter,
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

    /// What the database knows of it.
    pub(super) fn entry(&self) -> ServiceEntry {
        ServiceEntry {
            name: self.name.clone(),
            meter: self.meter,
            kind: self.kind.clone(),
            max_attempts: self.max_attempts,
            unique_by: self.unique_by.clone(),
            amount: match &self.handler {
                HandlerSpec::Builtin {
                    name: Builtin::Analyze,
                } => ServiceAmount::Fixed(1),
                // The tests that it finds in the analysis.
                HandlerSpec::Builtin {
                    name: Builtin::Specview,
                } => ServiceAmount::Caller,
                HandlerSpec::Exec { amount, .. } | HandlerSpec::Http { amount, .. } => match amount {
                    Amount::Fixed(amount) => ServiceAmount::Fixed(*amount),
                    Amount::Member { member } => ServiceAmount::Member(member.clone()),
                },
            },
            retry: self
                .retry
                .map(|retry| (retry.base.as_secs_f64(), retry.factor, retry.max.as_secs_f64())),
        }
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
        /// Which.
        name: Builtin,
    },
    /// A program: the job's arguments as JSON on its standard input, the output as JSON on its standard output.
    Exec {
        /// The program and its arguments.
        command: Vec<String>,
        /// Variables of this process that the program gets, beside the usual ones.
        #[serde(default)]
        env: Vec<String>,
        /// How much one job reserves.
        #[serde(default)]
        amount: Amount,
    },
    /// An endpoint: the job's arguments as JSON in a `POST`, the output as JSON in the answer.
    Http {
        /// Where.
        url: Endpoint,
        /// Whether it may be in a private network or on this machine. In development it may.
        #[serde(default)]
        private: bool,
        /// How much one job reserves.
        #[serde(default)]
        amount: Amount,
    },
}

impl HandlerSpec {
    /// The variables of this process that a program gets.
    pub(super) fn passed_on(&self) -> &[String] {
        match self {
            Self::Exec { env, .. } => env,
            Self::Builtin { .. } | Self::Http { .. } => &[],
        }
    }
}

/// The handlers that are part of the binary, as the services file names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Builtin {
    /// Finds test cases in source files.
    Analyze,
    /// Makes a specification of an analysis' test cases.
    Specview,
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

/// How much one job of a program or an endpoint reserves, in the meter's unit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "an amount is a number or { member = \"pages\" }, what the arguments say there"
)]
pub enum Amount {
    /// Always the same.
    Fixed(i64),
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
    pub fn of(&self, args: &Map<String, Value>) -> Result<i64, String> {
        match self {
            Self::Fixed(amount) => Ok(*amount),
            Self::Member { member } => args
                .get(member)
                .and_then(Value::as_i64)
                .filter(|amount| (1..=MAX_AMOUNT).contains(amount))
                .ok_or_else(|| format!("{member:?} must be a whole number from 1 to {MAX_AMOUNT}")),
        }
    }
}

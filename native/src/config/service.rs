//! Services: the kinds of work that can be submitted, their names in River, and their handlers.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};
use weir_ledger::catalogue::services::{RetryPolicy, ServiceAmount, ServiceEntry};
use weir_ledger::meter::Meter;
use weir_policy::lane::Lane;

use super::retry::Retry;

/// River's maximum.
pub(crate) const MAX_WORKERS: u32 = 10_000;

/// Maximum amount that one job may reserve, so that the sum over thousands of such jobs does not overflow.
pub const MAX_AMOUNT: i64 = 1_000_000_000_000_000;

/// One service, ready to be used.
#[derive(Clone, Debug)]
pub struct Service {
    /// The name in the route and the prefix of its queues' names.
    pub name: String,
    /// The meter that counts its work.
    pub meter: Meter,
    /// River's job kind.
    pub kind: String,
    /// Workers per lane, in the order of [`Lane::ALL`]. 0 for an external service.
    pub pools: [u32; 3],
    /// The number of workers of each lane that are not lent; `None`: one, or a tenth of the lane's.
    pub headroom: Option<u32>,
    /// The time limit of one attempt.
    pub timeout: Duration,
    /// The time after which a job that still waits is cancelled; `None`: never.
    pub expires_in: Option<Duration>,
    /// How soon its jobs start.
    pub wake: Wake,
    /// The maximum number of attempts.
    pub max_attempts: i16,
    /// The members of the arguments that identify a duplicate of a live job of the same user. Empty: no duplicates.
    pub unique_by: Vec<String>,
    /// The retry policy; `None` leaves retries to River.
    pub retry: Option<Retry>,
    /// The handler.
    pub handler: HandlerSpec,
}

impl Service {
    /// The queue of one of the service's lanes.
    #[must_use]
    pub fn queue(&self, lane: Lane) -> String {
        lane.queue(&self.name)
    }

    /// Whether programs outside of Weir claim its jobs.
    #[must_use]
    pub fn is_external(&self) -> bool {
        matches!(self.handler, HandlerSpec::External { .. })
    }

    /// The service's row in the database.
    pub(super) fn entry(&self) -> ServiceEntry {
        ServiceEntry {
            name: self.name.clone(),
            meter: self.meter,
            kind: self.kind.clone(),
            max_attempts: self.max_attempts,
            unique_by: self.unique_by.clone(),
            amount: match self.handler.amount() {
                None => ServiceAmount::Caller,
                Some(Amount::Fixed(amount)) => ServiceAmount::Fixed(*amount),
                Some(Amount::Member { member }) => ServiceAmount::Member(member.clone()),
            },
            retry: self.retry.map(|retry| {
                let (factor, power) = retry.growth();
                RetryPolicy {
                    base: retry.base.as_secs_f64(),
                    factor,
                    power,
                    max: retry.max.as_secs_f64(),
                }
            }),
            timeout: self.timeout,
            expires_in: self.expires_in,
        }
    }

    /// The amount that each job reserves; `None` if it depends on the arguments.
    pub(crate) fn fixed_amount(&self) -> Option<i64> {
        match self.entry().amount {
            ServiceAmount::Fixed(amount) => Some(amount),
            ServiceAmount::Caller | ServiceAmount::Member(_) => None,
        }
    }

    /// How many of a lane's workers may be lent to jobs over their holder's slots.
    #[must_use]
    pub fn lendable(&self, workers: u32) -> u32 {
        workers.saturating_sub(self.headroom.unwrap_or_else(|| (workers / 10).max(1)))
    }

    /// The queues with their pool sizes.
    pub fn queues(&self) -> impl Iterator<Item = (Lane, String, u32)> + '_ {
        Lane::ALL
            .into_iter()
            .zip(self.pools)
            .map(|(lane, workers)| (lane, self.queue(lane), workers))
    }
}

/// The handler of a service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum HandlerSpec {
    /// A handler in Rust that the program registers with [`crate::main`]. It determines the amount of jobs from the API.
    Builtin {
        /// Its name.
        name: String,
        /// The amount that one job from SQL reserves; `None`: its caller passes it.
        amount: Option<Amount>,
    },
    /// A program: it reads the job's arguments as JSON from standard input and writes the output as JSON to standard
    /// output.
    Exec {
        /// The program and its arguments.
        command: Vec<String>,
        /// Variables of this process that the program gets in addition to the usual ones.
        #[serde(default)]
        env: Vec<String>,
        /// The amount that one job reserves.
        #[serde(default)]
        amount: Amount,
    },
    /// An endpoint: it gets the job's arguments as JSON in a `POST` and returns the output as JSON in the response.
    Http {
        /// Its URL.
        url: Endpoint,
        /// Whether it may be in a private network or on this machine. In development it may be.
        #[serde(default)]
        private: bool,
        /// The amount that one job reserves.
        #[serde(default)]
        amount: Amount,
    },
    /// Programs outside of Weir claim the jobs.
    External {
        /// The amount that one job reserves.
        #[serde(default)]
        amount: Amount,
    },
}

impl HandlerSpec {
    /// The amount that one job reserves; `None` if its caller passes it.
    #[must_use]
    pub fn amount(&self) -> Option<&Amount> {
        match self {
            Self::Builtin { amount, .. } => amount.as_ref(),
            Self::Exec { amount, .. } | Self::Http { amount, .. } | Self::External { amount } => Some(amount),
        }
    }

    /// The variables of this process that a program gets.
    pub(super) fn passed_on(&self) -> &[String] {
        match self {
            Self::Exec { env, .. } => env,
            Self::Builtin { .. } | Self::Http { .. } | Self::External { .. } => &[],
        }
    }
}

/// How soon jobs start on idle workers. A later start costs the database less, because one claim starts more jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Wake {
    /// At once.
    #[default]
    #[serde(rename = "now")]
    Now,
    /// At most 10 ms later.
    #[serde(rename = "10ms")]
    Within10Ms,
    /// At most 100 ms later, as River's clients do.
    #[serde(rename = "100ms")]
    Within100Ms,
}

impl Wake {
    /// The shortest time between two claims while workers are idle.
    #[must_use]
    pub const fn pause(self) -> Duration {
        Duration::from_millis(match self {
            Self::Now => 0,
            Self::Within10Ms => 10,
            Self::Within100Ms => 100,
        })
    }
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

/// The amount that one job reserves, in the meter's unit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "an amount is a number, or { member = \"pages\" } for a member of the arguments"
)]
pub enum Amount {
    /// A fixed amount.
    Fixed(i64),
    /// The value of a member of the arguments.
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
    /// The amount for these arguments. SQL: `amount_of`.
    ///
    /// # Errors
    ///
    /// The message states what the member must be.
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

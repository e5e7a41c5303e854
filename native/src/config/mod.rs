//! Settings from the environment, and the services from `weir.toml`.
//!
//! Weir refuses to start on invalid settings and lists every error. Each error names the variable, its value and what
//! is expected.

mod catalogue;
pub mod fairness;
pub mod periodic;
pub mod retry;
mod schemas;
pub mod service;
mod services_file;
pub mod stored;
mod table;
pub mod traces;
mod unknown;
mod variables;
mod wording;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use weir_ledger::catalogue::Catalogue;
use weir_ledger::catalogue::services::ServiceEntry;
use weir_ledger::database::{Database, DatabaseError, Schemas, with_environment};
use weir_ledger::rules::Rules;

use crate::outbound::Secret;

use fairness::Fairness;
use periodic::Periodic;
use service::Service;
use traces::Traces;
use variables::Reader;

pub use variables::{ConfigError, Variables};

/// How strict a start is about secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Environment {
    /// All secrets must be set.
    Production,
    /// Development conveniences are on, such as tokens on request.
    Development,
}

/// Which lines about single requests, attempts and jobs are logged. The values are those of the edge's `ACCESS_LOG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Failures, slow jobs, and changes.
    Errors,
    /// All lines: several per job.
    All,
    /// No lines.
    Off,
}

/// All settings of a `weir` process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `DATABASE_DIRECT_URL`, or else `DATABASE_URL`.
    pub database_url: SecretString,
    /// `WEIR_SCHEMA` and `RIVER_SCHEMA`: the schemas of the tables.
    pub schemas: Schemas,
    /// `RIVER_LEADER`: whether schedulers may be elected River's leader.
    pub leads_river: bool,
    /// The name of the connections in `pg_stat_activity`. `application_name` in the URL takes precedence.
    pub application_name: &'static str,
    /// `WEIR_ENV`.
    pub environment: Environment,
    /// `JWT_SECRET`, which signs users' tokens. Only the edge verifies them, never the origin.
    pub jwt_secret: Option<SecretString>,
    /// `JWT_ISSUER`: the issuer in tokens of `weir token`.
    pub jwt_issuer: Option<String>,
    /// `JWT_AUDIENCE`: the audience in those tokens.
    pub jwt_audience: Option<String>,
    /// `EDGE_SECRET`, which signs assertions.
    pub edge_secret: Option<SecretString>,
    /// `EDGE_SECRET_PREVIOUS`, still accepted during a rotation.
    pub edge_secret_previous: Option<SecretString>,
    /// `HANDLER_SECRET` and `HANDLER_SECRET_PREVIOUS`, the current one first. They sign requests to endpoints and
    /// attempt tokens.
    pub handler_secrets: Vec<Secret>,
    /// `WEIR_ORIGIN_HOST` and `WEIR_ORIGIN_PORT`.
    pub listen: SocketAddr,
    /// `WEIR_METRICS_HOST` and `WEIR_METRICS_PORT`: where processes without an API answer probes. Default: nowhere.
    pub probes: Option<SocketAddr>,
    /// The `FAIRNESS_` variables.
    pub fairness: Fairness,
    /// `RESERVATION_TTL`.
    pub reservation_ttl: Duration,
    /// `LEND_IDLE_WORKERS`: whether default lanes may use the idle workers of priority lanes.
    pub lend_idle_workers: bool,
    /// `WEBHOOK_WORKERS`: how many deliveries of one webhook a process sends at once; 0 disables sending.
    pub webhook_workers: u32,
    /// `WEBHOOK_PRIVATE_NETWORKS`: whether webhooks may connect to private networks.
    pub webhook_private_networks: bool,
    /// `WEIR_DRAIN_TIMEOUT`: how long running jobs may continue after a shutdown starts.
    pub drain_timeout: Duration,
    /// The retention of finished jobs in River, if this process leads River.
    pub river_retention: RiverRetention,
    /// `WEIR_STOP_DELAY`: how long `weir serve` and `weir up` still accept requests after a shutdown starts, while
    /// `/readyz` returns 503.
    pub stop_delay: Duration,
    /// `USAGE_EVENT_SOURCE`: the `source` of usage events, which are CloudEvents.
    pub usage_event_source: String,
    /// `ACCESS_LOG`.
    pub access_log: AccessLog,
    /// The `OTEL_` variables: how traces are exported; `None` disables the export.
    pub traces: Option<Traces>,
    /// Whether `weir.toml` was read. Without it, commands take the services from the database.
    pub has_services_file: bool,
    /// The services of `weir.toml`, with pool sizes from the environment.
    pub services: Vec<Service>,
    /// The periodic jobs of `weir.toml`.
    pub periodic: Vec<Periodic>,
    /// The meters and plans of `weir.toml`. `weir migrate` writes them to the database, and Weir reads them there.
    pub catalogue: Catalogue,
}

/// The retention of finished jobs in River, by outcome. The defaults are River's.
#[derive(Clone, Copy, Debug)]
pub struct RiverRetention {
    /// Jobs that completed.
    pub completed: Duration,
    /// Jobs that were cancelled.
    pub cancelled: Duration,
    /// Jobs that failed permanently.
    pub discarded: Duration,
}

impl RiverRetention {
    fn read(reader: &mut Reader<'_>) -> Self {
        let hour = Duration::from_hours(1);
        // Weir copies results with a longer retention within minutes. An hour covers a restart of maintenance.
        let mut read = |name: &str, default| reader.duration(name, default, hour);
        Self {
            completed: read("RIVER_COMPLETED_RETENTION", 24 * hour),
            cancelled: read("RIVER_CANCELLED_RETENTION", 24 * hour),
            discarded: read("RIVER_DISCARDED_RETENTION", 7 * 24 * hour),
        }
    }
}

impl Settings {
    /// Reads the process environment and the file that `WEIR_CONFIG` names (`weir.toml` by default).
    ///
    /// # Errors
    ///
    /// Lists every error.
    pub fn from_env() -> Result<Self, ConfigError> {
        let variables = environment();
        let path = services_path(&variables);
        Self::read(&variables, &path)
    }

    /// As [`Self::from_env`]. If no file is named and there is no `weir.toml`, the settings have no services, and
    /// variables of services are ignored.
    ///
    /// # Errors
    ///
    /// Lists every error.
    pub fn from_env_without_file() -> Result<Self, ConfigError> {
        let variables = environment();
        let path = services_path(&variables);
        let has_file = variables.contains_key(CONFIG) || path.exists();
        Self::read_with(&variables, has_file.then_some(&*path))
    }

    /// Reads these variables and this services file.
    ///
    /// # Errors
    ///
    /// Lists every error.
    pub fn read(variables: &Variables, services: &Path) -> Result<Self, ConfigError> {
        Self::read_with(variables, Some(services))
    }

    fn read_with(variables: &Variables, services: Option<&Path>) -> Result<Self, ConfigError> {
        let (variables, file_faults) = variables::with_files(variables);
        let variables = &variables;
        let mut reader = Reader::new(variables);
        for fault in file_faults {
            reader.fault(fault);
        }
        let settings = Self::from_reader(&mut reader, services);
        let passed: BTreeSet<String> = settings
            .services
            .iter()
            .flat_map(|service| service.handler.passed_on())
            .cloned()
            .collect();
        // The file's services have variables, too.
        let unknown = match services {
            Some(_) => unknown::faults(variables, &reader.asked(), &passed),
            None => Vec::new(),
        };
        let mut faults = reader.into_faults();
        faults.extend(unknown);
        if faults.is_empty() {
            Ok(settings)
        } else {
            Err(ConfigError { faults })
        }
    }

    /// Every variable that is read with this services file, and its expected value.
    #[must_use]
    pub fn reference(services: &Path) -> BTreeMap<String, String> {
        let variables = Variables::new();
        let mut reader = Reader::new(&variables);
        Self::from_reader(&mut reader, Some(services));
        reader.asked()
    }

    /// Reads all settings. Invalid values are replaced by valid ones.
    fn from_reader(reader: &mut Reader<'_>, services: Option<&Path>) -> Self {
        let environment = reader.parsed(
            "WEIR_ENV",
            Environment::Production,
            "production or development",
            |text| match text {
                "production" => Some(Environment::Production),
                "development" => Some(Environment::Development),
                _ => None,
            },
        );
        let database_url = direct_url(reader);
        let schemas = schemas::read(reader);
        let leads_river = reader.flag("RIVER_LEADER", true);
        let jwt_secret = reader.secret("JWT_SECRET");
        let jwt_issuer = reader.text("JWT_ISSUER").map(str::to_owned);
        let jwt_audience = reader.text("JWT_AUDIENCE").map(str::to_owned);
        let edge_secret = reader.secret("EDGE_SECRET");
        let edge_secret_previous = reader.secret("EDGE_SECRET_PREVIOUS");
        let handler_secrets = ["HANDLER_SECRET", "HANDLER_SECRET_PREVIOUS"]
            .into_iter()
            .filter_map(|name| reader.signing_secret(name))
            .collect();
        let host = reader.text("WEIR_ORIGIN_HOST").unwrap_or("127.0.0.1").to_owned();
        let port = reader.parsed("WEIR_ORIGIN_PORT", 8080, "a port number", |text| {
            text.parse::<u16>().ok()
        });
        let listen = host
            .parse()
            .map(|ip| SocketAddr::new(ip, port))
            .unwrap_or_else(|_| {
                reader.fault(format!(
                    "WEIR_ORIGIN_HOST is {host:?}, but must be an IP address such as 127.0.0.1 or 0.0.0.0"
                ));
                SocketAddr::from(([127, 0, 0, 1], port))
            });
        let probes = probes(reader);
        let fairness = fairness::read(reader);
        let second = Duration::from_secs(1);
        let reservation_ttl = reader.duration("RESERVATION_TTL", 3600 * second, 60 * second);
        let lend_idle_workers = reader.flag("LEND_IDLE_WORKERS", false);
        let webhook_workers = reader.parsed("WEBHOOK_WORKERS", 16, "a whole number from 0 to 100", |text| {
            text.parse().ok().filter(|workers| *workers <= 100)
        });
        // A developer's receiver runs on this machine.
        let is_development = environment == Environment::Development;
        let webhook_private_networks = reader.flag("WEBHOOK_PRIVATE_NETWORKS", is_development);
        let drain_timeout = reader.duration("WEIR_DRAIN_TIMEOUT", 30 * second, Duration::ZERO);
        let stop_delay = reader.duration("WEIR_STOP_DELAY", Duration::ZERO, Duration::ZERO);
        let river_retention = RiverRetention::read(reader);
        let usage_event_source = reader.parsed(
            "USAGE_EVENT_SOURCE",
            "weir".to_owned(),
            "a URI such as https://example.com/weir, or a path in one",
            |text| is_uri_reference(text).then(|| text.to_owned()),
        );
        let access_log =
            reader.parsed(
                "ACCESS_LOG",
                AccessLog::Errors,
                "errors, all or off",
                |text| match text {
                    "errors" => Some(AccessLog::Errors),
                    "all" => Some(AccessLog::All),
                    "off" => Some(AccessLog::Off),
                    _ => None,
                },
            );
        let traces = traces::read(reader);
        let defined = services.map(|path| services_file::read(reader, path, is_development));
        let has_services_file = defined.is_some();
        let defined = defined.unwrap_or_default();
        Self {
            database_url,
            schemas,
            leads_river,
            application_name: "weir",
            environment,
            jwt_secret,
            jwt_issuer,
            jwt_audience,
            edge_secret,
            edge_secret_previous,
            handler_secrets,
            listen,
            probes,
            fairness,
            reservation_ttl,
            lend_idle_workers,
            webhook_workers,
            webhook_private_networks,
            drain_timeout,
            stop_delay,
            river_retention,
            usage_event_source,
            access_log,
            traces,
            has_services_file,
            services: defined.services,
            periodic: defined.periodic,
            catalogue: defined.catalogue,
        }
    }

    /// The keys that may sign assertions, the current one first.
    ///
    /// # Errors
    ///
    /// When there is none. An origin without a key would have to accept every assertion or none.
    pub fn assertion_keys(&self) -> Result<Vec<weir_policy::assertion::AssertionKey>, ConfigError> {
        let secrets = [&self.edge_secret, &self.edge_secret_previous];
        let mut keys = Vec::new();
        for secret in secrets.into_iter().flatten() {
            keys.push(
                weir_policy::assertion::AssertionKey::new(secret.expose_secret().as_bytes()).map_err(
                    |error| ConfigError {
                        faults: vec![format!("EDGE_SECRET: {error}")],
                    },
                )?,
            );
        }
        if self.edge_secret.is_none() {
            return Err(ConfigError {
                faults: vec![
                    "EDGE_SECRET is not set; set it to the secret with which the edge signs assertions"
                        .to_owned(),
                ],
            });
        }
        Ok(keys)
    }

    /// The connection settings of the database.
    ///
    /// # Errors
    ///
    /// When the URL does not parse.
    pub fn database(&self) -> Result<Database, DatabaseError> {
        let database = Database::named(self.database_url.expose_secret(), self.application_name)?;
        Ok(database.in_schemas(self.schemas.clone()))
    }

    /// The settings that the ledger needs.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules {
            slot_limits: self.fairness.enabled.then(|| self.fairness.limits.clone()),
            ttl: self.reservation_ttl,
        }
    }

    /// The services as stored in the database.
    #[must_use]
    pub fn service_entries(&self) -> Vec<ServiceEntry> {
        self.services.iter().map(Service::entry).collect()
    }

    /// The service with this job kind.
    #[must_use]
    pub fn service_of_kind(&self, kind: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.kind == kind)
    }

    /// The service with this name.
    #[must_use]
    pub fn service(&self, name: &str) -> Option<&Service> {
        self.services.iter().find(|service| service.name == name)
    }
}

/// The variable that names the services file.
const CONFIG: &str = "WEIR_CONFIG";

/// The process environment. Variables of other programs may have any bytes; Weir's are text.
fn environment() -> Variables {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn services_path(variables: &Variables) -> PathBuf {
    variables
        .get(CONFIG)
        .map_or_else(|| PathBuf::from("weir.toml"), PathBuf::from)
}

/// `DATABASE_DIRECT_URL`, or else `DATABASE_URL`, which may lead to a pooler for other programs.
fn direct_url(reader: &mut Reader<'_>) -> SecretString {
    let through = reader.text("DATABASE_URL");
    match reader.text("DATABASE_DIRECT_URL") {
        Some(direct) => database_url(reader, "DATABASE_DIRECT_URL", Some(direct)),
        None => database_url(reader, "DATABASE_URL", through),
    }
}

/// The URL in this variable combined with libpq's variables, or those alone.
fn database_url(reader: &mut Reader<'_>, name: &str, text: Option<&str>) -> SecretString {
    let names_database = ["PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE"];
    if text.is_none() && !names_database.iter().any(|name| reader.foreign(name).is_some()) {
        // An error of the file is reported already.
        if reader.foreign("DATABASE_URL_FILE").is_none()
            && reader.foreign("DATABASE_DIRECT_URL_FILE").is_none()
        {
            reader.fault("DATABASE_URL is not set; it must be a URL such as postgres://user@host:5432/name");
        }
        return SecretString::from("");
    }
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
    let user = user.as_ref().map(|user| user.name.as_str());
    let whole = with_environment(text, |name| reader.foreign(name), Path::exists, user)
        .and_then(|whole| Database::at(&whole).map(|_| whole));
    match whole {
        Ok(whole) => SecretString::from(whole),
        Err(error) => {
            reader.fault(match error {
                DatabaseError::Url(fault) => format!("{name}: {fault}"),
                // The message omits the value, because it may contain a password.
                _ => format!("{name} cannot be used"),
            });
            SecretString::from("")
        }
    }
}

fn probes(reader: &mut Reader<'_>) -> Option<SocketAddr> {
    let local = std::net::IpAddr::from([127, 0, 0, 1]);
    let wants = "an IP address such as 127.0.0.1 or 0.0.0.0";
    let host = reader.parsed("WEIR_METRICS_HOST", local, wants, |text| text.parse().ok());
    let port = reader.parsed("WEIR_METRICS_PORT", None, "a port number", |text| {
        text.parse::<u16>().ok().map(Some)
    });
    port.map(|port| SocketAddr::new(host, port))
}

/// Whether the text has only the characters of URIs, and starts like an absolute URI or a path.
fn is_uri_reference(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte))
}

#[cfg(test)]
mod tests {
    use weir_ledger::rules::SlotLimits;

    use weir_policy::lane::Lane;
    use weir_policy::span::Span;

    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        let mut variables: Variables = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        variables
            .entry("DATABASE_URL".to_owned())
            .or_insert_with(|| "postgres://weir@127.0.0.1/weir".to_owned());
        variables
    }

    fn services() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../weir.toml")
    }

    #[test]
    fn the_defaults_follow_the_adrs() {
        let settings = Settings::read(&variables(&[]), &services()).unwrap();
        assert!(settings.fairness.enabled);
        assert_eq!(settings.fairness.limits, SlotLimits::default());
        assert_eq!(settings.fairness.snooze, Duration::from_secs(30));
        assert_eq!(settings.fairness.jitter, Duration::from_secs(10));
        assert_eq!(settings.reservation_ttl, Duration::from_secs(3600));
        let pools: Vec<_> = settings.services.iter().map(|service| service.pools).collect();
        assert_eq!(pools.len(), 2);
        assert!(
            pools.contains(&[5, 3, 2]) && pools.contains(&[3, 2, 1]),
            "{pools:?}"
        );
    }

    #[test]
    fn flags_accept_words_in_any_case_and_digits() {
        let enabled = |text| {
            let settings = Settings::read(&variables(&[("FAIRNESS_ENABLED", text)]), &services());
            settings.map(|settings| settings.fairness.enabled)
        };
        for (text, expected) in [
            ("1", true),
            ("TRUE", true),
            ("True", true),
            ("0", false),
            ("FALSE", false),
            ("false", false),
        ] {
            assert_eq!(enabled(text).ok(), Some(expected), "{text}");
        }
        for text in ["yes", "2", "on", "01"] {
            let error = enabled(text).unwrap_err().to_string();
            assert!(
                error.contains("FAIRNESS_ENABLED") && error.contains("true, false, 1 or 0"),
                "{error}"
            );
        }
    }

    #[test]
    fn all_errors_are_listed_at_once_without_secrets() {
        let error = Settings::read(
            &variables(&[
                ("DATABASE_URL", "mysql://root:hunter2@x/y"),
                ("FAIRNESS_FREE_LIMIT", "0"),
                ("FAIRNESS_SNOOZE_DURATION", "soon"),
                ("ANALYZER_QUEUE_PRIORITY_WORKERS", "many"),
                ("JWT_SECRET", "short-secret"),
                ("RIVER_SCHEMA", "a_schema_whose_name_leaves_no_room_for_a_channel"),
                ("WEIR_ENV", "prod"),
                ("WEIR_SCHEMA", "pg_weir"),
            ]),
            &services(),
        )
        .unwrap_err();
        assert_eq!(error.faults.len(), 8, "{error}");
        let text = error.to_string();
        for name in [
            "DATABASE_URL",
            "FAIRNESS_FREE_LIMIT",
            "FAIRNESS_SNOOZE_DURATION",
            "RIVER_SCHEMA",
            "WEIR_ENV",
            "WEIR_SCHEMA",
        ] {
            assert!(text.contains(name), "{text}");
        }
        assert!(
            text.contains("ANALYZER_QUEUE_PRIORITY_WORKERS is \"many\""),
            "{text}"
        );
        assert!(
            !text.contains("hunter2") && !text.contains("short-secret"),
            "{text}"
        );
    }

    #[test]
    fn pro_plus_defaults_to_the_slots_of_pro() {
        let limits = |pairs: &[(&str, &str)]| {
            let settings = Settings::read(&variables(pairs), &services()).unwrap();
            settings.fairness.limits.of_plans.get("pro_plus").copied()
        };
        assert_eq!(limits(&[]), None);
        assert_eq!(limits(&[("FAIRNESS_PRO_LIMIT", "7")]), Some(7));
        assert_eq!(
            limits(&[("FAIRNESS_PRO_LIMIT", "7"), ("FAIRNESS_PRO_PLUS_LIMIT", "9")]),
            Some(9)
        );
    }

    #[test]
    fn the_shipped_catalogue_follows_the_adrs() {
        let Catalogue { meters, plans } = Settings::read(&variables(&[]), &services()).unwrap().catalogue;
        assert_eq!(meters["analysis"], "analyses");
        assert_eq!(meters["specview"], "test cases");
        let plan = |name: &str| {
            let plan = &plans[name];
            let month = |meter: &str| plan.meters[meter].limits.get(&Span::Month).copied();
            assert!(
                plan.meters
                    .values()
                    .all(|limits| limits.slots == plan.meters["analysis"].slots)
            );
            let slots = plan.meters["analysis"].slots;
            (
                plan.lane,
                slots,
                month("specview"),
                month("analysis"),
                plan.is_default,
            )
        };
        // ADR-16's table, ADR-10's numbers, and the product's limits.
        assert_eq!(plan("free"), (Lane::Default, 1, Some(5_000), Some(50), true));
        assert_eq!(
            plan("pro"),
            (Lane::Priority, 3, Some(100_000), Some(1_000), false)
        );
        assert_eq!(
            plan("pro_plus"),
            (Lane::Priority, 3, Some(500_000), Some(5_000), false)
        );
        assert_eq!(plan("enterprise"), (Lane::Priority, 5, None, None, false));
        assert_eq!(plans.len(), 4);
    }
}

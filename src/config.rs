//! The edge's configuration: variables and secrets of the Worker, read once per isolate.

use std::fmt::Display;
use std::str::FromStr;

use thiserror::Error;
use weir_policy::address::ClientIpSource;
use weir_policy::assertion::AssertionKey;
use weir_policy::route::LimitedRoutes;
use weir_policy::token::{Expected, Keys};
use weir_policy::window::{Algorithm, MAX_LIMIT, MAX_SLIDING_LIMIT, MAX_WINDOW_MS, Policy};

use crate::access::AccessLog;
use crate::cors::AllowedOrigins;

/// Everything that can be set.
#[derive(Debug)]
pub(crate) struct Config {
    /// Where requests are forwarded to, without a slash at its end.
    pub(crate) origin: String,
    /// How long the origin may take to begin its answer, in milliseconds.
    pub(crate) origin_timeout_ms: u32,
    /// The exact policy, for anonymous requests to the limited routes.
    pub(crate) submissions: Policy,
    /// The looser policy, for all other anonymous API requests.
    pub(crate) reads: Policy,
    /// Which requests fall under the exact policy.
    pub(crate) limited_routes: LimitedRoutes,
    /// Whether denials are carried out or only reported.
    pub(crate) mode: Mode,
    /// How many counting objects there are per region.
    pub(crate) shards: u32,
    /// How long to wait for a counting object, in milliseconds.
    pub(crate) counter_timeout_ms: u32,
    /// What to do with a submission when neither object nor native limiter can tell.
    pub(crate) without_counter: WithoutCounter,
    /// Which header names the client.
    pub(crate) client_ip_source: ClientIpSource,
    /// Which pages of other origins may read answers.
    pub(crate) allowed_origins: AllowedOrigins,
    /// Verifies users' tokens, when there is a shared secret.
    pub(crate) token_keys: Keys,
    /// Where the issuer's key set is, when there is one.
    pub(crate) jwks_url: Option<String>,
    /// What a token must say.
    pub(crate) expected: Expected,
    /// Signs assertions to the origin.
    pub(crate) assertion_key: AssertionKey,
    /// Which requests have a line in the log.
    pub(crate) access_log: AccessLog,
    /// How far reports of what was counted are apart, in milliseconds.
    pub(crate) report_interval_ms: u32,
    /// Whether a request can ask for a panic, to try out what happens then. Never in production.
    pub(crate) drills: bool,
}

/// Whether denials are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Enforce,
    /// Count and report, deny nothing.
    Shadow,
}

/// What to do with a submission that nothing can count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WithoutCounter {
    /// Refuse it: 503.
    Closed,
    /// Let it pass.
    Open,
}

/// All that is wrong with a configuration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the edge's configuration has errors: {}", .0.join("; "))]
pub(crate) struct ConfigError(pub(crate) Vec<String>);

impl Config {
    /// Reads a configuration. `get` answers the value of a variable or secret.
    pub(crate) fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(get);

        let submissions = reader.submissions();
        let read_limit = reader.number("ANON_READ_LIMIT", 120, 1, MAX_LIMIT);
        let origin = reader.origin("ORIGIN_URL");
        let origin_timeout_ms = reader.number("ORIGIN_TIMEOUT_MS", 30_000, 1, 600_000);
        let limited_routes = reader.parsed("LIMITED_ROUTES", "POST /api/jobs/");
        let mode = reader.one_of(
            "ANON_MODE",
            &[("enforce", Mode::Enforce), ("shadow", Mode::Shadow)],
        );
        let shards = reader.number("COUNTER_SHARDS", 1, 1, 256);
        let counter_timeout_ms = reader.number("COUNTER_TIMEOUT_MS", 1000, 1, 30_000);
        let without_counter = reader.one_of(
            "WITHOUT_COUNTER",
            &[("closed", WithoutCounter::Closed), ("open", WithoutCounter::Open)],
        );
        let client_ip_source = reader.one_of(
            "CLIENT_IP_SOURCE",
            &[
                ("cloudflare", ClientIpSource::Cloudflare),
                ("proxy", ClientIpSource::Proxy),
            ],
        );
        let allowed_origins = reader.parsed("CORS_ORIGINS", "*");
        let drills = reader.one_of("DRILLS", &[("off", false), ("on", true)]);
        let access_log = reader.one_of(
            "ACCESS_LOG",
            &[
                ("errors", AccessLog::Errors),
                ("off", AccessLog::Off),
                ("all", AccessLog::All),
            ],
        );
        // What goes on after an answer is ended by the platform in 30 s.
        let report_interval_ms = reader.number("REPORT_INTERVAL_MS", 10_000, 100, 20_000);
        let token_keys = reader.token_keys();
        let jwks_url = reader.jwks_url();
        let expected = Expected {
            issuer: reader.text("JWT_ISSUER"),
            audience: reader.text("JWT_AUDIENCE"),
        };
        let assertion_key = reader.assertion_key();

        match (origin, limited_routes, allowed_origins, assertion_key) {
            (Some(origin), Some(limited_routes), Some(allowed_origins), Some(assertion_key))
                if reader.wrong.is_empty() =>
            {
                Ok(Self {
                    origin,
                    origin_timeout_ms,
                    submissions,
                    reads: Policy {
                        limit: read_limit,
                        window_ms: 60_000,
                        algorithm: Algorithm::Fixed,
                    },
                    limited_routes,
                    mode,
                    shards,
                    counter_timeout_ms,
                    without_counter,
                    client_ip_source,
                    allowed_origins,
                    token_keys,
                    jwks_url,
                    expected,
                    assertion_key,
                    access_log,
                    report_interval_ms,
                    drills,
                })
            }
            _ => Err(ConfigError(reader.wrong)),
        }
    }

    /// The exact policy alone, for the counting object, which needs nothing else.
    pub(crate) fn submissions(get: impl Fn(&str) -> Option<String>) -> Policy {
        // What is wrong with it was found when the edge read it, and kept every request from coming this far.
        Reader::new(get).submissions()
    }
}

/// Reads variables and gathers what is wrong with them, so that all of it can be mended at once.
struct Reader<F> {
    get: F,
    wrong: Vec<String>,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn new(get: F) -> Self {
        let wrong = Vec::new();
        Self { get, wrong }
    }

    /// The exact policy.
    fn submissions(&mut self) -> Policy {
        let algorithm = self.one_of(
            "ANON_ALGORITHM",
            &[("fixed", Algorithm::Fixed), ("sliding", Algorithm::Sliding)],
        );
        let largest = if algorithm == Algorithm::Sliding {
            MAX_SLIDING_LIMIT
        } else {
            MAX_LIMIT
        };
        Policy {
            limit: self.number("ANON_LIMIT", 10, 1, largest),
            window_ms: u64::from(self.number("ANON_WINDOW", 60, 1, (MAX_WINDOW_MS / 1000) as u32)) * 1000,
            algorithm,
        }
    }

    /// A variable's value; one that is empty counts as not set.
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name)
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty())
    }

    fn number(&mut self, name: &str, default: u32, least: u32, most: u32) -> u32 {
        let Some(text) = self.text(name) else {
            return default;
        };
        match text.parse() {
            Ok(number) if (least..=most).contains(&number) => number,
            _ => {
                self.wrong.push(format!(
                    "{name} is `{text}`; wanted a whole number from {least} to {most}"
                ));
                default
            }
        }
    }

    /// One of several words; the first is the default.
    fn one_of<T: Copy, const N: usize>(&mut self, name: &str, words: &[(&str, T); N]) -> T {
        let (_, default) = words[0];
        let Some(text) = self.text(name) else {
            return default;
        };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => *value,
            None => {
                let wanted: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
                self.wrong
                    .push(format!("{name} is `{text}`; wanted {}", wanted.join(" or ")));
                default
            }
        }
    }

    fn parsed<T: FromStr<Err: Display>>(&mut self, name: &str, default: &str) -> Option<T> {
        let text = self.text(name).unwrap_or_else(|| default.to_owned());
        text.parse()
            .map_err(|error| self.wrong.push(format!("{name}: {error}")))
            .ok()
    }

    fn origin(&mut self, name: &str) -> Option<String> {
        let Some(text) = self.text(name) else {
            self.wrong.push(format!(
                "{name} is not set; wanted the origin's URL, such as `https://origin.example.com`"
            ));
            return None;
        };
        let origin = text.trim_end_matches('/');
        let host = origin
            .strip_prefix("https://")
            .or_else(|| origin.strip_prefix("http://"))
            .unwrap_or_default();
        // No path: assertions are bound to the path that the origin sees.
        if host.is_empty() || host.contains(['/', '?', '#', '@', ' ']) {
            self.wrong.push(format!(
                "{name} is `{text}`; wanted http:// or https:// and a host, without a path"
            ));
            return None;
        }
        Some(origin.to_owned())
    }

    fn token_keys(&mut self) -> Keys {
        let Some(secret) = self.text("JWT_SECRET") else {
            if self.text("JWKS_URL").is_none() {
                self.wrong.push(
                    "neither JWT_SECRET nor JWKS_URL is set; wanted one to verify users' tokens".to_owned(),
                );
            }
            return Keys::default();
        };
        Keys::from_secret(secret.as_bytes()).unwrap_or_else(|error| {
            self.wrong.push(format!("JWT_SECRET: {error}"));
            Keys::default()
        })
    }

    fn jwks_url(&mut self) -> Option<String> {
        let url = self.text("JWKS_URL")?;
        // Plain HTTP only to this very machine: who can change the key set is everybody.
        let trusted = ["https://", "http://127.0.0.1", "http://localhost"]
            .iter()
            .any(|start| url.starts_with(start));
        if !trusted {
            self.wrong
                .push(format!("JWKS_URL is `{url}`; wanted an https:// URL"));
        }
        Some(url)
    }

    fn assertion_key(&mut self) -> Option<AssertionKey> {
        let Some(secret) = self.text("EDGE_SECRET") else {
            self.wrong
                .push("EDGE_SECRET is not set; wanted the secret that edge and origin share".to_owned());
            return None;
        };
        AssertionKey::new(secret.as_bytes())
            .map_err(|error| self.wrong.push(format!("EDGE_SECRET: {error}")))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn read(set: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let needed = [
            ("ORIGIN_URL", "http://127.0.0.1:8080"),
            ("JWT_SECRET", SECRET),
            ("EDGE_SECRET", SECRET),
        ];
        Config::read(|name| {
            let value = set.iter().chain(&needed).find(|(set, _)| *set == name);
            value.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_defaults_are_those_of_the_adr() {
        let config = read(&[]).unwrap();
        assert_eq!(
            config.submissions,
            Policy {
                limit: 10,
                window_ms: 60_000,
                algorithm: Algorithm::Fixed
            }
        );
        assert_eq!(config.reads.limit, 120);
        assert_eq!(config.client_ip_source, ClientIpSource::Cloudflare);
        assert_eq!(config.mode, Mode::Enforce);
        assert_eq!(config.without_counter, WithoutCounter::Closed);
        assert!(!config.drills);
    }

    #[test]
    fn everything_that_is_wrong_is_listed_at_once() {
        let set = [
            ("ANON_LIMIT", "ten"),
            ("ANON_WINDOW", "0"),
            ("ANON_ALGORITHM", "leaky"),
            ("LIMITED_ROUTES", "jobs"),
            ("ORIGIN_URL", "origin.example.com/api"),
            ("JWT_SECRET", "short"),
            ("EDGE_SECRET", ""),
            ("CLIENT_IP_SOURCE", "header"),
            ("ACCESS_LOG", "some"),
            ("REPORT_INTERVAL_MS", "60000"),
            ("JWKS_URL", "http://keys.example.com"),
        ];
        let ConfigError(wrong) = read(&set).unwrap_err();
        for (name, _) in set {
            assert_eq!(
                wrong.iter().filter(|line| line.starts_with(name)).count(),
                1,
                "{name} in {wrong:#?}"
            );
        }
    }

    #[test]
    fn an_error_shows_no_secret() {
        let ConfigError(wrong) = read(&[("EDGE_SECRET", "hunter2"), ("JWT_SECRET", "hunter3")]).unwrap_err();
        assert!(!wrong.join(" ").contains("hunter"));
    }

    #[test]
    fn an_origin_has_no_path() {
        assert_eq!(
            read(&[("ORIGIN_URL", "https://origin.example.com/")])
                .unwrap()
                .origin,
            "https://origin.example.com"
        );
        for url in [
            "https://origin.example.com/base",
            "ftp://x",
            "https://",
            "https://user@host",
            "origin",
        ] {
            assert!(read(&[("ORIGIN_URL", url)]).is_err(), "{url}");
        }
    }

    #[test]
    fn a_sliding_window_has_a_smaller_largest_limit() {
        assert!(read(&[("ANON_LIMIT", "5000")]).is_ok());
        assert!(read(&[("ANON_LIMIT", "5000"), ("ANON_ALGORITHM", "sliding")]).is_err());
    }
}

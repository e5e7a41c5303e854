//! The edge's configuration: the Worker's variables and secrets, read once per isolate.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use serde_json::Value;
use thiserror::Error;
use weir_policy::address::ClientIpSource;
use weir_policy::assertion::AssertionKey;
use weir_policy::cidr::Ranges;
use weir_policy::header::IdentityHeaders;
use weir_policy::limit_set::Limits;
use weir_policy::route::{Route, RouteClass, Routes};
use weir_policy::token::{Expected, Keys, RequiredClaim, RequiredClaimError};
use weir_policy::window::{Algorithm, MAX_LIMIT, MAX_WINDOW_MS};

use crate::access_log::AccessLog;
use crate::cors::{AllowedOrigins, CorsFields, Methods, Names};
use crate::credential_headers::CookieName;
use crate::glue::HeaderFilter;
use crate::issuer::{self, Issuer, Issuers};
use crate::origin::{self, Origin};
use crate::settings::{EDGE, HANDLER, HANDLER_ORIGIN, Reader, Variables};
use crate::url;

/// All settings.
#[derive(Debug)]
pub(crate) struct Config {
    /// The number of this edge, in a Worker with several. None for the first.
    pub(crate) edge: Option<u32>,
    /// The origin of routes that name no other, and of the edge's reports.
    pub(crate) default_origin: Option<Origin>,
    /// The origins that routes name.
    pub(crate) origins: BTreeMap<String, Origin>,
    /// The maximum time until the origin has sent the headers of its response, in milliseconds.
    pub(crate) origin_timeout_ms: u32,
    /// The longest body of a request that is forwarded, in bytes.
    pub(crate) max_body_bytes: u32,
    /// Which of these settings the Worker's own handler has. Without them, it is called as if there were no edge.
    pub(crate) handler: HandlerSettings,
    /// The maximum pause of a client that sends a body, in milliseconds.
    pub(crate) upload_timeout_ms: u32,
    /// The exact policy, for anonymous requests to the limited routes.
    pub(crate) submissions: Limits,
    /// The looser policy, for all other anonymous API requests.
    pub(crate) reads: Limits,
    /// The exact policy for users' requests to the limited routes, if they are limited.
    pub(crate) users: Option<Limits>,
    /// The routes of the origin.
    pub(crate) routes: Routes,
    /// The treatment of requests that match none.
    pub(crate) unmatched: Unmatched,
    /// Whether denials are enforced or only reported.
    pub(crate) mode: EnforcementMode,
    /// The number of counting objects per region.
    pub(crate) shards: u32,
    /// The maximum wait for a counting object, and then for the native limiter, in milliseconds.
    pub(crate) counter_timeout_ms: u32,
    /// The fallback for a submission when neither counting object nor native limiter can decide.
    pub(crate) counter_fallback: CounterFallback,
    /// Which header has the client's address.
    pub(crate) client_ip_source: ClientIpSource,
    /// Addresses without limits for anonymous requests.
    pub(crate) allow: Ranges,
    /// Addresses that are refused.
    pub(crate) deny: Ranges,
    /// The length of the IPv6 prefix that anonymous requests are counted by, in bits.
    pub(crate) ipv6_prefix: u32,
    /// Request headers that name an identity to the origin, and that the edge therefore removes.
    pub(crate) identity_headers: IdentityHeaders,
    /// The runtime's filter by them, made for the first request.
    pub(crate) to_origin: OnceCell<HeaderFilter>,
    /// Which pages of other origins may read responses.
    pub(crate) allowed_origins: AllowedOrigins,
    /// The headers and methods that these pages may send and read.
    pub(crate) cors_fields: CorsFields,
    /// The cookie that carries a user's token.
    pub(crate) token_cookie: CookieName,
    /// The issuers of users' tokens.
    pub(crate) issuers: Issuers,
    /// The shortest time between two fetches of the key set, in milliseconds.
    pub(crate) jwks_cooldown_ms: u32,
    /// The maximum age of a key set before it is fetched again, in milliseconds.
    pub(crate) jwks_max_age_ms: u32,
    /// The claims of users' tokens that assertions repeat, by name or path.
    pub(crate) assertion_claims: Vec<String>,
    /// Signs assertions to the origin.
    pub(crate) assertion_key: AssertionKey,
    /// Which requests are logged.
    pub(crate) access_log: AccessLog,
    /// The interval between reports of the counts, in milliseconds: at most 20,000, because the platform ends work 30 s after
    /// the response.
    pub(crate) report_interval_ms: u32,
    /// Whether development's routes are forwarded. Only with an origin on the same machine, which no deployed edge has.
    pub(crate) development: bool,
    /// Whether a request may cause a panic, to test the recovery. Never in production.
    pub(crate) drills: bool,
}

/// The settings that apply to the Worker's own handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandlerSettings {
    /// Whether the edge answers preflights and sets the fields of CORS, also for other origins.
    pub(crate) cors: bool,
    /// Whether `MAX_BODY_BYTES` is set.
    pub(crate) max_body_bytes: bool,
    /// Whether `ORIGIN_TIMEOUT_MS` is set.
    pub(crate) origin_timeout: bool,
}

/// Whether denials are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnforcementMode {
    Enforce,
    /// Count and report, but deny nothing.
    Shadow,
}

/// The treatment of requests that match no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unmatched {
    /// The page's files answer them.
    Assets,
    /// They get a 404.
    NotFound,
    /// They are forwarded as those of this route.
    Forward(Box<Route>),
}

/// The fallback for a submission that cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterFallback {
    /// Refuse it with 503.
    Closed,
    /// Admit it.
    Open,
}

/// All errors of a configuration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the edge's configuration has errors: {}", .0.join("; "))]
pub(crate) struct ConfigError(pub(crate) Vec<String>);

impl Config {
    /// Reads the configuration.
    ///
    /// # Errors
    /// All errors that were found, not only the first.
    pub(crate) fn read(variables: &Variables) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(variables);

        let submissions = reader.submissions();
        let users = reader.users();
        let reads = reader.reads();
        let origin_timeout_ms = reader.number("ORIGIN_TIMEOUT_MS", 30_000, 1, 600_000);
        let max_body_bytes = reader.number("MAX_BODY_BYTES", 256 * 1024, 1, u32::MAX);
        let handler = reader.handler_settings();
        let upload_timeout_ms = reader.number("UPLOAD_TIMEOUT_MS", 60_000, 1, 600_000);
        let routes = reader.routes();
        let unmatched = reader.unmatched();
        let is_default_used = matches!(&unmatched, Unmatched::Forward(route) if route.origin.is_none())
            || routes.as_ref().is_none_or(Routes::use_default_origin);
        let default_origin = reader.default_origin(is_default_used);
        let origins = reader.origins();
        let mode = reader.mode();
        let shards = reader.shards();
        let counter_timeout_ms = reader.number("COUNTER_TIMEOUT_MS", 1000, 1, 30_000);
        let counter_fallback = reader.counter_fallback();
        let client_ip_source = reader.client_ip_source();
        let allowed_origins = reader.parsed("CORS_ORIGINS", "*");
        let cors_fields = reader.cors_fields();
        let token_cookie = reader.token_cookie();
        let allow = reader.parsed("ALLOW", "").unwrap_or_default();
        let deny = reader.parsed("DENY", "").unwrap_or_default();
        let ipv6_prefix = reader.number("IPV6_PREFIX", 64, 48, 64);
        let identity_headers = reader.parsed("IDENTITY_HEADERS", "");
        let development = reader.one_of("DEVELOPMENT", &[("off", false), ("on", true)]);
        let drills = reader.one_of("DRILLS", &[("off", false), ("on", true)]);
        let access_log = reader.access_log();
        let report_interval_ms = reader.number("REPORT_INTERVAL_MS", 10_000, 100, 20_000);
        let token_keys = reader.token_keys();
        let jwks_url = reader.jwks_url();
        let jwks_cooldown_ms = reader.number("JWKS_COOLDOWN_MS", 60_000, 100, 3_600_000);
        let jwks_max_age_ms = reader.number("JWKS_MAX_AGE_MS", 3_600_000, 100, 86_400_000);
        let assertion_claims = reader.assertion_claims();
        let first = Issuer {
            keys: token_keys,
            jwks_url,
            expected: reader.expected(routes.as_ref(), &assertion_claims),
            namespace: None,
        };
        let others = reader.other_issuers(&first);
        let assertion_key = reader.assertion_key();
        reader.misspelt();

        match (
            routes,
            identity_headers,
            allowed_origins,
            token_cookie,
            assertion_key,
        ) {
            (
                Some(routes),
                Some(identity_headers),
                Some(allowed_origins),
                Some(token_cookie),
                Some(assertion_key),
            ) if reader.errors.is_empty() => {
                let development = development && default_origin.as_ref().is_some_and(Origin::is_loopback);
                Ok(Self {
                    edge: edge_number(variables),
                    default_origin,
                    origins,
                    origin_timeout_ms,
                    max_body_bytes,
                    handler,
                    upload_timeout_ms,
                    submissions,
                    reads,
                    users,
                    routes,
                    unmatched,
                    mode,
                    shards,
                    counter_timeout_ms,
                    counter_fallback,
                    client_ip_source,
                    allow,
                    deny,
                    ipv6_prefix,
                    identity_headers,
                    to_origin: OnceCell::new(),
                    allowed_origins,
                    cors_fields,
                    token_cookie,
                    issuers: Issuers { first, others },
                    jwks_cooldown_ms,
                    jwks_max_age_ms,
                    assertion_claims,
                    assertion_key,
                    access_log,
                    report_interval_ms,
                    development,
                    drills,
                })
            }
            _ => Err(ConfigError(reader.errors)),
        }
    }

    /// The origin of a route and the setting that it comes from.
    pub(crate) fn origin(&self, route: &Route) -> Option<(&str, &Origin)> {
        match &route.origin {
            Some(name) => self
                .origins
                .get_key_value(name)
                .map(|(name, origin)| (name.as_str(), origin)),
            None => self.default_origin.as_ref().map(|origin| ("ORIGIN_URL", origin)),
        }
    }

    /// The exact policy for anonymous requests alone, which is all that their counting object needs.
    pub(crate) fn submissions(variables: &Variables) -> Limits {
        // Configuration errors were already reported; with any of them, requests never get this far.
        Reader::new(variables).submissions()
    }

    /// The limits of a group of a route, for their counting object.
    pub(crate) fn limits(variables: &Variables, group: u64) -> Option<Vec<Limits>> {
        let routes = Reader::new(variables).routes()?;
        routes.limits(group).map(<[Limits]>::to_vec)
    }

    /// The exact policy for users alone, for their counting object.
    pub(crate) fn users(variables: &Variables) -> Option<Limits> {
        Reader::new(variables).users()
    }
}

fn edge_number(variables: &Variables) -> Option<u32> {
    let number = variables.get(EDGE).and_then(Value::as_u64)?;
    number.try_into().ok()
}

/// The route of a Worker with its own handler and without ROUTES: the exact policies apply to all requests.
fn handler_route() -> Route {
    let mut route = Route::unmatched();
    route.class = RouteClass::Limited;
    route.passes_authorization = true;
    route.passes_cookie = true;
    route.origin = Some(HANDLER_ORIGIN.to_owned());
    route
}

/// The default limit of an IPv6 /48: that of ten of its /64s.
fn prefix_limit(address_limit: u32) -> u32 {
    address_limit.saturating_mul(10).min(MAX_LIMIT)
}

impl Reader<'_> {
    /// The exact policy.
    fn submissions(&mut self) -> Limits {
        let algorithm = self.one_of(
            "ANON_ALGORITHM",
            &[("fixed", Algorithm::Fixed), ("sliding", Algorithm::Sliding)],
        );
        let address = self.number("ANON_LIMIT", 10, 1, MAX_LIMIT);
        let default_prefix = prefix_limit(address);
        Limits {
            address,
            prefix: self.number("ANON_PREFIX_LIMIT", default_prefix, address, MAX_LIMIT),
            window_ms: u64::from(self.number("ANON_WINDOW", 60, 1, (MAX_WINDOW_MS / 1000) as u32)) * 1000,
            algorithm,
        }
    }

    /// The exact policy for users: none unless it has a limit.
    fn users(&mut self) -> Option<Limits> {
        let window_ms = u64::from(self.number("USER_WINDOW", 60, 1, (MAX_WINDOW_MS / 1000) as u32)) * 1000;
        if !self.is_set("USER_LIMIT") {
            return None;
        }
        let limit = self.number("USER_LIMIT", MAX_LIMIT, 1, MAX_LIMIT);
        Some(Limits {
            address: limit,
            // Users have no prefix.
            prefix: limit,
            window_ms,
            algorithm: Algorithm::Fixed,
        })
    }

    fn shards(&mut self) -> u32 {
        self.number("COUNTER_SHARDS", 1, 1, 256)
    }

    fn reads(&mut self) -> Limits {
        let limit = self.number("ANON_READ_LIMIT", 120, 1, MAX_LIMIT);
        Limits {
            address: limit,
            prefix: prefix_limit(limit),
            window_ms: 60_000,
            algorithm: Algorithm::Fixed,
        }
    }

    fn routes(&mut self) -> Option<Routes> {
        if !self.is_set("ROUTES") && self.is_service(HANDLER) {
            if self.is_set("LIMITED_ROUTES") {
                self.errors
                    .push("LIMITED_ROUTES is set; a Worker with its own handler uses ROUTES".to_owned());
            }
            return Some(Routes::default());
        }
        if !self.is_set("ROUTES") {
            return self.parsed("LIMITED_ROUTES", "POST /api/jobs/");
        }
        if self.is_set("LIMITED_ROUTES") {
            self.errors
                .push("LIMITED_ROUTES and ROUTES are both set; expected one of them".to_owned());
        }
        if self.is_set("USER_LIMIT") {
            self.errors.push(
                "USER_LIMIT has no effect with ROUTES; give routes a limit by `user` instead, and remove USER_LIMIT"
                    .to_owned(),
            );
        }
        let json = self.json("ROUTES")?;
        let origins = self.object("ORIGINS");
        let origins: Vec<_> = origins.iter().flat_map(|origins| origins.keys()).collect();
        let origins: Vec<_> = origins.iter().map(|name| name.as_str()).collect();
        Routes::from_json("ROUTES", &json, &origins)
            .map_err(|errors| self.errors.extend(errors))
            .ok()
    }

    fn handler_settings(&self) -> HandlerSettings {
        const CORS: [&str; 4] = [
            "CORS_ORIGINS",
            "CORS_METHODS",
            "CORS_REQUEST_HEADERS",
            "CORS_RESPONSE_HEADERS",
        ];
        HandlerSettings {
            cors: !self.is_service(HANDLER) || CORS.iter().any(|name| self.is_set(name)),
            max_body_bytes: self.is_set("MAX_BODY_BYTES"),
            origin_timeout: self.is_set("ORIGIN_TIMEOUT_MS"),
        }
    }

    fn unmatched(&mut self) -> Unmatched {
        let words = [("assets", 0), ("not_found", 1), ("forward", 2)];
        let unmatched = self.one_of("UNMATCHED", &words);
        if !self.is_set("ROUTES") && self.is_service(HANDLER) {
            return Unmatched::Forward(Box::new(handler_route()));
        }
        match unmatched {
            1 => Unmatched::NotFound,
            2 => Unmatched::Forward(Box::new(Route::unmatched())),
            _ => Unmatched::Assets,
        }
    }

    fn mode(&mut self) -> EnforcementMode {
        self.one_of(
            "ANON_MODE",
            &[
                ("enforce", EnforcementMode::Enforce),
                ("shadow", EnforcementMode::Shadow),
            ],
        )
    }

    fn counter_fallback(&mut self) -> CounterFallback {
        self.one_of(
            "WITHOUT_COUNTER",
            &[
                ("closed", CounterFallback::Closed),
                ("open", CounterFallback::Open),
            ],
        )
    }

    fn client_ip_source(&mut self) -> ClientIpSource {
        self.one_of(
            "CLIENT_IP_SOURCE",
            &[
                ("cloudflare", ClientIpSource::Cloudflare),
                ("proxy", ClientIpSource::Proxy),
            ],
        )
    }

    fn access_log(&mut self) -> AccessLog {
        self.one_of(
            "ACCESS_LOG",
            &[
                ("errors", AccessLog::Errors),
                ("off", AccessLog::Off),
                ("all", AccessLog::All),
            ],
        )
    }

    /// The origin of `ORIGIN_URL`.
    fn default_origin(&mut self, is_used: bool) -> Option<Origin> {
        const NAME: &str = "ORIGIN_URL";
        if is_used && !self.is_set(NAME) {
            self.errors.push(format!(
                "{NAME} is not set; expected the origin's URL, such as `https://origin.example.com`"
            ));
        }
        if self.is_set(NAME) && self.is_service(HANDLER) {
            self.errors.push(format!(
                "{NAME} is set; a Worker with its own handler must not set it"
            ));
        }
        let text = self.text(NAME)?;
        Origin::from_url(&text)
            .map_err(|error| self.errors.push(format!("{NAME}: {error}")))
            .ok()
    }

    /// The origins that routes may name.
    fn origins(&mut self) -> BTreeMap<String, Origin> {
        let Some(json) = self.json("ORIGINS") else {
            return BTreeMap::new();
        };
        let origins = origin::from_json("ORIGINS", &json, |name| self.is_service(name));
        origins.unwrap_or_else(|errors| {
            self.errors.extend(errors);
            BTreeMap::new()
        })
    }

    fn trusted_url(&mut self, name: &str, text: &str) -> bool {
        url::parse_trusted(text)
            .map_err(|error| self.errors.push(format!("{name}: {error}")))
            .is_ok()
    }

    fn token_keys(&mut self) -> Keys {
        let Some(secret) = self.text("JWT_SECRET") else {
            if !self.is_set("JWT_SECRET") && !self.is_set("JWKS_URL") {
                self.errors.push(
                    "neither JWT_SECRET nor JWKS_URL is set; expected one to verify users' tokens".to_owned(),
                );
            }
            return Keys::default();
        };
        Keys::from_secret(secret.as_bytes()).unwrap_or_else(|error| {
            self.errors.push(format!("JWT_SECRET: {error}"));
            Keys::default()
        })
    }

    fn jwks_url(&mut self) -> Option<String> {
        let text = self.text("JWKS_URL")?;
        self.trusted_url("JWKS_URL", &text).then_some(text)
    }

    fn other_issuers(&mut self, first: &Issuer) -> Vec<Issuer> {
        let Some(json) = self.json("ISSUERS") else {
            return Vec::new();
        };
        let issuers = issuer::from_json("ISSUERS", &json, first, |name| self.any_text(name));
        issuers.unwrap_or_else(|errors| {
            self.errors.extend(errors);
            Vec::new()
        })
    }

    /// The claims that tokens must have, and those that routes and assertions use.
    fn expected(&mut self, routes: Option<&Routes>, assertion_claims: &[String]) -> Expected {
        let of_routes = routes.into_iter().flat_map(Routes::claims).map(str::to_owned);
        Expected {
            issuer: self.text("JWT_ISSUER"),
            audiences: self.audiences(),
            claims: self.required_claims(),
            holder_claim: self.holder_claim(),
            kept_claims: of_routes.chain(assertion_claims.iter().cloned()).collect(),
        }
    }

    /// A token must name one of these audiences.
    fn audiences(&mut self) -> Option<Vec<String>> {
        let audiences = self.texts("JWT_AUDIENCE")?;
        if audiences.is_empty() {
            self.errors
                .push("JWT_AUDIENCE is an empty list; expected at least one audience".to_owned());
        }
        Some(audiences)
    }

    /// Claims that tokens must have, in addition to those with their own settings.
    fn required_claims(&mut self) -> Vec<RequiredClaim> {
        const NAME: &str = "JWT_REQUIRED_CLAIMS";
        let Some(claims) = self.texts(NAME) else {
            return Vec::new();
        };
        if claims.is_empty() {
            self.errors
                .push(format!("{NAME} is an empty list; expected at least one claim"));
        }
        let claims: Result<_, _> = issuer::required_claims(&claims).collect();
        claims.unwrap_or_else(|error: RequiredClaimError| {
            self.errors.push(format!("{NAME}: {error}"));
            Vec::new()
        })
    }

    /// Registered claims other than `sub` do not identify a user.
    fn holder_claim(&mut self) -> Option<String> {
        let name = self.text("HOLDER_CLAIM").filter(|name| name != "sub")?;
        if issuer::is_not_a_holder_claim(&name) {
            self.errors.push(format!(
                "HOLDER_CLAIM is `{name}`; expected the claim that names an organisation, such as `org_id`"
            ));
        }
        Some(name)
    }

    fn cors_fields(&mut self) -> CorsFields {
        let methods = self.parsed("CORS_METHODS", Methods::DEFAULT);
        let request_headers: Option<Names> = self.parsed("CORS_REQUEST_HEADERS", "");
        let response_headers: Option<Names> = self.parsed("CORS_RESPONSE_HEADERS", "");
        CorsFields::new(
            &methods.unwrap_or_default(),
            &request_headers.unwrap_or_default(),
            &response_headers.unwrap_or_default(),
        )
    }

    fn token_cookie(&mut self) -> Option<CookieName> {
        const NAME: &str = "TOKEN_COOKIE";
        let name = match self.text(NAME) {
            Some(name) => name,
            None => "auth_token".to_owned(),
        };
        name.parse()
            .map_err(|error| self.errors.push(format!("{NAME}: {error}")))
            .ok()
    }

    /// Claims by name or path, separated by commas or as a list.
    fn assertion_claims(&mut self) -> Vec<String> {
        const NAME: &str = "ASSERTION_CLAIMS";
        let texts = self.texts(NAME).unwrap_or_default();
        let names: Vec<_> = texts
            .iter()
            .flat_map(|text| text.split(','))
            .map(|name| name.trim().to_owned())
            .collect();
        if names.iter().any(String::is_empty) {
            self.errors.push(format!(
                "{NAME} has an empty name; expected claims such as `roles` or `org.id`"
            ));
        }
        names
    }

    fn assertion_key(&mut self) -> Option<AssertionKey> {
        if !self.is_set("EDGE_SECRET") {
            self.errors
                .push("EDGE_SECRET is not set; expected the secret that edge and origin share".to_owned());
        }
        let secret = self.text("EDGE_SECRET")?;
        AssertionKey::new(secret.as_bytes())
            .map_err(|error| self.errors.push(format!("EDGE_SECRET: {error}")))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use weir_policy::route::Found;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn read_values(set: &[(&str, Value)]) -> Result<Config, ConfigError> {
        let needed = [
            ("ORIGIN_URL", json!("http://127.0.0.1:8080")),
            ("JWT_SECRET", json!(SECRET)),
            ("EDGE_SECRET", json!(SECRET)),
        ];
        let all = needed.iter().chain(set);
        Config::read(
            &all.map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
        )
    }

    fn read(set: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let set: Vec<_> = set.iter().map(|(name, value)| (*name, json!(value))).collect();
        read_values(&set)
    }

    #[test]
    fn values_of_the_wrong_type_are_errors_that_name_the_setting() {
        let config = read_values(&[
            ("ANON_LIMIT", json!(5)),
            ("USER_LIMIT", json!(3)),
            ("DRILLS", json!(true)),
            ("JWT_AUDIENCE", json!(["a", "b"])),
            ("LIMITED_ROUTES", json!(["POST /api/a", "* /api/b"])),
            ("CORS_ORIGINS", json!([])),
        ])
        .unwrap();
        assert_eq!(config.submissions.address, 5);
        assert_eq!(config.users.map(|users| users.address), Some(3));
        assert!(config.drills);
        assert_eq!(
            config.issuers.first.expected.audiences,
            Some(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(config.allowed_origins, AllowedOrigins::Listed(vec![]));
        for (name, value) in [
            ("ANON_LIMIT", json!(5.5)),
            ("ANON_LIMIT", json!(-1)),
            ("ANON_LIMIT", json!([5])),
            ("USER_LIMIT", json!(true)),
            ("USER_LIMIT", json!({})),
            ("ANON_MODE", json!(true)),
            ("DRILLS", json!(1)),
            ("JWT_AUDIENCE", json!(5)),
            ("JWT_AUDIENCE", json!(["a", 5])),
            ("JWT_AUDIENCE", json!([""])),
            ("JWT_AUDIENCE", json!([])),
            ("JWT_AUDIENCE", json!({"a": "b"})),
            ("JWT_REQUIRED_CLAIMS", json!([])),
            ("JWT_REQUIRED_CLAIMS", json!("token_use")),
            ("JWT_REQUIRED_CLAIMS", json!("token_use=access,")),
            ("JWT_ISSUER", json!(["a"])),
            ("HOLDER_CLAIM", json!(false)),
            ("LIMITED_ROUTES", json!([])),
            ("ASSERTION_CLAIMS", json!("roles,")),
            ("ASSERTION_CLAIMS", json!([1])),
            ("CORS_ORIGINS", json!(true)),
            ("CORS_ORIGINS", json!("https://*.dev")),
            ("CORS_METHODS", json!("get")),
            ("CORS_REQUEST_HEADERS", json!(["X-A", "*"])),
            ("CORS_RESPONSE_HEADERS", json!("X A")),
            ("TOKEN_COOKIE", json!("a b")),
            ("TOKEN_COOKIE", json!(["a"])),
            ("ORIGIN_URL", json!(1)),
            ("JWKS_URL", json!({})),
            ("JWT_SECRET", json!(12345)),
            ("EDGE_SECRET", json!([SECRET])),
        ] {
            let ConfigError(errors) = read_values(&[(name, value.clone())]).unwrap_err();
            assert!(
                errors.len() == 1 && errors[0].starts_with(name),
                "{name} {value}: {errors:?}"
            );
            assert!(!errors[0].contains("12345"), "{errors:?}");
        }
    }

    #[test]
    fn misspelt_settings_are_errors_and_foreign_variables_are_not() {
        for (name, setting) in [
            ("ANON_LIMTI", "ANON_LIMIT"),
            ("JWT_AUDIENCES", "JWT_AUDIENCE"),
            ("LIMITED_ROUTE", "LIMITED_ROUTES"),
        ] {
            let ConfigError(errors) = read(&[(name, "5")]).unwrap_err();
            assert_eq!(errors.len(), 1);
            let expected = format!("{name} is not a setting; did you mean {setting}?");
            assert!(errors[0].starts_with(&expected), "{errors:?}");
        }
        for set in [
            [("DATABASE_URL", "x"), ("API_KEY", "x")],
            [("JWT_SECRETS", "x"), ("ORIGIN_URLS", "x")],
            [("CORS_ORIGIN", "x"), ("CORS_ORIGINS", "*")],
            [("JWT_AUDIENCES", "x"), ("JWT_AUDIENCE", "")],
            [("ANON_LIMTI", ""), ("USER_LIMITER", "")],
        ] {
            assert!(read(&set).is_ok(), "{set:?}");
        }
        let limit = [("ANON_LIMTI", "5"), ("ANON_LIMIT", "10")];
        assert!(read(&limit).is_err(), "no other code has a variable of this name");
    }

    #[test]
    fn the_defaults_follow_the_adr() {
        let config = read(&[]).unwrap();
        assert_eq!(
            config.submissions,
            Limits {
                address: 10,
                prefix: 100,
                window_ms: 60_000,
                algorithm: Algorithm::Fixed
            }
        );
        assert_eq!(config.reads.address, 120);
        assert_eq!(config.client_ip_source, ClientIpSource::Cloudflare);
        assert_eq!(config.mode, EnforcementMode::Enforce);
        assert_eq!(config.counter_fallback, CounterFallback::Closed);
        assert!(!config.drills);
    }

    #[test]
    fn all_errors_are_listed_at_once() {
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
            ("HOLDER_CLAIM", "iss"),
            ("USER_LIMIT", "0"),
            ("USER_WINDOW", "1 minute"),
        ];
        let ConfigError(errors) = read(&set).unwrap_err();
        for (name, _) in set {
            assert_eq!(
                errors.iter().filter(|line| line.starts_with(name)).count(),
                1,
                "{name} in {errors:#?}"
            );
        }
    }

    #[test]
    fn issuers_have_their_own_settings() {
        let issuers = json!([
            { "issuer": "https://b.example", "jwks_url": "https://b.example/jwks", "audience": ["x"],
              "required_claims": "use=access, tier=pro" },
            { "issuer": "https://c.example", "secret": "C_SECRET", "holder_claim": "org" },
        ]);
        let set = [
            ("JWT_ISSUER", json!("https://a.example")),
            ("JWT_AUDIENCE", json!("y")),
            ("C_SECRET", json!("c".repeat(32))),
            ("ISSUERS", issuers),
        ];
        let Issuers { first, others } = read_values(&set).unwrap().issuers;
        assert_eq!(first.namespace, None);
        assert_eq!(first.expected.audiences, Some(vec!["y".to_owned()]));
        let [b, c] = others.as_slice() else {
            panic!("{others:?}")
        };
        assert_eq!(b.expected.audiences, Some(vec!["x".to_owned()]));
        assert_eq!(b.expected.claims.len(), 2, "{:?}", b.expected.claims);
        assert_eq!(b.jwks_url.as_deref(), Some("https://b.example/jwks"));
        assert!(b.keys.is_empty() && !c.keys.is_empty());
        assert_eq!(c.expected.holder_claim.as_deref(), Some("org"));
        assert_eq!(c.expected.audiences, None);
        assert!(read(&[]).unwrap().issuers.others.is_empty());
    }

    #[test]
    fn all_errors_of_issuers_are_listed() {
        let set = [
            ("SHORT", json!("hunter2")),
            (
                "ISSUERS",
                json!([
                    "https://b.example",
                    { "jwks_url": "http://b.example/jwks" },
                    { "issuer": "https://c", "secret": "JWT_SECRET", "audience": [], "extra": 1 },
                    { "issuer": "https://c|d", "secret": "MISSING", "holder_claim": "iss" },
                    { "issuer": "https://e" },
                    { "issuer": 5, "secret": "SHORT", "required_claims": "token_use" },
                ]),
            ),
        ];
        let ConfigError(errors) = read_values(&set).unwrap_err();
        let starts = [
            "JWT_ISSUER is not set",
            "ISSUERS[0]: ",
            "ISSUERS[1].jwks_url: ",
            "ISSUERS[1].issuer: ",
            "ISSUERS[2].extra: ",
            "ISSUERS[2].secret: it is also used",
            "ISSUERS[2].audience: ",
            "ISSUERS[3].secret: there is no secret",
            "ISSUERS[3].issuer: another issuer",
            "ISSUERS[3].holder_claim: ",
            "ISSUERS[4]: it has neither",
            "ISSUERS[5].secret: ",
            "ISSUERS[5].issuer: ",
            "ISSUERS[5].required_claims: ",
        ];
        assert_eq!(errors.len(), starts.len(), "{errors:#?}");
        for (error, start) in errors.iter().zip(starts) {
            assert!(error.starts_with(start), "{error} should start with {start}");
            assert!(!error.contains("hunter2") && !error.contains(SECRET), "{error}");
        }
        for wrong in [json!({}), json!("b"), json!(5)] {
            let ConfigError(errors) = read_values(&[("ISSUERS", wrong)]).unwrap_err();
            assert!(
                errors.len() == 1 && errors[0].starts_with("ISSUERS"),
                "{errors:?}"
            );
        }
    }

    #[test]
    fn errors_do_not_contain_secrets() {
        let ConfigError(errors) = read(&[
            ("EDGE_SECRET", "hunter2"),
            ("JWT_SECRET", "hunter3"),
            ("ORIGIN_URL", "https://admin:hunter4@origin.example.com"),
            ("JWKS_URL", "http://admin:hunter5@keys.example.com"),
        ])
        .unwrap_err();
        assert_eq!(errors.len(), 4);
        assert!(!errors.join(" ").contains("hunter"), "{errors:?}");
    }

    #[test]
    fn an_origin_url_with_a_path_is_refused() {
        for (url, origin) in [
            ("https://origin.example.com/", "https://origin.example.com"),
            (
                "https://origin.example.com:8443",
                "https://origin.example.com:8443",
            ),
            ("http://[::1]:8080", "http://[::1]:8080"),
        ] {
            let read = read(&[("ORIGIN_URL", url)]).unwrap().default_origin;
            assert!(
                matches!(&read, Some(Origin::Url { base, .. }) if base == origin),
                "{read:?}"
            );
        }
        for url in [
            "https://origin.example.com/base",
            "https://origin.example.com?x",
            "https://origin.example.com#x",
            "ftp://x",
            "https://",
            "https://user@host",
            "origin",
        ] {
            assert!(read(&[("ORIGIN_URL", url)]).is_err(), "{url}");
        }
    }

    #[test]
    fn a_route_chooses_an_origin_and_the_default_may_be_unused() {
        let read = |routes: Value, more: &[(&str, Value)]| {
            let set = [
                ("ORIGIN_URL", json!("")),
                ("ROUTES", routes),
                ("SITE", json!({"fetch": true})),
                ("KV", json!({})),
                ("ORIGINS", json!({"site": {"service": "SITE"}})),
            ];
            read_values(&[&set[..], more].concat())
        };
        let config = read(json!([{"path": "/v1/*", "origin": "site"}]), &[]).unwrap();
        let Found::Route(route) = config.routes.find("GET", "/v1/x") else {
            panic!("the list has a route");
        };
        let site = Origin::Service {
            binding: "SITE".to_owned(),
            base: None,
        };
        assert_eq!(config.origin(route), Some(("site", &site)));
        let all = json!([{"path": "/v1/*", "origin": "site"}]);
        for (routes, more, start) in [
            (json!([{"path": "/v1/*"}]), None, "ORIGIN_URL is not set"),
            (
                all.clone(),
                Some(("UNMATCHED", json!("forward"))),
                "ORIGIN_URL is not set",
            ),
            (
                json!([{"path": "/v1/*", "origin": "shop"}]),
                Some(("ORIGIN_URL", json!("https://origin.example.com"))),
                "ROUTES[0].origin: expected a name in ORIGINS: `site`",
            ),
            (
                all,
                Some((
                    "ORIGINS",
                    json!({"site": {"service": "SITE"}, "kv": {"service": "KV"}}),
                )),
                "ORIGINS.kv.service: `KV` is not a service binding",
            ),
        ] {
            let ConfigError(errors) = read(routes, more.as_slice()).unwrap_err();
            assert_eq!(errors.len(), 1, "{errors:?}");
            assert!(errors[0].starts_with(start), "{errors:?}");
        }
    }

    #[test]
    fn assertions_are_not_sent_to_another_machine_in_the_clear() {
        for url in [
            "http://origin.example.com",
            "http://10.0.0.1:8080",
            "http://127.0.0.1.evil.example",
        ] {
            assert!(read(&[("ORIGIN_URL", url)]).is_err(), "{url}");
        }
    }

    #[test]
    fn keys_are_not_fetched_from_another_machine_in_the_clear() {
        for url in [
            "http://keys.example.com",
            "http://127.0.0.1.evil.example/jwks",
            "http://localhost.evil.example/jwks",
            "http://127.0.0.1@evil.example/jwks",
        ] {
            assert!(read(&[("JWKS_URL", url)]).is_err(), "{url}");
        }
        for url in [
            "https://keys.example.com/jwks?a=b",
            "http://127.0.0.1:9/jwks",
            "http://localhost/jwks",
        ] {
            assert_eq!(
                read(&[("JWKS_URL", url)])
                    .unwrap()
                    .issuers
                    .first
                    .jwks_url
                    .as_deref(),
                Some(url)
            );
        }
    }

    #[test]
    fn development_is_never_on_with_an_origin_on_another_machine() {
        let development = |set: &[(&str, &str)]| read(set).unwrap().development;
        assert!(!development(&[]));
        assert!(development(&[("DEVELOPMENT", "on")]));
        assert!(!development(&[
            ("DEVELOPMENT", "on"),
            ("ORIGIN_URL", "https://origin.example.com")
        ]));
    }

    #[test]
    fn users_are_limited_only_when_that_is_configured() {
        let users = |set: &[(&str, &str)]| {
            let users = read(set).unwrap().users;
            users.map(|limits| (limits.address, limits.window_ms))
        };
        assert_eq!(users(&[]), None);
        assert_eq!(users(&[("USER_WINDOW", "5"), ("USER_LIMIT", "")]), None);
        assert_eq!(users(&[("USER_LIMIT", "600")]), Some((600, 60_000)));
        assert_eq!(
            users(&[("USER_LIMIT", "5"), ("USER_WINDOW", "1")]),
            Some((5, 1_000))
        );
    }

    #[test]
    fn the_prefix_limit_is_ten_times_the_limit_unless_it_is_set() {
        let prefix = |set: &[(&str, &str)]| read(set).map(|config| config.submissions.prefix);
        assert_eq!(prefix(&[("ANON_LIMIT", "7")]), Ok(70));
        assert_eq!(prefix(&[("ANON_LIMIT", "7"), ("ANON_PREFIX_LIMIT", "7")]), Ok(7));
        assert!(
            prefix(&[("ANON_LIMIT", "7"), ("ANON_PREFIX_LIMIT", "6")]).is_err(),
            "below the limit of a /64"
        );
    }
}

//! Routes: who may send which requests to the origin, how they are counted, and which paths are reserved.

use std::collections::BTreeMap;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::address::digest;
use crate::limit_set::{Limits, MAX_LIMITS};
use crate::window::{Algorithm, MAX_LIMIT, MAX_WINDOW_MS};

/// How a route's requests are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteClass {
    /// Starts work and costs money. Counted exactly (web ADR-21).
    Limited,
    /// Any other request, such as polling a job. The policy is looser, and applies only to anonymous clients.
    Other,
    /// Counted exactly, by the route's own limits.
    OwnLimits,
    /// Not counted.
    Unlimited,
}

/// The key that requests of a route are counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CountedBy {
    /// The client's address, for anonymous requests.
    Address,
    /// The client's address, for all requests. A token does not help against such a limit, for example on a login.
    AnyAddress,
    /// The holder, for users' requests.
    User,
    /// The value of a claim, for users with the claim in their tokens.
    Claim(String),
    /// The value of a request header, for requests with the header. The edge does not verify it.
    Header(String),
}

/// The plan that limits are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The claim that names users' plans.
    claim: String,
    /// The plan; `None` for users without one of the others.
    value: Option<String>,
    others: Vec<String>,
}

impl Plan {
    /// Whether a user with these claims has the plan.
    pub fn is_of(&self, claims: &BTreeMap<String, Value>) -> bool {
        let plan = claims.get(&self.claim).and_then(Value::as_str);
        match &self.value {
            Some(value) => plan == Some(value),
            None => plan.is_none_or(|plan| !self.others.iter().any(|other| other == plan)),
        }
    }
}

/// The limits of a route with the same key and plan. A request passes all of them or counts in none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitGroup {
    /// The key of the limits.
    pub by: CountedBy,
    /// The plan of the users that they are for; `None` for all callers.
    pub plan: Option<Plan>,
    /// At least one limit.
    pub limits: Vec<Limits>,
    /// A number that is unique among the groups of all routes and stays the same when its limits change.
    pub id: u64,
}

/// A route of the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The methods. Empty for any method.
    methods: Vec<String>,
    path: Pattern,
    /// How its requests are counted.
    pub class: RouteClass,
    /// Its own limits.
    pub limits: Vec<LimitGroup>,
    /// Whether anonymous requests are refused.
    pub signed_in: bool,
    /// Whether the `Authorization` header passes to the origin. The edge then leaves tokens that it cannot verify to
    /// the origin.
    pub passes_authorization: bool,
    /// Whether the `Cookie` header passes to the origin.
    pub passes_cookie: bool,
    /// The name of its origin; `None` for the default one.
    pub origin: Option<String>,
    /// The maximum length of its requests' bodies, in bytes; `None` for the default one.
    pub max_body_bytes: Option<u32>,
}

/// A path, or with `is_prefix` the start of paths.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    is_prefix: bool,
}

impl Pattern {
    /// Parses a path that starts with `/`, without a query. `*` at its end stands for any text.
    fn parse(text: &str) -> Option<Self> {
        let start = text.strip_suffix('*').unwrap_or(text);
        // Routers read these as the names of parameters. Here, they would match literally, and protect nothing.
        let is_parameter = |segment: &str| segment.starts_with(':') || segment.contains(['{', '}', '[', ']']);
        // Requests are matched in a normalised spelling, and must also match as they are spelt. A pattern in another
        // spelling would never match. Clients percent-encode all bytes that are not visible ASCII.
        let is_path = start.starts_with('/')
            && start.bytes().all(|byte| byte.is_ascii_graphic())
            && !start.contains(['*', '?', '#'])
            && !start.split('/').any(is_parameter)
            && normalized(start) == start;
        is_path.then(|| Self {
            text: start.to_owned(),
            is_prefix: start.len() < text.len(),
        })
    }

    /// Whether it matches all paths that the other one matches.
    fn covers(&self, other: &Self) -> bool {
        (self.is_prefix || !other.is_prefix) && self.matches(&other.text, str::eq_ignore_ascii_case)
    }

    /// Whether it matches a path. `equals` compares texts of the same length.
    fn matches(&self, path: &str, equals: fn(&str, &str) -> bool) -> bool {
        if self.is_prefix {
            let start = path.get(..self.text.len());
            return start.is_some_and(|start| equals(start, &self.text));
        }
        // Many servers ignore a slash at the end.
        let without_slash = |path: &'_ str| path.strip_suffix('/').unwrap_or(path).len();
        let (path, text) = (
            &path[..without_slash(path)],
            &self.text[..without_slash(&self.text)],
        );
        equals(path, text)
    }
}

impl Route {
    fn new(methods: Vec<String>, path: Pattern, class: RouteClass) -> Self {
        Self {
            methods,
            path,
            class,
            limits: Vec::new(),
            signed_in: false,
            passes_authorization: false,
            passes_cookie: false,
            origin: None,
            max_body_bytes: None,
        }
    }

    /// The route for requests that match no other, if they are forwarded at all.
    pub fn unmatched() -> Self {
        let any = Pattern {
            text: "/".to_owned(),
            is_prefix: true,
        };
        Self::new(Vec::new(), any, RouteClass::Unlimited)
    }

    /// The same route without any check, for preflights that the edge does not answer.
    #[must_use]
    pub fn for_preflights(&self) -> Self {
        Self {
            class: RouteClass::Unlimited,
            limits: Vec::new(),
            signed_in: false,
            ..self.clone()
        }
    }

    /// Whether it matches all requests that the other one matches.
    fn covers(&self, other: &Self) -> bool {
        let has_methods =
            || !other.methods.is_empty() && other.methods.iter().all(|method| self.is_for(method));
        (self.methods.is_empty() || has_methods()) && self.path.covers(&other.path)
    }

    fn is_for(&self, method: &str) -> bool {
        self.methods.is_empty() || self.methods.iter().any(|wanted| wanted == method)
    }
}

/// Routes in order. The first one that matches a request applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(Vec<Route>);

/// The result of [`Routes::find`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// This route matches.
    Route(&'a Route),
    /// No route matches, but the path may be another spelling of a route's path.
    OtherSpelling,
    /// No route matches.
    None,
}

/// `LIMITED_ROUTES` has an error.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RouteError {
    /// A route is malformed.
    #[error("`{0}` is not a route; expected a method and a path under /api/, such as `POST /api/jobs/`")]
    Malformed(String),
    /// The list is empty, so nothing would be limited.
    #[error("it lists no route; expected at least one, such as `POST /api/jobs/`")]
    None,
}

impl FromStr for Routes {
    type Err = RouteError;

    /// The routes under the exact policy: methods with path prefixes, separated by commas, such as `POST /api/jobs/`.
    /// The method `*` matches any method. Every other path below `/api/` also has a route.
    fn from_str(text: &str) -> Result<Self, RouteError> {
        let mut routes = text
            .split(',')
            .map(str::trim)
            .filter(|route| !route.is_empty())
            .map(limited)
            .collect::<Result<Vec<_>, _>>()?;
        if routes.is_empty() {
            return Err(RouteError::None);
        }
        let api = Pattern {
            text: "/api/".to_owned(),
            is_prefix: true,
        };
        routes.push(Route::new(Vec::new(), api, RouteClass::Other));
        Ok(Self(routes))
    }
}

fn limited(text: &str) -> Result<Route, RouteError> {
    let wrong = || RouteError::Malformed(text.to_owned());
    let (method, prefix) = text.split_once(char::is_whitespace).ok_or_else(wrong)?;
    let prefix = prefix.trim();
    if !(method == "*" || is_method(method)) || !prefix.starts_with("/api/") {
        return Err(wrong());
    }
    let methods = (method != "*").then(|| method.to_owned()).into_iter().collect();
    let path = Pattern {
        text: prefix.to_owned(),
        is_prefix: true,
    };
    Ok(Route::new(methods, path, RouteClass::Limited))
}

fn is_method(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_uppercase())
}

impl Routes {
    /// Reads routes from JSON: a list of objects with the members `methods`, `path`, `callers`, `limits`, `skip`, `pass`,
    /// `origin` and `max_body_bytes`. `name` is that of the setting, and `origins` are the names that `origin` may have.
    ///
    /// # Errors
    /// All errors, each with the path of the faulty member.
    // Isolates compile whole functions, and need this one only if the setting is set.
    #[inline(never)]
    pub fn from_json(name: &str, json: &Value, origins: &[&str]) -> Result<Self, Vec<String>> {
        let mut errors = Vec::new();
        let routes: Vec<_> = match json {
            Value::Array(routes) if !routes.is_empty() => routes
                .iter()
                .enumerate()
                .filter_map(|(place, route)| {
                    Members::of(format!("{name}[{place}]"), route, &mut errors)
                        .and_then(|members| members.route(origins))
                        .map(|route| (place, route))
                })
                .collect(),
            _ => {
                errors.push(format!("{name}: expected a list of at least one route"));
                Vec::new()
            }
        };
        for (index, (place, route)) in routes.iter().enumerate() {
            if let Some((earlier, _)) = routes[..index].iter().find(|(_, earlier)| earlier.covers(route)) {
                errors.push(format!(
                    "{name}[{place}]: never applies, because {name}[{earlier}] comes first and matches all of its requests"
                ));
            }
        }
        if errors.is_empty() {
            Ok(Self(routes.into_iter().map(|(_, route)| route).collect()))
        } else {
            Err(errors)
        }
    }

    /// The group of limits with this id.
    pub fn limits(&self, id: u64) -> Option<&[Limits]> {
        let groups = self.0.iter().flat_map(|route| &route.limits);
        groups
            .into_iter()
            .find(|group| group.id == id)
            .map(|group| &group.limits[..])
    }

    /// Whether the requests of a route go to the default origin.
    pub fn use_default_origin(&self) -> bool {
        self.0.iter().any(|route| route.origin.is_none())
    }

    /// The claims that requests are counted by, and those that name users' plans.
    pub fn claims(&self) -> impl Iterator<Item = &str> {
        let groups = self.0.iter().flat_map(|route| &route.limits);
        groups.flat_map(|group| {
            let by = match &group.by {
                CountedBy::Claim(name) => Some(name.as_str()),
                CountedBy::Address | CountedBy::AnyAddress | CountedBy::User | CountedBy::Header(_) => None,
            };
            let plan = group.plan.as_ref().map(|plan| plan.claim.as_str());
            by.into_iter().chain(plan)
        })
    }

    /// The route of a request. `path` is its path without the query.
    ///
    /// A server behind the edge may accept other spellings of a path, so routes match the normalised path. If no route
    /// matches the path as it is spelt, the request must not be forwarded, because servers differ in how they read it.
    pub fn find(&self, method: &str, path: &str) -> Found<'_> {
        let normalized = normalized(path);
        let matching = |route: &&Route| route.path.matches(&normalized, str::eq_ignore_ascii_case);
        let has_spelling = || self.0.iter().any(|route| route.path.matches(path, |a, b| a == b));
        match self.0.iter().filter(matching).find(|route| route.is_for(method)) {
            Some(route) if has_spelling() => Found::Route(route),
            Some(_) => Found::OtherSpelling,
            None => Found::None,
        }
    }
}

/// What a limit counts by, and the plan that sets its numbers. Limits with equal keys form a group.
type Key = (CountedBy, Option<Plan>);

/// Whether a byte may be part of a header's name (RFC 9110, 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The members of a route in JSON.
struct Members<'a> {
    at: String,
    members: &'a Map<String, Value>,
    errors: &'a mut Vec<String>,
}

impl<'a> Members<'a> {
    fn of(at: String, route: &'a Value, errors: &'a mut Vec<String>) -> Option<Self> {
        match route {
            Value::Object(members) => Some(Self { at, members, errors }),
            _ => {
                errors.push(format!(
                    "{at}: expected an object, such as {{\"path\": \"/v1/*\"}}"
                ));
                None
            }
        }
    }

    fn route(mut self, origins: &[&str]) -> Option<Route> {
        const KNOWN: [&str; 8] = [
            "methods",
            "path",
            "callers",
            "limits",
            "skip",
            "pass",
            "origin",
            "max_body_bytes",
        ];
        for name in self.members.keys().filter(|name| !KNOWN.contains(&name.as_str())) {
            let expected = KNOWN.join(", ");
            self.errors.push(format!(
                "{}.{name}: this member does not exist; expected {expected}",
                self.at
            ));
        }
        let methods = self.methods();
        let path = match self
            .members
            .get("path")
            .and_then(Value::as_str)
            .and_then(Pattern::parse)
        {
            Some(path) => Some(path),
            None => self.wrong(
                "path",
                "a path such as `/v1/users` or a prefix such as `/v1/*`, in ASCII and without parameters such as `:id`",
            ),
        };
        let signed_in = match self.members.get("callers") {
            None => false,
            Some(Value::String(word)) if word == "anyone" => false,
            Some(Value::String(word)) if word == "signed_in" => true,
            Some(_) => self
                .wrong("callers", "`anyone` or `signed_in`")
                .unwrap_or_default(),
        };
        let class = match self.members.get("skip") {
            None | Some(Value::Bool(false)) => RouteClass::Other,
            Some(Value::Bool(true)) => RouteClass::Unlimited,
            Some(_) => self.wrong("skip", "true or false").unwrap_or(RouteClass::Other),
        };
        let passes = self.words("pass", &["authorization", "cookie"]);
        let origin = match self.members.get("origin") {
            None => None,
            Some(Value::String(name)) if origins.contains(&name.as_str()) => Some(name.clone()),
            Some(_) if origins.is_empty() => self.wrong("origin", "a name in ORIGINS, which is not set"),
            Some(_) => {
                let names: Vec<_> = origins.iter().map(|name| format!("`{name}`")).collect();
                self.wrong("origin", &format!("a name in ORIGINS: {}", names.join(" or ")))
            }
        };
        let max_body_bytes = match self.members.get("max_body_bytes") {
            None => None,
            Some(number) => whole_number(number, u32::MAX).or_else(|| {
                self.wrong(
                    "max_body_bytes",
                    &format!("a whole number from 1 to {}", u32::MAX),
                )
            }),
        };
        let limits = self.limits();
        let class = match (class, limits.is_empty()) {
            (class, true) => class,
            (RouteClass::Unlimited, false) => self
                .wrong("skip", "no `skip: true` with limits")
                .unwrap_or(RouteClass::Unlimited),
            (_, false) => RouteClass::OwnLimits,
        };
        let path = path?;
        let own = |((by, plan), limits): (_, _)| LimitGroup {
            // Uses methods and path as they match: of two such routes, only the first ever applies.
            id: digest(&match &plan {
                None => format!("{methods:?} {path:?} {by:?}"),
                Some(Plan { claim, value, .. }) => format!("{methods:?} {path:?} {by:?} {claim:?} {value:?}"),
            }),
            by,
            plan,
            limits,
        };
        Some(Route {
            limits: limits.into_iter().map(own).collect(),
            signed_in,
            passes_authorization: passes.contains(&"authorization"),
            passes_cookie: passes.contains(&"cookie"),
            origin,
            max_body_bytes,
            ..Route::new(methods, path, class)
        })
    }

    fn wrong<T>(&mut self, name: &str, expected: &str) -> Option<T> {
        self.errors
            .push(format!("{}.{name}: expected {expected}", self.at));
        None
    }

    fn methods(&mut self) -> Vec<String> {
        const EXPECTED: &str = "a list of methods such as [\"GET\", \"POST\"]";
        let Some(value) = self.members.get("methods") else {
            return Vec::new();
        };
        let methods = value.as_array().map_or_else(Vec::new, |methods| {
            methods
                .iter()
                .filter_map(Value::as_str)
                .filter(|text| is_method(text))
                .collect()
        });
        if methods.is_empty() || value.as_array().map(Vec::len) != Some(methods.len()) {
            return self.wrong("methods", EXPECTED).unwrap_or_default();
        }
        // Servers answer HEAD like GET, and do the same work for it.
        let head = (methods.contains(&"GET") && !methods.contains(&"HEAD")).then_some("HEAD");
        methods.into_iter().chain(head).map(str::to_owned).collect()
    }

    /// Its limits, grouped by key and plan.
    fn limits(&mut self) -> Vec<(Key, Vec<Limits>)> {
        let mut groups: Vec<(Key, Vec<Limits>)> = Vec::new();
        let list = match self.members.get("limits") {
            None => return groups,
            Some(Value::Array(list)) if !list.is_empty() => list,
            Some(_) => {
                return self
                    .wrong(
                        "limits",
                        "a list such as [{\"by\": \"address\", \"limit\": 10, \"window\": \"1m\"}]",
                    )
                    .unwrap_or_default();
            }
        };
        for (place, json) in list.iter().enumerate() {
            let at = format!("limits[{place}]");
            let known = ["by", "limit", "window", "of"];
            for name in json.as_object().into_iter().flat_map(|members| members.keys()) {
                if !known.contains(&name.as_str()) {
                    let _: Option<()> = self.wrong(&format!("{at}.{name}"), &known.join(", "));
                }
            }
            let by = match json.get("by") {
                Some(Value::String(word)) if word == "address" => Some(CountedBy::Address),
                Some(Value::String(word)) if word == "any_address" => Some(CountedBy::AnyAddress),
                Some(Value::String(word)) if word == "user" => Some(CountedBy::User),
                Some(Value::Object(by)) if by.len() == 1 => {
                    let name = |kind| {
                        by.get(kind)
                            .and_then(Value::as_str)
                            .filter(|name| !name.is_empty())
                    };
                    let header = name("header").filter(|name| name.bytes().all(is_token));
                    let by_claim = name("claim").map(|name| CountedBy::Claim(name.to_owned()));
                    by_claim.or_else(|| Some(CountedBy::Header(header?.to_ascii_lowercase())))
                }
                _ => None,
            };
            let by = by.or_else(|| {
                self.wrong(
                    &format!("{at}.by"),
                    "`address`, `any_address`, `user`, {\"claim\": NAME} or {\"header\": NAME}",
                )
            });
            let limit = json.get("limit").and_then(|limit| whole_number(limit, MAX_LIMIT));
            let limit = limit.or_else(|| {
                self.wrong(
                    &format!("{at}.limit"),
                    &format!("a whole number from 1 to {MAX_LIMIT}"),
                )
            });
            let window = json.get("window").and_then(window_ms).or_else(|| {
                self.wrong(
                    &format!("{at}.window"),
                    "a duration up to a day, such as `30s`, `1m`, `2h` or `1d`",
                )
            });
            let plans = self.plans(&format!("{at}.of"), json.get("of"), by.as_ref());
            let (Some(by), Some(limit), Some(window_ms), Some(plans)) = (by, limit, window, plans) else {
                continue;
            };
            let mut add = |plan, limit: u32| {
                let limits = Limits {
                    address: limit,
                    // As many as ten /64s. Other keys have no prefix.
                    prefix: limit.saturating_mul(10).min(MAX_LIMIT),
                    window_ms,
                    algorithm: Algorithm::Fixed,
                };
                let key = (by.clone(), plan);
                match groups.iter_mut().find(|(other, _)| *other == key) {
                    Some((_, others)) => others.push(limits),
                    None => groups.push((key, vec![limits])),
                }
            };
            let others = plans.first().map(|(plan, _)| Plan {
                value: None,
                ..plan.clone()
            });
            add(others, limit);
            for (plan, limit) in plans {
                add(Some(plan), limit);
            }
        }
        if groups.iter().any(|(_, limits)| limits.len() > MAX_LIMITS) {
            let expected = format!("at most {MAX_LIMITS} limits with the same `by`");
            return self.wrong("limits", &expected).unwrap_or_default();
        }
        groups
    }

    /// The plans with other limits. `None` if there is an error.
    fn plans(&mut self, at: &str, of: Option<&Value>, by: Option<&CountedBy>) -> Option<Vec<(Plan, u32)>> {
        let Some(of) = of else { return Some(Vec::new()) };
        if by.is_some_and(|by| !matches!(by, CountedBy::User | CountedBy::Claim(_))) {
            return self.wrong(at, "no plans, unless `by` is `user` or a claim");
        }
        let claim = of
            .get("claim")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty());
        let limits = of
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| *name != "claim");
        let limits: Option<Vec<_>> = limits
            .map(|(name, limit)| Some((name.clone(), whole_number(limit, MAX_LIMIT)?)))
            .collect();
        let (Some(claim), Some(limits @ [_, ..])) = (claim, limits.as_deref()) else {
            let expected = format!(
                "a claim, and limits of plans from 1 to {MAX_LIMIT}, such as {{\"claim\": \"plan\", \"pro\": 600}}"
            );
            return self.wrong(at, &expected);
        };
        let others: Vec<_> = limits.iter().map(|(name, _)| name.clone()).collect();
        let plan = |(name, limit): &(String, u32)| {
            let (claim, value, others) = (claim.to_owned(), Some(name.clone()), others.clone());
            (Plan { claim, value, others }, *limit)
        };
        Some(limits.iter().map(plan).collect())
    }

    /// A list of some of these words.
    fn words(&mut self, name: &str, words: &[&'static str]) -> Vec<&'static str> {
        let Some(value) = self.members.get(name) else {
            return Vec::new();
        };
        let chosen = value.as_array().and_then(|chosen| {
            let known = |chosen: &Value| words.iter().copied().find(|word| chosen.as_str() == Some(word));
            chosen.iter().map(known).collect()
        });
        chosen.unwrap_or_else(|| {
            let expected: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
            let expected = format!("a list of {}", expected.join(" and "));
            self.wrong(name, &expected).unwrap_or_default()
        })
    }
}

/// A whole number from 1 to `max`.
fn whole_number(value: &Value, max: u32) -> Option<u32> {
    let number = u32::try_from(value.as_u64()?).ok()?;
    (1..=max).contains(&number).then_some(number)
}

/// The length of a window in milliseconds: a whole number with a unit, up to [`MAX_WINDOW_MS`].
fn window_ms(value: &Value) -> Option<u64> {
    let text = value.as_str()?;
    let unit = text.chars().last()?;
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let length = number.checked_mul(seconds)?.checked_mul(1000)?;
    (1..=MAX_WINDOW_MS).contains(&length).then_some(length)
}

/// The clients that may send requests to a path of the origin through the edge, independent of the configured routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// Any client.
    Public,
    /// Clients of a development stack, while development mode is on.
    Development,
    /// No client. Only the edge itself sends requests to this path.
    Private,
}

/// The exposure of a path. It is the same for every spelling of the path that a server behind the edge might accept.
pub fn exposure(path: &str) -> Exposure {
    let path = normalized(path);
    if is_below(&path, "/api/edge/") {
        Exposure::Private
    } else if is_below(&path, "/api/dev/") {
        Exposure::Development
    } else {
        Exposure::Public
    }
}

fn is_below(path: &str, prefix: &str) -> bool {
    path.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// The path as a server behind the edge might interpret it: percent-decoded, with `\` as `/`, without empty and dot
/// segments, and without path parameters. Java's servers remove those, so that `/public/..;/admin` is `/admin`. It is used
/// only to classify requests, so that another spelling of a path has the same policy. The forwarded path is unchanged.
fn normalized(path: &str) -> std::borrow::Cow<'_, str> {
    if !path.contains(['%', '\\', ';']) && !path.contains("//") && !path.contains("/.") {
        return path.into();
    }
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split(['/', '\\']) {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let directory = decoded.ends_with(['/', '\\']) && !segments.is_empty();
    format!("/{}{}", segments.join("/"), if directory { "/" } else { "" }).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn default_routes() -> Routes {
        "POST /api/jobs/".parse().unwrap()
    }

    /// The exposure of a path with the default routes.
    fn reached(path: &str) -> Exposure {
        match default_routes().find("GET", path) {
            Found::Route(_) => exposure(path),
            Found::OtherSpelling | Found::None => Exposure::Private,
        }
    }

    #[test]
    fn spellings_of_a_path_do_not_expose_private_routes() {
        let report = crate::counts::PATH;
        for path in [
            report,
            "/api//edge/counts",
            "/api/%65dge/counts",
            "/api/edge%2Fcounts",
            "/api/edge/",
            "/api/EDGE/counts",
            "/api/jobs/%2e%2e/edge/counts",
            "/admin/holders/x",
            "/admin/usage/events",
            "/ADMIN/audit-log",
            "/api/%2e%2e/admin/audit-log",
            "/api/jobs/../../admin/holders/x/plan",
            "/worker/jobs/1/complete",
            "/console",
            "/console/jobs/1/cancel",
            "/api/../console",
            "/api/%2e%2e/console",
            "/api/..%2fadmin",
            "/api/..%5cadmin",
            "/api/%2e%2e%2f%2e%2e%2fworker/",
            "/api",
            "/",
            "",
        ] {
            assert_eq!(reached(path), Exposure::Private, "{path}");
        }
        for path in [
            "/api/dev/token",
            "/api//dev/token",
            "/api/%64ev/token",
            "/api/Dev/token",
            "/api/jobs/../dev/token",
            "/api/jobs%2f..%5Cdev%2ftoken",
            "/api/./dev/",
        ] {
            assert_eq!(reached(path), Exposure::Development, "{path}");
        }
        for path in [
            "/api/edges",
            "/api/jobs/edge/",
            "/api/edge",
            "/api/devices/",
            "/api/jobs/..",
            "/api/jobs/../",
            "/api/%zz/%c3%28",
        ] {
            let expected = if path == "/api/jobs/.." {
                Exposure::Private
            } else {
                Exposure::Public
            };
            assert_eq!(reached(path), expected, "{path}");
        }
    }

    fn class_by(routes: &Routes, method: &str, path: &str) -> Option<RouteClass> {
        match routes.find(method, path) {
            Found::Route(route) => Some(route.class),
            Found::OtherSpelling | Found::None => None,
        }
    }

    fn class(method: &str, path: &str) -> RouteClass {
        class_by(&default_routes(), method, path).unwrap()
    }

    #[test]
    fn submissions_are_limited_and_reads_are_not() {
        assert_eq!(class("POST", "/api/jobs/analysis"), RouteClass::Limited);
        assert_eq!(class("GET", "/api/jobs/17"), RouteClass::Other);
        assert_eq!(class("DELETE", "/api/jobs/17"), RouteClass::Other);
        assert_eq!(class("POST", "/api/usage"), RouteClass::Other);
    }

    #[test]
    fn another_spelling_of_a_path_has_the_same_policy() {
        for path in [
            "/api//jobs/analysis",
            "/api/%6aobs/analysis",
            "/api/%6Aobs%2Fanalysis",
            "/api/Jobs/analysis",
            "/api/JOBS/analysis",
        ] {
            assert_eq!(class("POST", path), RouteClass::Limited, "{path}");
        }
        for path in ["//api/jobs//x", "/API/jobs/x", "/%61pi/jobs/x"] {
            assert_eq!(
                default_routes().find("POST", path),
                Found::OtherSpelling,
                "{path}"
            );
        }
    }

    #[test]
    fn several_routes_and_any_method_can_be_configured() {
        let routes: Routes = "POST /api/jobs/, * /api/lanes,".parse().unwrap();
        for (method, path, class) in [
            ("GET", "/api/lanes", RouteClass::Limited),
            ("POST", "/api/jobs/x", RouteClass::Limited),
            ("GET", "/api/jobs/1", RouteClass::Other),
        ] {
            assert_eq!(class_by(&routes, method, path), Some(class));
        }
    }

    #[test]
    fn a_malformed_route_is_refused() {
        for text in [
            "/api/jobs/",
            "POST",
            "POST jobs",
            "post /api/jobs/",
            "POST /jobs/",
        ] {
            assert_eq!(
                text.parse::<Routes>(),
                Err(RouteError::Malformed(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn an_empty_route_list_is_refused() {
        for text in ["", ",", " , "] {
            assert_eq!(text.parse::<Routes>(), Err(RouteError::None), "{text}");
        }
    }

    fn routes(json: Value) -> Result<Routes, Vec<String>> {
        Routes::from_json("ROUTES", &json, &["shop"])
    }

    #[test]
    fn the_first_route_that_matches_decides() {
        let routes = routes(json!([
            {"methods": ["GET"], "path": "/v1/status", "skip": true},
            {"methods": ["POST", "DELETE"], "path": "/v1/*", "callers": "signed_in", "pass": ["authorization"]},
            {"path": "/v1/*", "callers": "anyone", "pass": ["cookie", "authorization"], "skip": false,
                "origin": "shop"},
        ]))
        .unwrap();
        let found = |method, path| match routes.find(method, path) {
            Found::Route(route) => routes.0.iter().position(|other| other == route),
            Found::OtherSpelling | Found::None => None,
        };
        for (method, path, place) in [
            ("GET", "/v1/status", Some(0)),
            ("HEAD", "/v1/status/", Some(0)),
            ("GET", "/v1/status/x", Some(2)),
            ("POST", "/v1/status", Some(1)),
            ("PUT", "/v1/", Some(2)),
            ("GET", "/v1", None),
            ("GET", "/v2/x", None),
            ("GET", "/v1/../admin", None),
            ("GET", "/v1/..;a=1/admin", None),
            ("GET", "/v1/status;a=1", Some(0)),
            ("GET", "/v1/x/%2e%2e;/status", Some(0)),
        ] {
            assert_eq!(found(method, path), place, "{method} {path}");
        }
        let [skipped, users, others] = &routes.0[..] else {
            panic!("three routes");
        };
        assert_eq!(
            (skipped.class, others.class),
            (RouteClass::Unlimited, RouteClass::Other)
        );
        assert_eq!((&users.origin, others.origin.as_deref()), (&None, Some("shop")));
        assert!(routes.use_default_origin());
        assert!(users.signed_in && users.passes_authorization && !users.passes_cookie);
        assert!(!others.signed_in && others.passes_authorization && others.passes_cookie);
    }

    #[test]
    fn limits_with_the_same_key_are_one_group() {
        let routes = |limit| {
            routes(json!([
                {"path": "/v1/*", "limits": [
                    {"by": "address", "limit": 10, "window": "1m"},
                    {"by": "user", "limit": 60, "window": "60s"},
                    {"by": "address", "limit": limit, "window": "1d"},
                    {"by": {"claim": "org.id"}, "limit": 5, "window": "2h"},
                ]},
                {"path": "/v2/*", "limits": [{"by": "address", "limit": 10, "window": "1m"}]},
            ]))
            .unwrap()
        };
        let some = routes(200);
        let (first, second) = (&some.0[0], &some.0[1]);
        assert_eq!(first.class, RouteClass::OwnLimits);
        let seen: Vec<Vec<_>> = first
            .limits
            .iter()
            .map(|group| {
                group
                    .limits
                    .iter()
                    .map(|limits| (limits.address, limits.window_ms))
                    .collect()
            })
            .collect();
        let expected = [
            vec![(10, 60_000), (200, 86_400_000)],
            vec![(60, 60_000)],
            vec![(5, 7_200_000)],
        ];
        assert_eq!(seen, expected);
        assert_eq!(some.claims().collect::<Vec<_>>(), ["org.id"]);
        let ids: std::collections::BTreeSet<_> = first
            .limits
            .iter()
            .chain(&second.limits)
            .map(|group| group.id)
            .collect();
        assert_eq!(ids.len(), 4, "each group has its own id");
        let id = first.limits[0].id;
        assert_eq!(
            routes(300).0[0].limits[0].id,
            id,
            "it does not depend on the limits"
        );
        assert_eq!(some.limits(id).map(<[Limits]>::len), Some(2));

        let errors = super::Routes::from_json(
            "ROUTES",
            &json!([
                {"path": "/a", "skip": true, "limits": [{"by": "user", "limit": 1, "window": "1m"}]},
                {"path": "/b", "limits": []},
                {"path": "/c", "limits": [{"by": {"claim": ""}, "limit": 0, "window": "2d", "per": 1}, 5]},
            ]),
            &[],
        )
        .unwrap_err();
        let starts = [
            "ROUTES[0].skip",
            "ROUTES[1].limits:",
            "ROUTES[2].limits[0].per",
            "ROUTES[2].limits[0].by",
            "ROUTES[2].limits[0].limit",
            "ROUTES[2].limits[0].window",
            "ROUTES[2].limits[1].by",
            "ROUTES[2].limits[1].limit",
            "ROUTES[2].limits[1].window",
        ];
        assert_eq!(errors.len(), starts.len(), "{errors:?}");
        for (error, start) in errors.iter().zip(starts) {
            assert!(error.starts_with(start), "{error}");
        }
    }

    #[test]
    fn plans_have_limits_of_their_own() {
        let routes = routes(json!([{"path": "/v1/*", "limits": [
            {"by": "user", "limit": 60, "window": "1m", "of": {"claim": "plan", "pro": 600, "team": 6000}},
            {"by": "user", "limit": 900, "window": "1d", "of": {"claim": "plan", "pro": 9000, "team": 9001}},
            {"by": {"header": "X-API-Key"}, "limit": 5, "window": "1m"},
        ]}]))
        .unwrap();
        let groups = &routes.0[0].limits;
        let limits = |plan: Value| -> Vec<u32> {
            let claims = BTreeMap::from([("plan".to_owned(), plan)]);
            let applies = |group: &&LimitGroup| group.plan.as_ref().is_some_and(|plan| plan.is_of(&claims));
            let applying: Vec<_> = groups.iter().filter(applies).collect();
            assert_eq!(applying.len(), 1, "each user has one plan");
            applying[0].limits.iter().map(|limits| limits.address).collect()
        };
        assert_eq!(limits(json!("pro")), [600, 9000]);
        assert_eq!(limits(json!("team")), [6000, 9001]);
        for other in [
            json!("free"),
            json!("PRO"),
            json!("claim"),
            json!(5),
            json!(["pro"]),
            Value::Null,
        ] {
            assert_eq!(limits(other.clone()), [60, 900], "{other}");
        }
        let ids: std::collections::BTreeSet<_> = groups.iter().map(|group| group.id).collect();
        assert_eq!((groups.len(), ids.len()), (4, 4));
        let last = &groups[3];
        assert_eq!(
            (&last.by, &last.plan),
            (&CountedBy::Header("x-api-key".to_owned()), &None)
        );
        assert!(routes.claims().all(|claim| claim == "plan"));
    }

    #[test]
    fn errors_of_plans_and_headers_name_their_member() {
        let limit = |by: Value, of: Value| json!({"by": by, "limit": 1, "window": "1m", "of": of});
        let pro = json!({"claim": "plan", "pro": 1});
        for (limits, start) in [
            (
                limit(json!("address"), pro.clone()),
                "ROUTES[0].limits[0].of: expected no plans",
            ),
            (
                limit(json!({"header": "a"}), pro.clone()),
                "ROUTES[0].limits[0].of: expected no plans",
            ),
            (
                limit(json!("user"), json!({"pro": 1})),
                "ROUTES[0].limits[0].of: expected a claim",
            ),
            (
                limit(json!("user"), json!({"claim": "plan"})),
                "ROUTES[0].limits[0].of: expected a claim",
            ),
            (
                limit(json!("user"), json!({"claim": "plan", "pro": 0})),
                "ROUTES[0].limits[0].of: expected",
            ),
            (
                limit(json!("user"), json!(5)),
                "ROUTES[0].limits[0].of: expected a claim",
            ),
            (
                limit(json!({"header": "a b"}), Value::Null),
                "ROUTES[0].limits[0].by",
            ),
        ] {
            let errors = routes(json!([{"path": "/a", "limits": [limits]}])).unwrap_err();
            assert!(errors[0].starts_with(start), "{errors:?}");
        }
    }

    #[test]
    fn all_errors_of_routes_name_their_member() {
        let errors = routes(json!([
            {"path": "/v1/*"},
            {"methods": ["get"], "path": "v1", "callers": "users", "skip": 1, "pass": ["cookies"], "limit": 5,
                "origin": "other", "max_body_bytes": 0},
            7,
            {},
        ]))
        .unwrap_err();
        let starts = [
            "ROUTES[1].limit: this member does not exist",
            "ROUTES[1].methods: expected a list of methods",
            "ROUTES[1].path: expected a path",
            "ROUTES[1].callers: expected `anyone` or `signed_in`",
            "ROUTES[1].skip: expected true or false",
            "ROUTES[1].pass: expected a list of `authorization` and `cookie`",
            "ROUTES[1].origin: expected a name in ORIGINS: `shop`",
            "ROUTES[1].max_body_bytes: expected a whole number",
            "ROUTES[2]: expected an object",
            "ROUTES[3].path: expected a path",
        ];
        assert_eq!(errors.len(), starts.len(), "{errors:?}");
        for (error, start) in errors.iter().zip(starts) {
            assert!(error.starts_with(start), "{error}");
        }
        for wrong in [
            json!([]),
            json!({}),
            json!("x"),
            json!([{"path": "/a/../b"}]),
            json!([{"path": "/a*b"}]),
            json!([{"path": "/users/:id"}]),
            json!([{"path": "/users/{id}/*"}]),
            json!([{"path": "/é*"}]),
            json!([{"path": "/a b"}]),
            json!([{"path": "/*", "skip": true}, {"path": "/admin/*", "callers": "signed_in"}]),
            json!([{"path": "/a/"}, {"methods": ["GET"], "path": "/A"}]),
            json!([{"methods": ["GET"], "path": "/a*"}, {"methods": ["HEAD"], "path": "/ab"}]),
        ] {
            assert_eq!(routes(wrong.clone()).unwrap_err().len(), 1, "{wrong}");
        }
    }

    #[test]
    fn a_route_that_an_earlier_one_only_partly_covers_is_valid() {
        for json in [
            json!([{"path": "/admin/*"}, {"path": "/*"}]),
            json!([{"methods": ["GET"], "path": "/*"}, {"path": "/*"}]),
            json!([{"methods": ["GET"], "path": "/*"}, {"methods": ["GET", "POST"], "path": "/a"}]),
            json!([{"path": "/a"}, {"path": "/a*"}]),
        ] {
            assert!(routes(json.clone()).is_ok(), "{json}");
        }
    }

    proptest! {
        #[test]
        fn matching_an_arbitrary_path_does_not_panic(path in ".{0,80}") {
            default_routes().find("POST", &path);
            routes(json!([{"path": "/v1/users/"}])).unwrap().find("POST", &path);
        }

        #[test]
        fn spellings_of_a_path_do_not_bypass_its_route(
            escape in proptest::collection::vec(0..3_usize, 12), slashes in 1..3_usize,
        ) {
            let routes = routes(json!([{"path": "/v1/invoices", "callers": "signed_in"}, {"path": "/v1/*"}])).unwrap();
            let spelt: String = "/v1/invoices".bytes().zip(escape).map(|(byte, escape)| match escape {
                0 => (byte as char).to_string(),
                1 => (byte as char).to_ascii_uppercase().to_string(),
                _ => format!("%{byte:02X}"),
            }).collect();
            let spelt = format!("{}{}", "/".repeat(slashes - 1), spelt);
            match routes.find("GET", &spelt) {
                Found::Route(route) => prop_assert!(route.signed_in, "{}", spelt),
                Found::OtherSpelling => {}
                Found::None => prop_assert!(false, "{} would be forwarded as if no route had it", spelt),
            }
        }

        #[test]
        fn percent_encoding_does_not_bypass_a_limit(escape in proptest::collection::vec(any::<bool>(), 18)) {
            let path: String = "/api/jobs/analysis"
                .bytes()
                .zip(escape)
                .map(|(byte, escape)| if escape { format!("%{byte:02x}") } else { (byte as char).to_string() })
                .collect();
            let routes = default_routes();
            match routes.find("POST", &path) {
                Found::Route(route) => prop_assert_eq!(route.class, RouteClass::Limited),
                found => prop_assert_eq!(found, Found::OtherSpelling),
            }
        }
    }
}

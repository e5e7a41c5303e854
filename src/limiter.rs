//! Rate limiting: anonymous requests by address and, if that is configured, users' submissions by user.
//!
//! This isolate's memory decides on a submission if it can, otherwise the counting object, otherwise the native
//! limiter. An object that has failed several times in a row is skipped for a while, so that requests do not wait for
//! it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use js_sys::{Boolean, Object, Reflect};
use serde_json::{Value, json};
use wasm_bindgen::{JsCast, JsValue};
use web_sys::Request;
use weir_limiter::bindings::CounterNamespace;
use weir_policy::address::AddressKey;
use weir_policy::circuit_breaker::CircuitBreaker;
use weir_policy::limit_cache::LimitCache;
use weir_policy::limit_set::{Counts, Limits, Scope, SetResult};
use weir_policy::route::{CountedBy, LimitGroup, Plan};
use weir_policy::token::User;
use weir_policy::window::LimitResult;

use crate::bindings::{Bindings, IncomingRequest, NativeLimiter, object};
use crate::clock;
use crate::config::CounterFallback;
use crate::context::RequestContext;
use crate::events::Event;
use crate::panics;
use crate::rate_limit_fields::{NamedPolicy, PolicyStatus};
use crate::shard::{Shard, of_edge, shard};
use crate::timeout::{WaitError, with_timeout};

/// A denial by the native limiter is remembered for this long, in milliseconds. It is the shortest period of a native
/// limiter.
const NATIVE_DENIAL_MS: u64 = 10_000;

/// The name of the policy for requests with invalid tokens.
const BAD_TOKEN: &str = "bad-token";

/// The maximum number of addresses and users that an isolate remembers, and of prefixes: a few megabytes of its 128.
const MAX_CACHED_ADDRESSES: usize = 20_000;

/// The edge, the group of a route's own limits, the place of the limit in it, and the address, user or prefix.
type Remembered = (Option<u32>, Option<u64>, usize, AddressKey);

thread_local! {
    static ADDRESSES: RefCell<LimitCache<Remembered>> = RefCell::new(LimitCache::new(MAX_CACHED_ADDRESSES));
    static PREFIXES: RefCell<LimitCache<Remembered>> = RefCell::new(LimitCache::new(MAX_CACHED_ADDRESSES));
    static NATIVE_DENIALS: RefCell<LimitCache<Remembered>> = RefCell::new(LimitCache::new(MAX_CACHED_ADDRESSES));
    static BREAKERS: RefCell<BTreeMap<String, CircuitBreaker>> = const { RefCell::new(BTreeMap::new()) };
    static READS: IsolateCount = const { IsolateCount::new("reads") };
    static BAD_TOKENS: IsolateCount = const { IsolateCount::new("bad-tokens") };
}

/// A count of this isolate alone for each edge, under the name by which it outlives a panic.
struct IsolateCount {
    name: &'static str,
    counts: RefCell<BTreeMap<Option<u32>, Rc<RefCell<Counts>>>>,
}

impl IsolateCount {
    const fn new(name: &'static str) -> Self {
        let counts = RefCell::new(BTreeMap::new());
        Self { name, counts }
    }

    /// Counts a request. `None` if there is no room for another address. The native limiter also counts it.
    fn take(&self, edge: Option<u32>, limits: Limits, key: AddressKey) -> Option<SetResult> {
        self.of(edge)
            .borrow_mut()
            .take(&[limits], key, 1, MAX_CACHED_ADDRESSES, clock::now_ms())
    }

    /// The denial of [`Self::take`], without counting.
    fn denial(&self, edge: Option<u32>, limits: Limits, key: AddressKey) -> Option<SetResult> {
        self.of(edge).borrow().denial(&[limits], key, clock::now_ms())
    }

    fn of(&self, edge: Option<u32>) -> Rc<RefCell<Counts>> {
        let mut counts = self.counts.borrow_mut();
        let counts = counts.entry(edge).or_insert_with(|| {
            let counts = Rc::default();
            panics::preserve(&of_edge(self.name, edge), &counts);
            counts
        });
        Rc::clone(counts)
    }
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateLimitDecision {
    Admitted(PolicyStatus),
    Denied(PolicyStatus),
    /// Neither the object nor the native limiter could decide, and the configuration refuses such requests.
    Unavailable,
}

/// The policies of a class of requests, with their names in the rate limit fields.
#[derive(Clone, Copy, Debug)]
struct NamedLimits {
    address: &'static str,
    prefix: &'static str,
    limits: Limits,
}

impl NamedLimits {
    fn policy(&self, scope: Scope) -> NamedPolicy {
        NamedPolicy {
            name: match scope {
                Scope::Address => self.address,
                Scope::Prefix => self.prefix,
            },
            policy: self.limits.policy(scope),
        }
    }

    fn status(&self, scope: Scope, result: LimitResult) -> PolicyStatus {
        PolicyStatus {
            named: self.policy(scope),
            result: Some(result),
        }
    }

    /// The status if the remaining number is unknown.
    fn unknown_status(&self) -> PolicyStatus {
        PolicyStatus {
            named: self.policy(Scope::Address),
            result: None,
        }
    }
}

/// Limits that are counted exactly: one or several at once.
struct Exact<'a> {
    /// The edge that counts.
    edge: Option<u32>,
    /// The group of a route's own limits.
    group: Option<u64>,
    /// The policies' names for an address or user, and for a prefix.
    names: (&'static str, &'static str),
    limits: &'a [Limits],
    /// Decides when no counting object answers.
    fallback: fn(&Bindings) -> Option<NativeLimiter>,
}

impl Exact<'_> {
    fn named(&self, index: usize) -> Option<NamedLimits> {
        let (address, prefix) = self.names;
        let limits = *self.limits.get(index)?;
        Some(NamedLimits {
            address,
            prefix,
            limits,
        })
    }

    /// The key under which the isolate remembers a limit.
    fn remembered(&self, index: usize, key: AddressKey) -> Remembered {
        (self.edge, self.group, index, key)
    }
}

/// Decides on an anonymous submission, exactly.
pub(crate) async fn submission(
    context: &RequestContext<'_>,
    request: &IncomingRequest,
    key: AddressKey,
) -> RateLimitDecision {
    let limits = Exact {
        edge: context.config.edge,
        group: None,
        names: ("anon", "anon-prefix"),
        limits: &[context.config.submissions],
        fallback: Bindings::submission_limiter,
    };
    exact(context, request, key, &limits).await
}

/// Decides on a user's submission, exactly.
pub(crate) async fn user(
    context: &RequestContext<'_>,
    request: &IncomingRequest,
    key: AddressKey,
    limits: Limits,
) -> RateLimitDecision {
    let limits = Exact {
        edge: context.config.edge,
        group: None,
        names: ("user", "user"),
        limits: &[limits],
        fallback: Bindings::user_limiter,
    };
    exact(context, request, key, &limits).await
}

/// Decides on a request by a route's own limits, exactly. `user` is the user that sent it, if one did. Returns `None` if none
/// of the limits applies to the caller.
///
/// The limits of a group are counted together. Groups are counted one at a time, by different objects. If a later one
/// denies the request, the earlier ones have counted it.
pub(crate) async fn own(
    context: &RequestContext<'_>,
    request: &IncomingRequest,
    groups: &[LimitGroup],
    address: AddressKey,
    user: Option<&User>,
) -> Option<RateLimitDecision> {
    let mut nearest: Option<PolicyStatus> = None;
    for group in groups {
        let (key, names) = match (&group.by, user) {
            (CountedBy::AnyAddress, _) | (CountedBy::Address, None) => {
                (address, ("address", "address-prefix"))
            }
            (CountedBy::User, Some(user)) => (AddressKey::user(&user.identity.holder), ("user", "user")),
            (CountedBy::Claim(name), Some(user)) => match user.claims.get(name) {
                Some(value) => (claim_key(context, user, value), ("claim", "claim")),
                None => continue,
            },
            (CountedBy::Header(name), _) => match request.unchecked_ref::<Request>().headers().get(name) {
                // Only a hash of it is stored.
                Ok(Some(value)) => (AddressKey::own(&value), ("header", "header")),
                Ok(None) | Err(_) => continue,
            },
            (CountedBy::Address, Some(_)) | (CountedBy::User | CountedBy::Claim(_), None) => continue,
        };
        let has_plan = |plan: &Plan| user.is_some_and(|user| plan.is_of(&user.claims));
        if !group.plan.as_ref().is_none_or(has_plan) {
            continue;
        }
        let limits = Exact {
            edge: context.config.edge,
            group: Some(group.id),
            names,
            limits: &group.limits,
            fallback: match group.by {
                CountedBy::Address | CountedBy::AnyAddress => Bindings::submission_limiter,
                CountedBy::User | CountedBy::Claim(_) | CountedBy::Header(_) => Bindings::user_limiter,
            },
        };
        match exact(context, request, key, &limits).await {
            RateLimitDecision::Admitted(status) => {
                if nearest.is_none_or(|nearest| status.remaining() < nearest.remaining()) {
                    nearest = Some(status);
                }
            }
            refused => return Some(refused),
        }
    }
    nearest.map(RateLimitDecision::Admitted)
}

/// The key of a claim. Equal claims of two issuers are counted separately.
fn claim_key(context: &RequestContext<'_>, user: &User, value: &Value) -> AddressKey {
    match context.config.issuers.namespace_of(&user.identity) {
        Some(namespace) => AddressKey::claim(&json!([namespace.prefix(), value])),
        // Wrapped as well, because a value may be an array that looks like the one above.
        None => AddressKey::claim(&json!([null, value])),
    }
}

async fn exact(
    context: &RequestContext<'_>,
    request: &IncomingRequest,
    key: AddressKey,
    limits: &Exact<'_>,
) -> RateLimitDecision {
    let now = clock::now_ms();
    let unknown = limits.named(0).map(|named| named.unknown_status());
    // No group is without a limit.
    let Some(unknown) = unknown else {
        return RateLimitDecision::Unavailable;
    };
    let denied = (0..limits.limits.len()).find_map(|index| {
        let (scope, denial) = cached_denial(limits, index, key, now)?;
        Some(limits.named(index)?.status(scope, denial))
    });
    if let Some(status) = denied {
        return RateLimitDecision::Denied(status);
    }
    if NATIVE_DENIALS
        .with_borrow(|cache| cache.denial(limits.remembered(0, key), now))
        .is_some()
    {
        return RateLimitDecision::Denied(unknown);
    }

    match ask_counter(context, request, limits.group, key).await {
        Ok(Some(decided)) => {
            let Some(named) = limits.named(decided.index) else {
                return RateLimitDecision::Unavailable;
            };
            // Uses the time before the call, so that a denial is forgotten too early rather than remembered too long.
            remember(limits, key, &decided, &named.limits, now);
            let status = named.status(decided.scope, decided.result);
            if decided.result.admitted {
                RateLimitDecision::Admitted(status)
            } else {
                RateLimitDecision::Denied(status)
            }
        }
        Ok(None) => {
            context.report(Event::CounterFull, "raise COUNTER_SHARDS");
            without_counter(context, unknown, key, limits).await
        }
        Err(error) => {
            context.report(Event::CounterUnavailable, &error.reason());
            without_counter(context, unknown, key, limits).await
        }
    }
}

fn cached_denial(
    limits: &Exact<'_>,
    index: usize,
    key: AddressKey,
    now: u64,
) -> Option<(Scope, LimitResult)> {
    let by_address = ADDRESSES.with_borrow(|cache| cache.denial(limits.remembered(index, key), now));
    let by_prefix =
        || PREFIXES.with_borrow(|cache| cache.denial(limits.remembered(index, key.prefix()?), now));
    by_address
        .map(|denial| (Scope::Address, denial))
        .or_else(|| Some((Scope::Prefix, by_prefix()?)))
}

fn remember(exact: &Exact<'_>, key: AddressKey, decided: &SetResult, limits: &Limits, now: u64) {
    let SetResult { index, scope, result } = decided;
    let limit = limits.policy(*scope).limit;
    let (cache, key) = match (scope, key.prefix()) {
        (Scope::Prefix, Some(prefix)) => (&PREFIXES, prefix),
        _ => (&ADDRESSES, key),
    };
    cache.with_borrow_mut(|cache| cache.remember(exact.remembered(*index, key), result, limit, now));
}

/// The object's decision; `None` if it has no room for another address.
async fn ask_counter(
    context: &RequestContext<'_>,
    request: &IncomingRequest,
    group: Option<u64>,
    key: AddressKey,
) -> Result<Option<SetResult>, WaitError> {
    let namespace = context
        .bindings
        .address_counters()
        .ok_or_else(|| WaitError::Failed("the binding ADDRESS_COUNTERS is missing".into()))?;
    let location = request.cf();
    let continent = location.as_ref().and_then(|location| location.continent());
    let longitude = location
        .as_ref()
        .and_then(|location| location.longitude())
        .and_then(|degrees| degrees.parse().ok());
    let config = context.config;
    let mut shard = shard(key, group, config.shards, continent.as_deref(), longitude);
    shard.name = of_edge(&shard.name, config.edge);
    // Each user has an object, and one breaker is enough for all of them.
    let breaker_name = if shard.hint.is_none() { "" } else { &shard.name };
    if !breaker(breaker_name, |breaker| breaker.may_ask(clock::now_ms())) {
        return Err(WaitError::Failed("skipped after failures in a row".into()));
    }
    let answer = ask_shard(context, &namespace, &shard, key).await;
    breaker(breaker_name, |breaker| match &answer {
        Ok(_) => breaker.succeeded(),
        Err(_) => breaker.failed(clock::now_ms()),
    });
    answer
}

/// Calls `change` with the breaker of a counting object. Each object has a breaker.
fn breaker<R>(name: &str, change: impl FnOnce(&mut CircuitBreaker) -> R) -> R {
    BREAKERS.with_borrow_mut(|breakers| match breakers.get_mut(name) {
        Some(breaker) => change(breaker),
        None => change(breakers.entry(name.to_owned()).or_default()),
    })
}

async fn ask_shard(
    context: &RequestContext<'_>,
    namespace: &CounterNamespace,
    shard: &Shard,
    key: AddressKey,
) -> Result<Option<SetResult>, WaitError> {
    let stub = match shard.hint {
        Some(hint) => namespace.get_by_name_with_options(&shard.name, &object("locationHint", &hint.into())),
        None => namespace.get_by_name(&shard.name),
    };
    let (kind, upper, lower) = key.to_parts();
    let taken = stub
        .and_then(|stub| stub.take(kind, upper, lower, 1))
        .map_err(WaitError::Failed)?;
    let packed = with_timeout(taken, context.config.counter_timeout_ms).await?;
    let result = packed.as_f64().and_then(SetResult::unpack);
    result.ok_or_else(|| WaitError::Failed("the counting object returned no result".into()))
}

/// Decides on a submission without the object: approximately, by the address or user alone, but never without a limit.
async fn without_counter(
    context: &RequestContext<'_>,
    status: PolicyStatus,
    key: AddressKey,
    limits: &Exact<'_>,
) -> RateLimitDecision {
    let native_key = match limits.group {
        Some(id) => format!("{id:016x}:{key}"),
        None => key.to_string(),
    };
    let native_key = of_edge(&native_key, limits.edge);
    let native = (limits.fallback)(context.bindings);
    match ask_native(native, &native_key, context.config.counter_timeout_ms).await {
        Ok(true) => RateLimitDecision::Admitted(status),
        Ok(false) => {
            let denial = LimitResult {
                admitted: false,
                used: 0,
                reset_after_ms: NATIVE_DENIAL_MS,
            };
            NATIVE_DENIALS.with_borrow_mut(|cache| {
                cache.remember(limits.remembered(0, key), &denial, 0, clock::now_ms());
            });
            RateLimitDecision::Denied(status)
        }
        Err(error) => {
            context.report(Event::LimiterUnavailable, &error.reason());
            match context.config.counter_fallback {
                CounterFallback::Open => RateLimitDecision::Admitted(status),
                CounterFallback::Closed => RateLimitDecision::Unavailable,
            }
        }
    }
}

/// Decides on any other anonymous request without calling an object. The isolate's count knows the remaining number and
/// the reset time, and the native limiter also counts the data centre's other isolates.
pub(crate) async fn read(context: &RequestContext<'_>, key: AddressKey) -> RateLimitDecision {
    let limits = NamedLimits {
        address: "anon-read",
        prefix: "anon-read-prefix",
        limits: context.config.reads,
    };
    let counted = READS.with(|reads| reads.take(context.config.edge, limits.limits, key));
    loose(context, limits, counted, &key.to_string()).await
}

/// Decides on a request with an invalid token. It is counted separately from the address's other requests. So a page
/// learns that its token has expired even if other clients of the address use up the anonymous limit.
pub(crate) async fn bad_token(context: &RequestContext<'_>, key: AddressKey) -> RateLimitDecision {
    let limits = NamedLimits {
        address: BAD_TOKEN,
        prefix: "bad-token-prefix",
        limits: context.config.reads,
    };
    let counted = BAD_TOKENS.with(|bad| bad.take(context.config.edge, limits.limits, key));
    loose(context, limits, counted, &format!("{BAD_TOKEN}:{key}")).await
}

/// Whether an address has sent so many invalid tokens to this isolate that [`bad_token`] denies the next one.
pub(crate) fn has_sent_bad_tokens(context: &RequestContext<'_>, key: AddressKey) -> bool {
    let limits = context.config.reads;
    BAD_TOKENS
        .with(|bad| bad.denial(context.config.edge, limits, key))
        .is_some()
}

async fn loose(
    context: &RequestContext<'_>,
    limits: NamedLimits,
    counted: Option<SetResult>,
    native_key: &str,
) -> RateLimitDecision {
    let status = counted.map_or_else(
        || limits.unknown_status(),
        |counted| limits.status(counted.scope, counted.result),
    );
    if counted.is_some_and(|counted| !counted.result.admitted) {
        return RateLimitDecision::Denied(status);
    }
    let native = context.bindings.read_limiter();
    match ask_native(native, native_key, context.config.counter_timeout_ms).await {
        Ok(false) => RateLimitDecision::Denied(limits.unknown_status()),
        // These requests are cheap, so the isolate's count is enough.
        Ok(true) | Err(_) => RateLimitDecision::Admitted(status),
    }
}

async fn ask_native(limiter: Option<NativeLimiter>, key: &str, timeout_ms: u32) -> Result<bool, WaitError> {
    let limiter = limiter.ok_or_else(|| WaitError::Failed("the rate limiting binding is missing".into()))?;
    let options: Object = object("key", &JsValue::from_str(key));
    let answer = with_timeout(limiter.limit(&options).map_err(WaitError::Failed)?, timeout_ms).await?;
    let success = Reflect::get(&answer, &"success".into()).map_err(WaitError::Failed)?;
    success
        .dyn_ref::<Boolean>()
        .map(Boolean::value_of)
        .ok_or_else(|| WaitError::Failed("the native limiter returned no boolean".into()))
}

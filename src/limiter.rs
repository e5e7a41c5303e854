//! Rate limiting anonymous requests.
//!
//! A submission is decided by what this isolate remembers, else by the counting object, else by the native limiter:
//! each one is asked only if the one before cannot tell.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Boolean, Object, Reflect};
use wasm_bindgen::{JsCast, JsValue};
use weir_policy::address::AddressKey;
use weir_policy::limit_cache::LimitCache;
use weir_policy::window::{Counters, KnownUsage, LimitResult, Policy};

use crate::bindings::{IncomingRequest, NativeLimiter, object};
use crate::clock;
use crate::config::CounterFallback;
use crate::context::RequestContext;
use crate::events::Event;
use crate::panics;
use crate::rate_limit_fields::{NamedPolicy, PolicyStatus};
use crate::shard::shard;
use crate::timeout::{WaitError, with_timeout};

/// How many addresses an isolate remembers: a few megabytes of its 128.
const MAX_CACHED_ADDRESSES: usize = 20_000;

thread_local! {
    static CACHE: RefCell<LimitCache> = RefCell::new(LimitCache::new(MAX_CACHED_ADDRESSES));
    static READS: RefCell<Option<Rc<RefCell<Counters>>>> = const { RefCell::new(None) };
}

/// The decision on an anonymous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateLimitDecision {
    Admitted(PolicyStatus),
    Denied(PolicyStatus),
    /// Neither object nor native limiter could decide, and the configuration says to refuse such requests.
    Unavailable,
}

/// Decides on a submission, exactly.
pub(crate) async fn submission(
    context: &RequestContext<'_>,
    request: &IncomingRequest,
    key: AddressKey,
) -> RateLimitDecision {
    let now = clock::now_ms();
    let named = NamedPolicy {
        name: "anon",
        policy: context.config.submissions,
    };
    let (denial, known) = CACHE.with_borrow(|cache| (cache.denial(key, now), cache.known_usage(key, now)));
    if let Some(denial) = denial {
        return RateLimitDecision::Denied(PolicyStatus {
            named,
            result: Some(denial),
        });
    }

    match ask_counter(context, request, key, known).await {
        Ok(result) => {
            // With the time before the call, a denial is forgotten too early rather than remembered too long.
            CACHE.with_borrow_mut(|cache| cache.remember(key, &result, named.policy.limit, now));
            let status = PolicyStatus {
                named,
                result: Some(result),
            };
            if result.admitted {
                RateLimitDecision::Admitted(status)
            } else {
                RateLimitDecision::Denied(status)
            }
        }
        Err(error) => {
            context.report(Event::CounterUnavailable, &error.reason());
            submission_without_counter(context, named, key).await
        }
    }
}

async fn ask_counter(
    context: &RequestContext<'_>,
    request: &IncomingRequest,
    key: AddressKey,
    known: Option<KnownUsage>,
) -> Result<LimitResult, WaitError> {
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
    let shard = shard(key, context.config.shards, continent.as_deref(), longitude);
    let stub = match shard.hint {
        Some(hint) => namespace.get_by_name_with_options(&shard.name, &object("locationHint", &hint.into())),
        None => namespace.get_by_name(&shard.name),
    };
    let (kind, upper, lower) = key.to_parts();
    let (known_used, known_reset_at_ms) = known.map_or((0, 0), |known| (known.used, known.reset_at_ms));
    let taken = stub
        .and_then(|stub| stub.take(kind, upper, lower, known_used, known_reset_at_ms as f64))
        .map_err(WaitError::Failed)?;
    let packed = with_timeout(taken, context.config.counter_timeout_ms).await?;
    let result = packed.as_f64().and_then(LimitResult::unpack);
    result.ok_or_else(|| WaitError::Failed("the counting object returned no result".into()))
}

/// Decides on a submission without the object: approximately, but never without a limit.
async fn submission_without_counter(
    context: &RequestContext<'_>,
    named: NamedPolicy,
    key: AddressKey,
) -> RateLimitDecision {
    let status = PolicyStatus { named, result: None };
    match ask_native(
        context.bindings.submission_limiter(),
        key,
        context.config.counter_timeout_ms,
    )
    .await
    {
        Ok(true) => RateLimitDecision::Admitted(status),
        Ok(false) => RateLimitDecision::Denied(status),
        Err(error) => {
            context.report(Event::LimiterUnavailable, &error.reason());
            match context.config.counter_fallback {
                CounterFallback::Open => RateLimitDecision::Admitted(status),
                CounterFallback::Closed => RateLimitDecision::Unavailable,
            }
        }
    }
}

/// Decides on any other anonymous request without calling an object: by the isolate's own count, which knows how
/// much is left until when, and by the native limiter, which also counts the data centre's other isolates.
pub(crate) async fn read(context: &RequestContext<'_>, key: AddressKey) -> RateLimitDecision {
    let named = NamedPolicy {
        name: "anon-read",
        policy: context.config.reads,
    };
    let result = count_read(context.config.reads, key);
    let status = PolicyStatus {
        named,
        result: Some(result),
    };
    if !result.admitted {
        return RateLimitDecision::Denied(status);
    }
    match ask_native(
        context.bindings.read_limiter(),
        key,
        context.config.counter_timeout_ms,
    )
    .await
    {
        Ok(false) => RateLimitDecision::Denied(PolicyStatus { named, result: None }),
        // Reads cost little: the isolate's own count is limit enough.
        Ok(true) | Err(_) => RateLimitDecision::Admitted(status),
    }
}

fn count_read(policy: Policy, key: AddressKey) -> LimitResult {
    READS.with_borrow_mut(|reads| {
        let reads = reads.get_or_insert_with(|| {
            let reads = Rc::new(RefCell::new(Counters::with_capacity(
                policy,
                MAX_CACHED_ADDRESSES,
            )));
            panics::preserve("reads", &reads);
            reads
        });
        reads.borrow_mut().take(key, None, clock::now_ms())
    })
}

async fn ask_native(
    limiter: Option<NativeLimiter>,
    key: AddressKey,
    timeout_ms: u32,
) -> Result<bool, WaitError> {
    let limiter = limiter.ok_or_else(|| WaitError::Failed("the rate limiting binding is missing".into()))?;
    let options: Object = object("key", &JsValue::from_str(&key.to_string()));
    let answer = with_timeout(limiter.limit(&options).map_err(WaitError::Failed)?, timeout_ms).await?;
    let success = Reflect::get(&answer, &"success".into()).map_err(WaitError::Failed)?;
    success
        .dyn_ref::<Boolean>()
        .map(Boolean::value_of)
        .ok_or_else(|| WaitError::Failed("the native limiter returned no boolean".into()))
}

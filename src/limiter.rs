//! Deciding on an anonymous request: what the isolate remembers, the counting object, the native limiter, in this
//! order, each asked only if the one before cannot tell.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Boolean, Object, Reflect};
use wasm_bindgen::{JsCast, JsValue};
use weir_policy::address::AddressKey;
use weir_policy::recent::RecentVerdicts;
use weir_policy::window::{Counters, Policy, Verdict};

use crate::bindings::{IncomingRequest, NativeLimiter, object};
use crate::call::Call;
use crate::clock;
use crate::config::WithoutCounter;
use crate::events::Event;
use crate::fields::{Allowance, Named};
use crate::panics;
use crate::shard::shard;
use crate::wait::{NoValue, within};

/// How many addresses an isolate remembers: a few megabytes of its 128.
const REMEMBERED: usize = 20_000;

thread_local! {
    static RECENT: RefCell<RecentVerdicts> = RefCell::new(RecentVerdicts::new(REMEMBERED));
    static READS: RefCell<Option<Rc<RefCell<Counters>>>> = const { RefCell::new(None) };
}

/// What was decided on an anonymous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It may pass.
    Admitted(Allowance),
    /// It may not.
    Denied(Allowance),
    /// Nothing could tell, and then it may not.
    Unavailable,
}

/// Decides on a submission, exactly.
pub(crate) async fn submission(call: &Call<'_>, request: &IncomingRequest, key: AddressKey) -> Decision {
    let now = clock::now_ms();
    let named = Named {
        name: "anon",
        policy: call.config.submissions,
    };
    let (denial, seen) = RECENT.with_borrow(|recent| (recent.denial(key, now), recent.seen(key, now)));
    if let Some(denial) = denial {
        return Decision::Denied(Allowance {
            named,
            verdict: Some(denial),
        });
    }

    let (used, reset_at_ms) = seen.map_or((0, 0), |seen| (seen.used, seen.reset_at_ms));
    match ask_counter(call, request, key, used, reset_at_ms).await {
        Ok(verdict) => {
            // The time before the call: a denial is rather forgotten too early than kept too long.
            RECENT.with_borrow_mut(|recent| recent.remember(key, &verdict, named.policy.limit, now));
            let allowance = Allowance {
                named,
                verdict: Some(verdict),
            };
            if verdict.admitted {
                Decision::Admitted(allowance)
            } else {
                Decision::Denied(allowance)
            }
        }
        Err(reason) => {
            call.report(Event::CounterUnavailable, &reason.reason());
            without_counter(call, named, key).await
        }
    }
}

async fn ask_counter(
    call: &Call<'_>,
    request: &IncomingRequest,
    key: AddressKey,
    seen_used: u32,
    seen_reset_at_ms: u64,
) -> Result<Verdict, NoValue> {
    let namespace = call
        .bindings
        .address_counters()
        .ok_or_else(|| NoValue::Failed("the binding ADDRESS_COUNTERS is missing".into()))?;
    let place = request.cf();
    let continent = place.as_ref().and_then(|place| place.continent());
    let longitude = place
        .as_ref()
        .and_then(|place| place.longitude())
        .and_then(|degrees| degrees.parse().ok());
    let shard = shard(key, call.config.shards, continent.as_deref(), longitude);
    let stub = match shard.hint {
        Some(hint) => namespace.get_by_name_with_options(&shard.name, &object("locationHint", &hint.into())),
        None => namespace.get_by_name(&shard.name),
    };
    let (kind, upper, lower) = key.to_parts();
    let answer = stub
        .and_then(|stub| stub.take(kind, upper, lower, seen_used, seen_reset_at_ms as f64))
        .map_err(NoValue::Failed)?;
    let packed = within(answer, call.config.counter_timeout_ms).await?;
    let verdict = packed.as_f64().and_then(Verdict::unpack);
    verdict.ok_or_else(|| NoValue::Failed("the counter's answer is no verdict".into()))
}

/// Decides without the object: approximately, but never without a limit.
async fn without_counter(call: &Call<'_>, named: Named, key: AddressKey) -> Decision {
    let allowance = Allowance { named, verdict: None };
    match ask_native(
        call.bindings.submission_limiter(),
        key,
        call.config.counter_timeout_ms,
    )
    .await
    {
        Ok(true) => Decision::Admitted(allowance),
        Ok(false) => Decision::Denied(allowance),
        Err(reason) => {
            call.report(Event::LimiterUnavailable, &reason.reason());
            match call.config.without_counter {
                WithoutCounter::Open => Decision::Admitted(allowance),
                WithoutCounter::Closed => Decision::Unavailable,
            }
        }
    }
}

/// Decides on any other anonymous request without calling an object: by the isolate's own count, which knows what is
/// left and since when, and by the native limiter, which knows of the data centre's other isolates.
pub(crate) async fn read(call: &Call<'_>, key: AddressKey) -> Decision {
    let named = Named {
        name: "anon-read",
        policy: call.config.reads,
    };
    let verdict = count_read(call.config.reads, key);
    if !verdict.admitted {
        return Decision::Denied(Allowance {
            named,
            verdict: Some(verdict),
        });
    }
    match ask_native(call.bindings.read_limiter(), key, call.config.counter_timeout_ms).await {
        Ok(false) => Decision::Denied(Allowance { named, verdict: None }),
        // Reads cost little; the isolate's own count is limit enough.
        Ok(true) | Err(_) => Decision::Admitted(Allowance {
            named,
            verdict: Some(verdict),
        }),
    }
}

fn count_read(policy: Policy, key: AddressKey) -> Verdict {
    READS.with_borrow_mut(|reads| {
        let reads = reads.get_or_insert_with(|| {
            let reads = Rc::new(RefCell::new(Counters::with_capacity(policy, REMEMBERED)));
            panics::survive("reads", &reads);
            reads
        });
        reads.borrow_mut().take(key, None, clock::now_ms())
    })
}

async fn ask_native(
    limiter: Option<NativeLimiter>,
    key: AddressKey,
    timeout_ms: u32,
) -> Result<bool, NoValue> {
    let limiter = limiter.ok_or_else(|| NoValue::Failed("the rate limiting binding is missing".into()))?;
    let options: Object = object("key", &JsValue::from_str(&key.to_string()));
    let outcome = within(limiter.limit(&options).map_err(NoValue::Failed)?, timeout_ms).await?;
    let success = Reflect::get(&outcome, &"success".into()).map_err(NoValue::Failed)?;
    success
        .dyn_ref::<Boolean>()
        .map(Boolean::value_of)
        .ok_or_else(|| NoValue::Failed("the native limiter's answer is none".into()))
}

//! The limits of a Worker's own code. Any text is a key, and each key has an object, whose name contains its limit.

use std::cell::RefCell;
use std::time::Duration;

use js_sys::Promise;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use weir_policy::address::AddressKey;
use weir_policy::limit_cache::LimitCache;
use weir_policy::limit_set::{Limits, SetResult};
use weir_policy::window::{Algorithm, LimitResult, MAX_LIMIT, MAX_WINDOW_MS};

use crate::bindings::{CounterNamespace, CounterStub};
use crate::clock;

/// The largest value of [`Limit::cost`].
const MAX_COST: u32 = 1000;

/// The maximum number of keys over their limits that an isolate remembers.
const MAX_DENIED: usize = 10_000;

/// How long an isolate remembers a key that is over its limit, in milliseconds. After that, it learns of refunds in other
/// isolates.
const MAX_DENIED_MS: u64 = 10_000;

/// A limit of the Worker's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The units per window: 1 to 1 048 575.
    pub limit: u32,
    /// The length of the window, which begins with a key's first unit: 1 to 86 400 seconds, without a fraction.
    pub window: Duration,
    /// The units to count now: 1 to 1000.
    pub cost: u32,
}

/// The result of counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counted {
    /// Whether the units were within the limit, and are counted.
    pub allowed: bool,
    /// The limit.
    pub limit: u32,
    /// The units that are left in the window.
    pub remaining: u32,
    /// The time until more units are allowed, to the millisecond.
    pub reset_after: Duration,
}

thread_local! {
    static DENIED: RefCell<LimitCache<(Checked, AddressKey)>> =
        RefCell::new(LimitCache::with_max_age(MAX_DENIED, MAX_DENIED_MS));
}

/// A limit whose values are in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Checked {
    limit: u32,
    seconds: u32,
}

impl Checked {
    /// The limit and the cost, or the error of a value that is out of range.
    fn new(limit: f64, seconds: f64, cost: f64) -> Result<(Self, u32), String> {
        let whole = |name: &str, value: f64, max: u32| {
            if value.fract() == 0.0 && (1.0..=f64::from(max)).contains(&value) {
                Ok(value as u32)
            } else {
                Err(format!(
                    "{name} is {value}; expected a whole number from 1 to {max}"
                ))
            }
        };
        let limit = whole("limit", limit, MAX_LIMIT)?;
        let seconds = whole("window", seconds, (MAX_WINDOW_MS / 1000) as u32)?;
        Ok((Self { limit, seconds }, whole("cost", cost, MAX_COST)?))
    }

    fn counted(self, allowed: bool, result: &LimitResult) -> Counted {
        Counted {
            allowed,
            limit: self.limit,
            remaining: result.remaining(self.limit),
            reset_after: Duration::from_millis(result.reset_after_ms),
        }
    }
}

/// How units are counted.
#[wasm_bindgen]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Counts [`Limit::cost`] units, or none if not all of them are within the limit.
    Take,
    /// Counts nothing. The result states whether one unit would be allowed.
    Peek,
    /// Takes back [`Limit::cost`] units, or as many as are counted.
    Refund,
    /// Takes back all units.
    Reset,
}

/// Counts units of a key in its object.
///
/// # Errors
/// When a value is out of range, or when the counting object does not answer.
pub async fn count(
    objects: Option<CounterNamespace>,
    key: &str,
    change: Change,
    limit: Limit,
) -> Result<Counted, JsValue> {
    let checked = Checked::new(
        f64::from(limit.limit),
        limit.window.as_secs_f64(),
        f64::from(limit.cost),
    );
    let (limit, cost) = checked.map_err(range_error)?;
    count_checked(objects, key, change, limit, cost).await
}

/// The same for JavaScript, with the window in seconds. Returns whether the units are allowed, how many are left, and in
/// how many milliseconds more are.
///
/// # Errors
/// As [`count`].
#[wasm_bindgen(js_name = countUnits)]
pub async fn count_units(
    objects: Option<CounterNamespace>,
    key: String,
    change: Change,
    limit: f64,
    window: f64,
    cost: f64,
) -> Result<Vec<f64>, JsValue> {
    let (limit, cost) = Checked::new(limit, window, cost).map_err(range_error)?;
    let counted = count_checked(objects, &key, change, limit, cost).await?;
    Ok(vec![
        f64::from(u8::from(counted.allowed)),
        f64::from(counted.remaining),
        counted.reset_after.as_millis() as f64,
    ])
}

fn range_error(message: String) -> JsValue {
    js_sys::RangeError::new(&message).into()
}

async fn count_checked(
    objects: Option<CounterNamespace>,
    key: &str,
    change: Change,
    limit: Checked,
    cost: u32,
) -> Result<Counted, JsValue> {
    let key = AddressKey::own(key);
    let now = clock::now_ms();
    match change {
        Change::Take => {
            if let Some(denial) = DENIED.with_borrow(|denied| denied.denial((limit, key), now)) {
                return Ok(limit.counted(false, &denial));
            }
        }
        Change::Refund | Change::Reset => DENIED.with_borrow_mut(|denied| denied.forget(&(limit, key))),
        Change::Peek => {}
    }
    let objects = objects.ok_or_else(|| js_sys::Error::new("the binding ADDRESS_COUNTERS is missing"))?;
    let (kind, upper, lower) = key.to_parts();
    let ask = |stub: CounterStub| -> Result<Promise, JsValue> {
        match change {
            Change::Take => stub.take(kind, upper, lower, cost),
            Change::Peek => stub.take(kind, upper, lower, 0),
            Change::Refund => stub.refund(kind, upper, lower, cost),
            Change::Reset => stub.refund(kind, upper, lower, u32::MAX),
        }
    };
    let packed = JsFuture::from(ask(objects.get_by_name(&name(key, limit))?)?).await?;
    let SetResult { result, .. } = packed
        .as_f64()
        .and_then(SetResult::unpack)
        .flatten()
        .ok_or_else(|| js_sys::Error::new("the counting object returned no result"))?;
    let is_used_up = result.remaining(limit.limit) == 0;
    if change == Change::Take && is_used_up {
        // Uses the time before the call, so that a denial is forgotten too early rather than remembered too long.
        DENIED.with_borrow_mut(|denied| denied.remember((limit, key), &result, limit.limit, now));
    }
    let allowed = match change {
        Change::Take => result.admitted,
        Change::Peek | Change::Refund | Change::Reset => !is_used_up,
    };
    Ok(limit.counted(allowed, &result))
}

/// The name of the object that counts a key.
fn name(key: AddressKey, Checked { limit, seconds }: Checked) -> String {
    let (_, upper, lower) = key.to_parts();
    format!("limit-{limit}-{seconds}-{upper:08x}{lower:08x}")
}

/// The limit of an object that [`name`] names.
pub(crate) fn limits_of(name: Option<&str>) -> Option<Limits> {
    let mut parts = name?.strip_prefix("limit-")?.split('-');
    let (limit, seconds): (u32, u64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(Limits {
        address: limit,
        prefix: limit,
        window_ms: seconds * 1000,
        algorithm: Algorithm::Fixed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_object_contains_its_limit() {
        let (limit, _) = Checked::new(5.0, 3600.0, 1.0).unwrap();
        let name = name(AddressKey::own("export:anne"), limit);
        let limits = limits_of(Some(&name)).unwrap();
        assert_eq!((limits.address, limits.window_ms), (5, 3_600_000));
        assert_eq!(limits_of(Some("weur-0")), None);
    }

    #[test]
    fn a_value_out_of_range_is_an_error_that_names_it() {
        for (limit, window, cost, error) in [
            (
                0.0,
                60.0,
                1.0,
                "limit is 0; expected a whole number from 1 to 1048575",
            ),
            (1_048_576.0, 60.0, 1.0, "limit is 1048576;"),
            (5.0, 0.0, 1.0, "window is 0;"),
            (5.0, 1.5, 1.0, "window is 1.5;"),
            (5.0, 86_401.0, 1.0, "window is 86401;"),
            (5.0, 60.0, 0.0, "cost is 0;"),
            (5.0, 60.0, 1001.0, "cost is 1001;"),
            (f64::NAN, 60.0, 1.0, "limit is NaN;"),
        ] {
            let message = Checked::new(limit, window, cost).unwrap_err();
            assert!(message.starts_with(error), "{message}");
        }
    }
}

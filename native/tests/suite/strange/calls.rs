//! Calls of the SQL functions, right and wrong.

use std::collections::BTreeMap;

use rand::RngExt;
use rand::rngs::StdRng;

use super::json::pick;

const INTS: [i64; 12] = [
    0,
    1,
    2,
    3,
    -1,
    100,
    1_000_000_000_000_000,
    1_000_000_000_000_001,
    i64::MAX,
    i64::MIN,
    2_147_483_648,
    -2_147_483_649,
];

/// Names of services, some of which do not exist.
const SERVICES: [&str; 9] = [
    "told", "fixed", "pages", "told", "fixed", "pages", "fixed", "", "%s",
];

/// One call, with its allowed outcomes.
pub(crate) struct Call {
    pub(crate) sql: String,
    pub(crate) params: Vec<Option<String>>,
    pub(crate) outcomes: &'static [&'static str],
}

/// The existing jobs, with their attempts.
pub(crate) type Jobs = BTreeMap<i64, i64>;

/// A call of a random function, often of an existing job.
pub(crate) fn call(rng: &mut StdRng, jobs: &Jobs) -> Call {
    let known: Vec<i64> = jobs.keys().copied().collect();
    let id = if known.is_empty() || rng.random_bool(0.1) {
        pick(rng, &INTS)
    } else {
        pick(rng, &known)
    };
    let attempt = match jobs.get(&id) {
        Some(attempt) if rng.random_bool(0.8) => *attempt,
        _ => pick(rng, &[0, 1, 2, -1, 32_768, i64::from(i32::MAX)]),
    };
    let job = [id, attempt].map(|number| Some(number.to_string()));
    match rng.random_range(0..11) {
        0..=3 => submit(rng),
        4 => claim(rng),
        5 => complete(rng, job),
        6 => fail(rng, job),
        7 => progress(rng, job),
        8 => extend(rng, job),
        9 => quota(rng),
        _ => Call::of("weir_holder($1)", [Some(super::json::subject(rng))], &[]),
    }
}

/// The parameters of a job and an attempt.
type Attempt = [Option<String>; 2];

impl Call {
    fn of<const N: usize>(sql: &str, params: [Option<String>; N], outcomes: &'static [&'static str]) -> Self {
        Self {
            sql: format!("SELECT * FROM {sql}"),
            params: params.into(),
            outcomes,
        }
    }
}

/// A whole number or null.
fn int(rng: &mut StdRng) -> Option<String> {
    match rng.random_range(0..8) {
        0 | 1 => None,
        2 => Some(pick(rng, &INTS).to_string()),
        _ => Some(rng.random_range(0..9_i64).to_string()),
    }
}

fn submit(rng: &mut StdRng) -> Call {
    Call::of(
        "weir_submit($1, $2, $3::text::jsonb, $4::text::bigint, $5::text::jsonb)",
        [
            Some(super::json::subject(rng)),
            Some(pick(rng, &SERVICES).to_owned()),
            rng.random_bool(0.97).then(|| super::json::args(rng)),
            int(rng),
            rng.random_bool(0.9).then(|| super::json::options(rng)),
        ],
        &[
            "admitted",
            "parked",
            "repeated",
            "folded",
            "over_quota",
            "too_large",
            "too_many_waiting",
            "key_reused",
        ],
    )
}

fn claim(rng: &mut StdRng) -> Call {
    let queue = format!("{}_default", pick(rng, &["told", "fixed", "pages", "x"]));
    let workers = ["w", "a.b-c_1", "weir_x", "", "\u{e9}t\u{e9}", "a b", "a\nb"];
    let counts = ["1", "3", "0", "-1", "1000", "1001", "2147483647"];
    Call::of(
        "weir_claim($1, $2, $3::text::int)",
        [
            Some(queue),
            Some(pick(rng, &workers).to_owned()),
            Some(pick(rng, &counts).to_owned()),
        ],
        &[],
    )
}

fn complete(rng: &mut StdRng, [id, attempt]: Attempt) -> Call {
    Call::of(
        "weir_complete($1::text::bigint, $2::text::int, $3::text::jsonb, $4::text::bigint)",
        [
            id,
            attempt,
            rng.random_bool(0.8).then(|| super::json::value(rng, 3)),
            int(rng),
        ],
        &["done", "fenced_out"],
    )
}

fn fail(rng: &mut StdRng, [id, attempt]: Attempt) -> Call {
    let errors = ["", "out of paper", "\u{1}\u{1f600}", "%s"];
    let retry_at = [
        None,
        None,
        Some("now"),
        Some("infinity"),
        Some("-infinity"),
        Some("294276-12-31"),
        Some("4713-01-01 BC"),
    ];
    Call::of(
        "weir_fail($1::text::bigint, $2::text::int, $3, $4::text::timestamptz) AS outcome",
        [
            id,
            attempt,
            rng.random_bool(0.9)
                .then(|| pick(rng, &errors).repeat(pick(rng, &[1, 5_000]))),
            pick(rng, &retry_at).map(str::to_owned),
        ],
        &["retry", "discarded", "cancelled", "fenced_out"],
    )
}

fn progress(rng: &mut StdRng, [id, attempt]: Attempt) -> Call {
    let fractions = [
        None,
        Some("0"),
        Some("0.5"),
        Some("1"),
        Some("-0"),
        Some("NaN"),
        Some("Infinity"),
        Some("1.0000001"),
    ];
    let messages = [None, Some("page 4 of 10"), Some("\u{1}\u{1f600}")];
    Call::of(
        "weir_progress($1::text::bigint, $2::text::int, $3::text::float8, $4) AS outcome",
        [
            id,
            attempt,
            pick(rng, &fractions).map(str::to_owned),
            pick(rng, &messages).map(|text| text.repeat(pick(rng, &[1, 100]))),
        ],
        &["done", "cancelled", "fenced_out"],
    )
}

fn extend(rng: &mut StdRng, [id, attempt]: Attempt) -> Call {
    Call::of(
        "weir_extend($1::text::bigint, $2::text::int, $3::text::bigint)",
        [id, attempt, int(rng)],
        &["extended", "over_quota", "too_large", "cancelled", "fenced_out"],
    )
}

fn quota(rng: &mut StdRng) -> Call {
    let services = ["told", "fixed", "pages", "", "%s"];
    Call::of(
        "weir_quota($1, $2, $3::text::bigint)",
        [
            Some(super::json::subject(rng)),
            Some(pick(rng, &services).to_owned()),
            int(rng),
        ],
        &[
            "admitted",
            "parked",
            "over_quota",
            "too_large",
            "too_many_waiting",
        ],
    )
}

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

/// One call, with its allowed outcomes.
pub(crate) struct Call {
    pub(crate) sql: String,
    pub(crate) params: Vec<Option<String>>,
    pub(crate) outcomes: &'static [&'static str],
}

/// The existing jobs, with their attempts.
pub(crate) type Jobs = BTreeMap<i64, i64>;

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
    let int = |rng: &mut StdRng| match rng.random_range(0..8) {
        0 | 1 => None,
        2 => Some(pick(rng, &INTS).to_string()),
        _ => Some(rng.random_range(0..9_i64).to_string()),
    };
    let some = |text: String| Some(text);
    let (sql, params, outcomes): (&str, Vec<Option<String>>, &'static [&'static str]) = match rng
        .random_range(0..11)
    {
        0..=3 => (
            "weir_submit($1, $2, $3::text::jsonb, $4::text::bigint, $5::text::jsonb)",
            vec![
                some(super::json::subject(rng)),
                some(
                    pick(
                        rng,
                        &[
                            "told", "fixed", "pages", "told", "fixed", "pages", "fixed", "", "%s",
                        ],
                    )
                    .to_owned(),
                ),
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
        ),
        4 => (
            "weir_claim($1, $2, $3::text::int)",
            vec![
                some(format!("{}_default", pick(rng, &["told", "fixed", "pages", "x"]))),
                some(
                    pick(
                        rng,
                        &["w", "a.b-c_1", "weir_x", "", "\u{e9}t\u{e9}", "a b", "a\nb"],
                    )
                    .to_owned(),
                ),
                Some(pick(rng, &["1", "3", "0", "-1", "1000", "1001", "2147483647"]).to_owned()),
            ],
            &[],
        ),
        5 => (
            "weir_complete($1::text::bigint, $2::text::int, $3::text::jsonb, $4::text::bigint)",
            vec![
                some(id.to_string()),
                some(attempt.to_string()),
                rng.random_bool(0.8).then(|| super::json::value(rng, 3)),
                int(rng),
            ],
            &["done", "fenced_out"],
        ),
        6 => (
            "weir_fail($1::text::bigint, $2::text::int, $3, $4::text::timestamptz) AS outcome",
            vec![
                some(id.to_string()),
                some(attempt.to_string()),
                rng.random_bool(0.9).then(|| {
                    pick(rng, &["", "out of paper", "\u{1}\u{1f600}", "%s"]).repeat(pick(rng, &[1, 5_000]))
                }),
                pick(
                    rng,
                    &[
                        None,
                        None,
                        Some("now"),
                        Some("infinity"),
                        Some("-infinity"),
                        Some("294276-12-31"),
                        Some("4713-01-01 BC"),
                    ],
                )
                .map(str::to_owned),
            ],
            &["retry", "discarded", "cancelled", "fenced_out"],
        ),
        7 => (
            "weir_progress($1::text::bigint, $2::text::int, $3::text::float8, $4) AS outcome",
            vec![
                some(id.to_string()),
                some(attempt.to_string()),
                pick(
                    rng,
                    &[
                        None,
                        Some("0"),
                        Some("0.5"),
                        Some("1"),
                        Some("-0"),
                        Some("NaN"),
                        Some("Infinity"),
                        Some("1.0000001"),
                    ],
                )
                .map(str::to_owned),
                pick(rng, &[None, Some("page 4 of 10"), Some("\u{1}\u{1f600}")])
                    .map(|text| text.repeat(pick(rng, &[1, 100]))),
            ],
            &["done", "fenced_out"],
        ),
        8 => (
            "weir_extend($1::text::bigint, $2::text::int, $3::text::bigint)",
            vec![some(id.to_string()), some(attempt.to_string()), int(rng)],
            &["extended", "over_quota", "too_large", "fenced_out"],
        ),
        9 => (
            "weir_quota($1, $2, $3::text::bigint)",
            vec![
                some(super::json::subject(rng)),
                some(pick(rng, &["told", "fixed", "pages", "", "%s"]).to_owned()),
                int(rng),
            ],
            &[
                "admitted",
                "parked",
                "over_quota",
                "too_large",
                "too_many_waiting",
            ],
        ),
        _ => ("weir_holder($1)", vec![some(super::json::subject(rng))], &[]),
    };
    Call {
        sql: format!("SELECT * FROM {sql}"),
        params,
        outcomes,
    }
}

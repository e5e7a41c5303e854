//! Texts that are JSON or nearly so, as careless clients write them.

use rand::RngExt;
use rand::rngs::StdRng;

pub(crate) fn pick<T: Copy>(rng: &mut StdRng, of: &[T]) -> T {
    of[rng.random_range(0..of.len())]
}

const NUMBERS: [&str; 22] = [
    "0",
    "1",
    "2",
    "7",
    "-1",
    "-0",
    "1.0",
    "1e0",
    "0.5",
    "1e3",
    "1e-7",
    "1e400",
    "-1e400",
    "1e20000",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "1000000000000000",
    "1000000000000001",
    "0.1000000000000000000000000000000001",
    "01",
];

const TEXTS: [&str; 24] = [
    "",
    "a",
    "same",
    "1",
    "4",
    "null",
    "true",
    "user_id",
    "a<b>&c",
    "\\\"\\\\\\/\\b\\f\\n\\r\\t",
    "\\u0001",
    "\\u0000",
    "\\ud83d\\ude00",
    "\\ud83d",
    "\\u2028",
    "Zo\u{eb} \u{674e} \u{1f600}",
    "%s %I %L $1",
    "'; DROP TABLE users; --",
    "infinity",
    "-infinity",
    "now",
    "2027-01-31T08:00:00Z",
    "2026-11-31",
    "294277-01-01",
];

const MEMBERS: [&str; 14] = [
    "repo",
    "pages",
    "files",
    "user_id",
    "idempotency_key",
    "priority",
    "run_at",
    "Repo",
    "",
    "a b",
    "\\u0061",
    "\\u0000",
    "weir:used",
    "output",
];

/// A value, as text.
pub(crate) fn value(rng: &mut StdRng, depth: usize) -> String {
    match rng.random_range(0..if depth == 0 { 4 } else { 7 }) {
        0 => pick(rng, &NUMBERS).to_owned(),
        1 | 2 => text(rng),
        3 => pick(rng, &["null", "true", "false"]).to_owned(),
        4 => {
            let values: Vec<String> = (0..rng.random_range(0..4))
                .map(|_| value(rng, depth - 1))
                .collect();
            format!("[{}]", values.join(","))
        }
        _ => object(rng, &MEMBERS, depth),
    }
}

fn text(rng: &mut StdRng) -> String {
    match rng.random_range(0..40) {
        0 => format!("\"{}\"", "x".repeat(rng.random_range(200..300))),
        1 => format!("\"{}\"", "\u{e9}".repeat(rng.random_range(100..150))),
        2 => format!("\"{}\"", "y".repeat(pick(rng, &[5_000, 262_000, 263_000]))),
        3 => {
            let any: String = (0..rng.random_range(1..9))
                .map(|_| char::from_u32(rng.random_range(1..0x11_0000)).unwrap_or('?'))
                .collect();
            serde_json::Value::from(any).to_string()
        }
        _ => format!("\"{}\"", pick(rng, &TEXTS)),
    }
}

/// An object with some of these members, some of them perhaps twice.
pub(crate) fn object(rng: &mut StdRng, members: &[&str], depth: usize) -> String {
    let count = rng.random_range(0..4);
    let members: Vec<String> = (0..count)
        .map(|_| {
            format!(
                "\"{}\":{}",
                pick(rng, members),
                value(rng, depth.saturating_sub(1))
            )
        })
        .collect();
    format!("{{{}}}", members.join(","))
}

/// The options of a submission: valid ones, nearly valid ones, and anything else.
pub(crate) fn options(rng: &mut StdRng) -> String {
    let known = ["idempotency_key", "priority", "run_at"];
    match rng.random_range(0..10) {
        0 => value(rng, 1),
        1 => object(rng, &known, 1),
        2 => object(rng, &["priority", "prio", "idempotency_key"], 1),
        3 | 4 => pick(rng, &["null", "{}"]).to_owned(),
        _ => {
            let key = pick(rng, &["\"k1\"", "\"k2\"", "\"k3\"", "null"]);
            let priority = pick(rng, &["1", "4", "null", "\"2\""]);
            format!("{{\"idempotency_key\":{key},\"priority\":{priority}}}")
        }
    }
}

/// The arguments of a job: mostly an object.
pub(crate) fn args(rng: &mut StdRng) -> String {
    match rng.random_range(0..8) {
        0 if rng.random_bool(0.5) => value(rng, 3),
        1 => format!("{{\"pages\":{},\"repo\":{}}}", value(rng, 1), value(rng, 2)),
        2..=4 => format!(
            "{{\"pages\":{},\"repo\":{}}}",
            rng.random_range(0..9),
            rng.random_range(0..99)
        ),
        _ => object(rng, &MEMBERS, 3),
    }
}

pub(crate) fn subject(rng: &mut StdRng) -> String {
    match rng.random_range(0..40) {
        0 => String::new(),
        1 => "x".repeat(pick(rng, &[255, 256, 5_000])),
        2 => "\u{e9}".repeat(pick(rng, &[127, 128])),
        3 => pick(
            rng,
            &["a\u{1}", " a", "a ", "\u{2028}", "\u{7f}", "\u{85}", "\u{feff}"],
        )
        .to_owned(),
        4 => "6BA7B810-9DAD-11D1-80B4-00C04FD430C8".to_owned(),
        5 => "{6ba7b810-9dad-11d1-80b4-00c04fd430c8}".to_owned(),
        6 => "6ba7b8109dad11d180b400c04fd430c8".to_owned(),
        other => format!("user {}", other % 4),
    }
}

/// Whether a text has one of the numbers above that no double represents.
pub(crate) fn exceeds_double(text: &str) -> bool {
    ["e400", "e20000"].iter().any(|exponent| text.contains(exponent))
}

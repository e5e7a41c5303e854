//! JSON values: their size in memory, and their numbers.
//!
//! `serde_json` keeps numbers as they are written, digit by digit, and so does PostgreSQL within limits. Two features
//! need one text for equal numbers: River's unique keys and the comparison of repeated requests.

use std::borrow::Cow;

use serde_json::{Map, Number, Value};

/// The largest exponent of a number, in either direction. PostgreSQL writes numbers without an exponent, so a few bytes
/// with a large exponent would become many.
const MAX_EXPONENT: i64 = 400;

/// The maximum number of digits after the decimal point in PostgreSQL.
const MAX_PLACES: i64 = 16_383;

/// The maximum number of characters of a number that a message quotes.
const MAX_SHOWN: usize = 40;

/// PostgreSQL or a client cannot hold this number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the number {0} is out of range; use numbers smaller than 1.8e308, with exponents from -{MAX_EXPONENT} to \
     {MAX_EXPONENT} and at most {MAX_PLACES} digits after the decimal point"
)]
pub struct OutOfRange(String);

/// Checks that every number in the value can be stored and read again.
///
/// # Errors
///
/// The first number that cannot.
pub fn check_numbers(value: &Value) -> Result<(), OutOfRange> {
    match value {
        Value::Number(number) if !is_storable(number) => Err(OutOfRange(shown(number.as_str()))),
        Value::Array(values) => values.iter().try_for_each(check_numbers),
        Value::Object(members) => members.values().try_for_each(check_numbers),
        _ => Ok(()),
    }
}

fn is_storable(number: &Number) -> bool {
    let Some(decimal) = Decimal::of(number.as_str()) else {
        return false;
    };
    number.as_f64().is_some()
        && decimal.written_exponent.abs() <= MAX_EXPONENT
        && decimal.places - decimal.written_exponent <= MAX_PLACES
}

fn shown(text: &str) -> String {
    match text.get(..MAX_SHOWN) {
        Some(start) if start.len() < text.len() => format!("{start}…"),
        _ => text.to_owned(),
    }
}

/// The value with one text for equal numbers, for comparison: `1.10` is `1.1`, and `100.0` is `1e2`. No digit is lost.
/// 64-bit integers and numbers that a double represents have the text of `serde_json`.
#[must_use]
pub fn comparable(value: &Value) -> Value {
    with_numbers(value, &|number| {
        if is_whole(number) {
            return number.clone();
        }
        let Some(decimal) = Decimal::of(number.as_str()) else {
            return number.clone();
        };
        let double = number.as_f64().and_then(Number::from_f64);
        match double {
            Some(double) if Decimal::of(double.as_str()).is_some_and(|it| it.is_same(&decimal)) => double,
            _ => decimal.text().parse().unwrap_or_else(|_| number.clone()),
        }
    })
}

/// The value with its numbers as River's clients write them: 64-bit integers unchanged, others as doubles. A number
/// larger than any double stays unchanged. Zero has no sign, as in PostgreSQL, which stores the arguments.
#[must_use]
pub fn with_river_numbers(value: &Value) -> Value {
    with_numbers(value, &|number| {
        if is_whole(number) {
            return number.clone();
        }
        let double = number
            .as_f64()
            .map(|double| if double == 0.0 { 0.0 } else { double })
            .and_then(|double| riverqueue::encoding::encode_args(&double).ok());
        double
            .and_then(|double| double.get().parse().ok())
            .unwrap_or_else(|| number.clone())
    })
}

/// Whether it is a 64-bit integer, written as one. Minus zero is a double.
fn is_whole(number: &Number) -> bool {
    number.as_str() != "-0" && (number.is_u64() || number.is_i64())
}

fn with_numbers(value: &Value, change: &impl Fn(&Number) -> Number) -> Value {
    match value {
        Value::Number(number) => Value::Number(change(number)),
        Value::Array(values) => values.iter().map(|value| with_numbers(value, change)).collect(),
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(name, value)| (name.clone(), with_numbers(value, change)))
                .collect::<Map<_, _>>(),
        ),
        other => other.clone(),
    }
}

/// A decimal number, parsed from text.
struct Decimal<'a> {
    is_negative: bool,
    /// The digits before and after the decimal point.
    digits: Cow<'a, str>,
    /// The number of digits after the decimal point.
    places: i64,
    written_exponent: i64,
}

impl<'a> Decimal<'a> {
    /// `None` if the exponent does not fit into 64 bits.
    fn of(text: &'a str) -> Option<Self> {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (digits, places) = match mantissa.split_once('.') {
            Some((whole, fraction)) => (
                Cow::Owned(format!("{whole}{fraction}")),
                i64::try_from(fraction.len()).ok()?,
            ),
            None => (Cow::Borrowed(mantissa), 0),
        };
        Some(Self {
            is_negative,
            digits,
            places,
            written_exponent: exponent.into(),
        })
    }

    /// Its digits without leading and trailing zeros, and the power of ten of the last digit.
    fn normal(&self) -> (&str, i64) {
        let digits = self.digits.trim_start_matches('0');
        let significant = digits.trim_end_matches('0');
        if significant.is_empty() {
            return ("0", 0);
        }
        let zeros = i64::try_from(digits.len() - significant.len()).unwrap_or(i64::MAX);
        (significant, self.written_exponent - self.places + zeros)
    }

    fn is_same(&self, other: &Decimal<'_>) -> bool {
        self.is_negative == other.is_negative && self.normal() == other.normal()
    }

    fn text(&self) -> String {
        let (digits, exponent) = self.normal();
        let sign = if self.is_negative { "-" } else { "" };
        format!("{sign}{digits}e{exponent}")
    }
}

/// The approximate size of a JSON value in memory, in bytes.
#[must_use]
pub fn json_bytes(value: &Value) -> usize {
    /// The capacity of a node in an object's tree.
    const MAX_MEMBERS: usize = 11;
    /// The minimum number of members of a node, in a tree with several nodes.
    const MIN_MEMBERS: usize = 5;
    /// A number is stored as text. This is the allocator's minimum for it, in bytes.
    const MIN_TEXT: usize = 16;
    const NODE: usize = MAX_MEMBERS * (size_of::<String>() + size_of::<Value>()) + 2 * size_of::<usize>();
    fn nodes(members: usize) -> usize {
        match members {
            0..=MAX_MEMBERS => members.min(1),
            _ => members.div_ceil(MIN_MEMBERS),
        }
    }
    fn heap_size(value: &Value) -> usize {
        match value {
            Value::Null | Value::Bool(_) => 0,
            Value::Number(number) => number.as_str().len().max(MIN_TEXT),
            Value::String(text) => text.capacity(),
            Value::Array(items) => {
                items.capacity() * size_of::<Value>() + items.iter().map(heap_size).sum::<usize>()
            }
            Value::Object(members) => {
                let texts = members
                    .iter()
                    .map(|(name, value)| name.capacity() + heap_size(value));
                nodes(members.len()) * NODE + texts.sum::<usize>()
            }
        }
    }
    size_of::<Value>() + heap_size(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn value(text: &str) -> Value {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn small_objects_count_with_their_allocated_size() {
        // A name, a value and ten more places for each of them.
        assert!(json_bytes(&json!({ "": 0 })) > 11 * (24 + 24));
        let many = Value::Array(vec![json!({ "": 0 }); 1000]);
        assert!(json_bytes(&many) > 1000 * 11 * (24 + 24));
        let text = "x".repeat(10_000);
        assert!((10_000..10_200).contains(&json_bytes(&text.into())));
    }

    #[test]
    fn numbers_keep_their_digits() {
        for text in [
            "12345678901234567890123",
            "1.10",
            "0.1e-7",
            "-0",
            "0.1000000000000000000000000000000001",
        ] {
            let written = value(&format!("[{text}]"));
            assert_eq!(written.to_string(), format!("[{text}]"));
            assert_eq!(check_numbers(&written), Ok(()));
        }
    }

    #[test]
    fn numbers_that_postgresql_or_clients_cannot_represent_are_out_of_range() {
        let places = |count: usize| format!("0.{}", "3".repeat(count));
        for (text, is_fine) in [
            ("1.7976931348623157e308", true),
            ("-1.7976931348623157e+308", true),
            ("1e309", false),
            ("1e400", false),
            ("-1e400", false),
            ("1e131000", false),
            ("1e99999999999999999999", false),
            ("0e99999", false),
            ("1e-400", true),
            ("1e-401", false),
            ("1e-99999999999999999999", false),
            (&places(16_383), true),
            (&places(16_384), false),
            (&format!("{}e-1", places(16_383)), false),
            (&"9".repeat(308), true),
            (&"9".repeat(309), false),
        ] {
            let shown = shown(text);
            assert_eq!(check_numbers(&value(text)).is_ok(), is_fine, "{shown}");
            let inside = value(&format!(r#"{{"a": [1, {{"b": {text}}}]}}"#));
            assert_eq!(check_numbers(&inside).is_ok(), is_fine, "{shown}");
        }
        let error = check_numbers(&value(&"9".repeat(400))).unwrap_err().to_string();
        assert!(error.len() < 250 && error.contains("99…"), "{error}");
    }

    #[test]
    fn equal_numbers_compare_as_equal_and_others_do_not() {
        for (one, other) in [
            ("1.10", "1.1"),
            ("1e2", "100.0"),
            ("1e+2", "100.0"),
            ("0.1e-7", "1e-8"),
            ("12345678901234567890123.0", "12345678901234567890123"),
            ("0.0", "0e5"),
            ("1E2", "1e2"),
        ] {
            assert_eq!(comparable(&value(one)), comparable(&value(other)), "{one}");
        }
        for (one, other) in [
            ("12345678901234567890123", "12345678901234567890124"),
            ("0.1", "0.1000000000000000000000000000000001"),
            ("1.5", "-1.5"),
        ] {
            assert_ne!(comparable(&value(one)), comparable(&value(other)), "{one}");
        }
    }

    /// Stored requests must still compare equal.
    #[test]
    fn numbers_within_double_precision_compare_as_doubles() {
        for (text, before) in [
            ("1", "1"),
            ("-7", "-7"),
            ("18446744073709551615", "18446744073709551615"),
            ("1.0", "1.0"),
            ("-0", "-0.0"),
            ("1.10", "1.1"),
            ("1e2", "100.0"),
            ("1E+30", "1e+30"),
            ("0.1e-7", "1e-8"),
        ] {
            assert_eq!(comparable(&value(text)).to_string(), before, "{text}");
        }
    }

    #[test]
    fn unique_keys_format_numbers_as_river_clients_do() {
        for (text, rivers) in [
            ("1", "1"),
            ("1.0", "1"),
            ("1.10", "1.1"),
            ("1e21", "1e+21"),
            ("1e20", "100000000000000000000"),
            ("1e-7", "1e-7"),
            ("-0", "0"),
            ("-0.0", "0"),
            ("-1e-400", "0"),
            ("18446744073709551615", "18446744073709551615"),
            ("12345678901234567890123", "1.2345678901234568e+22"),
            ("1e400", "1e+400"),
        ] {
            let of = with_river_numbers(&value(&format!(r#"{{"n": [{text}]}}"#)));
            let encoded = riverqueue::encoding::encode_args(&of).unwrap();
            assert_eq!(encoded.get(), format!(r#"{{"n":[{rivers}]}}"#), "{text}");
        }
    }
}

//! Spans: the kinds of windows in which a meter has limits.
//!
//! A month belongs to a subscription and starts at its anchor, which the database knows. The other spans follow UTC.
//! SQL has their lengths and bits in `short_windows`.

use serde::{Deserialize, Serialize};

/// A kind of window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// A billing period.
    Month,
    /// A calendar day, from midnight to midnight.
    Day,
    /// From one full hour to the next.
    Hour,
    /// From one full minute to the next.
    Minute,
}

impl Span {
    /// All of them, longest first.
    pub const ALL: [Self; 4] = [Self::Month, Self::Day, Self::Hour, Self::Minute];

    /// The spans of the clock, which are the same for all subscriptions.
    pub const CLOCK_SPANS: [Self; 3] = [Self::Day, Self::Hour, Self::Minute];

    /// The name in the database, in `weir.toml` and in answers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Month => "month",
            Self::Day => "day",
            Self::Hour => "hour",
            Self::Minute => "minute",
        }
    }

    /// The span of this name; `None` for an unknown name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|span| span.as_str() == name)
    }

    /// The length in seconds; `None` for a month, because months differ.
    #[must_use]
    pub fn seconds(self) -> Option<i64> {
        match self {
            Self::Month => None,
            Self::Day => Some(86_400),
            Self::Hour => Some(3_600),
            Self::Minute => Some(60),
        }
    }

    /// The start of the window that contains this second, in seconds since 1970; `None` for a month.
    #[must_use]
    pub fn start(self, second: i64) -> Option<i64> {
        self.seconds()
            .map(|seconds| second.saturating_sub(second.rem_euclid(seconds)))
    }

    /// Its bit in a set of spans. The month is in every set and has no bit.
    #[must_use]
    pub fn bit(self) -> i16 {
        match self {
            Self::Month => 0,
            Self::Day => 1,
            Self::Hour => 2,
            Self::Minute => 4,
        }
    }

    /// The spans of a set, other than the month.
    pub fn from_bits(bits: i16) -> impl Iterator<Item = Self> {
        Self::CLOCK_SPANS
            .into_iter()
            .filter(move |span| bits & span.bit() != 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_span_is_parsed_from_its_name() {
        for span in Span::ALL {
            assert_eq!(Span::parse(span.as_str()), Some(span));
            assert_eq!(serde_json::to_value(span).unwrap(), span.as_str());
        }
        assert_eq!(Span::parse("fortnight"), None);
    }

    #[test]
    fn days_hours_and_minutes_have_their_usual_length() {
        let seconds = Span::ALL.map(Span::seconds);
        assert_eq!(seconds, [None, Some(24 * 60 * 60), Some(60 * 60), Some(60)]);
    }

    proptest! {
        #[test]
        fn every_second_is_in_exactly_one_window(second in -10_000_000_000_i64..10_000_000_000) {
            for span in Span::CLOCK_SPANS {
                let (start, length) = (span.start(second).unwrap(), span.seconds().unwrap());
                prop_assert!((start..start + length).contains(&second));
                prop_assert_eq!(span.start(start), Some(start));
                prop_assert_eq!(span.start(start + length), Some(start + length));
            }
        }

        #[test]
        fn span_sets_survive_conversion_to_bits_and_back(bits in 0..8_i16) {
            prop_assert_eq!(Span::from_bits(bits).map(Span::bit).sum::<i16>(), bits);
        }
    }
}

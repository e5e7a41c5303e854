//! Short forms of numbers and durations.

/// A count in at most five characters.
pub(crate) fn number(count: i64) -> String {
    if count < 100_000 {
        return count.to_string();
    }
    let mut scaled = count;
    let mut tenths = 0;
    for unit in ["k", "M", "G", "T", "P", "E"] {
        tenths = scaled % 1000 / 100;
        scaled /= 1000;
        if scaled < 10 {
            return format!("{scaled}.{tenths}{unit}");
        }
        if scaled < 1000 {
            return format!("{scaled}{unit}");
        }
    }
    format!("{scaled}.{tenths}E")
}

/// A rate computed from a minute's count, with one decimal while it is small.
pub(crate) fn per_second(in_a_minute: i64) -> String {
    if in_a_minute < 6000 {
        let tenths = (in_a_minute + 3) / 6;
        format!("{}.{}", tenths / 10, tenths % 10)
    } else {
        number(in_a_minute / 60)
    }
}

/// The two largest units of a duration, in at most seven characters.
pub(crate) fn duration(milliseconds: i64) -> String {
    let seconds = milliseconds / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..=0 => format!("{}ms", milliseconds.max(0)),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m {}s", seconds % 60),
        3600..86_400 => format!("{hours}h {}m", minutes % 60),
        86_400..8_640_000 => format!("{days}d {}h", hours % 24),
        _ => format!("{}d", number(days)),
    }
}

/// A number of slots.
pub(crate) fn slots(count: i64) -> String {
    format!("{} {}", number(count), if count == 1 { "slot" } else { "slots" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_stay_short() {
        for (count, text) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (999_999, "999k"),
            (1_250_000, "1.2M"),
            (12_500_000, "12M"),
            (i64::MAX, "9.2E"),
        ] {
            assert_eq!(number(count), text);
        }
        for (milliseconds, text) in [
            (350, "350ms"),
            (59_999, "59s"),
            (61_500, "1m 1s"),
            (86_399_000, "23h 59m"),
            (100 * 86_400_000, "100d"),
            (8_639_999_000, "99d 23h"),
        ] {
            assert_eq!(duration(milliseconds), text);
        }
        assert_eq!(
            (per_second(1234), per_second(5), per_second(60_000)),
            ("20.6".into(), "0.1".into(), "1000".into())
        );
    }
}

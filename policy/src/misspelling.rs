//! Suggests the setting that a misspelt name was meant to be.

/// The name in `known` that `name` probably stands for, if one is close enough: one typing error per eight characters, at
/// most three.
pub fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|known| (strsim::osa_distance(name, known), known))
        .filter(|(distance, known)| *distance <= (known.len() / 8).clamp(1, 3) && !is_numbered(name, known))
        .min()
        .map(|(_, known)| known)
}

/// The name in `known` that shares most pairs of letters with `name`, without regard to case and underscores.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters = |text: &str| text.replace('_', "").to_lowercase();
    let name = letters(name);
    known
        .into_iter()
        .map(|known| (strsim::sorensen_dice(&name, &letters(known)), known))
        .min_by(|(a, known), (b, other)| b.total_cmp(a).then(known.cmp(other)))
        .map(|(_, known)| known)
}

/// Whether the names differ only in their numbers, such as the pools of `RENDER1` and `RENDER2`.
fn is_numbered(name: &str, known: &str) -> bool {
    let without = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    name != known && without(name) == without(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 4] = [
        "ANON_LIMIT",
        "ANON_READ_LIMIT",
        "RENDER1_WORKERS",
        "COUNTER_TIMEOUT_MS",
    ];

    #[test]
    fn one_typo_per_eight_characters_is_recognised() {
        for (name, expected) in [
            ("ANON_LIMTI", Some("ANON_LIMIT")),
            ("ANON_LIMITS", Some("ANON_LIMIT")),
            ("ANON_RED_LIMIT", Some("ANON_READ_LIMIT")),
            ("CONTER_TIMEOUT_SM", Some("COUNTER_TIMEOUT_MS")),
            ("ANON_LMTI", None),
            ("OTHER", None),
            ("", None),
        ] {
            assert_eq!(suggestion(name, KNOWN), expected, "{name}");
        }
    }

    #[test]
    fn the_nearest_name_ignores_case_and_underscores() {
        for (name, expected) in [
            ("anonLimits", "ANON_LIMIT"),
            ("counterTimeoutMS", "COUNTER_TIMEOUT_MS"),
            ("readLimit", "ANON_READ_LIMIT"),
            ("limits", "ANON_LIMIT"),
        ] {
            assert_eq!(nearest(name, KNOWN), Some(expected), "{name}");
        }
        assert_eq!(nearest("x", []), None);
    }

    #[test]
    fn names_that_differ_only_in_numbers_are_not_typos() {
        assert_eq!(suggestion("RENDER2_WORKERS", KNOWN), None);
    }
}

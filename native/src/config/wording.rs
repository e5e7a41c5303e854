//! Describes an invalid value of the services file in TOML's terms. Serde's messages name Rust types.

/// Serde's message in terms that the file's author knows.
pub(super) fn reword(message: &str) -> String {
    let message = message.trim();
    let mismatch = ["invalid type: ", "invalid value: "]
        .into_iter()
        .find_map(|kind| message.strip_prefix(kind)?.rsplit_once(", expected "));
    if let Some((found, wanted)) = mismatch {
        let wanted = toml_type(wanted);
        return match integer(found) {
            Some(number) if wanted == INTEGER && number.starts_with('-') => format!("{number} is too small"),
            Some(number) if wanted == INTEGER => format!("{number} is too large"),
            _ => format!("expected {wanted}, not {}", toml_value(found)),
        };
    }
    // Serde accepts an array as a table with members in order.
    if message.starts_with("invalid length ") {
        return "expected a table, not an array".to_owned();
    }
    let names = [
        ("missing field ", "missing member "),
        ("unknown field ", "unknown member "),
        ("unknown variant ", "unknown value "),
    ];
    let named = names
        .into_iter()
        .find_map(|(kind, wording)| Some(format!("{wording}{}", message.strip_prefix(kind)?)));
    named.map_or_else(
        || message.to_owned(),
        |named| named.replace('`', "").replace(", expected ", "; expected "),
    )
}

const INTEGER: &str = "a whole number";

fn integer(found: &str) -> Option<&str> {
    found.strip_prefix("integer `")?.strip_suffix('`')
}

fn toml_type(wanted: &str) -> &str {
    match wanted {
        "u8" | "u16" | "u32" | "u64" | "i8" | "i16" | "i32" | "i64" => INTEGER,
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a duration" => "a duration such as \"30s\" or \"1h\"",
        "a sequence" => "an array",
        "a map" => "a table",
        "variant identifier" | "string or map" | "map with a single key" => "a string",
        _ if wanted.starts_with("struct ") || wanted.contains("enum ") => "a table",
        _ => wanted,
    }
}

fn toml_value(found: &str) -> String {
    match found {
        "sequence" => return "an array".to_owned(),
        "map" => return "a table".to_owned(),
        _ => {}
    }
    match found.split_once('`') {
        Some(("integer " | "floating point ", number)) => format!("the number {}", number.replace('`', "")),
        Some(("boolean ", value)) => value.replace('`', ""),
        _ => format!("the {found}"),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::DeserializeOwned;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Table {
        #[serde(rename = "count")]
        _count: u8,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Choice {
        One,
        Other,
    }

    /// The reword message for a value that should be a `T`.
    fn wording<T: DeserializeOwned + std::fmt::Debug>(value: &str) -> String {
        let mut file: toml::Table = format!("value = {value}").parse().unwrap();
        let error = T::deserialize(file.remove("value").unwrap()).unwrap_err();
        reword(error.message())
    }

    #[test]
    fn expected_and_actual_values_are_named_as_in_toml() {
        assert_eq!(
            wording::<u32>("\"5\""),
            "expected a whole number, not the string \"5\""
        );
        assert_eq!(
            wording::<i64>("1.5"),
            "expected a whole number, not the number 1.5"
        );
        assert_eq!(wording::<f64>("true"), "expected a number, not true");
        assert_eq!(wording::<bool>("1"), "expected true or false, not the number 1");
        assert_eq!(wording::<String>("[]"), "expected a string, not an array");
        assert_eq!(wording::<Vec<String>>("{}"), "expected an array, not a table");
        assert_eq!(wording::<toml::Table>("3"), "expected a table, not the number 3");
        assert_eq!(wording::<Table>("3"), "expected a table, not the number 3");
        assert_eq!(wording::<Table>("[]"), "expected a table, not an array");
        assert_eq!(
            wording::<u8>("\"`a`, expected f64\""),
            "expected a whole number, not the string \"`a`, expected f64\""
        );
    }

    #[test]
    fn an_integer_out_of_range_is_reported_as_such() {
        assert_eq!(wording::<u32>("-1"), "-1 is too small");
        assert_eq!(wording::<i16>("100000"), "100000 is too large");
    }

    #[test]
    fn unknown_members_are_reported_with_the_valid_ones() {
        assert_eq!(wording::<Table>("{}"), "missing member count");
        assert_eq!(
            wording::<Table>("{ cuont = 1 }"),
            "unknown member cuont; expected count"
        );
        assert_eq!(
            wording::<Choice>("\"on\""),
            "unknown value on; expected one or other"
        );
    }
}

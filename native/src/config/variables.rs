//! Reads variables and collects every error instead of stopping at the first.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use secrecy::SecretString;

use crate::outbound::{InvalidSecret, Secret};

/// The source of settings: the process environment, or a map in tests.
pub type Variables = BTreeMap<String, String>;

/// The secrets. A handler's program never gets them, even if its service lists them.
pub(super) const SECRETS: [&str; 7] = [
    "DATABASE_DIRECT_URL",
    "DATABASE_URL",
    "JWT_SECRET",
    "EDGE_SECRET",
    "EDGE_SECRET_PREVIOUS",
    "HANDLER_SECRET",
    "HANDLER_SECRET_PREVIOUS",
];

/// The same variables, with each secret `NAME` read from the file that `NAME_FILE` names, and the errors of those
/// files.
pub(super) fn with_files(variables: &Variables) -> (Variables, Vec<String>) {
    let (mut all, mut faults) = (variables.clone(), Vec::new());
    let set = |name: &str| {
        variables
            .get(name)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    };
    for name in SECRETS {
        let variable = format!("{name}_FILE");
        let Some(path) = set(&variable) else {
            continue;
        };
        if set(name).is_some() {
            faults.push(format!("{name} and {variable} are both set; unset one"));
            continue;
        }
        match std::fs::read_to_string(path) {
            Ok(text) if text.trim().is_empty() => {
                faults.push(format!("{variable} is {path:?}, but the file is empty"));
            }
            Ok(text) => {
                all.insert(name.to_owned(), text);
            }
            Err(error) => faults.push(format!("{variable} is {path:?}, which cannot be read: {error}")),
        }
    }
    (all, faults)
}

/// All errors in the settings.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    /// One sentence per error.
    pub faults: Vec<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.faults.len() {
            1 => writeln!(f, "the configuration has an error:")?,
            count => writeln!(f, "the configuration has {count} errors:")?,
        }
        for fault in &self.faults {
            writeln!(f, "  - {fault}")?;
        }
        f.write_str("correct them and restart")
    }
}

/// Reads variables and collects every error instead of stopping at the first.
pub(crate) struct Reader<'a> {
    variables: &'a Variables,
    faults: Vec<String>,
    /// Every variable read so far, with its expected value.
    asked: RefCell<BTreeMap<String, String>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(variables: &'a Variables) -> Self {
        Self {
            variables,
            faults: Vec::new(),
            asked: RefCell::default(),
        }
    }

    pub(super) fn fault(&mut self, fault: impl Into<String>) {
        self.faults.push(fault.into());
    }

    /// An empty variable counts as unset.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.asked
            .borrow_mut()
            .entry(name.to_owned())
            .or_insert_with(|| "text".to_owned());
        self.variables
            .get(name)
            .map(|value| value.trim())
            .filter(|value| !value.is_empty())
    }

    /// A variable of another program.
    pub(super) fn foreign(&self, name: &str) -> Option<String> {
        self.variables
            .get(name)
            .filter(|value| !value.is_empty())
            .cloned()
    }

    pub(super) fn parsed<T>(
        &mut self,
        name: &str,
        default: T,
        wants: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        self.asked.borrow_mut().insert(name.to_owned(), wants.to_owned());
        let Some(text) = self.text(name) else {
            return default;
        };
        parse(text).unwrap_or_else(|| {
            self.fault(format!("{name} is {text:?}, but must be {wants}"));
            default
        })
    }

    /// Every variable read so far, with its expected value.
    pub(super) fn asked(&self) -> BTreeMap<String, String> {
        self.asked.borrow().clone()
    }

    /// All errors so far.
    pub(super) fn into_faults(self) -> Vec<String> {
        self.faults
    }

    /// `true` or `false` in any case, or `1` or `0`.
    pub(super) fn flag(&mut self, name: &str, default: bool) -> bool {
        self.parsed(name, default, "true, false, 1 or 0", |text| {
            match text.to_ascii_lowercase().as_str() {
                "true" | "1" => Some(true),
                "false" | "0" => Some(false),
                _ => None,
            }
        })
    }

    pub(super) fn duration(&mut self, name: &str, default: Duration, min: Duration) -> Duration {
        let wants = format!(
            "a duration such as 30s or 1h, at least {}",
            humantime::format_duration(min)
        );
        self.parsed(name, default, &wants, |text| {
            humantime::parse_duration(text)
                .ok()
                .filter(|duration| *duration >= min)
        })
    }

    pub(super) fn positive(&mut self, name: &str, default: u32, max: u32) -> u32 {
        self.positive_if_set(name, max).unwrap_or(default)
    }

    pub(super) fn positive_if_set(&mut self, name: &str, max: u32) -> Option<u32> {
        let wants = format!("a whole number from 1 to {max}");
        self.parsed(name, None, &wants, |text| {
            text.parse::<u32>()
                .ok()
                .filter(|number| (1..=max).contains(number))
                .map(Some)
        })
    }

    pub(super) fn secret(&mut self, name: &str) -> Option<SecretString> {
        let wants = "a secret of at least 32 characters".to_owned();
        self.asked.borrow_mut().insert(name.to_owned(), wants);
        let text = self.text(name)?;
        if text.len() < 32 {
            self.fault(format!(
                "{name} has {} characters, but must have at least 32",
                text.len()
            ));
        }
        if text.starts_with("replace-this") {
            self.fault(format!(
                "{name} is still the placeholder from the example; generate a secret: openssl rand -hex 32"
            ));
        }
        Some(SecretString::from(text))
    }

    /// A secret that signs requests. The message omits its value.
    pub(super) fn signing_secret(&mut self, name: &str) -> Option<Secret> {
        let wants = "whsec_ followed by 24 to 64 random bytes in Base64".to_owned();
        self.asked.borrow_mut().insert(name.to_owned(), wants);
        let parsed = self.text(name)?.parse();
        parsed
            .map_err(|error: InvalidSecret| self.fault(format!("{name}: {error}")))
            .ok()
    }
}

//! Subjects: the texts that name users and organisations in tokens, in job arguments and on the command line.
//!
//! Subjects are compared byte by byte, so subjects that differ in case or in Unicode normalisation are different. Only
//! the spellings of a UUID count as the same subject. In SQL, `weir_holder` and `uuid_of_subject` have the same rules.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::{Uuid, Variant};

/// The longest subject, in bytes.
pub const MAX_BYTES: usize = 255;

/// Text that is not a subject. The message contains no part of the text, because it is sent to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SubjectError {
    /// It is empty.
    #[error("a subject must not be empty")]
    Empty,
    /// It is longer than [`MAX_BYTES`].
    #[error("a subject has at most {MAX_BYTES} bytes")]
    TooLong,
    /// It contains a control character, such as NUL, a line break or a right-to-left override.
    #[error("a subject must not contain control characters")]
    Control,
    /// It is the id of a client address: [`is_address_id`].
    #[error("a subject must not be the id of a client address")]
    Address,
}

/// Whether an id is a client address's: a UUID of the variant that RFC 9562 (4.1) reserves, which no UUID issuer uses.
/// An address and a user therefore never share an id. SQL: `is_address_id`.
#[must_use]
pub fn is_address_id(id: Uuid) -> bool {
    id.get_variant() == Variant::Future
}

/// Whether a character is a control, or changes the direction in which the text around it is shown (Unicode's
/// `Bidi_Control`). Such a subject looks like another one in the console. SQL: `weir_holder`.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The id of a client address, made from this UUID.
#[must_use]
pub fn address_id(id: Uuid) -> Uuid {
    let mut bytes = id.into_bytes();
    bytes[8] |= 0b1110_0000;
    Uuid::from_bytes(bytes)
}

/// A valid subject: 1 to [`MAX_BYTES`] bytes without control characters. A UUID is in its hyphenated lower-case form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subject(String);

impl Subject {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The UUID, if it is one.
    #[must_use]
    pub fn uuid(&self) -> Option<Uuid> {
        Uuid::try_parse(&self.0).ok()
    }
}

impl FromStr for Subject {
    type Err = SubjectError;

    fn from_str(text: &str) -> Result<Self, SubjectError> {
        if text.is_empty() {
            return Err(SubjectError::Empty);
        }
        if text.len() > MAX_BYTES {
            return Err(SubjectError::TooLong);
        }
        if text.contains(is_control) {
            return Err(SubjectError::Control);
        }
        match Uuid::try_parse(text) {
            Ok(id) if is_address_id(id) => Err(SubjectError::Address),
            Ok(id) => Ok(Self::from(id)),
            Err(_) => Ok(Self(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Subject {
    type Error = SubjectError;

    fn try_from(text: String) -> Result<Self, SubjectError> {
        text.parse()
    }
}

impl From<Uuid> for Subject {
    fn from(id: Uuid) -> Self {
        Self(id.hyphenated().to_string())
    }
}

impl From<Subject> for String {
    fn from(subject: Subject) -> Self {
        subject.0
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The acting user, and the holder that its actions count against.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The account that everything counts against: an organisation, or the subject itself.
    pub holder: Subject,
    /// The acting user.
    pub subject: Subject,
}

impl Identity {
    /// A user who acts for themself.
    #[must_use]
    pub fn own(subject: Subject) -> Self {
        Self {
            holder: subject.clone(),
            subject,
        }
    }
}

impl From<Uuid> for Identity {
    fn from(id: Uuid) -> Self {
        Self::own(id.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Result<String, SubjectError> {
        text.parse::<Subject>().map(String::from)
    }

    #[test]
    fn user_ids_of_common_issuers_are_valid_subjects() {
        for text in [
            "user_2aB9xYz",
            "auth0|507f1f77bcf86cd799439011",
            "17",
            "anne@example.com",
            "203.0.113.7",
            "google-oauth2|1",
            "Zoë",
            "李",
            "a b",
            " ",
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(text));
            assert_eq!(text.parse::<Subject>().unwrap().uuid(), None, "{text}");
        }
    }

    #[test]
    fn every_spelling_of_a_uuid_is_one_subject() {
        let id = "2b0c5d9e-5ad9-4f43-9f0a-0d4b4e0d3a55";
        for text in [
            id.to_uppercase(),
            id.replace('-', ""),
            format!("urn:uuid:{id}"),
            format!("{{{id}}}"),
        ] {
            assert_eq!(parsed(&text).as_deref(), Ok(id), "{text}");
            assert_eq!(text.parse::<Subject>().unwrap().uuid(), id.parse().ok(), "{text}");
        }
    }

    #[test]
    fn the_length_is_counted_in_bytes() {
        assert!(parsed(&"a".repeat(255)).is_ok());
        assert_eq!(parsed(&"a".repeat(256)), Err(SubjectError::TooLong));
        assert!(parsed(&"ä".repeat(127)).is_ok());
        assert_eq!(parsed(&"ä".repeat(128)), Err(SubjectError::TooLong));
    }

    #[test]
    fn control_characters_are_refused() {
        assert_eq!(parsed(""), Err(SubjectError::Empty));
        for text in [
            "\0",
            "a\0",
            "a\nb",
            "a\r",
            "\u{7f}",
            "\u{85}",
            "\t",
            "a\u{202e}b",
            "\u{2066}a",
            "\u{200f}",
            "\u{61c}",
        ] {
            assert_eq!(parsed(text), Err(SubjectError::Control), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn address_ids_are_not_valid_subjects(bytes in any::<[u8; 16]>()) {
            let id = Uuid::from_bytes(bytes);
            prop_assert!(is_address_id(address_id(id)));
            prop_assert_eq!(parsed(&address_id(id).simple().to_string()), Err(SubjectError::Address));
            prop_assert_eq!(parsed(&id.to_string()).is_err(), is_address_id(id));
        }

        #[test]
        fn valid_subjects_are_kept_as_written_except_uuids(text in "\\PC{0,80}|(?s).{0,300}") {
            let valid = (1..=255).contains(&text.len())
                && !text.chars().any(is_control)
                && !Uuid::try_parse(&text).is_ok_and(is_address_id);
            match parsed(&text) {
                Ok(subject) => {
                    prop_assert!(valid);
                    prop_assert!(subject == text || Uuid::try_parse(&text).is_ok());
                }
                Err(_) => prop_assert!(!valid),
            }
        }

        #[test]
        fn parsing_a_normalised_subject_does_not_change_it(text in "(?s).{1,80}|[0-9A-F]{32}") {
            if let Ok(subject) = parsed(&text) {
                prop_assert_eq!(parsed(&subject), Ok(subject.clone()));
            }
        }
    }
}

//! The users of several issuers. Subjects of the first issuer stay unchanged. Subjects of any other issuer get its name
//! as a prefix, so that equal subjects of two issuers are two users.

use crate::subject::{Identity, Subject, SubjectError};

/// The prefix of an issuer's subjects: its claim `iss` and `|`. No UUID contains `|`, so a subject with a prefix is never
/// read as a UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace(String);

impl Namespace {
    /// The namespace of an issuer.
    #[must_use]
    pub fn of(issuer: &str) -> Self {
        Self(format!("{issuer}|"))
    }

    /// The prefix.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0
    }

    /// Whether a user or holder of another issuer has a name that belongs to this namespace.
    #[must_use]
    pub fn has(&self, identity: &Identity) -> bool {
        [&identity.subject, &identity.holder]
            .iter()
            .any(|subject| subject.as_str().starts_with(&self.0))
    }

    /// Whether one text could be the name of a user of both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0) || other.0.starts_with(&self.0)
    }

    /// The names of an issuer's user and holder.
    ///
    /// # Errors
    /// When a name is too long with the prefix.
    pub fn identity(&self, identity: &Identity) -> Result<Identity, SubjectError> {
        let named = |subject: &Subject| format!("{}{subject}", self.0).parse();
        Ok(Identity {
            holder: named(&identity.holder)?,
            subject: named(&identity.subject)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(subject: &str) -> Identity {
        Identity::own(subject.parse().unwrap())
    }

    #[test]
    fn equal_subjects_of_two_issuers_are_two_users() {
        let (b, c) = (
            Namespace::of("https://b.example"),
            Namespace::of("https://c.example"),
        );
        for subject in [
            "17",
            "auth0|17",
            "0190c1e4-9d0b-7c3e-8f5a-1c2d3e4f5a6b",
            "|",
            "https://b.example",
        ] {
            let identity = own(subject);
            let (of_b, of_c) = (b.identity(&identity).unwrap(), c.identity(&identity).unwrap());
            assert!(identity != of_b && identity != of_c && of_b != of_c, "{subject}");
            assert_eq!(of_b.subject.uuid(), None, "{subject}");
            assert!(b.has(&of_b) && !c.has(&of_b) && !b.has(&identity), "{subject}");
        }
    }

    #[test]
    fn spellings_of_a_uuid_are_one_user_of_any_issuer() {
        let b = Namespace::of("urn:uuid:");
        let spelled = |subject| b.identity(&own(subject)).unwrap();
        assert_eq!(
            spelled("0190C1E49D0B7C3E8F5A1C2D3E4F5A6B"),
            spelled("0190c1e4-9d0b-7c3e-8f5a-1c2d3e4f5a6b")
        );
    }

    #[test]
    fn a_namespace_has_the_names_of_its_holders() {
        let b = Namespace::of("b");
        let holder = "b|org_1".parse().unwrap();
        let subject = "anne".parse().unwrap();
        assert!(b.has(&Identity { holder, subject }));
    }

    #[test]
    fn a_name_that_is_too_long_with_its_issuer_is_an_error() {
        let b = Namespace::of("https://b.example");
        assert!(b.identity(&own(&"a".repeat(237))).is_ok());
        assert_eq!(b.identity(&own(&"a".repeat(238))), Err(SubjectError::TooLong));
    }

    #[test]
    fn namespaces_overlap_if_one_is_the_start_of_the_other() {
        let overlap = |a, b| Namespace::of(a).overlaps(&Namespace::of(b));
        assert!(overlap("a", "a") && overlap("a", "a|b") && overlap("a|b", "a"));
        assert!(!overlap("a", "ab") && !overlap("https://a.example", "https://a.example/"));
    }
}

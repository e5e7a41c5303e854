//! Holders: the accounts that jobs count against.

use sha2::{Digest, Sha256};
use uuid::Uuid;
use weir_policy::assertion::Caller;
use weir_policy::subject::{Subject, address_id};

/// A user (the person or organisation that a subject names), or an anonymous client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// The user's id, or a UUID made from an address. If a user's subject is a UUID, that is the id. Any other subject
    /// has a derived UUID.
    pub id: Uuid,
    /// The user's id; `None` for an address.
    pub user_id: Option<Uuid>,
}

/// The value of `users.subject`: the subject, or nothing for a UUID, which is the id.
pub(crate) fn kept_text(subject: &Subject) -> Option<&str> {
    subject.uuid().is_none().then_some(subject.as_str())
}

/// Converts callers to holders.
#[derive(Clone, Copy, Debug)]
pub struct Holders {
    /// Unique to this database, so that the same address has another UUID elsewhere.
    addresses: Uuid,
}

impl Holders {
    /// Reads the namespace of this database.
    ///
    /// # Errors
    ///
    /// When the database cannot be queried.
    pub async fn load(client: &tokio_postgres::Client) -> Result<Self, tokio_postgres::Error> {
        let row = client
            .query_one("SELECT address_namespace FROM weir_settings", &[])
            .await?;
        Ok(Self::in_namespace(row.get("address_namespace")))
    }

    fn in_namespace(addresses: Uuid) -> Self {
        Self { addresses }
    }

    /// The namespace of this database, which is created with it and is unique.
    #[must_use]
    pub fn namespace(self) -> Uuid {
        self.addresses
    }

    /// The holder of this user.
    #[must_use]
    pub fn user(id: Uuid) -> Holder {
        Holder {
            id,
            user_id: Some(id),
        }
    }

    /// The text that names this user: its subject, unless that is the id.
    ///
    /// # Errors
    ///
    /// When the database cannot be queried.
    pub async fn subject_of(
        client: &tokio_postgres::Client,
        user: Uuid,
    ) -> Result<Option<String>, tokio_postgres::Error> {
        let row = client
            .query_opt("SELECT subject FROM users WHERE id = $1", &[&user])
            .await?;
        Ok(row.and_then(|row| row.get("subject")))
    }

    /// The holder of this subject. SQL: `weir_holder`.
    #[must_use]
    pub fn subject(self, subject: &Subject) -> Holder {
        Self::user(subject.uuid().unwrap_or_else(|| {
            // Different texts are different holders, even if they look the same. The hash is one that PostgreSQL also
            // has, because SQL functions compute the same id (`subject_id`).
            let hash = Sha256::new()
                .chain_update(self.addresses.as_bytes())
                .chain_update(b"subject:")
                .chain_update(subject.as_str().as_bytes())
                .finalize();
            let mut id = [0; 16];
            id.copy_from_slice(&hash[..16]);
            uuid::Builder::from_custom_bytes(id).into_uuid()
        }))
    }

    /// The holder of this client address, as the edge has normalised it.
    #[must_use]
    pub fn address(self, address: &str) -> Holder {
        Holder {
            id: address_id(Uuid::new_v5(&self.addresses, address.as_bytes())),
            user_id: None,
        }
    }

    /// The holder of a job by the `user_id` in its arguments, whichever client inserted the job. If the text is not a
    /// valid subject, the API could not serve it. Such a job counts against a holder as an address does.
    #[must_use]
    pub fn user_id(self, text: &str) -> Holder {
        text.parse()
            .map_or_else(|_| self.address(text), |subject| self.subject(&subject))
    }

    /// The holder of a request.
    #[must_use]
    pub fn of(self, caller: &Caller) -> Holder {
        match &caller.user {
            Some(user) => self.subject(&user.holder),
            None => self.address(&caller.client_address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDERS: Uuid = Uuid::from_u128(7);

    fn of(subject: &str) -> Uuid {
        Holders::in_namespace(HOLDERS).user_id(subject).id
    }

    #[test]
    fn every_spelling_of_a_uuid_is_the_same_user() {
        let id = Uuid::from_u128(0xabcd);
        for text in [
            id.to_string(),
            id.to_string().to_uppercase(),
            id.simple().to_string(),
        ] {
            assert_eq!(of(&text), id, "{text}");
        }
    }

    #[test]
    fn different_subjects_are_different_holders() {
        // The last two have the same letters, precomposed and decomposed.
        let texts = ["anne", "Anne", "anne ", "Zo\u{eb}", "Zoe\u{308}"];
        let ids: std::collections::HashSet<Uuid> = texts.into_iter().map(of).collect();
        assert_eq!(ids.len(), texts.len());
    }

    #[test]
    fn a_subject_that_looks_like_an_address_is_a_user() {
        let holders = Holders::in_namespace(HOLDERS);
        assert_ne!(of("203.0.113.7"), holders.address("203.0.113.7").id);
        assert!(holders.user_id("203.0.113.7").user_id.is_some());
    }

    #[test]
    fn invalid_subjects_have_no_user() {
        assert_eq!(
            Holders::in_namespace(HOLDERS).user_id(&"a".repeat(256)).user_id,
            None
        );
    }
}

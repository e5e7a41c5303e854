//! Holders: whom jobs are counted against.

use uuid::Uuid;
use weir_policy::assertion::Caller;

/// A user, or an anonymous client address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// The user's id; for an address a UUID made from it.
    pub id: Uuid,
    /// The user's id, when it is a user.
    pub user_id: Option<Uuid>,
}

/// Makes holders out of callers.
#[derive(Clone, Copy, Debug)]
pub struct Holders {
    /// Of this database alone, so that the same address is another UUID elsewhere.
    namespace: Uuid,
}

impl Holders {
    /// Reads the namespace that the database was given when it was made.
    ///
    /// # Errors
    ///
    /// When the database cannot be asked.
    pub async fn load(client: &tokio_postgres::Client) -> Result<Self, tokio_postgres::Error> {
        let row = client
            .query_one("SELECT address_namespace FROM weir_settings", &[])
            .await?;
        Ok(Self {
            namespace: row.get("address_namespace"),
        })
    }

    /// What this database was given when it was made, and no other has.
    #[must_use]
    pub fn namespace(self) -> Uuid {
        self.namespace
    }

    /// The holder that this user is.
    #[must_use]
    pub fn user(id: Uuid) -> Holder {
        Holder {
            id,
            user_id: Some(id),
        }
    }

    /// The holder that this client address is, as the edge has normalised it.
    #[must_use]
    pub fn address(self, address: &str) -> Holder {
        Holder {
            id: Uuid::new_v5(&self.namespace, address.as_bytes()),
            user_id: None,
        }
    }

    /// The holder behind a request; `None` when the user id is not a UUID.
    #[must_use]
    pub fn of(self, caller: &Caller) -> Option<Holder> {
        match &caller.user_id {
            Some(id) => Uuid::parse_str(id).ok().map(Self::user),
            None => Some(self.address(&caller.client_address)),
        }
    }
}

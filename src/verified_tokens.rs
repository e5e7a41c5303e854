//! Tokens that this isolate has verified, so that a client's next request costs no signature check.
//!
//! A token stays until it expires, at most for five minutes, and only while the key set that verified it is in use. So a
//! token of a revoked key is refused as soon as the key set is fetched again.

use std::cell::RefCell;
use std::collections::BTreeMap;

use weir_policy::token::User;

/// The longest time for which a token is not verified again, in milliseconds.
const MAX_AGE_MS: u64 = 5 * 60 * 1000;

/// The maximum number of tokens, and of their bytes: a few megabytes of the isolate's 128.
const MAX_TOKENS: usize = 2_000;
const MAX_BYTES: usize = 2 * 1024 * 1024;

thread_local! {
    static VERIFIED: RefCell<Verified> = RefCell::new(Verified::default());
}

/// The key set that verified a token: its URL, and when it was requested.
pub(crate) type KeySetVersion = (String, u64);

#[derive(Debug)]
struct Entry {
    user: User,
    until: u64,
    keys: Option<KeySetVersion>,
}

/// Users by edge and token. Edges differ in the claims that they require. The token also names its issuer.
#[derive(Debug, Default)]
struct Verified {
    entries: BTreeMap<Option<u32>, BTreeMap<String, Entry>>,
    tokens: usize,
    bytes: usize,
}

impl Verified {
    fn get(&self, edge: Option<u32>, token: &str, now_ms: u64) -> Option<&Entry> {
        let entry = self.entries.get(&edge)?.get(token)?;
        (entry.until > now_ms).then_some(entry)
    }

    fn put(&mut self, edge: Option<u32>, token: &str, user: &User, keys: Option<KeySetVersion>, now_ms: u64) {
        if self.tokens >= MAX_TOKENS || self.bytes + token.len() > MAX_BYTES {
            *self = Self::default();
        }
        let entry = Entry {
            user: user.clone(),
            until: (now_ms + MAX_AGE_MS).min(user.expires_at.saturating_mul(1000)),
            keys,
        };
        let of_edge = self.entries.entry(edge).or_default();
        if of_edge.insert(token.to_owned(), entry).is_none() {
            self.tokens += 1;
            self.bytes += token.len();
        }
    }
}

/// The user of a token that was verified. `is_current` is whether a key set is still in use.
pub(crate) fn get(
    edge: Option<u32>,
    token: &str,
    now_ms: u64,
    is_current: impl Fn(&KeySetVersion) -> bool,
) -> Option<(User, Option<KeySetVersion>)> {
    VERIFIED.with_borrow(|verified| {
        let entry = verified.get(edge, token, now_ms)?;
        entry
            .keys
            .as_ref()
            .is_none_or(is_current)
            .then(|| (entry.user.clone(), entry.keys.clone()))
    })
}

/// Remembers a token that was just verified, by a secret or by a key set.
pub(crate) fn put(edge: Option<u32>, token: &str, user: &User, keys: Option<KeySetVersion>, now_ms: u64) {
    VERIFIED.with_borrow_mut(|verified| verified.put(edge, token, user, keys, now_ms));
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_policy::subject::Identity;

    const NOW: u64 = 1_800_000_000_000;

    fn user(expires_in_ms: u64) -> User {
        User {
            identity: Identity::own("anne".parse().unwrap()),
            expires_at: (NOW + expires_in_ms) / 1000,
            claims: BTreeMap::new(),
        }
    }

    #[test]
    fn a_token_stays_until_it_expires_or_for_five_minutes() {
        let mut verified = Verified::default();
        verified.put(None, "short", &user(60_000), None, NOW);
        verified.put(None, "long", &user(3_600_000), None, NOW);
        let is_known = |token, at| verified.get(None, token, NOW + at).is_some();
        assert!(is_known("short", 59_999) && !is_known("short", 60_000));
        assert!(is_known("long", MAX_AGE_MS - 1) && !is_known("long", MAX_AGE_MS));
        assert!(!is_known("lon", 0) && !is_known("longer", 0));
        assert!(verified.get(Some(1), "long", NOW).is_none(), "another edge");
    }

    #[test]
    fn a_token_is_unknown_after_its_key_set_has_changed() {
        put(
            None,
            "token",
            &user(60_000),
            Some(("https://id.test".to_owned(), 1)),
            NOW,
        );
        let known = |at| get(None, "token", NOW, |(_, asked_at)| *asked_at == at).is_some();
        assert!(known(1) && !known(2));
    }

    #[test]
    fn tokens_and_their_bytes_are_bounded() {
        let mut verified = Verified::default();
        for n in 0..10 * MAX_TOKENS {
            verified.put(None, &n.to_string(), &user(60_000), None, NOW);
            assert!(verified.tokens <= MAX_TOKENS);
        }
        let long = "a".repeat(8192);
        for n in 0..MAX_TOKENS {
            verified.put(None, &format!("{long}{n}"), &user(60_000), None, NOW);
            assert!(verified.bytes <= MAX_BYTES);
        }
        let (tokens, bytes) = (verified.tokens, verified.bytes);
        let last = format!("{long}{}", MAX_TOKENS - 1);
        verified.put(None, &last, &user(60_000), None, NOW);
        assert_eq!(
            (verified.tokens, verified.bytes),
            (tokens, bytes),
            "it is known already"
        );
    }
}

//! Tokens with fuzzed claims and a valid signature, so that the code after the signature check is reached.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

pub(crate) const SECRET: &[u8] = b"a secret that is long enough for a fuzzer";

pub(crate) const NOW: u64 = 1_800_000_000;

/// The token with this header and these claims.
pub(crate) fn token(header: &str, claims: &[u8]) -> String {
    let text = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET).expect("a key of any length");
    mac.update(text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

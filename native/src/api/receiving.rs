//! Limits the memory of submissions, from the first byte until the answer. Otherwise a client that starts many bodies
//! and finishes none could fill it.

use axum::body::Body;
use futures_util::StreamExt;
use serde_json::Value;
use uuid::Uuid;
use weir_ledger::json::{check_numbers, json_bytes};
use weir_ledger::reservation::ReserveError;

use super::holder_limiter::{HolderLimiter, Permit};
use super::problem::ApiError;

/// The largest body of a request: 256 KiB.
pub const MAX_BODY: usize = 256 * 1024;

/// The maximum memory of unanswered submissions, in KiB: in total and per holder.
const MAX_KIB: usize = 256 * 1024;
const MAX_KIB_OF_HOLDER: usize = MAX_KIB / 16;

/// The memory of a process for submissions.
pub(super) struct Receiving(HolderLimiter);

/// A parsed body. Dropping this releases its memory.
pub(super) struct Received {
    pub(super) value: Value,
    pub(super) room: Permit,
}

impl Receiving {
    pub(super) fn new() -> Self {
        Self(HolderLimiter::new(MAX_KIB, MAX_KIB_OF_HOLDER))
    }

    /// Receives a holder's submission.
    ///
    /// # Errors
    ///
    /// When the body is too large, breaks off, is not JSON or has a number that cannot be stored. When too many bodies
    /// are unanswered.
    pub(super) async fn json(&self, holder: Uuid, body: Body) -> Result<Received, ApiError> {
        let no_room = || ApiError::from(ReserveError::Overloaded);
        let mut room = self.0.take(holder).ok_or_else(no_room)?;
        let mut pieces = body.into_data_stream();
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|_| ApiError::Malformed("The body could not be read.".to_owned()))?;
            if bytes.len() + piece.len() > MAX_BODY {
                return Err(ApiError::TooLarge);
            }
            if !room.grow_to(kib(bytes.len() + piece.len())) {
                return Err(no_room());
            }
            bytes.extend_from_slice(&piece);
        }
        let value: Value = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::Malformed(format!("The body is not JSON: {error}.")))?;
        check_numbers(&value).map_err(|error| ApiError::Unprocessable(format!("Invalid body: {error}.")))?;
        if !room.grow_to(kib(json_bytes(&value))) {
            return Err(no_room());
        }
        Ok(Received { value, room })
    }
}

fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::body::Bytes;
    use futures_util::stream;

    use super::*;

    const HALF: usize = 128 * 1024;

    /// A body that stops halfway.
    fn unfinished() -> Body {
        let half = stream::iter([Ok::<_, io::Error>(Bytes::from(vec![b' '; HALF]))]);
        Body::from_stream(half.chain(stream::pending()))
    }

    fn whole() -> Body {
        Body::from("{}")
    }

    #[tokio::test]
    async fn unfinished_bodies_use_only_their_holders_memory() {
        let receiving = Receiving::new();
        let [one, other] = [1, 2].map(Uuid::from_u128);
        let mut begun = Vec::new();
        for _ in 0..MAX_KIB_OF_HOLDER * 1024 / HALF {
            let mut body = Box::pin(receiving.json(one, unfinished()));
            assert!(futures_util::poll!(&mut body).is_pending());
            begun.push(body);
        }
        assert!(receiving.json(one, whole()).await.is_err());
        assert!(receiving.json(other, whole()).await.is_ok());
        drop(begun);
        assert!(receiving.json(one, whole()).await.is_ok());
    }

    #[tokio::test]
    async fn bodies_are_limited_for_any_chunk_size() {
        let receiving = Receiving::new();
        let of = |bytes: usize, piece: usize| {
            let text = vec![b' '; bytes - 2]
                .into_iter()
                .chain(*b"{}")
                .collect::<Vec<u8>>();
            let pieces: Vec<_> = text
                .chunks(piece)
                .map(|piece| Ok::<_, io::Error>(Bytes::copy_from_slice(piece)))
                .collect();
            receiving.json(Uuid::nil(), Body::from_stream(stream::iter(pieces)))
        };
        for piece in [7, 1024, MAX_BODY + 1] {
            let received = of(MAX_BODY, piece).await.unwrap();
            assert_eq!(received.value, serde_json::json!({}));
            let refused = of(MAX_BODY + 1, piece).await.map(|received| received.value);
            assert!(matches!(refused, Err(ApiError::TooLarge)), "{refused:?}");
        }
    }
}

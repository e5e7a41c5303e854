//! Limits the memory of large answers while they are sent. Otherwise a client that requests many outputs and reads none
//! could fill it.

use std::io;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use uuid::Uuid;

use super::holder_limiter::{HolderLimiter, Permit};
use super::problem::ApiError;

/// The maximum memory of large answers that are being sent, in KiB: in total and per holder.
const MAX_KIB: usize = 256 * 1024;
const MAX_KIB_OF_HOLDER: usize = MAX_KIB / 8;

/// A large answer that is not read within this time is aborted, because all callers share the memory.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Answers up to this size are not counted.
const SMALL: usize = 64 * 1024;

/// Answers are sent in pieces of this size, so that an answer that holds memory is not fully buffered elsewhere.
const PIECE: usize = 64 * 1024;

/// The memory of a process for large answers.
pub(super) struct Sending(HolderLimiter);

impl Sending {
    pub(super) fn new() -> Self {
        Self(HolderLimiter::new(MAX_KIB, MAX_KIB_OF_HOLDER))
    }

    /// Reserves memory for an answer of this size to the holder, if it needs any.
    ///
    /// # Errors
    ///
    /// When there is none left, until other answers are sent.
    pub(super) fn room(&self, holder: Uuid, bytes: usize) -> Result<Option<Permit>, ApiError> {
        if bytes <= SMALL {
            return Ok(None);
        }
        let room = self.0.take_many(holder, bytes.div_ceil(1024));
        room.map(Some)
            .ok_or_else(|| ApiError::Unavailable("too many large answers are being sent".to_owned()))
    }

    /// Sends this value as JSON. It holds its memory until it is sent.
    ///
    /// # Errors
    ///
    /// As [`Self::room`].
    pub(super) fn json(&self, holder: Uuid, value: &impl Serialize) -> Result<Response, ApiError> {
        self.json_until(Instant::now() + TIMEOUT, holder, value)
    }

    fn json_until(
        &self,
        deadline: Instant,
        holder: Uuid,
        value: &impl Serialize,
    ) -> Result<Response, ApiError> {
        let bytes = serde_json::to_vec(value).map_err(|_| ApiError::Internal)?;
        let length = bytes.len();
        let body = match self.room(holder, length)? {
            None => Body::from(bytes),
            Some(room) => Body::from_stream(stream::try_unfold(
                (Bytes::from(bytes), room, deadline),
                async |(mut left, room, deadline)| {
                    if Instant::now() > deadline {
                        return Err(io::Error::from(io::ErrorKind::TimedOut));
                    }
                    let piece = left.split_to(left.len().min(PIECE));
                    Ok((!piece.is_empty()).then_some((piece, (left, room, deadline))))
                },
            )),
        };
        let headers = [
            (header::CONTENT_TYPE, "application/json".to_owned()),
            (header::CONTENT_LENGTH, length.to_string()),
        ];
        Ok((headers, body).into_response())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn a_slow_reader_of_a_large_answer_is_cut_off_and_frees_its_room() {
        let sending = Sending::new();
        let holder = Uuid::from_u128(1);
        let all_of_its_room = "x".repeat(MAX_KIB_OF_HOLDER * 1024 - 2);
        let of = |deadline| {
            let answer = sending.json_until(deadline, holder, &all_of_its_room);
            answer.unwrap().into_body().into_data_stream()
        };
        let mut late = of(Instant::now());
        assert!(sending.room(holder, SMALL + 1).is_err());
        assert!(late.next().await.unwrap().is_err());
        assert!(sending.room(holder, SMALL + 1).is_ok());

        let in_time = of(Instant::now() + Duration::from_secs(3600));
        let pieces: Vec<usize> = in_time.map(|piece| piece.unwrap().len()).collect().await;
        assert_eq!(pieces.iter().sum::<usize>(), MAX_KIB_OF_HOLDER * 1024);
        assert!(sending.room(holder, SMALL + 1).is_ok());
    }
}

//! A connection to the measured server. The client shares the cores with it and therefore does little: it sends
//! prepared requests, and parses only a response's status and end.

use std::io::{Error, ErrorKind};
use std::net::SocketAddr;

use axum::http::{StatusCode, header};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// More header fields than any response here has.
const MAX_FIELDS: usize = 64;

/// Handles one request at a time.
pub(super) struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Self, Error> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            received: Vec::with_capacity(4096),
        })
    }

    /// Sends a whole request and waits for the whole response.
    pub(super) async fn send(&mut self, request: &[u8]) -> Result<StatusCode, Error> {
        self.stream.write_all(request).await?;
        self.received.clear();
        loop {
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if let Some(status) = answer(&self.received)? {
                return Ok(status);
            }
        }
    }
}

/// The status of a complete response; `None` before it is complete.
fn answer(received: &[u8]) -> Result<Option<StatusCode>, Error> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(start) = head.parse(received).map_err(Error::other)? else {
        return Ok(None);
    };
    let value = |name: header::HeaderName| {
        let field = head
            .headers
            .iter()
            .find(|field| field.name.eq_ignore_ascii_case(name.as_str()));
        field.map(|field| field.value)
    };
    let body = &received[start..];
    let is_whole = if value(header::TRANSFER_ENCODING).is_some() {
        ends_in_chunks(body)?
    } else {
        let length =
            value(header::CONTENT_LENGTH).and_then(|length| std::str::from_utf8(length).ok()?.parse().ok());
        body.len() >= length.unwrap_or(0)
    };
    let status = StatusCode::from_u16(head.code.unwrap_or_default()).map_err(Error::other)?;
    Ok(is_whole.then_some(status))
}

/// Whether the last chunk has arrived.
fn ends_in_chunks(mut body: &[u8]) -> Result<bool, Error> {
    loop {
        match httparse::parse_chunk_size(body) {
            Ok(httparse::Status::Complete((start, size))) => {
                let end = start + usize::try_from(size).map_err(Error::other)? + "\r\n".len();
                if body.len() < end {
                    return Ok(false);
                }
                if size == 0 {
                    return Ok(true);
                }
                body = &body[end..];
            }
            Ok(httparse::Status::Partial) => return Ok(false),
            Err(error) => return Err(Error::other(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_complete_at_its_last_byte() {
        let answers = [
            "HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\n\r\nabcde",
            "HTTP/1.1 202 Accepted\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            "HTTP/1.1 202 Accepted\r\n\r\n",
        ];
        for text in answers {
            for end in 0..text.len() {
                assert_eq!(
                    answer(&text.as_bytes()[..end]).unwrap(),
                    None,
                    "{end} of {text:?}"
                );
            }
            assert_eq!(
                answer(text.as_bytes()).unwrap(),
                Some(StatusCode::ACCEPTED),
                "{text:?}"
            );
        }
        assert!(answer(b"nonsense\r\n\r\n").is_err());
    }
}

//! Reads request bodies. Handlers must not read bodies in any other way: this one enforces the size limit and keeps the
//! reason for which the HTTP server ended a body.

use axum::{
    body::Body,
    http::{HeaderMap, header},
};
use bytes::Bytes;
use http_body_util::BodyExt;

/// Bytes allocated for a body before more of it has arrived, whatever length it announces.
const INITIAL_BUFFER_BYTES: usize = 16 * 1024;

/// Reason why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    /// The body is larger than the route accepts.
    #[error("the body is larger than {max_bytes} bytes")]
    TooLarge {
        /// Maximum size that the route accepts.
        max_bytes: usize,
    },
    /// The body missed its deadline.
    #[error("the body took too long to arrive")]
    TooSlow,
    /// The connection ended before the body did.
    #[error("the body ended too early")]
    Incomplete,
}

/// Reads a body of at most `max_bytes`. A body that announces more is rejected before any of it is read.
pub(crate) async fn read_body(
    headers: &HeaderMap,
    mut body: Body,
    max_bytes: usize,
) -> Result<Bytes, BodyError> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > max_bytes as u64) {
        return Err(BodyError::TooLarge { max_bytes });
    }
    let expected = announced.and_then(|length| usize::try_from(length).ok()).unwrap_or(max_bytes);
    let mut read = Collected::new(expected.min(max_bytes));
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(cause)?.into_data() else { continue };
        if data.len() > max_bytes - read.len() {
            return Err(BodyError::TooLarge { max_bytes });
        }
        read.append(data);
    }
    Ok(read.into_bytes())
}

/// Returns the cause of a failure as the HTTP server reported it.
fn cause(error: axum::Error) -> BodyError {
    error.into_inner().downcast_ref().copied().unwrap_or(BodyError::Incomplete)
}

/// The bytes of a body that have arrived, contiguous: the only frame without copying, or a buffer that never grows
/// beyond the body's length.
struct Collected {
    first: Bytes,
    buffer: Vec<u8>,
    expected: usize,
}

impl Collected {
    fn new(expected: usize) -> Self {
        Self { first: Bytes::new(), buffer: Vec::new(), expected }
    }

    fn len(&self) -> usize {
        self.first.len() + self.buffer.len()
    }

    fn append(&mut self, data: Bytes) {
        if self.len() == 0 {
            self.first = data;
            return;
        }
        let length = self.len() + data.len();
        if length > self.buffer.capacity() {
            // Doubling keeps the cost of copying linear; the capacity never exceeds the maximum length of the body.
            let capacity = (2 * length).max(INITIAL_BUFFER_BYTES).min(self.expected.max(length));
            self.buffer.reserve_exact(capacity - self.buffer.len());
        }
        self.buffer.extend_from_slice(&std::mem::take(&mut self.first));
        self.buffer.extend_from_slice(&data);
    }

    fn into_bytes(self) -> Bytes {
        if self.buffer.is_empty() { self.first } else { self.buffer.into() }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use proptest::prelude::*;

    use super::*;

    fn frames(parts: Vec<Vec<u8>>) -> Body {
        let frames = parts.into_iter().map(|part| Ok::<_, BodyError>(Frame::data(Bytes::from(part))));
        Body::new(StreamBody::new(stream::iter(frames)))
    }

    #[tokio::test]
    async fn oversized_body_is_rejected_with_or_without_length() {
        let too_large = Err(BodyError::TooLarge { max_bytes: 4 });
        assert_eq!(read_body(&HeaderMap::new(), frames(vec![vec![1; 3], vec![2; 2]]), 4).await, too_large);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("5"));
        assert_eq!(read_body(&headers, frames(vec![]), 4).await, too_large);
        assert_eq!(read_body(&HeaderMap::new(), frames(vec![vec![7; 4]]), 4).await.unwrap(), vec![7; 4]);
    }

    proptest! {
        #[test]
        fn collected_body_is_complete_and_buffer_is_bounded(
            lengths in proptest::collection::vec(1..40_000_usize, 0..8),
        ) {
            let bytes: Vec<u8> = (0..lengths.iter().sum()).map(|position: usize| (position % 251) as u8).collect();
            let mut rest = &bytes[..];
            let parts: Vec<Vec<u8>> = lengths.iter().map(|length| {
                let (part, after) = rest.split_at(*length);
                rest = after;
                part.to_vec()
            }).collect();
            let whole = parts.concat();
            let mut read = Collected::new(whole.len());
            for part in &parts {
                read.append(Bytes::from(part.clone()));
                prop_assert!(read.buffer.capacity() <= whole.len(), "{} of {}", read.buffer.capacity(), whole.len());
            }
            prop_assert_eq!(read.into_bytes(), whole);
        }
    }
}

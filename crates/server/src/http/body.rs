//! Request bodies: the deadline and the minimum rate that apply to every body, and the function that reads a whole
//! body. Handlers must not read bodies in any other way.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderMap, header},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use redrive_engine::clock;
use tokio::time::Sleep;

use super::timeouts::ConnectionTimer;

/// Time that every body has regardless of its size, within the overall timeout.
const BODY_GRACE: Duration = Duration::from_secs(10);
/// Minimum rate at which a body must arrive after the grace period.
const MIN_BODY_BYTES_PER_SECOND: u64 = 16 * 1024;
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

/// Deadline of a body, which depends on how many bytes have arrived.
#[derive(Clone, Copy, Debug)]
struct Pace {
    started: Duration,
    timeout: Duration,
    received: u64,
}

impl Pace {
    fn deadline(&self) -> Duration {
        let by_rate = Duration::from_millis(self.received.saturating_mul(1_000) / MIN_BODY_BYTES_PER_SECOND);
        self.started + self.timeout.min(BODY_GRACE.saturating_add(by_rate))
    }
}

/// A request body that fails if it is too slow. The time counts from the first attempt to read it, so a request
/// that waits to be processed is not cut off.
pub(super) struct PacedBody<B> {
    body: B,
    timeout: Duration,
    pace: Option<Pace>,
    timer: Option<Pin<Box<Sleep>>>,
    /// The connection that is notified when the whole body has been read.
    connection: Option<Arc<ConnectionTimer>>,
}

impl<B> PacedBody<B> {
    /// Wraps a body that must arrive within `timeout` and at the minimum rate.
    pub(super) fn new(body: B, timeout: Duration) -> Self {
        Self { body, timeout, pace: None, timer: None, connection: None }
    }

    /// Notifies this connection when the whole body has been read.
    pub(super) fn with_connection(self, connection: Arc<ConnectionTimer>) -> Self {
        Self { connection: Some(connection), ..self }
    }

    fn mark_read(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.body_read();
        }
    }

    /// Waits until the deadline, which is extended while bytes arrive.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timeout = self.timeout;
        loop {
            let now = clock::monotonic_now();
            let concurrency = self.pace.get_or_insert(Pace { started: now, timeout, received: 0 });
            let left = concurrency.deadline().saturating_sub(now);
            if left.is_zero() {
                return Poll::Ready(());
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
            ready!(timer.as_mut().poll(cx));
            self.timer = None;
        }
    }
}

impl<B> HttpBody for PacedBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                // The clock is not read for a body that arrived together with its header.
                if this.body.is_end_stream() {
                    this.mark_read();
                } else {
                    let now = clock::monotonic_now();
                    let (started, timeout) = (now, this.timeout);
                    let pace = this.pace.get_or_insert(Pace { started, timeout, received: 0 });
                    pace.received += frame.data_ref().map_or(0, |data| data.len() as u64);
                    if now >= pace.deadline() {
                        return Poll::Ready(Some(Err(BodyError::TooSlow)));
                    }
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(_))) => Poll::Ready(Some(Err(BodyError::Incomplete))),
            Poll::Ready(None) => {
                this.mark_read();
                Poll::Ready(None)
            }
            Poll::Pending => this.poll_deadline(cx).map(|()| Some(Err(BodyError::TooSlow))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
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

/// Returns the cause of a failure as [`PacedBody`] reported it.
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
    use proptest::prelude::*;

    use super::*;

    fn frames(parts: Vec<Vec<u8>>) -> Body {
        let frames = parts.into_iter().map(|part| Ok::<_, BodyError>(Frame::data(Bytes::from(part))));
        Body::new(PacedBody::new(StreamBody::new(stream::iter(frames)), Duration::from_secs(5)))
    }

    #[test]
    fn body_deadline_grows_with_received_bytes_up_to_timeout() {
        let concurrency =
            |received| Pace { started: Duration::from_secs(100), timeout: Duration::from_secs(30), received };
        assert_eq!(concurrency(0).deadline(), Duration::from_secs(110));
        assert_eq!(concurrency(16 * 1024).deadline(), Duration::from_secs(111));
        assert_eq!(concurrency(320 * 1024).deadline(), Duration::from_secs(130));
        assert_eq!(concurrency(u64::MAX).deadline(), Duration::from_secs(130));
        let short = Pace { timeout: Duration::from_secs(1), ..concurrency(1 << 30) };
        assert_eq!(short.deadline(), Duration::from_secs(101));
    }

    #[tokio::test]
    async fn stalled_body_times_out() {
        let stalls = StreamBody::new(stream::pending::<Result<Frame<Bytes>, BodyError>>());
        let body = Body::new(PacedBody::new(stalls, Duration::from_millis(20)));
        assert_eq!(read_body(&HeaderMap::new(), body, 10).await, Err(BodyError::TooSlow));
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

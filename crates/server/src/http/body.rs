//! The deadline and the minimum rate that apply to every request body.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use redrive_engine::clock;
use tokio::time::Sleep;

use super::timeouts::ConnectionTimer;
use crate::request::body::BodyError;

/// Time that every body has regardless of its size, within the overall timeout.
const BODY_GRACE: Duration = Duration::from_secs(10);
/// Minimum rate at which a body must arrive after the grace period.
const MIN_BODY_BYTES_PER_SECOND: u64 = 16 * 1024;

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

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::HeaderMap};
    use futures_util::stream;
    use http_body_util::StreamBody;

    use super::*;
    use crate::request::body::read_body;

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
}

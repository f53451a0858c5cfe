//! Client timeouts: one deadline per connection, reset at each phase (header, body, write, idle). No timeout here
//! ends a request that is being processed. A connection whose last request body was not read is closed slowly, so that
//! the client can read the response.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use redrive_engine::clock;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Sleep,
};

use crate::config::Server;

/// Minimum average rate at which a client must read a response, in bytes per millisecond.
const MIN_WRITE_BYTES_PER_MS: u64 = 16;
/// Maximum time for which input is discarded after a response to a request whose body was not read.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes that are discarded in that time.
const MAX_LINGER_BYTES: usize = 16 << 20;
/// Size of the buffer for discarded input.
const LINGER_READ_BYTES: usize = 8 * 1024;
/// Reads after which a lingering close lets other tasks run.
const MAX_LINGER_READS_PER_POLL: usize = 16;

/// Timeouts of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientTimeouts {
    /// Timeout of sending a request header, from its first byte or from the start of the connection.
    pub(super) head: Duration,
    /// Maximum time without progress while reading the response.
    pub(super) write: Duration,
    /// Maximum time between two requests.
    pub(super) idle: Duration,
}

impl ClientTimeouts {
    pub(super) fn from_settings(settings: &Server) -> Self {
        let Server { header_timeout: head_timeout, write_timeout, idle_timeout, .. } = settings;
        Self {
            head: head_timeout.as_duration(),
            write: write_timeout.as_duration(),
            idle: idle_timeout.as_duration(),
        }
    }

    fn shortest(&self) -> Duration {
        self.head.min(self.write).min(self.idle)
    }
}

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for a request.
    Idle,
    /// Reading the header of a request.
    Head,
    /// Processing a request; reading its body has a separate deadline.
    Work,
    /// Writing the response.
    Response {
        /// Start of the response.
        since: Duration,
        /// Bytes written so far.
        written: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    /// Time at which the client is too slow. `None` while the server processes a request.
    deadline: Option<Duration>,
}

impl State {
    fn begin(timeouts: &ClientTimeouts, now: Duration) -> Self {
        Self { phase: Phase::Head, deadline: Some(now + timeouts.head) }
    }

    /// Records that bytes have arrived.
    fn read(&mut self, timeouts: &ClientTimeouts, now: impl FnOnce() -> Duration) {
        if self.phase == Phase::Idle {
            *self = Self::begin(timeouts, now());
        }
    }

    /// Records that a whole header has arrived.
    fn request_started(&mut self) {
        *self = Self { phase: Phase::Work, deadline: None };
    }

    /// Records that a response is ready to be written.
    fn response_ready(&mut self, timeouts: &ClientTimeouts, now: Duration) {
        *self =
            Self { phase: Phase::Response { since: now, written: 0 }, deadline: Some(now + timeouts.write) };
    }

    /// Records that the client has accepted this many bytes.
    fn wrote(&mut self, timeouts: &ClientTimeouts, count: usize, now: impl FnOnce() -> Duration) {
        let (since, written, now) = match self.phase {
            // Bytes written while processing are "100 Continue", which is not part of a response.
            Phase::Work => return,
            Phase::Response { since, written } => (since, written, now()),
            // hyper itself responds to requests that it cannot parse.
            Phase::Idle | Phase::Head => {
                let now = now();
                (now, 0, now)
            }
        };
        let written = written + count as u64;
        let in_all = since + timeouts.write + Duration::from_millis(written / MIN_WRITE_BYTES_PER_MS);
        *self = Self {
            phase: Phase::Response { since, written },
            deadline: Some(in_all.min(now + timeouts.write)),
        };
    }

    /// Records that a write was blocked. After a flush this is the next part of a streamed response.
    fn write_blocked(&mut self, timeouts: &ClientTimeouts, now: impl FnOnce() -> Duration) {
        if self.phase == Phase::Idle {
            self.response_ready(timeouts, now());
        }
    }

    /// Records that everything was written.
    fn flushed(&mut self, timeouts: &ClientTimeouts, now: impl FnOnce() -> Duration) {
        if matches!(self.phase, Phase::Response { .. }) {
            *self = Self { phase: Phase::Idle, deadline: Some(now() + timeouts.idle) };
        }
    }
}

/// Phase and deadline of a connection.
pub(super) struct ConnectionTimer {
    timeouts: ClientTimeouts,
    state: Mutex<State>,
    /// The current request has a body that was not read to its end.
    has_unread_body: AtomicBool,
}

impl ConnectionTimer {
    /// Creates the timer of a new connection, which waits for its first request.
    pub(super) fn begin(timeouts: ClientTimeouts) -> Arc<Self> {
        let state = Mutex::new(State::begin(&timeouts, clock::monotonic_now()));
        Arc::new(Self { timeouts, state, has_unread_body: AtomicBool::new(false) })
    }

    /// Records that processing of a request begins.
    pub(super) fn request_started(&self, has_body: bool) {
        self.has_unread_body.store(has_body, Relaxed);
        self.state.lock().request_started();
    }

    /// Records that the whole body of the current request was read.
    pub(super) fn body_read(&self) {
        self.has_unread_body.store(false, Relaxed);
    }

    /// Records that a request was processed.
    pub(super) fn response_ready(&self) {
        self.state.lock().response_ready(&self.timeouts, clock::monotonic_now());
    }

    /// Waits until the client is too slow. Returns late by at most the shortest timeout.
    pub(super) async fn expired(&self) {
        let look_every = self.timeouts.shortest();
        loop {
            let deadline = self.state.lock().deadline;
            let left =
                deadline.map_or(look_every, |deadline| deadline.saturating_sub(clock::monotonic_now()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(look_every) + Duration::from_millis(1)).await;
        }
    }
}

/// A stream that reports its reads and writes to its timer.
pub(super) struct TimedStream<S> {
    stream: S,
    watch: Arc<ConnectionTimer>,
    linger: Option<Linger>,
}

/// Progress of a lingering close: the write half is shut down, and input is read and discarded.
struct Linger {
    timer: Pin<Box<Sleep>>,
    discarded_bytes: usize,
}

impl<S> TimedStream<S> {
    pub(super) fn new(stream: S, watch: Arc<ConnectionTimer>) -> Self {
        Self { stream, watch, linger: None }
    }

    fn wrote(&self, outcome: &Poll<io::Result<usize>>) {
        match outcome {
            Poll::Ready(Ok(count)) => {
                self.watch.state.lock().wrote(&self.watch.timeouts, *count, clock::monotonic_now);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                self.watch.state.lock().write_blocked(&self.watch.timeouts, clock::monotonic_now)
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.watch.state.lock().read(&self.watch.timeouts, clock::monotonic_now);
        }
        read
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(&outcome);
        outcome
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        // hyper flushes once all of its output is written.
        if let Poll::Ready(Ok(())) = flushed {
            self.watch.state.lock().flushed(&self.watch.timeouts, clock::monotonic_now);
        }
        flushed
    }

    /// Shuts the write half down. If the body of the last request was not read, input is discarded until the client
    /// closes, within limits: closing a socket with unread input resets the connection, and the client would lose
    /// the response that says why its request was rejected.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            if !this.watch.has_unread_body.load(Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let linger = this.linger.get_or_insert_with(|| Linger {
            timer: Box::pin(tokio::time::sleep(LINGER_TIMEOUT)),
            discarded_bytes: 0,
        });
        let mut scratch = [0; LINGER_READ_BYTES];
        for _ in 0..MAX_LINGER_READS_PER_POLL {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut this.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    linger.discarded_bytes += buffer.filled().len();
                    if linger.discarded_bytes >= MAX_LINGER_BYTES {
                        return Poll::Ready(Ok(()));
                    }
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return linger.timer.as_mut().poll(cx).map(Ok),
            }
        }
        if linger.timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: ClientTimeouts = ClientTimeouts {
        head: Duration::from_secs(10),
        write: Duration::from_secs(30),
        idle: Duration::from_secs(75),
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_phase_has_its_deadline() {
        let mut state = State::begin(&TIMEOUTS, at(100));
        assert_eq!(state.deadline, Some(at(110)));
        state.read(&TIMEOUTS, || at(109));
        assert_eq!(state.deadline, Some(at(110)), "slow header bytes do not extend the deadline");
        state.request_started();
        state.read(&TIMEOUTS, || at(200));
        state.wrote(&TIMEOUTS, 25, || at(200));
        state.flushed(&TIMEOUTS, || at(200));
        assert_eq!(state.deadline, None, "no deadline while a request is processed");
        state.response_ready(&TIMEOUTS, at(300));
        assert_eq!(state.deadline, Some(at(330)));
        state.wrote(&TIMEOUTS, 1_000, || at(301));
        state.flushed(&TIMEOUTS, || at(301));
        assert_eq!(state.deadline, Some(at(376)));
        state.read(&TIMEOUTS, || at(370));
        assert_eq!(state.deadline, Some(at(380)), "the next head");
    }

    #[test]
    fn slow_reader_is_tolerated_up_to_minimum_rate() {
        let mut state = State::begin(&TIMEOUTS, at(0));
        state.response_ready(&TIMEOUTS, at(0));
        // Bytes that fit into the system's buffers are written immediately and do not extend the deadline further.
        state.wrote(&TIMEOUTS, 4 << 20, || at(0));
        assert_eq!(state.deadline, Some(at(30)));
        state.wrote(&TIMEOUTS, 1 << 20, || at(29));
        assert_eq!(state.deadline, Some(at(59)));
        let mut drip = State::begin(&TIMEOUTS, at(0));
        drip.response_ready(&TIMEOUTS, at(0));
        for second in 1..=30 {
            drip.wrote(&TIMEOUTS, 1, || at(second));
        }
        assert_eq!(drip.deadline, Some(at(30) + Duration::from_millis(1)));
    }

    #[test]
    fn each_part_of_streamed_response_has_write_timeout() {
        let mut state = State::begin(&TIMEOUTS, at(0));
        state.response_ready(&TIMEOUTS, at(0));
        state.wrote(&TIMEOUTS, 1_000, || at(1));
        state.flushed(&TIMEOUTS, || at(1));
        assert_eq!(state.deadline, Some(at(76)), "it may have been the last");
        state.write_blocked(&TIMEOUTS, || at(10));
        assert_eq!(state.deadline, Some(at(40)));
        state.write_blocked(&TIMEOUTS, || at(20));
        assert_eq!(state.deadline, Some(at(40)), "asking again earns nothing");
        state.request_started();
        state.write_blocked(&TIMEOUTS, || at(30));
        assert_eq!(state.deadline, None, "no deadline while a request is processed");
    }

    #[test]
    fn response_of_parser_has_write_timeout() {
        let mut state = State::begin(&TIMEOUTS, at(0));
        state.wrote(&TIMEOUTS, 80, || at(9));
        assert!(matches!(state.phase, Phase::Response { written: 80, .. }));
        assert!(state.deadline >= Some(at(39)));
    }
}

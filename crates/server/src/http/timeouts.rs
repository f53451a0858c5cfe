//! How long a client may dawdle: one deadline per connection, moved with what the connection does. Nothing here
//! ends a request that is being worked on.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use redrive_engine::clock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::config::Server;

/// However slowly it goes on, an answer must be taken this fast in the long run, in bytes per millisecond.
const SLOWEST: u64 = 16;

/// How long a client may take for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// To send the head of a request, once it has begun or is the first.
    pub(super) head: Duration,
    /// To read something of its answer.
    pub(super) write: Duration,
    /// Between two requests.
    pub(super) idle: Duration,
}

impl Patience {
    pub(super) fn of(settings: &Server) -> Self {
        let Server { head_timeout, write_timeout, idle_timeout, .. } = settings;
        Self { head: head_timeout.get(), write: write_timeout.get(), idle: idle_timeout.get() }
    }

    fn shortest(&self) -> Duration {
        self.head.min(self.write).min(self.idle)
    }
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It waits for a request.
    Idle,
    /// It reads the head of one.
    Head,
    /// It works on one; whoever reads the body has a deadline of its own.
    Work,
    /// It writes the answer.
    Answer {
        /// Since when.
        since: Duration,
        /// How much was written so far.
        written: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct State {
    phase: Phase,
    /// When the client has been too slow. None while it is our turn.
    deadline: Option<Duration>,
}

impl State {
    fn begin(patience: &Patience, now: Duration) -> Self {
        Self { phase: Phase::Head, deadline: Some(now + patience.head) }
    }

    /// Bytes have come.
    fn read(&mut self, patience: &Patience, now: impl FnOnce() -> Duration) {
        if self.phase == Phase::Idle {
            *self = Self::begin(patience, now());
        }
    }

    /// A whole head has come.
    fn asked(&mut self) {
        *self = Self { phase: Phase::Work, deadline: None };
    }

    /// There is an answer, to be written from now on.
    fn answered(&mut self, patience: &Patience, now: Duration) {
        *self =
            Self { phase: Phase::Answer { since: now, written: 0 }, deadline: Some(now + patience.write) };
    }

    /// So many bytes were taken.
    fn wrote(&mut self, patience: &Patience, count: usize, now: impl FnOnce() -> Duration) {
        let (since, written, now) = match self.phase {
            // What is written in between belongs to no answer: "100 Continue".
            Phase::Work => return,
            Phase::Answer { since, written } => (since, written, now()),
            // The parser itself answers what it cannot read.
            Phase::Idle | Phase::Head => {
                let now = now();
                (now, 0, now)
            }
        };
        let written = written + count as u64;
        let in_all = since + patience.write + Duration::from_millis(written / SLOWEST);
        *self = Self {
            phase: Phase::Answer { since, written },
            deadline: Some(in_all.min(now + patience.write)),
        };
    }

    /// There is something to write, and it was not taken: the next piece of an answer that comes in pieces.
    fn stuck(&mut self, patience: &Patience, now: impl FnOnce() -> Duration) {
        if self.phase == Phase::Idle {
            self.answered(patience, now());
        }
    }

    /// Everything was taken.
    fn flushed(&mut self, patience: &Patience, now: impl FnOnce() -> Duration) {
        if matches!(self.phase, Phase::Answer { .. }) {
            *self = Self { phase: Phase::Idle, deadline: Some(now() + patience.idle) };
        }
    }
}

/// What a connection does, and until when it may.
pub(super) struct Watch {
    patience: Patience,
    state: Mutex<State>,
}

impl Watch {
    /// For a new connection, whose first request is due.
    pub(super) fn begin(patience: Patience) -> Arc<Self> {
        Arc::new(Self { patience, state: Mutex::new(State::begin(&patience, clock::ticks())) })
    }

    /// A request begins to be worked on.
    pub(super) fn asked(&self) {
        self.state.lock().asked();
    }

    /// A request was worked on.
    pub(super) fn answered(&self) {
        self.state.lock().answered(&self.patience, clock::ticks());
    }

    /// Returns when the client has been too slow, at most by the shortest patience too late.
    pub(super) async fn ran_out(&self) {
        let look_every = self.patience.shortest();
        loop {
            let deadline = self.state.lock().deadline;
            let left = deadline.map_or(look_every, |deadline| deadline.saturating_sub(clock::ticks()));
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(look_every) + Duration::from_millis(1)).await;
        }
    }
}

/// A connection that tells its watch what happens on it.
pub(super) struct Watched<S> {
    stream: S,
    watch: Arc<Watch>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, watch: Arc<Watch>) -> Self {
        Self { stream, watch }
    }

    fn wrote(&self, outcome: &Poll<io::Result<usize>>) {
        match outcome {
            Poll::Ready(Ok(count)) => {
                self.watch.state.lock().wrote(&self.watch.patience, *count, clock::ticks);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.watch.state.lock().stuck(&self.watch.patience, clock::ticks),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.watch.state.lock().read(&self.watch.patience, clock::ticks);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
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
        // hyper flushes when all that it has was written.
        if let Poll::Ready(Ok(())) = flushed {
            self.watch.state.lock().flushed(&self.watch.patience, clock::ticks);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        head: Duration::from_secs(10),
        write: Duration::from_secs(30),
        idle: Duration::from_secs(75),
    };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn each_phase_has_its_deadline() {
        let mut state = State::begin(&PATIENCE, at(100));
        assert_eq!(state.deadline, Some(at(110)));
        state.read(&PATIENCE, || at(109));
        assert_eq!(state.deadline, Some(at(110)), "a head that drips gains nothing");
        state.asked();
        state.read(&PATIENCE, || at(200));
        state.wrote(&PATIENCE, 25, || at(200));
        state.flushed(&PATIENCE, || at(200));
        assert_eq!(state.deadline, None, "while we work nobody is too slow");
        state.answered(&PATIENCE, at(300));
        assert_eq!(state.deadline, Some(at(330)));
        state.wrote(&PATIENCE, 1_000, || at(301));
        state.flushed(&PATIENCE, || at(301));
        assert_eq!(state.deadline, Some(at(376)));
        state.read(&PATIENCE, || at(370));
        assert_eq!(state.deadline, Some(at(380)), "the next head");
    }

    #[test]
    fn whoever_reads_slowly_is_waited_for_but_not_for_ever() {
        let mut state = State::begin(&PATIENCE, at(0));
        state.answered(&PATIENCE, at(0));
        // All that fits into the system's buffers goes at once, and earns no more than others have.
        state.wrote(&PATIENCE, 4 << 20, || at(0));
        assert_eq!(state.deadline, Some(at(30)));
        state.wrote(&PATIENCE, 1 << 20, || at(29));
        assert_eq!(state.deadline, Some(at(59)));
        let mut drip = State::begin(&PATIENCE, at(0));
        drip.answered(&PATIENCE, at(0));
        for second in 1..=30 {
            drip.wrote(&PATIENCE, 1, || at(second));
        }
        assert_eq!(drip.deadline, Some(at(30) + Duration::from_millis(1)));
    }

    #[test]
    fn an_answer_in_pieces_must_be_read_piece_by_piece() {
        let mut state = State::begin(&PATIENCE, at(0));
        state.answered(&PATIENCE, at(0));
        state.wrote(&PATIENCE, 1_000, || at(1));
        state.flushed(&PATIENCE, || at(1));
        assert_eq!(state.deadline, Some(at(76)), "it may have been the last");
        state.stuck(&PATIENCE, || at(10));
        assert_eq!(state.deadline, Some(at(40)));
        state.stuck(&PATIENCE, || at(20));
        assert_eq!(state.deadline, Some(at(40)), "asking again earns nothing");
        state.asked();
        state.stuck(&PATIENCE, || at(30));
        assert_eq!(state.deadline, None, "while we work nobody is too slow");
    }

    #[test]
    fn an_answer_of_the_parser_is_an_answer() {
        let mut state = State::begin(&PATIENCE, at(0));
        state.wrote(&PATIENCE, 80, || at(9));
        assert!(matches!(state.phase, Phase::Answer { written: 80, .. }));
        assert!(state.deadline >= Some(at(39)));
    }
}

//! A connection as used by hyper, plain or TLS, and the state it shares with the exchanges on it. The shared state
//! lets an exchange abort a connection whose endpoint responded early and never reads the request.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes};
use hyper_util::client::legacy::connect::{Connected, Connection};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use crate::connections::Permit;

/// Durations of the phases of opening a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Phases {
    pub(crate) dns: Option<Duration>,
    pub(crate) connect: Option<Duration>,
    pub(crate) tls: Option<Duration>,
}

/// State shared by a connection and the exchanges on it.
pub(crate) struct ConnectionState {
    phases: Phases,
    phases_taken: AtomicBool,
    aborted: AtomicBool,
    blocked_writer: Mutex<Option<Waker>>,
    /// Whether it must not be reused.
    retired: AtomicBool,
    /// Exchanges started on it, and those that completed; equal if the connection is idle.
    started: AtomicUsize,
    ended: AtomicUsize,
    waiting_reader: Mutex<Option<Waker>>,
}

impl ConnectionState {
    fn new(phases: Phases) -> Self {
        Self {
            phases,
            phases_taken: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            blocked_writer: Mutex::new(None),
            retired: AtomicBool::new(false),
            // A connection is opened for an exchange that is about to start.
            started: AtomicUsize::new(1),
            ended: AtomicUsize::new(0),
            waiting_reader: Mutex::new(None),
        }
    }

    /// Closes the connection as soon as it is idle, possibly immediately.
    pub(crate) fn retire(&self) {
        self.retired.store(true, SeqCst);
        self.wake_reader();
    }

    /// Records that an exchange has received its complete response.
    pub(crate) fn exchange_ended(&self) {
        self.ended.fetch_add(1, SeqCst);
        if self.retired.load(SeqCst) {
            self.wake_reader();
        }
    }

    fn wake_reader(&self) {
        if let Some(reader) = self.waiting_reader.lock().take() {
            reader.wake();
        }
    }

    /// Returns whether the connection is idle and must not be reused.
    fn is_retired_idle(&self) -> bool {
        self.retired.load(SeqCst) && self.ended.load(SeqCst) >= self.started.load(SeqCst)
    }

    /// Lets a read wait, or reports end of stream if the connection is retired and idle.
    fn check_retired(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        {
            let mut waiting = self.waiting_reader.lock();
            if !waiting.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waiting = Some(cx.waker().clone());
            }
        }
        if self.is_retired_idle() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Returns the phases to the first caller only; later exchanges did not wait for them.
    pub(crate) fn take_phases(&self) -> Option<Phases> {
        (!self.phases_taken.swap(true, Relaxed)).then_some(self.phases)
    }

    /// Aborts a connection on which a request is still being written although its exchange has ended.
    ///
    /// hyper would continue writing without a deadline, even to close the connection. A well-behaved endpoint reads
    /// the whole request before its response ends, so this affects only misbehaving ones.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, SeqCst);
        if let Some(writer) = self.blocked_writer.lock().take() {
            writer.wake();
        }
    }

    /// Passes on the result of a write unless the connection was aborted. A pending write is woken by the abort.
    fn check_aborted<T>(&self, cx: &Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_pending() {
            *self.blocked_writer.lock() = Some(cx.waker().clone());
        }
        if self.aborted.load(SeqCst) {
            Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
        } else {
            outcome
        }
    }
}

/// A request body. hyper drops it once it is written, which shows an exchange whether its own request was sent,
/// independent of others on the same connection.
pub(crate) struct Payload {
    bytes: Bytes,
    _unsent: Arc<()>,
}

impl Payload {
    /// Creates the body, and the marker to pass to [`is_unsent`].
    pub(crate) fn new(bytes: Bytes) -> (Self, Arc<()>) {
        let mark = Arc::new(());
        (Self { bytes, _unsent: mark.clone() }, mark)
    }
}

/// Returns whether hyper still holds the body of this marker.
pub(crate) fn is_unsent(mark: &Arc<()>) -> bool {
    Arc::strong_count(mark) > 1
}

impl Buf for Payload {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Calls the same method on either transport.
macro_rules! either {
    ($stream:expr, $io:ident => $call:expr) => {
        match &mut $stream.transport {
            Transport::Plain($io) => {
                let $io = Pin::new($io);
                $call
            }
            Transport::Tls($io) => {
                let $io = Pin::new($io.as_mut());
                $call
            }
        }
    };
}

/// A connection to a checked address.
pub(crate) struct Stream {
    transport: Transport,
    link: Arc<ConnectionState>,
    /// Bytes received since the last write.
    received_bytes: usize,
    /// Maximum number of bytes that a valid response can have. Without this limit an endpoint could send
    /// `100 Continue` until the deadline and consume CPU time at the expense of other exchanges.
    max_received_bytes: usize,
    /// Counts this connection against its address's limit.
    _permit: Permit,
}

impl Stream {
    pub(crate) fn plain(socket: TcpStream, permit: Permit, phases: Phases, max: usize) -> Self {
        Self::new(Transport::Plain(socket), permit, phases, max)
    }

    pub(crate) fn tls(stream: TlsStream<TcpStream>, permit: Permit, phases: Phases, max: usize) -> Self {
        Self::new(Transport::Tls(Box::new(stream)), permit, phases, max)
    }

    fn new(transport: Transport, permit: Permit, phases: Phases, max: usize) -> Self {
        Self {
            transport,
            link: Arc::new(ConnectionState::new(phases)),
            received_bytes: 0,
            max_received_bytes: max,
            _permit: permit,
        }
    }

    /// Returns the state shared with the exchanges on this connection.
    pub(crate) fn link(&self) -> &Arc<ConnectionState> {
        &self.link
    }

    /// Records the start of a write; a write after received bytes belongs to the next exchange. A request that gets
    /// its response before it was written completely may count as two, and its connection then never counts as idle.
    fn begin_write(&mut self) -> io::Result<()> {
        if self.received_bytes > 0 {
            if self.link.is_retired_idle() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.link.started.fetch_add(1, SeqCst);
        }
        self.received_bytes = 0;
        Ok(())
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.link.clone())
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = either!(self, io => io.poll_read(cx, buf));
        self.received_bytes += buf.filled().len() - before;
        if self.received_bytes > self.max_received_bytes {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        if read.is_pending() { self.link.check_retired(cx) } else { read }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.begin_write()?;
        let wrote = either!(self, io => io.poll_write(cx, buf));
        self.link.check_aborted(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin_write()?;
        let wrote = either!(self, io => io.poll_write_vectored(cx, bufs));
        self.link.check_aborted(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(io) => io.is_write_vectored(),
            Transport::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = either!(self, io => io.poll_flush(cx));
        self.link.check_aborted(cx, flushed)
    }

    /// Tries the shutdown once. Waiting for a peer that does not read would keep the socket forever.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match either!(self, io => io.poll_shutdown(cx)) {
            Poll::Pending => Poll::Ready(Ok(())),
            done => done,
        }
    }
}

//! A connection as hyper uses it, plain or TLS, and its link to the exchanges on it.
//! The link exists so that a receiver which answers early and never reads cannot keep what it was sent.

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

/// How long making a connection took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Phases {
    pub(crate) dns: Option<Duration>,
    pub(crate) connect: Option<Duration>,
    pub(crate) tls: Option<Duration>,
}

/// What a connection and the exchanges on it know about each other.
pub(crate) struct Link {
    phases: Phases,
    phases_taken: AtomicBool,
    cut: AtomicBool,
    blocked_writer: Mutex<Option<Waker>>,
    /// Whether it must not be used again.
    retired: AtomicBool,
    /// Exchanges that were begun on it, and those that came to a good end: as many if it is idle.
    begun: AtomicUsize,
    ended: AtomicUsize,
    waiting_reader: Mutex<Option<Waker>>,
}

impl Link {
    fn new(phases: Phases) -> Self {
        Self {
            phases,
            phases_taken: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            blocked_writer: Mutex::new(None),
            retired: AtomicBool::new(false),
            // It is made for an exchange, which is about to begin.
            begun: AtomicUsize::new(1),
            ended: AtomicUsize::new(0),
            waiting_reader: Mutex::new(None),
        }
    }

    /// Ends the connection as soon as no exchange is on it, which may be now.
    pub(crate) fn retire(&self) {
        self.retired.store(true, SeqCst);
        self.wake_reader();
    }

    /// Notes that an exchange has had its whole answer.
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

    /// Whether the connection is idle and must not be used again.
    fn is_over(&self) -> bool {
        self.retired.load(SeqCst) && self.ended.load(SeqCst) >= self.begun.load(SeqCst)
    }

    /// Lets a read wait, unless the connection is over, which reads as its end.
    fn unless_over(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        {
            let mut waiting = self.waiting_reader.lock();
            if !waiting.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                *waiting = Some(cx.waker().clone());
            }
        }
        if self.is_over() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// The phases, for the first exchange that asks; later ones did not wait for them.
    pub(crate) fn take_phases(&self) -> Option<Phases> {
        (!self.phases_taken.swap(true, Relaxed)).then_some(self.phases)
    }

    /// Ends a connection on which a request is still being written although its exchange is over.
    ///
    /// hyper would go on writing without a deadline, even to close the connection. An honest receiver has
    /// read the whole request before its answer ends, so this only meets the others.
    pub(crate) fn cut(&self) {
        self.cut.store(true, SeqCst);
        if let Some(writer) = self.blocked_writer.lock().take() {
            writer.wake();
        }
    }

    /// Lets a write's outcome through, unless the connection was cut. One that waits will be woken then.
    fn unless_cut<T>(&self, cx: &Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_pending() {
            *self.blocked_writer.lock() = Some(cx.waker().clone());
        }
        if self.cut.load(SeqCst) {
            Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
        } else {
            outcome
        }
    }
}

/// A request's body on its way out. hyper drops it once it is written, which is how an exchange can tell
/// whether its request has left, apart from all others on the same connection.
pub(crate) struct Payload {
    bytes: Bytes,
    _unsent: Arc<()>,
}

impl Payload {
    /// The body, and the mark by which [`is_unsent`] knows it.
    pub(crate) fn new(bytes: Bytes) -> (Self, Arc<()>) {
        let mark = Arc::new(());
        (Self { bytes, _unsent: mark.clone() }, mark)
    }
}

/// Whether hyper still holds the body of this mark.
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

/// Calls the same method on whichever transport it is.
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
    link: Arc<Link>,
    /// Bytes that came since the last byte went out.
    answered: usize,
    /// What no honest answer exceeds. Without it a receiver could keep us reading `100 Continue` for as long
    /// as the deadline allows, at the cost of everybody else's time.
    most: usize,
    /// Counts this connection against its address's limit.
    _permit: Permit,
}

impl Stream {
    pub(crate) fn plain(socket: TcpStream, permit: Permit, phases: Phases, most: usize) -> Self {
        Self::new(Transport::Plain(socket), permit, phases, most)
    }

    pub(crate) fn tls(stream: TlsStream<TcpStream>, permit: Permit, phases: Phases, most: usize) -> Self {
        Self::new(Transport::Tls(Box::new(stream)), permit, phases, most)
    }

    fn new(transport: Transport, permit: Permit, phases: Phases, most: usize) -> Self {
        Self { transport, link: Arc::new(Link::new(phases)), answered: 0, most, _permit: permit }
    }

    /// What the exchanges on it know of it.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Notes that something is about to be sent; what follows an answer is the next exchange. One that is
    /// answered before it was sent in full may count as two, and its connection then never as idle.
    fn begin_write(&mut self) -> io::Result<()> {
        if self.answered > 0 {
            if self.link.is_over() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            self.link.begun.fetch_add(1, SeqCst);
        }
        self.answered = 0;
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
        self.answered += buf.filled().len() - before;
        if self.answered > self.most {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        if read.is_pending() { self.link.unless_over(cx) } else { read }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.begin_write()?;
        let wrote = either!(self, io => io.poll_write(cx, buf));
        self.link.unless_cut(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin_write()?;
        let wrote = either!(self, io => io.poll_write_vectored(cx, bufs));
        self.link.unless_cut(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(io) => io.is_write_vectored(),
            Transport::Tls(io) => io.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = either!(self, io => io.poll_flush(cx));
        self.link.unless_cut(cx, flushed)
    }

    /// Tries once to say goodbye. Waiting for a peer that does not read would keep the socket for ever.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match either!(self, io => io.poll_shutdown(cx)) {
            Poll::Pending => Poll::Ready(Ok(())),
            done => done,
        }
    }
}

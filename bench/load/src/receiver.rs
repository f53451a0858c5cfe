//! The receiver: one thread that books every request and answers it at once, or never if it is to hang.
//! It must never be what the load waits for, so it neither verifies signatures nor parses payloads.

use std::{io, net::Ipv4Addr, sync::Arc, thread};

use tokio::net::TcpListener;

use crate::{ledger::Verdict, run_log::Books, wire::Wire};

const ACCEPTED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
/// The plain refusal.
pub(crate) const FAILED: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";

/// A refusal that says when to come back.
pub(crate) fn busy_until(date: &str) -> String {
    format!("HTTP/1.1 503 Service Unavailable\r\nretry-after: {date}\r\ncontent-length: 0\r\n\r\n")
}

/// Listens from here on; returns once senders can connect.
pub(crate) fn start(port: u16, books: Arc<Books>) -> io::Result<()> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    thread::Builder::new().name("receiver".into()).spawn(move || {
        let ended = runtime.block_on(accept(listener, books));
        eprintln!("the receiver stopped: {ended:?}");
    })?;
    Ok(())
}

async fn accept(listener: std::net::TcpListener, books: Arc<Books>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A sender that is killed resets its connections: that is part of the load, not an error.
        tokio::spawn(answer(Wire::new(stream)?, Arc::clone(&books)));
    }
}

async fn answer(mut wire: Wire, books: Arc<Books>) -> io::Result<()> {
    while let Some(request) = wire.read().await? {
        let close = request.close;
        match books.arrived(request.path_number(), request.body) {
            Verdict::Accept => wire.write(ACCEPTED.as_bytes()).await?,
            Verdict::Refuse(answer) => wire.write(answer.as_bytes()).await?,
            // The next read ends when the sender has had enough and closes the connection.
            Verdict::Hang => continue,
        }
        if close {
            break;
        }
    }
    Ok(())
}

//! The receiver: one thread that records every request and responds immediately, or never if it is to hang.
//! It must never be the bottleneck of the load, so it neither verifies signatures nor parses payloads.

use std::{io, net::Ipv4Addr, sync::Arc, thread};

use tokio::net::TcpListener;

use crate::{ledger::ResponseAction, run_log::RunLog, wire::Wire};

const ACCEPTED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
/// A failure response without further headers.
pub(crate) const FAILED: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";

/// Returns a failure response with a `Retry-After` date.
pub(crate) fn busy_until(date: &str) -> String {
    format!("HTTP/1.1 503 Service Unavailable\r\nretry-after: {date}\r\ncontent-length: 0\r\n\r\n")
}

/// Starts listening; returns once senders can connect.
pub(crate) fn start(port: u16, books: Arc<RunLog>) -> io::Result<()> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    thread::Builder::new().name("receiver".into()).spawn(move || {
        let ended = runtime.block_on(accept(listener, books));
        eprintln!("the receiver stopped: {ended:?}");
    })?;
    Ok(())
}

async fn accept(listener: std::net::TcpListener, books: Arc<RunLog>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A killed sender resets its connections; that is part of the load, not an error.
        tokio::spawn(respond(Wire::new(stream)?, Arc::clone(&books)));
    }
}

async fn respond(mut wire: Wire, books: Arc<RunLog>) -> io::Result<()> {
    while let Some(request) = wire.read().await? {
        let close = request.close;
        match books.arrived(request.path_number(), request.body) {
            ResponseAction::Accept => wire.write(ACCEPTED.as_bytes()).await?,
            ResponseAction::Refuse(response) => wire.write(response.as_bytes()).await?,
            // The next read ends when the sender times out and closes the connection.
            ResponseAction::Hang => continue,
        }
        if close {
            break;
        }
    }
    Ok(())
}

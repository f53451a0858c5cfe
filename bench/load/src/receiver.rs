//! The receiver: one thread that books every request in the ledger and answers it at once.
//! It must never be what the load waits for, so it neither verifies signatures nor parses payloads.

use std::{io, net::Ipv4Addr, sync::Arc, thread};

use tokio::net::TcpListener;

use crate::{
    ledger::{Ledger, Verdict},
    wire::Wire,
};

const ACCEPTED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const REFUSED: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";

/// Listens from here on; returns once senders can connect.
pub(crate) fn start(port: u16, ledger: Arc<Ledger>) -> io::Result<()> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    thread::Builder::new().name("receiver".into()).spawn(move || {
        let ended = runtime.block_on(accept(listener, ledger));
        eprintln!("the receiver stopped: {ended:?}");
    })?;
    Ok(())
}

async fn accept(listener: std::net::TcpListener, ledger: Arc<Ledger>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        // A sender that is killed resets its connections: that is part of the load, not an error.
        tokio::spawn(answer(Wire::new(stream)?, Arc::clone(&ledger)));
    }
}

async fn answer(mut wire: Wire, ledger: Arc<Ledger>) -> io::Result<()> {
    while let Some(request) = wire.read().await? {
        let close = request.close;
        let verdict = ledger.arrived(request.path_number(), request.body);
        wire.write(if verdict == Verdict::Accept { ACCEPTED } else { REFUSED }).await?;
        if close {
            break;
        }
    }
    Ok(())
}

//! Receivers that misbehave on purpose, over plain TCP because no HTTP library would.
//!
//! Each misbehaves the same way on every connection, until the client gives up or the receiver is dropped.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::server::Server;

/// A kind of misbehavior. If a status is sent at all it is 200, the one that a sender might accept too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Misbehavior {
    /// Sends the response head one byte at a time and never ends it.
    SlowHeaders,
    /// Sends a valid response head, then a body of a megabyte one byte at a time.
    SlowBody,
    /// Sends an endless chunked body as fast as the client reads it.
    EndlessBody,
    /// Announces a body of 1 GiB and sends all of it as fast as the client reads it.
    HugeBody,
    /// Sends a response head and a part of the body, then resets the connection.
    ResetMidBody,
    /// Resets the connection as soon as it is accepted.
    ResetAtOnce,
    /// Responds with bytes that are not HTTP, and closes.
    Garbage,
    /// Sends endless header lines as fast as the client reads them.
    HeaderFlood,
    /// Sends endless `100 Continue` responses as fast as the client reads them.
    InformationalFlood,
    /// Announces a longer body than it sends, and closes.
    WrongContentLength,
    /// Reads the request and closes without a response.
    CloseWithoutAnswer,
    /// Responds at the first byte of the request and never reads any of it.
    RespondsBeforeReading,
    /// Reads the request and everything after it, and never responds.
    NeverAnswers,
    /// Sends endless gzip data that decompresses to 160 times its size.
    CompressedBomb,
    /// Sends two `content-length` headers that disagree.
    TwoLengths,
    /// Has an `https` URL, accepts the TLS client hello, and never replies to it.
    TlsStall,
}

impl Misbehavior {
    /// Every kind of misbehavior.
    pub const ALL: [Self; 16] = [
        Self::SlowHeaders,
        Self::SlowBody,
        Self::EndlessBody,
        Self::HugeBody,
        Self::ResetMidBody,
        Self::ResetAtOnce,
        Self::Garbage,
        Self::HeaderFlood,
        Self::InformationalFlood,
        Self::WrongContentLength,
        Self::CloseWithoutAnswer,
        Self::RespondsBeforeReading,
        Self::NeverAnswers,
        Self::CompressedBomb,
        Self::TwoLengths,
        Self::TlsStall,
    ];
}

/// The interval between two bytes of a slow receiver: too short to trigger an idle timeout.
const BYTE_INTERVAL: Duration = Duration::from_millis(100);
const GIBIBYTE: usize = 1 << 30;
const BLOCK: [u8; 16 * 1024] = [b'x'; 16 * 1024];
/// The start of a gzip file of zeros; `GZIP_ZEROS` may follow it any number of times.
const GZIP_START: [u8; 12] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x63, 0x18];
const GZIP_ZEROS: [u8; 13] = [5, 0xa3, 0x60, 0x14, 0x8c, 0x82, 0x51, 0x30, 0x0a, 0x46, 0xc1, 0x28, 0x18];

/// A receiver with one kind of misbehavior, on a free loopback port, until dropped.
pub struct MisbehavingReceiver {
    server: Server,
    hostility: Misbehavior,
    connections: Arc<AtomicUsize>,
}

impl MisbehavingReceiver {
    /// Starts a receiver with this misbehavior.
    pub async fn start(hostility: Misbehavior) -> Self {
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let server = Server::start(move |stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                // An error means that the client closed the connection, which is expected.
                misbehave(hostility, stream).await.ok();
            }
        })
        .await;
        Self { server, hostility, connections }
    }

    /// Returns the URL to send requests to.
    pub fn url(&self) -> String {
        let url = self.server.url_at("/webhook");
        match self.hostility {
            Misbehavior::TlsStall => url.replacen("http://", "https://", 1),
            _ => url,
        }
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn misbehave(hostility: Misbehavior, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match hostility {
        Misbehavior::ResetAtOnce => return stream.set_zero_linger(),
        Misbehavior::RespondsBeforeReading => return respond_before_reading(&mut stream).await,
        Misbehavior::TlsStall => return drain(&mut stream).await,
        _ => read_request(&mut stream).await?,
    }
    match hostility {
        Misbehavior::SlowHeaders => trickle(&mut stream, b"HTTP/1.1 200 OK\r\nx-slow: ").await,
        Misbehavior::SlowBody => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").await?;
            trickle(&mut stream, b"").await
        }
        Misbehavior::EndlessBody => endless_body(&mut stream).await,
        Misbehavior::HugeBody => huge_body(&mut stream).await,
        Misbehavior::ResetMidBody => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nonly the start").await?;
            stream.set_zero_linger()
        }
        Misbehavior::Garbage => {
            stream.write_all(b"\x00\xff\x16\x03 220 smtp.example.com ESMTP\r\n\r\n").await
        }
        Misbehavior::HeaderFlood => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
            repeat(&mut stream, b"x-flood: 0123456789abcdef\r\n").await
        }
        Misbehavior::InformationalFlood => repeat(&mut stream, b"HTTP/1.1 100 Continue\r\n\r\n").await,
        Misbehavior::WrongContentLength => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nshort").await
        }
        Misbehavior::NeverAnswers | Misbehavior::TlsStall => drain(&mut stream).await,
        Misbehavior::CompressedBomb => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n").await?;
            stream.write_all(&GZIP_START).await?;
            repeat(&mut stream, &GZIP_ZEROS).await
        }
        Misbehavior::TwoLengths => {
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 20\r\n\r\nok";
            stream.write_all(head).await
        }
        Misbehavior::CloseWithoutAnswer | Misbehavior::ResetAtOnce | Misbehavior::RespondsBeforeReading => {
            Ok(())
        }
    }
}

/// Sends `start` and then `x` forever, one byte at a time.
async fn trickle(stream: &mut TcpStream, start: &[u8]) -> io::Result<()> {
    for byte in start.iter().chain(std::iter::repeat(&b'x')) {
        stream.write_all(&[*byte]).await?;
        tokio::time::sleep(BYTE_INTERVAL).await;
    }
    Ok(())
}

async fn endless_body(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    let chunk = [format!("{:x}\r\n", BLOCK.len()).as_bytes(), &BLOCK[..], b"\r\n"].concat();
    repeat(stream, &chunk).await
}

async fn huge_body(stream: &mut TcpStream) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {GIBIBYTE}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    for _ in 0..GIBIBYTE / BLOCK.len() {
        stream.write_all(&BLOCK).await?;
    }
    Ok(())
}

async fn respond_before_reading(stream: &mut TcpStream) -> io::Result<()> {
    stream.peek(&mut [0]).await?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await?;
    // Closing with the request unread would reset the connection, and the client might lose the response.
    std::future::pending().await
}

/// Sends the same bytes forever, many at a time.
async fn repeat(stream: &mut TcpStream, piece: &[u8]) -> io::Result<()> {
    let pieces = piece.repeat(BLOCK.len().div_ceil(piece.len()));
    loop {
        stream.write_all(&pieces).await?;
    }
}

/// Reads until the client closes the connection.
async fn drain(stream: &mut TcpStream) -> io::Result<()> {
    let mut ignored = [0; 4096];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}

/// Reads one request, with its body if the length is announced.
async fn read_request(stream: &mut TcpStream) -> io::Result<()> {
    let mut request = Vec::new();
    let head = loop {
        if stream.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let whole = head + content_length(&request[..head]);
    while request.len() < whole && stream.read_buf(&mut request).await? > 0 {}
    Ok(())
}

fn content_length(head: &[u8]) -> usize {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length.and_then(|length| length.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Misbehavior::*, *};

    /// The state of a connection as its client sees it after a short time.
    #[derive(Debug, PartialEq)]
    enum End {
        Closed,
        Reset,
        StillOpen,
        TooMuch,
    }

    const MAX_BYTES: usize = 4 << 20;

    /// Sends a request and reads the response for a short time, or until it exceeds `ENOUGH` bytes.
    async fn ask(hostile: &MisbehavingReceiver, request: &[u8]) -> (End, Vec<u8>) {
        let address = hostile.server.address();
        let (mut reading, mut writing) = TcpStream::connect(address).await.unwrap().into_split();
        let mut response = Vec::new();
        let talk = async {
            let send = async {
                writing.write_all(request).await.ok();
                std::future::pending::<End>().await
            };
            let read = async {
                loop {
                    match reading.read_buf(&mut response).await {
                        Ok(0) => break End::Closed,
                        Ok(_) if response.len() > MAX_BYTES => break End::TooMuch,
                        Ok(_) => {}
                        Err(_) => break End::Reset,
                    }
                }
            };
            tokio::select! { end = send => end, end = read => end }
        };
        let end = tokio::time::timeout(5 * BYTE_INTERVAL, talk).await.unwrap_or(End::StillOpen);
        (end, response)
    }

    #[tokio::test]
    async fn each_misbehavior_is_visible_to_a_plain_client() {
        for hostility in Misbehavior::ALL {
            let hostile = MisbehavingReceiver::start(hostility).await;
            let request = b"POST /webhook HTTP/1.1\r\nhost: x\r\nContent-Length: 5\r\n\r\nhello";
            let (end, response) = ask(&hostile, request).await;
            let (expected, start) = match hostility {
                SlowHeaders => (End::StillOpen, "HTT"),
                SlowBody => (End::StillOpen, "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\nxxx"),
                EndlessBody => {
                    (End::TooMuch, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4000\r\nxx")
                }
                HugeBody => (End::TooMuch, "HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\nxx"),
                ResetMidBody => (End::Reset, "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nonly"),
                ResetAtOnce => (End::Reset, ""),
                Garbage => (End::Closed, "\0"),
                HeaderFlood => (End::TooMuch, "HTTP/1.1 200 OK\r\nx-flood: 0123456789abcdef\r\nx-flood"),
                InformationalFlood => (End::TooMuch, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100"),
                WrongContentLength => (End::Closed, "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nshort"),
                CloseWithoutAnswer => (End::Closed, ""),
                RespondsBeforeReading => (End::StillOpen, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"),
                NeverAnswers | TlsStall => (End::StillOpen, ""),
                CompressedBomb => (End::TooMuch, "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n\u{1f}"),
                TwoLengths => (End::Closed, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 20"),
            };
            let text = String::from_utf8_lossy(&response[..response.len().min(100)]);
            assert_eq!(end, expected, "{hostility:?}: {text}");
            assert!(text.starts_with(start), "{hostility:?}: {text}");
            assert!(!start.is_empty() || response.is_empty(), "{hostility:?}: {text}");
            assert_eq!(hostile.connections(), 1, "{hostility:?}");
        }
    }

    #[tokio::test]
    async fn response_can_arrive_while_the_request_is_being_sent() {
        let hostile = MisbehavingReceiver::start(RespondsBeforeReading).await;
        let head = b"POST /webhook HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n";
        let request = [&head[..], &vec![b'x'; 32 << 20]].concat();
        let (end, response) = ask(&hostile, &request).await;
        assert!(response.starts_with(b"HTTP/1.1 200 OK"), "{end:?}");
    }
}

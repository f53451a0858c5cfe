//! Receivers that behave badly on purpose, over bare TCP since no HTTP library would.
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

/// A way to behave badly. Where a status is sent at all it is 200, the answer that is tempting to believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hostility {
    /// Sends the head one byte at a time and never ends it.
    SlowHeaders,
    /// Sends a proper head, then a body of a megabyte one byte at a time.
    SlowBody,
    /// Sends a chunked body without end, as fast as it is taken.
    EndlessBody,
    /// Announces a body of 1 GiB and sends all of it, as fast as it is taken.
    HugeBody,
    /// Sends a head and a part of the body, then resets the connection.
    ResetMidBody,
    /// Resets the connection as soon as it is made.
    ResetAtOnce,
    /// Answers the request with something that is no HTTP, and closes.
    Garbage,
    /// Sends header lines without end, as fast as they are taken.
    HeaderFlood,
    /// Sends `100 Continue` without end, as fast as it is taken.
    InformationalFlood,
    /// Announces a longer body than it sends, and closes.
    WrongContentLength,
    /// Reads the request and closes without an answer.
    CloseWithoutAnswer,
    /// Answers at the first byte of the request and never reads any of it.
    AnswersBeforeReading,
    /// Reads the request and everything after it, and never says a word.
    NeverAnswers,
    /// Sends gzip without end that unpacks to 160 times as much.
    CompressedBomb,
    /// Announces two lengths that disagree.
    TwoLengths,
    /// Is to be reached over TLS, takes the greeting, and never answers it.
    TlsStall,
}

impl Hostility {
    /// Every way there is.
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
        Self::AnswersBeforeReading,
        Self::NeverAnswers,
        Self::CompressedBomb,
        Self::TwoLengths,
        Self::TlsStall,
    ];
}

/// The pause between two bytes of a slow receiver: too short for an idle timeout to notice.
const TRICKLE: Duration = Duration::from_millis(100);
const GIBIBYTE: usize = 1 << 30;
const BLOCK: [u8; 16 * 1024] = [b'x'; 16 * 1024];
/// The start of a gzip file of nothing but zeros, and what may follow it again and again.
const GZIP_START: [u8; 12] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x63, 0x18];
const GZIP_ZEROS: [u8; 13] = [5, 0xa3, 0x60, 0x14, 0x8c, 0x82, 0x51, 0x30, 0x0a, 0x46, 0xc1, 0x28, 0x18];

/// A receiver that behaves badly in one way, on a free loopback port, until dropped.
pub struct Hostile {
    server: Server,
    hostility: Hostility,
    connections: Arc<AtomicUsize>,
}

impl Hostile {
    /// Starts a receiver that behaves badly in this way.
    pub async fn start(hostility: Hostility) -> Self {
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let server = Server::start(move |stream| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                // An error is the client hanging up, which is what it should do.
                misbehave(hostility, stream).await.ok();
            }
        })
        .await;
        Self { server, hostility, connections }
    }

    /// Where to send requests.
    pub fn url(&self) -> String {
        let url = self.server.url_at("/hook");
        match self.hostility {
            Hostility::TlsStall => url.replacen("http://", "https://", 1),
            _ => url,
        }
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn misbehave(hostility: Hostility, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match hostility {
        Hostility::ResetAtOnce => return stream.set_zero_linger(),
        Hostility::AnswersBeforeReading => return answer_before_reading(&mut stream).await,
        Hostility::TlsStall => return drain(&mut stream).await,
        _ => read_request(&mut stream).await?,
    }
    match hostility {
        Hostility::SlowHeaders => trickle(&mut stream, b"HTTP/1.1 200 OK\r\nx-slow: ").await,
        Hostility::SlowBody => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").await?;
            trickle(&mut stream, b"").await
        }
        Hostility::EndlessBody => endless_body(&mut stream).await,
        Hostility::HugeBody => huge_body(&mut stream).await,
        Hostility::ResetMidBody => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nonly the start").await?;
            stream.set_zero_linger()
        }
        Hostility::Garbage => stream.write_all(b"\x00\xff\x16\x03 220 smtp.example.com ESMTP\r\n\r\n").await,
        Hostility::HeaderFlood => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
            repeat(&mut stream, b"x-flood: 0123456789abcdef\r\n").await
        }
        Hostility::InformationalFlood => repeat(&mut stream, b"HTTP/1.1 100 Continue\r\n\r\n").await,
        Hostility::WrongContentLength => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nshort").await
        }
        Hostility::NeverAnswers | Hostility::TlsStall => drain(&mut stream).await,
        Hostility::CompressedBomb => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n").await?;
            stream.write_all(&GZIP_START).await?;
            repeat(&mut stream, &GZIP_ZEROS).await
        }
        Hostility::TwoLengths => {
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 20\r\n\r\nok";
            stream.write_all(head).await
        }
        Hostility::CloseWithoutAnswer | Hostility::ResetAtOnce | Hostility::AnswersBeforeReading => Ok(()),
    }
}

/// Sends `start` and then `x` for ever, one byte at a time.
async fn trickle(stream: &mut TcpStream, start: &[u8]) -> io::Result<()> {
    for byte in start.iter().chain(std::iter::repeat(&b'x')) {
        stream.write_all(&[*byte]).await?;
        tokio::time::sleep(TRICKLE).await;
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

async fn answer_before_reading(stream: &mut TcpStream) -> io::Result<()> {
    stream.peek(&mut [0]).await?;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await?;
    // Closing with the request unread would reset the connection, and the answer might be lost with it.
    std::future::pending().await
}

/// Sends the same bytes for ever, many at a time.
async fn repeat(stream: &mut TcpStream, piece: &[u8]) -> io::Result<()> {
    let pieces = piece.repeat(BLOCK.len().div_ceil(piece.len()));
    loop {
        stream.write_all(&pieces).await?;
    }
}

/// Reads until the client hangs up.
async fn drain(stream: &mut TcpStream) -> io::Result<()> {
    let mut ignored = [0; 4096];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}

/// Reads one request, the body included where its length is announced.
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
    use super::{Hostility::*, *};

    /// How a connection looked to its client after a moment.
    #[derive(Debug, PartialEq)]
    enum End {
        Closed,
        Reset,
        StillOpen,
        TooMuch,
    }

    const ENOUGH: usize = 4 << 20;

    /// Sends a request and reads what comes for a moment, or until it is too much.
    async fn ask(hostile: &Hostile, request: &[u8]) -> (End, Vec<u8>) {
        let address = hostile.server.address();
        let (mut reading, mut writing) = TcpStream::connect(address).await.unwrap().into_split();
        let mut answer = Vec::new();
        let talk = async {
            let send = async {
                writing.write_all(request).await.ok();
                std::future::pending::<End>().await
            };
            let read = async {
                loop {
                    match reading.read_buf(&mut answer).await {
                        Ok(0) => break End::Closed,
                        Ok(_) if answer.len() > ENOUGH => break End::TooMuch,
                        Ok(_) => {}
                        Err(_) => break End::Reset,
                    }
                }
            };
            tokio::select! { end = send => end, end = read => end }
        };
        let end = tokio::time::timeout(5 * TRICKLE, talk).await.unwrap_or(End::StillOpen);
        (end, answer)
    }

    #[tokio::test]
    async fn each_way_troubles_a_plain_client() {
        for hostility in Hostility::ALL {
            let hostile = Hostile::start(hostility).await;
            let request = b"POST /hook HTTP/1.1\r\nhost: x\r\nContent-Length: 5\r\n\r\nhello";
            let (end, answer) = ask(&hostile, request).await;
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
                AnswersBeforeReading => (End::StillOpen, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"),
                NeverAnswers | TlsStall => (End::StillOpen, ""),
                CompressedBomb => (End::TooMuch, "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n\u{1f}"),
                TwoLengths => (End::Closed, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 20"),
            };
            let text = String::from_utf8_lossy(&answer[..answer.len().min(100)]);
            assert_eq!(end, expected, "{hostility:?}: {text}");
            assert!(text.starts_with(start), "{hostility:?}: {text}");
            assert!(!start.is_empty() || answer.is_empty(), "{hostility:?}: {text}");
            assert_eq!(hostile.connections(), 1, "{hostility:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_can_come_while_the_request_is_being_sent() {
        let hostile = Hostile::start(AnswersBeforeReading).await;
        let head = b"POST /hook HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n";
        let request = [&head[..], &vec![b'x'; 32 << 20]].concat();
        let (end, answer) = ask(&hostile, &request).await;
        assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{end:?}");
    }
}

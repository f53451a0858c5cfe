//! The part of HTTP/1.1 that both sides of the load need: messages with a `content-length`, one after another on a
//! keep-alive connection. A chunked message is rejected.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    ops::Range,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const BUFFER: usize = 16 * 1024;

/// A connection and its read buffer.
pub(crate) struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Length of the message returned last; dropped from the buffer when the next one is read.
    done: usize,
}

/// Offsets of a message's parts in the buffer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    first_line: Range<usize>,
    body: Range<usize>,
    /// The peer will not use the connection again.
    close: bool,
}

/// A complete message, valid until the next is read.
pub(crate) struct Message<'a> {
    pub(crate) first_line: &'a [u8],
    pub(crate) body: &'a [u8],
    pub(crate) close: bool,
}

impl Message<'_> {
    /// Returns the status code of a response.
    pub(crate) fn status(&self) -> u16 {
        let digits = self.first_line.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }

    /// Returns the number that ends a request's path, or 0 if there is none.
    pub(crate) fn path_number(&self) -> usize {
        let path = self.first_line.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        std::str::from_utf8(last).ok().and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

impl Wire {
    pub(crate) async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::new(TcpStream::connect(address).await?)
    }

    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::with_capacity(BUFFER), done: 0 })
    }

    /// Reads the next message. Returns `None` if the peer closed the connection between two messages.
    pub(crate) async fn read(&mut self) -> io::Result<Option<Message<'_>>> {
        self.buffer.drain(..self.done);
        self.done = 0;
        loop {
            if let Some(frame) = frame(&self.buffer)? {
                self.done = frame.body.end;
                return Ok(Some(Message {
                    first_line: &self.buffer[frame.first_line],
                    body: &self.buffer[frame.body],
                    close: frame.close,
                }));
            }
            self.buffer.reserve(BUFFER / 2);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Sends a request and reads its response.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<Message<'_>> {
        self.write(request).await?;
        self.read().await?.ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }
}

/// Builds a JSON request with its `content-length`.
pub(crate) fn post(path: &str, host: SocketAddr, key: &str, body: &str) -> String {
    let bearer = if key.is_empty() { String::new() } else { format!("authorization: Bearer {key}\r\n") };
    format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\n{bearer}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Finds the first complete message in `bytes`. Returns `None` if more must be read.
fn frame(bytes: &[u8]) -> io::Result<Option<Frame>> {
    let mut first_line = None;
    let (mut length, mut close, mut at) = (0, false, 0);
    while let Some(end) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let line = bytes[at..at + end].trim_ascii_end();
        let start = at;
        at += end + 1;
        if first_line.is_none() {
            first_line = Some(start..start + line.len());
        } else if line.is_empty() {
            let body = at..at + length;
            let first_line = first_line.unwrap_or_default();
            return Ok((bytes.len() >= body.end).then_some(Frame { first_line, body, close }));
        } else if let Some(value) = header(line, b"content-length:") {
            let number = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            length = number.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "bad content-length"))?;
        } else if header(line, b"transfer-encoding:").is_some() {
            return Err(io::Error::new(ErrorKind::InvalidData, "chunked messages are not read here"));
        } else if let Some(value) = header(line, b"connection:") {
            close = value.eq_ignore_ascii_case(b"close");
        }
    }
    Ok(None)
}

fn header<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (head, value) = line.split_at_checked(name.len())?;
    head.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_message_is_not_returned() {
        let whole = b"POST /webhook/12 HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbodyPOST";
        for cut in 0..whole.len() - 4 {
            assert_eq!(frame(&whole[..cut]).unwrap(), None, "cut at {cut}");
        }
        let found = frame(whole).unwrap().unwrap();
        assert_eq!(&whole[found.body.clone()], b"body");
        let message =
            Message { first_line: &whole[found.first_line], body: &whole[found.body], close: found.close };
        assert_eq!(message.path_number(), 12);
        assert!(!message.close);
    }

    #[test]
    fn status_and_connection_close_are_parsed() {
        let whole = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n\r\n";
        let found = frame(whole).unwrap().unwrap();
        let message = Message { first_line: &whole[found.first_line], body: b"", close: found.close };
        assert_eq!((message.status(), message.close), (503, true));
    }

    #[test]
    fn chunked_message_is_rejected() {
        assert!(frame(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }
}

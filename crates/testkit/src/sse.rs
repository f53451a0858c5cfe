//! A client for server-sent events, as a page uses them.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use crate::WAIT_TIMEOUT;

/// An open event stream.
pub struct Events(BufReader<TcpStream>);

/// Opens a stream with a session cookie.
pub async fn sse(address: SocketAddr, path: &str, cookie: &str) -> Events {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\ncookie: {cookie}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut events = Events(BufReader::new(stream));
    let head = events.line().await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    events
}

impl Events {
    /// Waits until the server ends the stream; panics after `WAIT_TIMEOUT`.
    pub async fn wait_end(&mut self) {
        let end = async {
            let mut line = String::new();
            // The last chunk is empty; the connection itself may stay open.
            while self.0.read_line(&mut line).await.unwrap() > 0 && line.trim_end() != "0" {
                line.clear();
            }
        };
        timeout(WAIT_TIMEOUT, end).await.expect("the stream is open");
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = timeout(WAIT_TIMEOUT, self.0.read_line(&mut line)).await;
        assert!(read.expect("no event within the timeout").unwrap() > 0, "the stream has ended");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    /// Returns the data of the next event of this name.
    pub async fn next(&mut self, name: &str) -> String {
        while self.line().await != format!("event: {name}") {}
        let mut data = String::new();
        loop {
            let line = self.line().await;
            match line.strip_prefix("data: ") {
                Some(part) => {
                    data.push_str(part);
                    data.push('\n');
                }
                // An empty line ends an event; chunk boundaries in between are ignored.
                None if line.is_empty() && !data.is_empty() => return data,
                None => {}
            }
        }
    }
}

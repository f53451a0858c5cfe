//! A word with the server that this machine's operator runs: the CLI's only connection, to the address that
//! the server's own settings name.

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::{Request, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::CliError;

pub(super) struct Remote {
    pub(super) address: SocketAddr,
    pub(super) key: String,
}

impl Remote {
    /// Calls the API and gives its answer; an error is told in its own words.
    pub(super) async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        let address = self.address;
        let unreachable = |why: String| {
            CliError::said(format!(
                "the database is in use, but no server answers on {address} ({why}); name its address with --listen"
            ))
        };
        let stream = TcpStream::connect(address).await.map_err(|error| unreachable(error.to_string()))?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(error.to_string()))?;
        tokio::spawn(connection);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, address.to_string())
            .header(header::AUTHORIZATION, format!("Bearer {}", self.key))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(bytes::Bytes::from(body)))
            .map_err(|error| CliError::said(error.to_string()))?;
        let answer = sender.send_request(request).await.map_err(|error| unreachable(error.to_string()))?;
        let status = answer.status();
        let bytes =
            answer.into_body().collect().await.map_err(|error| unreachable(error.to_string()))?.to_bytes();
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if status.is_success() {
            return Ok(value);
        }
        Err(CliError::said(format!(
            "the server answered {status}: {}",
            value["detail"].as_str().unwrap_or_default()
        )))
    }
}

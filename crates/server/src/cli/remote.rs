//! API client of the CLI. It is the only connection that the CLI opens, and it goes only to the address in the
//! server's own settings.

use std::path::PathBuf;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::{CliError, pinned_tls};
use crate::config::{Config, HostPort};

/// Error prefix for calls that are sent because the server has the database open.
pub(super) const IN_USE: &str = "the database is in use, but ";

pub(super) struct Remote {
    address: HostPort,
    /// Path of the server's certificate. `None` if the server does not use TLS.
    certificate: Option<PathBuf>,
    key: String,
    /// Prefix of the error message if the server cannot be reached.
    lead: &'static str,
}

impl Remote {
    /// Creates a client for the server with these settings.
    pub(super) fn new(config: &Config, key: String, lead: &'static str) -> Self {
        Self {
            address: config.server.listen.for_local_client(),
            certificate: config.server.tls_cert.clone(),
            key,
            lead,
        }
    }

    /// Calls the API and returns the response body. The message of an API error is passed on unchanged.
    pub(super) async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        let (status, bytes) = self.request(method, path, body).await?;
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if status.is_success() {
            return Ok(value);
        }
        let text = String::from_utf8_lossy(&bytes);
        if self.certificate.is_none() && text.contains("speaks TLS") {
            return Err(CliError::message(
                "the server speaks TLS; give this command the same --config as the server, or the same \
                 REDRIVE_SERVER_TLS_CERT and REDRIVE_SERVER_TLS_KEY",
            ));
        }
        let detail = value["detail"].as_str().unwrap_or(&text);
        Err(CliError::message(format!("the server returned {status}: {detail}")))
    }

    /// Sends a request and returns the status and the body of the response.
    pub(super) async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Bytes), CliError> {
        let to_error = |why: String| self.unreachable(&why);
        let addresses = self.address.resolve().await.map_err(|error| to_error(error.to_string()))?;
        let stream = TcpStream::connect(&addresses[..]).await.map_err(|error| to_error(error.to_string()))?;
        let peer = stream.peer_addr().map_err(|error| to_error(error.to_string()))?;
        match &self.certificate {
            None => self.send(stream, method, path, body).await,
            Some(file) => {
                let stream = pinned_tls::connect(stream, peer.ip(), file).await;
                self.send(stream.map_err(to_error)?, method, path, body).await
            }
        }
    }

    fn unreachable(&self, why: &str) -> CliError {
        let (lead, address) = (self.lead, &self.address);
        CliError::message(format!(
            "{lead}no server responds on {address} ({why}); name its address with --listen, \
             and its other settings with --config"
        ))
    }

    async fn send<S>(
        &self,
        stream: S,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Bytes), CliError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let to_error = |why: String| self.unreachable(&why);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| to_error(error.to_string()))?;
        tokio::spawn(connection);
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.address.to_string())
            .header(header::AUTHORIZATION, format!("Bearer {}", self.key))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| CliError::message(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(|error| to_error(error.to_string()))?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|error| to_error(error.to_string()))?;
        Ok((status, bytes.to_bytes()))
    }
}

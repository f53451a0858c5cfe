//! Connection to the operator's collector, reused while it stays open. Its address comes from the settings and
//! contains no tenant input.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, StatusCode, client::conn::http1, header};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Url;

use crate::{
    config::{ConfigError, Tracing},
    upstream,
};

/// Maximum number of response bytes that are read.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Reason why a batch was not accepted.
#[derive(Debug)]
pub(super) struct ExportError {
    pub(super) why: String,
    /// Whether sending it again may succeed.
    pub(super) retryable: bool,
}

fn later(why: &(impl ToString + ?Sized)) -> ExportError {
    ExportError { why: why.to_string(), retryable: true }
}

pub(super) struct Collector {
    url: Url,
    headers: Vec<(HeaderName, HeaderValue)>,
    tls: Option<TlsConnector>,
    request_timeout: Duration,
    sender: Option<http1::SendRequest<Full<Bytes>>>,
}

impl Collector {
    /// Creates the configured collector. Returns `None` if there is none.
    pub(super) fn from_settings(settings: &Tracing) -> Result<Option<Self>, ConfigError> {
        let Some(url) = settings.url()? else { return Ok(None) };
        let tls = match url.scheme() {
            "https" => Some(upstream::tls_connector(settings.authorities()?).map_err(|error| {
                ConfigError::Invalid { setting: "tracing.ca_file".into(), reason: error.to_string() }
            })?),
            _ => None,
        };
        let (headers, timeout) = (settings.headers()?, settings.timeout.as_duration());
        Ok(Some(Self { url, headers, tls, request_timeout: timeout, sender: None }))
    }

    /// Returns the URL, which contains no password.
    pub(super) fn address(&self) -> &str {
        self.url.as_str()
    }

    /// Sends a batch and returns the response body.
    pub(super) async fn post(&mut self, body: Bytes) -> Result<Bytes, ExportError> {
        let sender = self.sender.take();
        match timeout(self.request_timeout, self.exchange(sender, body)).await {
            Ok(result) => result,
            Err(_) => Err(later("no response in time")),
        }
    }

    async fn exchange(
        &mut self,
        sender: Option<http1::SendRequest<Full<Bytes>>>,
        body: Bytes,
    ) -> Result<Bytes, ExportError> {
        let open_sender = match sender {
            Some(mut sender) => sender.ready().await.is_ok().then_some(sender),
            None => None,
        };
        let mut sender = match open_sender {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let host = match (self.url.host_str(), self.url.port()) {
            (Some(host), Some(port)) => format!("{host}:{port}"),
            (host, _) => host.unwrap_or_default().to_owned(),
        };
        let mut request = Request::post(self.url.path())
            .header(header::HOST, host)
            .header(header::CONTENT_TYPE, "application/x-protobuf")
            .header(header::USER_AGENT, concat!("Redrive/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| later(&error))?;
        let response = sender.send_request(request).await.map_err(|error| later(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        if let (Ok(body), true) = (body, status.is_success()) {
            self.sender = Some(sender);
            return Ok(body.to_bytes());
        }
        let again = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::BAD_GATEWAY,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
        ];
        let why = format!("it returned {status}");
        Err(ExportError { why, retryable: status.is_success() || again.contains(&status) })
    }

    async fn connect(&self) -> Result<http1::SendRequest<Full<Bytes>>, ExportError> {
        let port = self.url.port_or_known_default().unwrap_or(4318);
        let host = self.url.host_str().ok_or_else(|| later("its address has no host"))?;
        upstream::connect(host, port, self.tls.as_ref()).await.map_err(|error| later(&error))
    }
}

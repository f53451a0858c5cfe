//! The way to the operator's collector: one connection, used again while it lasts. The address is the operator's
//! own, from the settings; nothing that a tenant says is in it.

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

/// How much of an answer is read.
const MAX_ANSWER: usize = 64 * 1024;

/// Why a batch was not taken.
#[derive(Debug)]
pub(super) struct NotTaken {
    pub(super) why: String,
    /// Whether it may be taken later.
    pub(super) later: bool,
}

fn later(why: &(impl ToString + ?Sized)) -> NotTaken {
    NotTaken { why: why.to_string(), later: true }
}

pub(super) struct Collector {
    url: Url,
    headers: Vec<(HeaderName, HeaderValue)>,
    tls: Option<TlsConnector>,
    patience: Duration,
    sender: Option<http1::SendRequest<Full<Bytes>>>,
}

impl Collector {
    /// The collector that the settings name, if they name one.
    pub(super) fn of(settings: &Tracing) -> Result<Option<Self>, ConfigError> {
        let Some(url) = settings.url()? else { return Ok(None) };
        let tls = match url.scheme() {
            "https" => Some(upstream::tls_connector(settings.authorities()?).map_err(|error| {
                ConfigError::Invalid { setting: "tracing.ca_file".into(), reason: error.to_string() }
            })?),
            _ => None,
        };
        let (headers, patience) = (settings.headers()?, settings.timeout.get());
        Ok(Some(Self { url, headers, tls, patience, sender: None }))
    }

    /// Where it is. There is no password in it.
    pub(super) fn address(&self) -> &str {
        self.url.as_str()
    }

    /// Sends a batch and gives what was answered.
    pub(super) async fn post(&mut self, body: Bytes) -> Result<Bytes, NotTaken> {
        let sender = self.sender.take();
        match timeout(self.patience, self.exchange(sender, body)).await {
            Ok(result) => result,
            Err(_) => Err(later("no answer in time")),
        }
    }

    async fn exchange(
        &mut self,
        sender: Option<http1::SendRequest<Full<Bytes>>>,
        body: Bytes,
    ) -> Result<Bytes, NotTaken> {
        let kept = match sender {
            Some(mut sender) => sender.ready().await.is_ok().then_some(sender),
            None => None,
        };
        let mut sender = match kept {
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
        let answer = sender.send_request(request).await.map_err(|error| later(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
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
        let why = format!("it answered {status}");
        Err(NotTaken { why, later: status.is_success() || again.contains(&status) })
    }

    async fn connect(&self) -> Result<http1::SendRequest<Full<Bytes>>, NotTaken> {
        let port = self.url.port_or_known_default().unwrap_or(4318);
        let host = self.url.host_str().ok_or_else(|| later("its address has no host"))?;
        upstream::connect(host, port, self.tls.as_ref()).await.map_err(|error| later(&error))
    }
}

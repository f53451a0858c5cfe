//! Requests to the identity provider, with a timeout and a bounded response. Redirects are not followed.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{HeaderMap, Method, Request, StatusCode, header, header::HeaderValue};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::{
    Position, Url,
    form_urlencoded::{self, byte_serialize},
};

use super::error::LoginError;
use crate::upstream;

/// Maximum size of a response: a token with many groups, or the keys of a large provider.
const MAX_RESPONSE_BYTES: usize = 512 * 1024;

/// Error response of the token endpoint.
#[derive(Default, Deserialize)]
struct OAuthError {
    #[serde(default)]
    error: String,
}

/// Client for requests to one provider.
pub(super) struct HttpClient {
    tls: TlsConnector,
    timeout: Duration,
}

impl HttpClient {
    pub(super) fn new(
        authorities: Vec<CertificateDer<'static>>,
        timeout: Duration,
    ) -> Result<Self, rustls::Error> {
        Ok(Self { tls: upstream::tls_connector(authorities)?, timeout })
    }

    /// Fetches a JSON document, with an access token if one is given.
    pub(super) async fn get_json<T: DeserializeOwned>(
        &self,
        url: &Url,
        access_token: Option<&str>,
    ) -> Result<T, LoginError> {
        let mut headers = HeaderMap::new();
        if let Some(token) = access_token {
            headers.insert(header::AUTHORIZATION, sensitive(&format!("Bearer {token}"))?);
        }
        let (status, body) = self.send(Method::GET, url, headers, Bytes::new()).await?;
        match status.is_success() {
            true => parse(&body, url),
            false => Err(status_error(status, url)),
        }
    }

    /// Posts a form to the token endpoint, with the client's id and secret in a header if they are given.
    pub(super) async fn post_form<T: DeserializeOwned>(
        &self,
        url: &Url,
        fields: &[(&str, &str)],
        basic: Option<(&str, &str)>,
    ) -> Result<T, LoginError> {
        let mut headers = HeaderMap::new();
        let form_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        headers.insert(header::CONTENT_TYPE, form_type);
        if let Some((id, secret)) = basic {
            let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            let credentials = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
            headers.insert(header::AUTHORIZATION, sensitive(&format!("Basic {credentials}"))?);
        }
        let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let (status, body) = self.send(Method::POST, url, headers, form.into()).await?;
        if status.is_success() {
            return parse(&body, url);
        }
        let error: OAuthError = serde_json::from_slice(&body).unwrap_or_default();
        Err(match error.error.as_str() {
            "invalid_grant" => LoginError::CodeRejected,
            "invalid_client" | "unauthorized_client" => LoginError::ClientRejected,
            _ if status == StatusCode::UNAUTHORIZED => LoginError::ClientRejected,
            _ => status_error(status, url),
        })
    }

    async fn send(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), LoginError> {
        match timeout(self.timeout, self.exchange(method, url, headers, body)).await {
            Ok(result) => result,
            Err(_) => Err(LoginError::Unavailable(format!("{} did not respond in time", place(url)))),
        }
    }

    async fn exchange(
        &self,
        method: Method,
        url: &Url,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), LoginError> {
        let failed = |error: &dyn std::fmt::Display| {
            LoginError::Unavailable(format!("{} cannot be reached: {error}", place(url)))
        };
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(LoginError::InvalidResponse("it names a URL without a host".into()));
        };
        let tls = (url.scheme() == "https").then_some(&self.tls);
        let mut sender = upstream::connect(host, port, tls).await.map_err(|error| failed(&error))?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        let path = &url[Position::BeforePath..Position::AfterQuery];
        *request.uri_mut() = path.parse().map_err(|error| failed(&error))?;
        *request.headers_mut() = headers;
        let host = url[Position::BeforeHost..Position::AfterPort].parse().map_err(|error| failed(&error))?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, host);
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        let agent = HeaderValue::from_static(concat!("Redrive/", env!("CARGO_PKG_VERSION")));
        headers.insert(header::USER_AGENT, agent);
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|_| {
            LoginError::InvalidResponse(format!(
                "the response of {} ended early or is larger than {MAX_RESPONSE_BYTES} bytes",
                place(url)
            ))
        })?;
        Ok((status, body.to_bytes()))
    }
}

/// Returns a URL without its query, for messages.
fn place(url: &Url) -> &str {
    &url[..Position::AfterPath]
}

/// Returns a header that is not logged.
fn sensitive(text: &str) -> Result<HeaderValue, LoginError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| {
        LoginError::InvalidResponse("a token has characters that a header cannot have".into())
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn parse<T: DeserializeOwned>(body: &[u8], url: &Url) -> Result<T, LoginError> {
    // The error of the parser may quote the body, which may have a token.
    serde_json::from_slice(body).map_err(|_| {
        LoginError::InvalidResponse(format!("the response of {} is not the expected JSON", place(url)))
    })
}

fn status_error(status: StatusCode, url: &Url) -> LoginError {
    let text = format!("{} returned {status}", place(url));
    match status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        true => LoginError::Unavailable(text),
        false => LoginError::InvalidResponse(text),
    }
}

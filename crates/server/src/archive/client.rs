//! HTTP client for the archive's bucket. The storage library signs and retries requests; this client sends one
//! request.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper::{
    Uri,
    header::{HOST, HeaderValue},
};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
        HttpService,
    },
};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::upstream;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for sending an object and receiving the whole response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates the client for all parts of the storage library that send requests.
#[derive(Debug)]
pub(super) struct BucketConnector;

impl HttpConnector for BucketConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |error| object_store::Error::Generic { store: "S3", source: Box::new(error) };
        let tls = upstream::tls_connector(Vec::new()).map_err(failed)?;
        Ok(HttpClient::new(BucketClient(tls)))
    }
}

struct BucketClient(TlsConnector);

impl std::fmt::Debug for BucketClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BucketClient")
    }
}

fn late(what: &'static str) -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, std::io::Error::new(std::io::ErrorKind::TimedOut, what))
}

#[async_trait]
impl HttpService for BucketClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        timeout(REQUEST_TIMEOUT, self.send(request))
            .await
            .unwrap_or_else(|_| Err(late("no response in time")))
    }
}

impl BucketClient {
    async fn send(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let unusable = |what: &'static str| {
            HttpError::new(
                HttpErrorKind::Unknown,
                std::io::Error::new(std::io::ErrorKind::InvalidInput, what),
            )
        };
        let uri = request.uri().clone();
        let host = uri.host().ok_or_else(|| unusable("the bucket's address has no host"))?;
        let tls = (uri.scheme_str() == Some("https")).then_some(&self.0);
        let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
        let connecting = timeout(CONNECT_TIMEOUT, upstream::connect(host, port, tls)).await;
        let mut sender = match connecting {
            Ok(connected) => connected.map_err(|error| HttpError::new(HttpErrorKind::Connect, error))?,
            Err(_) => return Err(late("no connection in time")),
        };
        // HTTP/1.1 has the host in a header and only the path in the request line.
        if let Some(authority) = uri.authority()
            && !request.headers().contains_key(HOST)
        {
            let host = HeaderValue::from_str(authority.as_str())
                .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
            request.headers_mut().insert(HOST, host);
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() =
            path.parse::<Uri>().map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let sent = sender.send_request(request).await;
        let (head, body) = sent.map_err(|error| HttpError::new(HttpErrorKind::Request, error))?.into_parts();
        let body = body.collect().await.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))?;
        Ok(HttpResponse::from_parts(head, HttpResponseBody::from(body.to_bytes())))
    }
}

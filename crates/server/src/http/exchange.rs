//! Handles one request: determines its client and id, and adds the headers of every response.

use std::{
    convert::Infallible,
    net::IpAddr,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header},
    response::IntoResponse,
};
use bytes::Bytes;
use futures_util::FutureExt;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tower_service::Service;
use tracing::Instrument;

use super::{
    HttpServer,
    body::PacedBody,
    connection_limit::Counted,
    cors::Cors,
    headers::{self, ResponseKind},
    request_id::RequestId,
    timeouts::ConnectionTimer,
};
use crate::{
    problem::{ErrorCode, Problem, name_request},
    request::ClientAddr,
};

impl HttpServer {
    /// Handles a request that came over a connection from `peer`.
    pub(super) async fn exchange(
        &self,
        request: Request<Incoming>,
        peer: IpAddr,
        connection: &Arc<ConnectionTimer>,
    ) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let id = self.ids.for_request(&parts.headers);
        let client = self.client(peer, &parts.headers);
        let scheme = self.scheme(peer, &parts.headers);
        let origin = self.cors.allowed(&parts.headers);
        let (method, uri) = (parts.method.clone(), parts.uri.clone());
        let preflight = if origin.is_some() { Cors::preflight(&parts) } else { None };
        let counted = self.count_forwarded(peer, client);
        let mut response = match (preflight, &counted) {
            (_, Err(TooManyRequests)) => too_many_requests(),
            (Some(response), _) => response,
            (None, Ok(_)) => {
                parts.extensions.insert(client);
                parts.extensions.insert(scheme);
                parts.extensions.insert(id.clone());
                let span = tracing::debug_span!("request", request_id = id.as_str(), %method, path = loggable_path(uri.path()));
                let body = PacedBody::new(body, self.body_timeout).with_connection(connection.clone());
                let request = Request::from_parts(parts, Body::new(body));
                catch_panic(self.router.clone().call(request).instrument(span)).await
            }
        };
        if response.status().is_client_error() || response.status().is_server_error() {
            if response.status() == StatusCode::INTERNAL_SERVER_ERROR {
                self.failed.inc();
            }
            log_failure(response.status(), &id, &method, &uri, client);
            if method != Method::HEAD {
                name_request(&mut response, id.as_str());
            }
        }
        headers::finish(response.headers_mut(), &id, ResponseKind::for_path(uri.path()), self.tls.is_some());
        self.cors.finish(response.headers_mut(), origin);
        match counted {
            Ok(Some(counted)) => response.map(|body| Body::new(CountedBody { body, _counted: counted })),
            _ => response,
        }
    }

    /// Counts a request that a trusted proxy forwards for a client. Clients that connect directly are counted by
    /// connection, and clients that are trusted themselves are not counted at all.
    fn count_forwarded(&self, peer: IpAddr, client: ClientAddr) -> Result<Option<Counted>, TooManyRequests> {
        if peer == client.0 || !self.trusts(peer) || self.trusts(client.0) {
            return Ok(None);
        }
        self.connections.count(client.0).map(Some).ok_or(TooManyRequests)
    }
}

/// A client behind a proxy has reached its limit of requests in progress.
struct TooManyRequests;

fn too_many_requests() -> Response<Body> {
    let detail = "too many requests from your address are in progress; retry after some have finished";
    let mut response =
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::TooManyConnections, detail).into_response();
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// A response body that counts against its client's limit until it is sent or the connection ends.
struct CountedBody {
    body: Body,
    _counted: Counted,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Runs a handler and turns a panic into a 500 response, so that it ends only this request.
async fn catch_panic(response: impl Future<Output = Result<Response<Body>, Infallible>>) -> Response<Body> {
    // The future is not polled again after a panic, so its inconsistent state is never observed.
    match AssertUnwindSafe(response).catch_unwind().await {
        Ok(Ok(response)) => response,
        Err(_) => Problem::internal().into_response(),
    }
}

/// Returns the path for logs, without the token of an email link, which is a credential.
fn loggable_path(path: &str) -> &str {
    const LINKS: [&str; 2] = ["/unsubscribe/", "/confirm/"];
    LINKS.into_iter().find(|link| path.starts_with(link)).unwrap_or(path)
}

/// Logs a failed request: as an error if this server failed, otherwise at debug level. 503 is logged at debug
/// level too, because the engine logs a store outage once for all requests.
fn log_failure(status: StatusCode, id: &RequestId, method: &Method, uri: &Uri, client: ClientAddr) {
    let (request_id, path, client, status) =
        (id.as_str(), loggable_path(uri.path()), client.0, status.as_u16());
    match status {
        503 | ..500 => tracing::debug!(request_id, %method, path, %client, status, "request rejected"),
        _ => tracing::error!(request_id, %method, path, %client, status, "request failed"),
    }
}

#[cfg(test)]
mod tests {
    use axum::{Extension, Router, routing::get};
    use prometheus_client::metrics::counter::Counter;
    use redrive_testkit::Api;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{config::Server, http};

    /// Starts a server with these routes on a real socket.
    async fn serve(router: Router, settings: Server, failed: Counter) -> (Api, CancellationToken) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Api::new(listener.local_addr().unwrap(), "none");
        let (surface, stop) = (HttpServer::new(router, &settings, None, failed), CancellationToken::new());
        tokio::spawn(http::serve(listener, surface, stop.clone(), settings.drain_timeout.as_duration()));
        (api, stop)
    }

    #[tokio::test]
    async fn handlers_receive_client_address_and_request_id() {
        let reported =
            async |Extension(ClientAddr(client)): Extension<ClientAddr>,
                   Extension(id): Extension<RequestId>| { format!("{client} {}", id.as_str()) };
        let router = Router::new().route("/", get(reported));
        let trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
        let (api, stop) =
            serve(router, Server { trusted_proxies, ..Server::default() }, Counter::default()).await;
        let headers = [("x-forwarded-for", "1.1.1.1, 192.0.2.7"), ("x-request-id", "mine")];
        assert_eq!(api.raw("GET", "/", &headers, "").await.body, "192.0.2.7 mine");
        stop.cancel();
    }

    #[tokio::test]
    async fn panic_in_handler_returns_500_and_server_continues() {
        let fault = async || -> String { panic!("a handler has a fault") };
        let router = Router::new().route("/fault", get(fault)).route("/fine", get(async || "fine"));
        let failed: Counter = Counter::default();
        let (api, stop) = serve(router, Server::default(), failed.clone()).await;
        for _ in 0..2 {
            let response = api.get("/fault").await;
            assert_eq!((response.status, &response.json()["code"]), (500, &"internal_error".into()));
            assert_eq!(response.json()["request_id"], response.header("x-request-id").unwrap());
            assert_eq!(api.get("/fine").await.body, "fine");
        }
        assert_eq!(failed.get(), 2, "each is counted, and nothing else");
        stop.cancel();
    }
}

//! One request and its answer: who asks, under which id, and what every answer carries.

use std::{
    convert::Infallible,
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context, Poll},
};

use axum::{
    body::Body,
    http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header},
    response::IntoResponse,
};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tower_service::Service;
use tracing::Instrument;

use super::{
    ClientAddr, Surface,
    body::PacedBody,
    connection_limit::Counted,
    cors::Cors,
    headers::{self, Shown},
    request_id::RequestId,
};
use crate::api::{self, Problem};

impl Surface {
    /// Answers a request that came over a connection with `peer`.
    pub(super) async fn exchange(&self, request: Request<Incoming>, peer: IpAddr) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let id = self.ids.of(&parts.headers);
        let client = self.client(peer, &parts.headers);
        let scheme = self.scheme(peer, &parts.headers);
        let origin = self.cors.allowed(&parts.headers);
        let (method, uri) = (parts.method.clone(), parts.uri.clone());
        let preflight = if origin.is_some() { Cors::preflight(&parts) } else { None };
        let counted = self.count_forwarded(peer, client);
        let mut answer = match (preflight, &counted) {
            (_, Err(TooManyRequests)) => too_many_requests(),
            (Some(answer), _) => answer,
            (None, Ok(_)) => {
                parts.extensions.insert(client);
                parts.extensions.insert(scheme);
                parts.extensions.insert(id.clone());
                let span = tracing::debug_span!("request", request_id = id.as_str(), %method, path = shown(uri.path()));
                let request = Request::from_parts(parts, Body::new(PacedBody::new(body, self.body_timeout)));
                whatever_happens(self.router.clone().call(request).instrument(span)).await
            }
        };
        if answer.status().is_client_error() || answer.status().is_server_error() {
            if answer.status() == StatusCode::INTERNAL_SERVER_ERROR {
                self.failed.inc();
            }
            log_failure(answer.status(), &id, &method, &uri, client);
            if method != Method::HEAD {
                api::name_request(&mut answer, id.as_str());
            }
        }
        headers::finish(answer.headers_mut(), &id, Shown::at(uri.path()), self.tls.is_some());
        self.cors.finish(answer.headers_mut(), origin);
        match counted {
            Ok(Some(counted)) => answer.map(|body| Body::new(CountedBody { body, _counted: counted })),
            _ => answer,
        }
    }

    /// Counts a request that a trusted proxy forwards for a client. A client that connects itself is counted by its
    /// connections, and one that is itself trusted is not counted, as its connections are not.
    fn count_forwarded(&self, peer: IpAddr, client: ClientAddr) -> Result<Option<Counted>, TooManyRequests> {
        if peer == client.0 || !self.trusts(peer) || self.trusts(client.0) {
            return Ok(None);
        }
        self.places.count(client.0).map(Some).ok_or(TooManyRequests)
    }
}

/// A client behind a proxy has as many requests in progress as it may.
struct TooManyRequests;

fn too_many_requests() -> Response<Body> {
    let detail = "too many requests from your address are in progress; wait for some of them, then send this one again";
    let mut answer =
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", detail).into_response();
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

/// A response's body that counts for its client until it was sent or the connection ended.
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

/// An answer even if there is a fault in the code: a panic ends this request alone.
async fn whatever_happens(
    answering: impl Future<Output = Result<Response<Body>, Infallible>>,
) -> Response<Body> {
    let mut answering = pin!(answering);
    let caught = std::future::poll_fn(|cx| {
        // It is not polled again, so nobody sees what it left half done.
        match catch_unwind(AssertUnwindSafe(|| answering.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(Ok(answer))) => Poll::Ready(Some(answer)),
            Err(_) => Poll::Ready(None),
        }
    });
    caught.await.unwrap_or_else(|| Problem::internal().into_response())
}

/// A path as the log may have it: the rest of a link in an e-mail is as good as a password.
fn shown(path: &str) -> &str {
    const LINKS: [&str; 2] = ["/unsubscribe/", "/confirm/"];
    LINKS.into_iter().find(|link| path.starts_with(link)).unwrap_or(path)
}

/// A request that failed for no fault of its own is worth a line, unless the store is at fault, of which the
/// engine tells once for all. Of other failures whoever asks for details is told.
fn log_failure(status: StatusCode, id: &RequestId, method: &Method, uri: &Uri, client: ClientAddr) {
    let (request_id, path, client, status) = (id.as_str(), shown(uri.path()), client.0, status.as_u16());
    match status {
        503 | ..500 => tracing::debug!(request_id, %method, path, %client, status, "a request was refused"),
        _ => tracing::error!(request_id, %method, path, %client, status, "a request failed"),
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

    /// A server with some routes of its own, on a real socket.
    async fn serve(router: Router, settings: Server, failed: Counter) -> (Api, CancellationToken) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = Api::new(listener.local_addr().unwrap(), "none");
        let (surface, stop) = (Surface::new(router, &settings, None, failed), CancellationToken::new());
        tokio::spawn(http::serve(listener, surface, stop.clone(), settings.drain_deadline.get()));
        (api, stop)
    }

    #[tokio::test]
    async fn handlers_know_who_is_calling_and_the_requests_id() {
        let told =
            async |Extension(ClientAddr(client)): Extension<ClientAddr>,
                   Extension(id): Extension<RequestId>| { format!("{client} {}", id.as_str()) };
        let router = Router::new().route("/", get(told));
        let trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
        let (api, stop) =
            serve(router, Server { trusted_proxies, ..Server::default() }, Counter::default()).await;
        let headers = [("x-forwarded-for", "1.1.1.1, 192.0.2.7"), ("x-request-id", "mine")];
        assert_eq!(api.raw("GET", "/", &headers, "").await.body, "192.0.2.7 mine");
        stop.cancel();
    }

    #[tokio::test]
    async fn a_fault_in_a_handler_is_an_answer_and_ends_nothing_else() {
        let fault = async || -> String { panic!("a handler has a fault") };
        let router = Router::new().route("/fault", get(fault)).route("/fine", get(async || "fine"));
        let failed: Counter = Counter::default();
        let (api, stop) = serve(router, Server::default(), failed.clone()).await;
        for _ in 0..2 {
            let answer = api.get("/fault").await;
            assert_eq!((answer.status, &answer.json()["code"]), (500, &"internal".into()));
            assert_eq!(answer.json()["request_id"], answer.header("x-request-id").unwrap());
            assert_eq!(api.get("/fine").await.body, "fine");
        }
        assert_eq!(failed.get(), 2, "each is counted, and nothing else");
        stop.cancel();
    }
}

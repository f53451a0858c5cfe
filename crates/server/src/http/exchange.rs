//! One request and its answer: who asks, under which id, and what every answer carries.

use std::net::IpAddr;

use axum::{
    body::Body,
    http::{Method, Request, Response, StatusCode, Uri},
};
use hyper::body::Incoming;
use tower_service::Service;
use tracing::Instrument;

use super::{ClientAddr, Surface, cors::Cors, headers, request_id::RequestId};
use crate::api;

impl Surface {
    /// Answers a request that came over a connection with `peer`.
    pub(super) async fn exchange(&self, request: Request<Incoming>, peer: IpAddr) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        let id = self.ids.of(&parts.headers);
        let client = self.client(peer, &parts.headers);
        let origin = self.cors.allowed(&parts.headers);
        let (method, uri) = (parts.method.clone(), parts.uri.clone());
        let preflight = if origin.is_some() { Cors::preflight(&parts) } else { None };
        let mut answer = match preflight {
            Some(answer) => answer,
            None => {
                parts.extensions.insert(client);
                parts.extensions.insert(id.clone());
                let span = tracing::debug_span!("request", id = id.as_str(), %method, path = uri.path());
                let request = Request::from_parts(parts, Body::new(body));
                let answered = self.router.clone().call(request).instrument(span).await;
                answered.unwrap_or_else(|never| match never {})
            }
        };
        if answer.status().is_client_error() || answer.status().is_server_error() {
            log_failure(answer.status(), &id, &method, &uri, client);
            if method != Method::HEAD {
                api::name_request(&mut answer, id.as_str());
            }
        }
        headers::finish(answer.headers_mut(), &id, headers::is_docs(uri.path()), self.tls.is_some());
        self.cors.finish(answer.headers_mut(), origin);
        answer
    }
}

/// A request that failed for no fault of its own is worth a line, unless the store is at fault, of which the
/// engine tells once for all. Of other failures whoever asks for details is told.
fn log_failure(status: StatusCode, id: &RequestId, method: &Method, uri: &Uri, client: ClientAddr) {
    let (id, path, client, status) = (id.as_str(), uri.path(), client.0, status.as_u16());
    match status {
        503 | ..500 => tracing::debug!(id, %method, path, %client, status, "a request was refused"),
        _ => tracing::error!(id, %method, path, %client, status, "a request failed"),
    }
}

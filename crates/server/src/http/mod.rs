//! HTTP server: accepts connections, enforces connection limits and timeouts, and finishes open requests at
//! shutdown.

mod body;
mod client;
mod connection_limit;
mod cors;
mod exchange;
mod headers;
mod request_id;
mod scheme;
mod timeouts;
mod tls;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use hyper::{
    body::{Body as HttpBody, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use prometheus_client::metrics::counter::Counter;
use redrive_core::security::forwarded::is_trusted;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::request_id::RequestId;
pub(crate) use self::tls::{CertificateWatcher, Tls};
use self::{
    connection_limit::{ConnectionLimiter, ConnectionPermit},
    cors::Cors,
    request_id::RequestIds,
    timeouts::{ClientTimeouts, ConnectionTimer, TimedStream},
};
use crate::{config::Server, request::base_url::https_origin};

/// Approximate maximum size of a request header; a single read may exceed it. hyper accepts at most 100 headers.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// Response to a client that has too many connections.
const TOO_MANY_CONNECTIONS: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 81\r\n\r\n\
    too many connections from your address; use fewer, or keep them and send more on\n";

/// State that all connections of the HTTP server share.
pub(crate) struct HttpServer {
    router: Router,
    connections: ConnectionLimiter,
    timeouts: ClientTimeouts,
    body_timeout: Duration,
    tls: Option<Arc<Tls>>,
    trusted_proxies: Vec<IpNet>,
    /// Origin of the public URL, if that is `https`.
    public_https: Option<String>,
    cors: Cors,
    ids: RequestIds,
    /// Counter of requests that failed with 500.
    failed: Counter,
}

impl HttpServer {
    /// Creates a server for these routes from the settings.
    pub(crate) fn new(
        router: Router,
        settings: &Server,
        tls: Option<Arc<Tls>>,
        failed: Counter,
    ) -> Arc<Self> {
        Arc::new(Self {
            router,
            connections: ConnectionLimiter::new(
                settings.max_connections,
                settings.max_connections_per_address,
            ),
            timeouts: ClientTimeouts::from_settings(settings),
            body_timeout: settings.body_timeout.as_duration(),
            tls,
            trusted_proxies: settings.trusted_proxies.clone(),
            public_https: settings.public_url.as_deref().and_then(https_origin),
            cors: Cors::new(&settings.cors_origins),
            ids: RequestIds::new(),
            failed,
        })
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        is_trusted(peer, &self.trusted_proxies)
    }
}

/// Serves until `stop`, then waits for open requests until the timeout.
pub(crate) async fn serve(
    listener: TcpListener,
    surface: Arc<HttpServer>,
    stop: CancellationToken,
    timeout: Duration,
) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &surface) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok(Some((stream, peer, permit))) => {
                let (surface, stop) = (surface.clone(), stop.clone());
                connections.spawn(async move {
                    accept_tls(stream, peer, surface, stop).await;
                    drop(permit);
                });
            }
            Ok(None) => {}
            Err(error) => {
                // The most likely cause is a lack of file descriptors; wait for some to be closed.
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(timeout, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "drain timeout reached with requests in flight");
    }
}

/// Accepts the next connection. Returns `None` if its address has too many connections.
async fn accept(
    listener: &TcpListener,
    surface: &HttpServer,
) -> io::Result<Option<(TcpStream, SocketAddr, ConnectionPermit)>> {
    let capacity = surface.connections.wait_for_capacity().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    // This, and the write below, fail only if the connection is already closed.
    let _ = stream.set_nodelay(true);
    let counted_address = (!surface.trusts(peer.ip())).then(|| peer.ip());
    let Some(permit) = surface.connections.try_acquire(capacity, counted_address) else {
        tracing::debug!(%peer, "connection rejected: too many from this address");
        if surface.tls.is_none() {
            let _ = stream.try_write(TOO_MANY_CONNECTIONS);
        }
        return Ok(None);
    };
    Ok(Some((stream, peer, permit)))
}

/// Performs the TLS handshake if TLS is configured, then handles the connection.
async fn accept_tls(stream: TcpStream, peer: SocketAddr, surface: Arc<HttpServer>, stop: CancellationToken) {
    let Some(tls) = surface.tls.clone() else { return handle_connection(stream, peer, surface, stop).await };
    let agreed = tokio::time::timeout(surface.timeouts.head, tls.accept(stream));
    let agreed = tokio::select! {
        agreed = agreed => agreed,
        () = stop.cancelled() => return,
    };
    match agreed {
        Ok(Ok(stream)) => handle_connection(stream, peer, surface, stop).await,
        // A client that disconnects or sends invalid data affects only its own connection.
        Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
    }
}

async fn handle_connection<S>(stream: S, peer: SocketAddr, surface: Arc<HttpServer>, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let watch = ConnectionTimer::begin(surface.timeouts);
    let service = service_fn({
        let watch = watch.clone();
        move |request: axum::http::Request<Incoming>| {
            watch.request_started(!request.body().is_end_stream());
            let (surface, watch) = (surface.clone(), watch.clone());
            async move {
                let response = surface.exchange(request, peer.ip(), &watch).await;
                watch.response_ready();
                Ok::<_, std::convert::Infallible>(response)
            }
        }
    });
    let connection = http1::Builder::new()
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(TimedStream::new(stream, watch.clone())), service);
    tokio::pin!(connection);
    tokio::select! {
        // A client that disconnects or sends invalid data affects only its own connection.
        _ = connection.as_mut() => return,
        () = watch.expired() => return tracing::debug!(%peer, "connection closed: client too slow or idle"),
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection => {}
        () = watch.expired() => {}
    }
}

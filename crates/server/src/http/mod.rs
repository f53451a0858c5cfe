//! The HTTP server: accepts connections, bounded in number and patience, and finishes what it has begun.

mod base_url;
pub(crate) mod body;
mod client;
pub(crate) mod connection_limit;
pub(crate) mod cookie;
mod cors;
mod exchange;
mod headers;
mod request_id;
mod timeouts;
mod tls;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use prometheus_client::metrics::counter::Counter;
use redrive_core::security::forwarded::is_trusted;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::tls::{Reload, Tls};
pub use self::{
    base_url::{BaseUrl, Scheme},
    client::ClientAddr,
    request_id::RequestId,
};
use self::{
    connection_limit::{Place, Places},
    cors::Cors,
    request_id::RequestIds,
    timeouts::{Patience, Watch, Watched},
};
use crate::config::Server;

/// About the largest request head: what is read at once may go beyond it. Of headers hyper takes a hundred.
const MAX_HEAD: usize = 64 * 1024;

/// What a client is told that has too many connections already.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 81\r\n\r\n\
    too many connections from your address; use fewer, or keep them and send more on\n";

/// How this server meets its clients.
pub(crate) struct Surface {
    router: Router,
    places: Places,
    patience: Patience,
    body_timeout: Duration,
    tls: Option<Arc<Tls>>,
    trusted_proxies: Vec<IpNet>,
    /// The origin of the public URL, if that begins with `https`.
    public_https: Option<String>,
    cors: Cors,
    ids: RequestIds,
    /// Counts requests that failed for no fault of their own.
    failed: Counter,
}

impl Surface {
    /// The surface that the settings describe, before these routes.
    pub(crate) fn new(
        router: Router,
        settings: &Server,
        tls: Option<Arc<Tls>>,
        failed: Counter,
    ) -> Arc<Self> {
        Arc::new(Self {
            router,
            places: Places::new(settings.max_connections, settings.max_connections_per_address),
            patience: Patience::of(settings),
            body_timeout: settings.body_timeout.get(),
            tls,
            trusted_proxies: settings.trusted_proxies.clone(),
            public_https: settings.public_url.as_deref().and_then(base_url::https_origin),
            cors: Cors::new(&settings.cors_origins),
            ids: RequestIds::new(),
            failed,
        })
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        is_trusted(peer, &self.trusted_proxies)
    }
}

/// Serves until `stop`, then lets requests under way finish for at most `patience`.
pub(crate) async fn serve(
    listener: TcpListener,
    surface: Arc<Surface>,
    stop: CancellationToken,
    patience: Duration,
) {
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &surface) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok(Some((stream, peer, place))) => {
                let (surface, stop) = (surface.clone(), stop.clone());
                connections.spawn(async move {
                    welcome(stream, peer, surface, stop).await;
                    drop(place);
                });
            }
            Ok(None) => {}
            Err(error) => {
                // Out of file descriptors, most likely: some will be closed soon.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(patience, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "requests were still under way when the patience ended");
    }
}

/// The next connection. None: one of somebody who has too many already.
async fn accept(
    listener: &TcpListener,
    surface: &Surface,
) -> io::Result<Option<(TcpStream, SocketAddr, Place)>> {
    let room = surface.places.room().await.map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    // Both can only fail for a connection that is gone already.
    let _ = stream.set_nodelay(true);
    let whose = (!surface.trusts(peer.ip())).then(|| peer.ip());
    let Some(place) = surface.places.take(room, whose) else {
        tracing::debug!(%peer, "a connection was refused: its address has too many");
        if surface.tls.is_none() {
            let _ = stream.try_write(TOO_MANY);
        }
        return Ok(None);
    };
    Ok(Some((stream, peer, place)))
}

/// Agrees on TLS, where it is spoken, and converses.
async fn welcome(stream: TcpStream, peer: SocketAddr, surface: Arc<Surface>, stop: CancellationToken) {
    let Some(tls) = surface.tls.clone() else { return converse(stream, peer, surface, stop).await };
    let agreed = tokio::time::timeout(surface.patience.head, tls.accept(stream));
    let agreed = tokio::select! {
        agreed = agreed => agreed,
        () = stop.cancelled() => return,
    };
    match agreed {
        Ok(Ok(stream)) => converse(stream, peer, surface, stop).await,
        // A client that breaks off or talks nonsense harms nobody but itself.
        Ok(Err(error)) => tracing::debug!(%peer, %error, "a TLS handshake failed"),
        Err(_) => tracing::debug!(%peer, "a TLS handshake took too long"),
    }
}

async fn converse<S>(stream: S, peer: SocketAddr, surface: Arc<Surface>, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let watch = Watch::begin(surface.patience);
    let service = service_fn({
        let watch = watch.clone();
        move |request: axum::http::Request<Incoming>| {
            watch.asked();
            let (surface, watch) = (surface.clone(), watch.clone());
            async move {
                let answer = surface.exchange(request, peer.ip()).await;
                watch.answered();
                Ok::<_, std::convert::Infallible>(answer)
            }
        }
    });
    let connection = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(Watched::new(stream, watch.clone())), service);
    tokio::pin!(connection);
    tokio::select! {
        // A client that breaks off or talks nonsense harms nobody but itself.
        _ = connection.as_mut() => return,
        () = watch.ran_out() => return tracing::debug!(%peer, "a client was too slow, or idle for too long"),
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection => {}
        () = watch.ran_out() => {}
    }
}

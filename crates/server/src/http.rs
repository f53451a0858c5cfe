//! The HTTP server: accepts connections, bounded in number and patience, and finishes what it has begun.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderValue, header},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service;

/// How long a client may take to send a request's head, idle time between requests included.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest request head.
const MAX_HEAD: usize = 64 * 1024;

/// Serves until `stop`, then lets requests under way finish for at most `patience`.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    max_connections: usize,
    stop: CancellationToken,
    patience: Duration,
) {
    let room = Arc::new(Semaphore::new(max_connections));
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, place)) => {
                let (router, stop) = (router.clone(), stop.clone());
                connections.spawn(async move {
                    converse(stream, router, stop).await;
                    drop(place);
                });
            }
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

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = room.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

async fn converse(stream: TcpStream, router: Router, stop: CancellationToken) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = router.clone().call(request.map(Body::new));
        async {
            let mut answer = answer.await?;
            // Nothing that we answer is to be sniffed.
            answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        // A client that breaks off or talks nonsense harms nobody but itself.
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

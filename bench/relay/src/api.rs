//! The publish API: `POST` an event, receive 202 when it is durable. A `GET` returns the numbers of commits and
//! statements, so that the benchmark can query it like Redrive. Creating a webhook succeeds without effect,
//! since there is only one receiver.

use std::{convert::Infallible, error::Error, sync::Arc, time::SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot},
};
use uuid::Uuid;

use crate::writer::{Publish, Writer};

type FullResponse = Response<Full<Bytes>>;

#[derive(Deserialize)]
struct Body<'a> {
    event_type: &'a str,
    #[serde(borrow)]
    data: &'a RawValue,
}

/// Accepts connections of publishers until the process ends.
pub(crate) async fn serve(
    listener: TcpListener,
    writer: Writer,
    capacity: Arc<Semaphore>,
) -> Result<(), Box<dyn Error>> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (writer, capacity) = (writer.clone(), Arc::clone(&capacity));
        let service = service_fn(move |request| {
            let (writer, capacity) = (writer.clone(), Arc::clone(&capacity));
            async move { Ok::<_, Infallible>(respond(request, &writer, &capacity).await) }
        });
        // A publisher that closes its connection early is not an error.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn respond(request: Request<Incoming>, writer: &Writer, capacity: &Semaphore) -> FullResponse {
    if request.method() == Method::GET {
        return plain(StatusCode::OK, metrics(writer));
    }
    if request.uri().path() == "/v1/webhooks" {
        return plain(StatusCode::CREATED, String::new());
    }
    let Ok(body) = request.into_body().collect().await else {
        return plain(StatusCode::BAD_REQUEST, "the body ended early".into());
    };
    match publish(&body.to_bytes(), writer, capacity).await {
        Ok(event) => plain(StatusCode::ACCEPTED, format!(r#"{{"id":"{event}"}}"#)),
        Err(status) => plain(status, String::new()),
    }
}

fn metrics(writer: &Writer) -> String {
    let (commits, statements) = (writer.commits(), writer.statements());
    format!("redrive_store_commits_total {commits}\nredrive_store_statements_total {statements}\n")
}

/// Returns the event's id once it is on disk.
async fn publish(body: &[u8], writer: &Writer, capacity: &Semaphore) -> Result<Uuid, StatusCode> {
    let Body { event_type, data } = serde_json::from_slice(body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let (event, delivery) = (Uuid::now_v7(), Uuid::now_v7());
    let payload = format!(r#"{{"id":"{event}","type":"{event_type}","data":{}}}"#, data.get());
    // The writer returns the permit when the delivery has ended.
    capacity.acquire().await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?.forget();
    let (ack, durable) = oneshot::channel();
    writer.publish(Publish {
        event,
        event_type: event_type.to_owned(),
        created_at: unix_seconds(),
        delivery,
        payload: payload.into(),
        ack,
    });
    durable.await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(event)
}

fn plain(status: StatusCode, text: String) -> FullResponse {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}

fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

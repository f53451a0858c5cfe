//! Receivers of a demo: small HTTP servers on loopback, each with its own behavior.
//!
//! They verify no signatures and store nothing.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use redrive_engine::clock;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

/// Maximum concurrent connections per receiver; more wait.
const CONNECTIONS: usize = 256;
/// Maximum number of bytes read of a body.
const BODY: usize = 1 << 20;
/// Interval between the starts of two outages, and duration of an outage.
const OUTAGE_EVERY: Duration = Duration::from_secs(150);
const OUTAGE: Duration = Duration::from_secs(45);

/// Behavior of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behavior {
    /// Responds to every request quickly with 200.
    Healthy,
    /// Responds with 200 slowly, sometimes after the timeout.
    Slow,
    /// Fails about every third request.
    Flaky,
    /// Sometimes responds with 429 and `Retry-After`.
    Limiting,
    /// Closes every connection immediately.
    Dead,
    /// Has periodic outages.
    Outages,
    /// Responds with malicious content that would do harm if a page did not escape it.
    Hostile,
}

/// Response to send.
#[derive(Debug, PartialEq, Eq)]
struct Reply {
    after: Duration,
    status: u16,
    headers: Vec<(HeaderName, &'static str)>,
    body: &'static [u8],
}

impl Reply {
    fn json(status: u16, body: &'static str) -> Self {
        let headers = vec![(CONTENT_TYPE, "application/json")];
        Self { after: Duration::ZERO, status, headers, body: body.as_bytes() }
    }

    fn html(status: u16, body: &'static str) -> Self {
        let note = HeaderName::from_static("x-note");
        let headers =
            vec![(CONTENT_TYPE, "text/html"), (note, "\"><script>document.title = 'hacked'</script>")];
        Self { headers, ..Self::json(status, body) }
    }

    fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }
}

const ACCEPTED: &str = r#"{"received": true}"#;
const SCRIPT: &str = "<!doctype html><script>document.title = 'hacked'; fetch('/v1/webhooks')</script>\
    <img src=x onerror=\"document.title = 'hacked'\"><a href=\"javascript:alert(1)\">Click here</a>";
const BREAKOUT: &str =
    "</pre></td></table></textarea><script>document.title = 'hacked'</script>{{7*7}} ${7*7} %00";
const BINARY: &[u8] =
    b"\x00\x01\xff\xfe\x1b[31mred\x1b[0m\x07 \xe2\x80\xaegnp.exe \xf0\x9f\x92\xa5 \x7f\r\n<b>";

/// Returns the response of a receiver to its request with this number (starting at 1), at this time since its
/// start. The random value is uniform in [0, 1). Returns `None` if it closes the connection.
fn reply(manner: Behavior, number: u64, age: Duration, random: f64) -> Option<Reply> {
    let millis = |min: f64, max: f64| Duration::from_secs_f64((min + random * (max - min)) / 1000.0);
    let taken = || Reply::json(200, ACCEPTED).after(millis(3.0, 40.0));
    Some(match manner {
        Behavior::Healthy => taken(),
        Behavior::Slow => Reply::json(200, ACCEPTED).after(millis(300.0, 300.0 + 2500.0 * random)),
        Behavior::Flaky if random < 0.25 => {
            Reply::json(503, r#"{"error": "upstream connect error"}"#).after(millis(5.0, 200.0))
        }
        Behavior::Flaky if random < 0.35 => {
            Reply::json(500, r#"{"error": "NullPointerException at CrmSync.java:118"}"#)
        }
        Behavior::Flaky => taken(),
        Behavior::Limiting if number % 15 == 5 => {
            Reply::json(429, r#"{"error": "rate limit exceeded"}"#).with(RETRY_AFTER, "4")
        }
        Behavior::Limiting => taken(),
        Behavior::Dead => return None,
        Behavior::Outages if age.as_secs() % OUTAGE_EVERY.as_secs() < OUTAGE.as_secs() => {
            Reply::json(503, r#"{"error": "down for maintenance"}"#).after(millis(3.0, 20.0))
        }
        Behavior::Outages => taken(),
        Behavior::Hostile => match number % 3 {
            0 => Reply::html(200, SCRIPT),
            1 => Reply::html(400, BREAKOUT),
            _ => Reply { body: BINARY, ..Reply::html(500, "") },
        },
    })
}

struct Receiver {
    manner: Behavior,
    requests: AtomicU64,
    started: Duration,
    stop: CancellationToken,
}

/// Starts a receiver on a free port and returns its address. It runs as long as the process; after `stop` it
/// responds without delay.
pub(super) async fn start(manner: Behavior, stop: CancellationToken) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let receiver = Receiver { manner, requests: AtomicU64::new(0), started: clock::monotonic_now(), stop };
    tokio::spawn(accept(listener, Arc::new(receiver)));
    Ok(address)
}

async fn accept(listener: TcpListener, receiver: Arc<Receiver>) {
    let capacity = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(position) = capacity.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely out of file descriptors: wait until some are closed.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if receiver.manner == Behavior::Dead {
            continue;
        }
        let receiver = receiver.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| receiver.respond(request));
            // Connection errors are handled by the client.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            drop(position);
        });
    }
}

impl Receiver {
    async fn respond(&self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        // An unread body would prevent reuse of the connection.
        let _ = Limited::new(request.into_body(), BODY).collect().await;
        let number = self.requests.fetch_add(1, Relaxed) + 1;
        let age = clock::monotonic_now().saturating_sub(self.started);
        let closed = || io::Error::from(io::ErrorKind::ConnectionReset);
        let reply = reply(self.manner, number, age, clock::random_unit()).ok_or_else(closed)?;
        tokio::select! {
            () = tokio::time::sleep(reply.after) => {}
            () = self.stop.cancelled() => {}
        }
        let mut response = Response::builder().status(reply.status);
        for (name, value) in reply.headers {
            response = response.header(name, HeaderValue::from_static(value));
        }
        response.body(Full::new(Bytes::from_static(reply.body))).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use redrive_testkit::Api;

    use super::*;

    fn statuses(manner: Behavior, age: Duration) -> Vec<u16> {
        let rolled = |number: u64| reply(manner, number, age, number as f64 / 100.0).unwrap().status;
        (1..=99).map(rolled).collect()
    }

    #[test]
    fn responses_match_behavior() {
        let count = |manner, status| {
            statuses(manner, Duration::ZERO).into_iter().filter(|found| *found == status).count()
        };
        assert_eq!(count(Behavior::Healthy, 200), 99);
        assert_eq!(count(Behavior::Slow, 200), 99);
        assert_eq!(
            (count(Behavior::Flaky, 503), count(Behavior::Flaky, 500), count(Behavior::Flaky, 200)),
            (24, 10, 65)
        );
        assert_eq!((count(Behavior::Limiting, 429), count(Behavior::Limiting, 200)), (7, 92));
        assert_eq!((count(Behavior::Hostile, 400), count(Behavior::Hostile, 500)), (33, 33));
        assert_eq!(reply(Behavior::Dead, 1, Duration::ZERO, 0.0), None);
        let first_limited = reply(Behavior::Limiting, 5, Duration::ZERO, 0.0).unwrap();
        assert!(first_limited.headers.contains(&(RETRY_AFTER, "4")), "it is met within seconds");
    }

    #[test]
    fn outages_are_periodic() {
        for (seconds, status) in [(0, 503), (44, 503), (45, 200), (149, 200), (150, 503), (195, 200)] {
            let found = statuses(Behavior::Outages, Duration::from_secs(seconds));
            assert!(found.iter().all(|found| *found == status), "{seconds}");
        }
    }

    #[tokio::test]
    async fn receivers_respond_over_http_and_without_delay_after_stop() {
        let stop = CancellationToken::new();
        let client = async |manner| Api::new(start(manner, stop.clone()).await.unwrap(), "none");
        let hostile = client(Behavior::Hostile).await.raw("POST", "/", &[], "{}").await;
        assert_eq!((hostile.status, hostile.header("content-type")), (400, Some("text/html")));
        assert!(hostile.header("x-note").unwrap().contains("<script>"));
        assert!(client(Behavior::Dead).await.try_raw("POST", "/", &[], "{}").await.is_err());
        stop.cancel();
        assert_eq!(client(Behavior::Slow).await.raw("POST", "/", &[], "{}").await.status, 200);
    }
}

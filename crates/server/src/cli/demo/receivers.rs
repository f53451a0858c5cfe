//! The receivers of a demo: small HTTP servers on loopback, each with a manner of its own.
//!
//! They check no signature and keep nothing.

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

/// Connections at once to one receiver; more wait.
const CONNECTIONS: usize = 256;
/// The most that is read of a body.
const BODY: usize = 1 << 20;
/// One outage and the good time after it.
const OUTAGE_EVERY: Duration = Duration::from_secs(150);
const OUTAGE: Duration = Duration::from_secs(45);

/// How a receiver behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Takes everything at once.
    Healthy,
    /// Takes everything in the end, and now and then too late.
    Slow,
    /// Fails every third time or so.
    Flaky,
    /// Wants fewer requests, and says for how long.
    Limiting,
    /// Closes every connection at once.
    Dead,
    /// Is down for a while, up for a while.
    Outages,
    /// Answers with text that would do harm if it were taken for anything else.
    Hostile,
}

/// What is answered.
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

const TAKEN: &str = r#"{"received": true}"#;
const SCRIPT: &str = "<!doctype html><script>document.title = 'hacked'; fetch('/v1/webhooks')</script>\
    <img src=x onerror=\"document.title = 'hacked'\"><a href=\"javascript:alert(1)\">Click here</a>";
const BREAKOUT: &str =
    "</pre></td></table></textarea><script>document.title = 'hacked'</script>{{7*7}} ${7*7} %00";
const BINARY: &[u8] =
    b"\x00\x01\xff\xfe\x1b[31mred\x1b[0m\x07 \xe2\x80\xaegnp.exe \xf0\x9f\x92\xa5 \x7f\r\n<b>";

/// What a receiver answers to its request of this number (the first is 1), so long after it was started. `roll` is
/// uniform in [0, 1). None: it closes the connection.
fn reply(manner: Manner, number: u64, age: Duration, roll: f64) -> Option<Reply> {
    let millis = |least: f64, most: f64| Duration::from_secs_f64((least + roll * (most - least)) / 1000.0);
    let taken = || Reply::json(200, TAKEN).after(millis(3.0, 40.0));
    Some(match manner {
        Manner::Healthy => taken(),
        Manner::Slow => Reply::json(200, TAKEN).after(millis(300.0, 300.0 + 2500.0 * roll)),
        Manner::Flaky if roll < 0.25 => {
            Reply::json(503, r#"{"error": "upstream connect error"}"#).after(millis(5.0, 200.0))
        }
        Manner::Flaky if roll < 0.35 => {
            Reply::json(500, r#"{"error": "NullPointerException at CrmSync.java:118"}"#)
        }
        Manner::Flaky => taken(),
        Manner::Limiting if number % 15 == 5 => {
            Reply::json(429, r#"{"error": "rate limit exceeded"}"#).with(RETRY_AFTER, "4")
        }
        Manner::Limiting => taken(),
        Manner::Dead => return None,
        Manner::Outages if age.as_secs() % OUTAGE_EVERY.as_secs() < OUTAGE.as_secs() => {
            Reply::json(503, r#"{"error": "down for maintenance"}"#).after(millis(3.0, 20.0))
        }
        Manner::Outages => taken(),
        Manner::Hostile => match number % 3 {
            0 => Reply::html(200, SCRIPT),
            1 => Reply::html(400, BREAKOUT),
            _ => Reply { body: BINARY, ..Reply::html(500, "") },
        },
    })
}

struct Receiver {
    manner: Manner,
    asked: AtomicU64,
    started: Duration,
    stop: CancellationToken,
}

/// Starts a receiver on a free port, and says which. It lasts as long as the process; once it is told to stop, it
/// keeps nobody waiting.
pub(super) async fn start(manner: Manner, stop: CancellationToken) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let receiver = Receiver { manner, asked: AtomicU64::new(0), started: clock::ticks(), stop };
    tokio::spawn(accept(listener, Arc::new(receiver)));
    Ok(address)
}

async fn accept(listener: TcpListener, receiver: Arc<Receiver>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(place) = room.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: some will be closed soon.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if receiver.manner == Manner::Dead {
            continue;
        }
        let receiver = receiver.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| receiver.answer(request));
            // A connection that breaks is its client's concern.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            drop(place);
        });
    }
}

impl Receiver {
    async fn answer(&self, request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
        // Unread bodies would cost the connection.
        let _ = Limited::new(request.into_body(), BODY).collect().await;
        let number = self.asked.fetch_add(1, Relaxed) + 1;
        let age = clock::ticks().saturating_sub(self.started);
        let closed = || io::Error::from(io::ErrorKind::ConnectionReset);
        let reply = reply(self.manner, number, age, clock::roll()).ok_or_else(closed)?;
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

    fn statuses(manner: Manner, age: Duration) -> Vec<u16> {
        let rolled = |number: u64| reply(manner, number, age, number as f64 / 100.0).unwrap().status;
        (1..=99).map(rolled).collect()
    }

    #[test]
    fn each_has_its_manner() {
        let count = |manner, status| {
            statuses(manner, Duration::ZERO).into_iter().filter(|found| *found == status).count()
        };
        assert_eq!(count(Manner::Healthy, 200), 99);
        assert_eq!(count(Manner::Slow, 200), 99);
        assert_eq!(
            (count(Manner::Flaky, 503), count(Manner::Flaky, 500), count(Manner::Flaky, 200)),
            (24, 10, 65)
        );
        assert_eq!((count(Manner::Limiting, 429), count(Manner::Limiting, 200)), (7, 92));
        assert_eq!((count(Manner::Hostile, 400), count(Manner::Hostile, 500)), (33, 33));
        assert_eq!(reply(Manner::Dead, 1, Duration::ZERO, 0.0), None);
        let first_limited = reply(Manner::Limiting, 5, Duration::ZERO, 0.0).unwrap();
        assert!(first_limited.headers.contains(&(RETRY_AFTER, "4")), "it is met within seconds");
    }

    #[test]
    fn outages_come_and_go() {
        for (seconds, status) in [(0, 503), (44, 503), (45, 200), (149, 200), (150, 503), (195, 200)] {
            let found = statuses(Manner::Outages, Duration::from_secs(seconds));
            assert!(found.iter().all(|found| *found == status), "{seconds}");
        }
    }

    #[tokio::test]
    async fn they_answer_over_the_wire_and_at_once_when_told_to_stop() {
        let stop = CancellationToken::new();
        let client = async |manner| Api::new(start(manner, stop.clone()).await.unwrap(), "none");
        let hostile = client(Manner::Hostile).await.raw("POST", "/", &[], "{}").await;
        assert_eq!((hostile.status, hostile.header("content-type")), (400, Some("text/html")));
        assert!(hostile.header("x-note").unwrap().contains("<script>"));
        assert!(client(Manner::Dead).await.try_raw("POST", "/", &[], "{}").await.is_err());
        stop.cancel();
        assert_eq!(client(Manner::Slow).await.raw("POST", "/", &[], "{}").await.status, 200);
    }
}

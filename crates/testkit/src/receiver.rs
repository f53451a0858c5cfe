//! A real HTTP endpoint on a loopback port that records requests and responds as scripted.
//!
//! Waits are woken by received requests, never by sleeping.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::{net::TcpStream, sync::watch};

use crate::{WAIT_TIMEOUT, server::Server, watch_cell::WatchCell};

type ResponseFn = Arc<dyn Fn(&ReceivedRequest) -> Reply + Send + Sync>;

/// A real HTTP endpoint on a free loopback port that records requests and responds as scripted.
///
/// It stops, with all its connections, when it is dropped.
pub struct Receiver {
    server: Server,
    state: Arc<WatchCell<State>>,
}

struct State {
    arrivals: Vec<ReceivedRequest>,
    response: ResponseFn,
}

impl Receiver {
    /// Starts a receiver that responds to everything with 200 and no body.
    pub async fn start() -> Self {
        Self::responding(200).await
    }

    /// Starts a receiver that responds to everything with this status.
    pub async fn responding(status: u16) -> Self {
        Self::with(move |_| Reply::status(status)).await
    }

    /// Starts a receiver that calls `response` for the response to each request.
    pub async fn with(response: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) -> Self {
        let state = Arc::new(WatchCell::new(State { arrivals: Vec::new(), response: Arc::new(response) }));
        let served = Arc::clone(&state);
        let server = Server::start(move |stream| serve(stream, Arc::clone(&served))).await;
        Self { server, state }
    }

    /// Starts a receiver that accepts requests immediately and responds with this status once the latch is opened.
    pub async fn latched(status: u16) -> (Self, Latch) {
        let gate = Latch::closed();
        let held = gate.clone();
        (Self::with(move |_| Reply::status(status).latched_by(&held)).await, gate)
    }

    /// Returns the URL to send requests to.
    pub fn url(&self) -> String {
        self.url_at("/webhook")
    }

    /// Returns the URL of this receiver with another path.
    pub fn url_at(&self, path: &str) -> String {
        self.server.url_at(path)
    }

    /// Replaces the response function from the next request on.
    pub fn respond_with(&self, response: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) {
        self.state.change(|state| state.response = Arc::new(response));
    }

    /// Returns all requests received so far, in order.
    pub fn arrivals(&self) -> Vec<ReceivedRequest> {
        self.state.read(|state| state.arrivals.clone())
    }

    /// Returns the number of requests received so far.
    pub fn count(&self) -> usize {
        self.state.read(|state| state.arrivals.len())
    }

    /// Waits until at least `n` requests were received; panics after `WAIT_TIMEOUT` without a new one and lists those
    /// received.
    pub async fn wait_for(&self, n: usize) -> Vec<ReceivedRequest> {
        let mut seen = self.count();
        loop {
            let check = |state: &State| (state.arrivals.len() >= n).then(|| state.arrivals.clone());
            if let Some(arrivals) = self.state.wait_for(WAIT_TIMEOUT, check).await {
                return arrivals;
            }
            let count = self.count();
            if count == seen {
                panic!("not within {WAIT_TIMEOUT:?}: at least {n} requests; {}", summarize(&self.arrivals()));
            }
            seen = count;
        }
    }

    /// Waits until `condition` holds for the requests received; panics after `WAIT_TIMEOUT` and lists those received.
    ///
    /// The condition runs under the receiver's lock: it must not call methods of this receiver.
    pub async fn wait_until(
        &self,
        what: &str,
        condition: impl Fn(&[ReceivedRequest]) -> bool,
    ) -> Vec<ReceivedRequest> {
        let check = |state: &State| condition(&state.arrivals).then(|| state.arrivals.clone());
        match self.state.wait_for(WAIT_TIMEOUT, check).await {
            Some(arrivals) => arrivals,
            None => panic!("not within {WAIT_TIMEOUT:?}: {what}; {}", summarize(&self.arrivals())),
        }
    }
}

/// Formats the requests received as a few lines for a panic message.
fn summarize(arrivals: &[ReceivedRequest]) -> String {
    const SHOWN: usize = 20;
    let mut text = format!("{} requests received", arrivals.len());
    for arrival in arrivals.iter().take(SHOWN) {
        let id = arrival.header("webhook-id").unwrap_or("no webhook-id");
        let body = String::from_utf8_lossy(&arrival.body);
        let start: String = body.chars().take(120).collect();
        text += &format!("\n  #{} {} {} [{id}] {start}", arrival.number, arrival.method, arrival.path);
    }
    if arrivals.len() > SHOWN {
        text += &format!("\n  … and {} more", arrivals.len() - SHOWN);
    }
    text
}

/// One received request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The sequence number among all requests to this receiver, from 1.
    pub number: usize,
    /// The method, such as `POST`.
    pub method: String,
    /// The path, with the query string if there is one.
    pub path: String,
    /// The headers in order of arrival; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Bytes,
    /// The time when it was received completely.
    pub at: Instant,
}

impl ReceivedRequest {
    /// Returns the first header of this name, ignoring case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    /// Parses the body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("request #{} is not JSON ({error}): {}", self.number, String::from_utf8_lossy(&self.body))
        })
    }

    /// Returns the `webhook-id` header: the event's id, the same on every retry.
    pub fn webhook_id(&self) -> &str {
        self.header("webhook-id").unwrap_or_else(|| {
            panic!("request #{} has no webhook-id header: {:?}", self.number, self.headers)
        })
    }
}

/// The response of a receiver, and when it is sent.
#[derive(Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
    delay: Option<Duration>,
    gate: Option<Latch>,
}

impl Reply {
    /// Creates a response with this status, sent immediately and without a body.
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new(), delay: None, gate: None }
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Delays the response.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Holds the response until the latch is open.
    pub fn latched_by(mut self, gate: &Latch) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    async fn into_response(self) -> Response<Full<Bytes>> {
        if let Some(gate) = &self.gate {
            gate.wait_open().await;
        }
        if let Some(delay) = self.delay {
            tokio::time::sleep(delay).await;
        }
        let mut response = Response::builder().status(self.status);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        response.body(Full::new(self.body)).expect("a reply needs a real status and well-formed headers")
    }
}

/// A latch that holds responses until it is opened. Clones share their state.
#[derive(Clone)]
pub struct Latch(Arc<watch::Sender<bool>>);

impl Latch {
    /// Creates a closed latch.
    pub fn closed() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Opens the latch for good.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the latch is open.
    pub async fn wait_open(&self) {
        self.0.subscribe().wait_for(|open| *open).await.expect("the latch outlives its waiters");
    }
}

async fn serve(stream: TcpStream, state: Arc<WatchCell<State>>) {
    // Without this, responses could be delayed until the client's delayed acknowledgement.
    stream.set_nodelay(true).ok();
    let service = service_fn(|request| respond(request, &state));
    // An error means that the client disconnected; the client's own test asserts on that.
    http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await.ok();
}

async fn respond(
    request: Request<Incoming>,
    state: &WatchCell<State>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let arrival = read(request).await?;
    let (arrival, response) = state.change(|state| {
        let arrival = ReceivedRequest { number: state.arrivals.len() + 1, ..arrival };
        state.arrivals.push(arrival.clone());
        (arrival, Arc::clone(&state.response))
    });
    Ok(response(&arrival).into_response().await)
}

/// Reads the whole request; its sequence number is assigned when it is recorded.
async fn read(request: Request<Incoming>) -> Result<ReceivedRequest, hyper::Error> {
    let (head, body) = request.into_parts();
    let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let body = body.collect().await?.to_bytes();
    let path = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    Ok(ReceivedRequest {
        number: 0,
        method: head.method.to_string(),
        path,
        headers,
        body,
        at: Instant::now(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use serde_json::json;

    use super::*;
    use crate::Api;

    fn client(receiver: &Receiver) -> Api {
        let address = receiver.url_at("").trim_start_matches("http://").trim_end_matches('/').to_owned();
        Api::new(address.parse::<SocketAddr>().unwrap(), "key")
    }

    #[tokio::test]
    async fn requests_are_recorded() {
        let receiver = Receiver::start().await;
        assert!(receiver.url().ends_with("/webhook"));
        let headers = [("Webhook-Id", "evt_1"), ("x-two", "a"), ("x-two", "b")];
        let response = client(&receiver).raw("POST", "/webhook?a=b", &headers, r#"{"n":1}"#).await;
        assert_eq!((response.status, response.body.len()), (200, 0));

        let arrival = &receiver.wait_for(1).await[0];
        assert_eq!((arrival.number, &*arrival.method, &*arrival.path), (1, "POST", "/webhook?a=b"));
        assert_eq!(arrival.webhook_id(), "evt_1");
        assert_eq!(arrival.headers.iter().filter(|(name, _)| name == "x-two").count(), 2);
        assert_eq!(arrival.json(), json!({"n": 1}));
        assert_eq!((arrival.header("X-TWO"), arrival.header("x-three")), (Some("a"), None));
    }

    #[tokio::test]
    async fn responses_follow_the_script_and_can_change() {
        let receiver = Receiver::with(|arrival| match arrival.number {
            1 => Reply::status(429).header("retry-after", "1").body("slow down"),
            _ => Reply::status(204),
        })
        .await;
        let client = client(&receiver);
        let first = client.get("/").await;
        assert_eq!((first.status, first.header("retry-after")), (429, Some("1")));
        assert_eq!(first.body, "slow down");
        assert_eq!(client.get("/").await.status, 204);
        receiver.respond_with(|_| Reply::status(500));
        assert_eq!(client.get("/").await.status, 500);
        assert_eq!(receiver.count(), 3);
    }

    #[tokio::test]
    async fn latch_holds_responses_but_not_requests() {
        let (receiver, gate) = Receiver::latched(200).await;
        let client = client(&receiver);
        let asking = tokio::spawn(async move { client.get("/").await.status });
        receiver.wait_for(1).await;
        assert!(!asking.is_finished());
        gate.open();
        assert_eq!(asking.await.unwrap(), 200);
        gate.wait_open().await;
    }

    #[tokio::test]
    async fn delayed_response_is_sent_late() {
        let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(50))).await;
        let started = Instant::now();
        client(&receiver).get("/").await;
        assert!(started.elapsed() >= Duration::from_millis(50));
    }

    #[tokio::test]
    async fn wait_for_sees_every_request_of_many_clients() {
        let receiver = Receiver::start().await;
        let client = client(&receiver);
        let sending: Vec<_> = (0..20)
            .map(|n| (client.clone(), n))
            .map(|(client, n)| {
                tokio::spawn(async move {
                    for m in 0..10 {
                        client.post("/webhook", json!([n, m])).await.expect(200);
                    }
                })
            })
            .collect();
        let arrivals = receiver.wait_for(200).await;
        for sender in sending {
            sender.await.unwrap();
        }
        let numbers: Vec<_> = arrivals.iter().map(|arrival| arrival.number).collect();
        assert_eq!(numbers, (1..=200).collect::<Vec<_>>());
        receiver.wait_until("the last of each", |all| all.iter().any(|one| one.json()[1] == 9)).await;
    }

    #[tokio::test]
    async fn summary_of_many_requests_is_short() {
        let receiver = Receiver::start().await;
        assert_eq!(summarize(&receiver.arrivals()), "0 requests received");
        for _ in 0..21 {
            client(&receiver).raw("POST", "/webhook", &[("webhook-id", "evt_1")], "hello").await;
        }
        let text = summarize(&receiver.arrivals());
        assert!(text.starts_with("21 requests received\n  #1 POST /webhook [evt_1] hello\n"), "{text}");
        assert!(text.ends_with("\n  … and 1 more"), "{text}");
    }

    #[tokio::test]
    async fn dropped_receiver_closes_its_connections() {
        let receiver = Receiver::start().await;
        let client = client(&receiver);
        client.get("/").await.expect(200);
        drop(receiver);
        tokio::task::yield_now().await;
        assert!(client.try_post("/", json!(null)).await.is_err());
    }
}

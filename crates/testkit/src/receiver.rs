//! An endpoint that records what arrives and answers as told: a real HTTP server on a loopback port.
//!
//! Waiting for arrivals is driven by the arrivals themselves, never by sleeping.

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

use crate::{PATIENCE, server::Server, watch_cell::Watched};

type AnswerFn = Arc<dyn Fn(&Arrival) -> Reply + Send + Sync>;

/// A real HTTP endpoint on a free loopback port that records what arrives and answers as told.
///
/// It stops, with all its connections, when it is dropped.
pub struct Receiver {
    server: Server,
    state: Arc<Watched<State>>,
}

struct State {
    arrivals: Vec<Arrival>,
    answer: AnswerFn,
}

impl Receiver {
    /// A receiver that answers 200 without a body to everything.
    pub async fn start() -> Self {
        Self::answering(200).await
    }

    /// A receiver that answers everything with this status.
    pub async fn answering(status: u16) -> Self {
        Self::with(move |_| Reply::status(status)).await
    }

    /// A receiver that asks `answer` what to say to each request.
    pub async fn with(answer: impl Fn(&Arrival) -> Reply + Send + Sync + 'static) -> Self {
        let state = Arc::new(Watched::new(State { arrivals: Vec::new(), answer: Arc::new(answer) }));
        let served = Arc::clone(&state);
        let server = Server::start(move |stream| serve(stream, Arc::clone(&served))).await;
        Self { server, state }
    }

    /// A receiver that takes requests at once and answers them with this status when the gate is opened.
    pub async fn held(status: u16) -> (Self, Gate) {
        let gate = Gate::closed();
        let held = gate.clone();
        (Self::with(move |_| Reply::status(status).held_by(&held)).await, gate)
    }

    /// Where to send requests.
    pub fn url(&self) -> String {
        self.url_at("/hook")
    }

    /// The same receiver at another path.
    pub fn url_at(&self, path: &str) -> String {
        self.server.url_at(path)
    }

    /// Answers differently from the next request on.
    pub fn answer_with(&self, answer: impl Fn(&Arrival) -> Reply + Send + Sync + 'static) {
        self.state.change(|state| state.answer = Arc::new(answer));
    }

    /// Everything that arrived so far, in order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.state.read(|state| state.arrivals.clone())
    }

    /// How many requests arrived so far.
    pub fn count(&self) -> usize {
        self.state.read(|state| state.arrivals.len())
    }

    /// Waits until at least `n` requests have arrived; panics after 20 s without a new one and says what did arrive.
    pub async fn wait_for(&self, n: usize) -> Vec<Arrival> {
        let mut seen = self.count();
        loop {
            let look = |state: &State| (state.arrivals.len() >= n).then(|| state.arrivals.clone());
            if let Some(arrivals) = self.state.find(PATIENCE, look).await {
                return arrivals;
            }
            let count = self.count();
            if count == seen {
                panic!("waited {PATIENCE:?} in vain for at least {n} arrivals; {}", told(&self.arrivals()));
            }
            seen = count;
        }
    }

    /// Waits until `condition` holds for what has arrived; panics after 20 s and says what did arrive.
    ///
    /// The condition is asked under the receiver's lock: it must not ask this receiver anything itself.
    pub async fn wait_until(&self, what: &str, condition: impl Fn(&[Arrival]) -> bool) -> Vec<Arrival> {
        let look = |state: &State| condition(&state.arrivals).then(|| state.arrivals.clone());
        match self.state.find(PATIENCE, look).await {
            Some(arrivals) => arrivals,
            None => panic!("waited {PATIENCE:?} in vain for {what}; {}", told(&self.arrivals())),
        }
    }
}

/// What arrived, in a few lines for a panic's message.
fn told(arrivals: &[Arrival]) -> String {
    const SHOWN: usize = 20;
    let mut text = format!("{} requests arrived", arrivals.len());
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

/// One request as it arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Its place among all requests to this receiver, from 1.
    pub number: usize,
    /// The method, such as `POST`.
    pub method: String,
    /// The path, with the query where there is one.
    pub path: String,
    /// The headers in order of arrival; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Bytes,
    /// When the whole of it had arrived.
    pub at: Instant,
}

impl Arrival {
    /// The first header of this name, in whatever case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("arrival #{} is not JSON ({error}): {}", self.number, String::from_utf8_lossy(&self.body))
        })
    }

    /// The `webhook-id` header: the event's id, the same on every retry.
    pub fn webhook_id(&self) -> &str {
        self.header("webhook-id").unwrap_or_else(|| {
            panic!("arrival #{} has no webhook-id header: {:?}", self.number, self.headers)
        })
    }
}

/// What a receiver answers, and when.
#[derive(Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
    delay: Option<Duration>,
    gate: Option<Gate>,
}

impl Reply {
    /// An answer of this status, at once and without a body.
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new(), delay: None, gate: None }
    }

    /// With one more header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With this body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Only after this long.
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Only once the gate is open.
    pub fn held_by(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    async fn into_response(self) -> Response<Full<Bytes>> {
        if let Some(gate) = &self.gate {
            gate.passed().await;
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

/// Holds answers back until opened. Clones are the same gate.
#[derive(Clone)]
pub struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    /// A gate that holds everything back.
    pub fn closed() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Lets everything pass, now and later.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the gate is open.
    pub async fn passed(&self) {
        self.0.subscribe().wait_for(|open| *open).await.expect("the gate outlives who waits at it");
    }
}

async fn serve(stream: TcpStream, state: Arc<Watched<State>>) {
    // Without this, answers could wait for the client's delayed acknowledgement.
    stream.set_nodelay(true).ok();
    let service = service_fn(|request| respond(request, &state));
    // An error here is a client that went away, which the client's own test judges.
    http1::Builder::new().timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await.ok();
}

async fn respond(
    request: Request<Incoming>,
    state: &Watched<State>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let arrival = read(request).await?;
    let (arrival, answer) = state.change(|state| {
        let arrival = Arrival { number: state.arrivals.len() + 1, ..arrival };
        state.arrivals.push(arrival.clone());
        (arrival, Arc::clone(&state.answer))
    });
    Ok(answer(&arrival).into_response().await)
}

/// Reads the whole request; its number is given when it is recorded.
async fn read(request: Request<Incoming>) -> Result<Arrival, hyper::Error> {
    let (head, body) = request.into_parts();
    let text = |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers = head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    let body = body.collect().await?.to_bytes();
    let path = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    Ok(Arrival { number: 0, method: head.method.to_string(), path, headers, body, at: Instant::now() })
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
    async fn what_arrives_is_recorded() {
        let receiver = Receiver::start().await;
        assert!(receiver.url().ends_with("/hook"));
        let headers = [("Webhook-Id", "evt_1"), ("x-two", "a"), ("x-two", "b")];
        let answer = client(&receiver).raw("POST", "/hook?a=b", &headers, r#"{"n":1}"#).await;
        assert_eq!((answer.status, answer.body.len()), (200, 0));

        let arrival = &receiver.wait_for(1).await[0];
        assert_eq!((arrival.number, &*arrival.method, &*arrival.path), (1, "POST", "/hook?a=b"));
        assert_eq!(arrival.webhook_id(), "evt_1");
        assert_eq!(arrival.headers.iter().filter(|(name, _)| name == "x-two").count(), 2);
        assert_eq!(arrival.json(), json!({"n": 1}));
        assert_eq!((arrival.header("X-TWO"), arrival.header("x-three")), (Some("a"), None));
    }

    #[tokio::test]
    async fn answers_are_as_told_and_can_change() {
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
        receiver.answer_with(|_| Reply::status(500));
        assert_eq!(client.get("/").await.status, 500);
        assert_eq!(receiver.count(), 3);
    }

    #[tokio::test]
    async fn a_gate_holds_answers_back_but_not_arrivals() {
        let (receiver, gate) = Receiver::held(200).await;
        let client = client(&receiver);
        let asking = tokio::spawn(async move { client.get("/").await.status });
        receiver.wait_for(1).await;
        assert!(!asking.is_finished());
        gate.open();
        assert_eq!(asking.await.unwrap(), 200);
        gate.passed().await;
    }

    #[tokio::test]
    async fn a_delay_delays() {
        let receiver = Receiver::with(|_| Reply::status(200).after(Duration::from_millis(50))).await;
        let started = Instant::now();
        client(&receiver).get("/").await;
        assert!(started.elapsed() >= Duration::from_millis(50));
    }

    #[tokio::test]
    async fn waiting_sees_every_arrival_of_many_clients() {
        let receiver = Receiver::start().await;
        let client = client(&receiver);
        let sending: Vec<_> = (0..20)
            .map(|n| (client.clone(), n))
            .map(|(client, n)| {
                tokio::spawn(async move {
                    for m in 0..10 {
                        client.post("/hook", json!([n, m])).await.expect(200);
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
    async fn arrivals_are_told_briefly() {
        let receiver = Receiver::start().await;
        assert_eq!(told(&receiver.arrivals()), "0 requests arrived");
        for _ in 0..21 {
            client(&receiver).raw("POST", "/hook", &[("webhook-id", "evt_1")], "hello").await;
        }
        let text = told(&receiver.arrivals());
        assert!(text.starts_with("21 requests arrived\n  #1 POST /hook [evt_1] hello\n"), "{text}");
        assert!(text.ends_with("\n  … and 1 more"), "{text}");
    }

    #[tokio::test]
    async fn a_dropped_receiver_is_gone_with_its_connections() {
        let receiver = Receiver::start().await;
        let client = client(&receiver);
        client.get("/").await.expect(200);
        drop(receiver);
        tokio::task::yield_now().await;
        assert!(client.try_post("/", json!(null)).await.is_err());
    }
}

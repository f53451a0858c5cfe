//! One exchange: a request out, an answer in, all of it under one deadline.
//! This is the hot path: nothing is parsed, formatted or copied here that could have been before.

use std::{mem, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{Extensions, HeaderName, Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{
        self,
        connect::{CaptureConnection, capture_connection},
    },
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::RwLock;
use redrive_core::security::egress_rules::ReachRules;
use tokio::time::timeout;

use crate::{
    Answered, Config, Exchange, Failed, MAX_BUFFER_BYTES, Outbound, Timings,
    connector::{Connector, REQUEST, RequestContext},
    error::{self, SetupError, Verdict},
    stream::{Link, Payload, Phases, is_unsent},
};

/// How much of an answer's body is kept.
const SAMPLE_BYTES: usize = 1024;
/// How many headers an answer may have.
const MAX_HEADERS: usize = 100;
/// What says where a message ends is hyper's to write, lest two readers of it disagree.
const FRAMING: [HeaderName; 6] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The guarded HTTP client. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

type Pool = legacy::Client<Connector, Full<Payload>>;

struct Inner {
    /// The connections that may be used; others when the rules have changed.
    pool: RwLock<Pool>,
    builder: legacy::Builder,
    connector: Connector,
    max_response_bytes: usize,
    stopwatch: fn() -> Duration,
}

/// How far an exchange has come: what is known of it even if it never ends.
struct Progress {
    phases: Phases,
    ttfb: Option<Duration>,
    status: Option<u16>,
    connection: CaptureConnection,
    link: Option<Arc<Link>>,
    unsent: Arc<()>,
}

impl Progress {
    fn new(connection: CaptureConnection, unsent: Arc<()>) -> Self {
        Self { phases: Phases::default(), ttfb: None, status: None, connection, link: None, unsent }
    }

    fn learn(&mut self, extensions: &mut Extensions) {
        self.link = extensions.remove::<Arc<Link>>();
        if let Some(phases) = self.link.as_ref().and_then(|link| link.take_phases()) {
            self.phases = phases;
        }
    }

    /// Finds out about the connection even if no answer came on it.
    fn settle(&mut self) {
        if self.link.is_some() {
            return;
        }
        let mut extensions = Extensions::new();
        if let Some(connected) = self.connection.connection_metadata().as_ref() {
            connected.get_extras(&mut extensions);
        }
        self.learn(&mut extensions);
    }
}

/// However an exchange ends, even by being dropped, it leaves no connection behind that still writes.
impl Drop for Progress {
    fn drop(&mut self) {
        if !is_unsent(&self.unsent) {
            return;
        }
        self.settle();
        if let Some(link) = &self.link {
            link.cut();
        }
    }
}

impl Client {
    /// A client with its own pool of connections.
    pub fn new(config: Config) -> Result<Self, SetupError> {
        let Config { max_response_bytes, stopwatch, .. } = config;
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(config.idle_timeout)
            .pool_max_idle_per_host(config.idle_per_host)
            // An attempt is one request; trying again is decided elsewhere.
            .retry_canceled_requests(false)
            .set_host(true)
            .http1_max_buf_size(MAX_BUFFER_BYTES)
            .http1_max_headers(MAX_HEADERS);
        let connector = Connector::new(config)?;
        let pool = RwLock::new(builder.build(connector.clone()));
        Ok(Self(Arc::new(Inner { pool, builder, connector, max_response_bytes, stopwatch })))
    }

    /// Puts other rules in force. Everything that begins after this goes by them, over new connections: old
    /// ones are closed, those in use when their exchange is over. To be called within a runtime.
    pub fn set_rules(&self, rules: ReachRules) {
        let Inner { pool, builder, connector, .. } = &*self.0;
        // In this order, so that no connection made by the old rules can get into the new pool.
        connector.set_rules(rules);
        let old = mem::replace(&mut *pool.write(), builder.build(connector.clone()));
        drop(old);
        connector.retire_connections();
    }

    /// How many connections were refused since the start, by the label of the reason.
    pub fn refusals(&self) -> impl IntoIterator<Item = (&'static str, u64)> + use<> {
        self.0.connector.refusals()
    }

    /// Sends one POST and reads the answer.
    ///
    /// It never follows a redirect, never sends the request twice, and always ends by the request's
    /// timeout. Dropping the future gives the exchange up.
    pub async fn post(&self, request: Outbound) -> Exchange {
        let start = (self.0.stopwatch)();
        let context = RequestContext { owner: request.owner, timeout: request.timeout };
        let (mut request, unsent) = prepare(request);
        let mut progress = Progress::new(capture_connection(&mut request), unsent);
        let exchange = REQUEST.scope(context, self.0.exchange(request, start, &mut progress));
        let result = match timeout(context.timeout, exchange).await {
            Ok(result) => result,
            Err(_) => Err(error::timed_out(progress.status.is_some())),
        };
        let result = result.map_err(|Verdict { failure, message }| Failed {
            failure,
            message,
            status: progress.status,
        });
        progress.settle();
        if let (Ok(_), Some(link)) = (&result, &progress.link) {
            link.exchange_ended();
        }
        Exchange { result, timings: self.0.timings(start, &progress) }
    }
}

impl Inner {
    async fn exchange(
        &self,
        request: Request<Full<Payload>>,
        start: Duration,
        progress: &mut Progress,
    ) -> Result<Answered, Verdict> {
        let answer = self.pool.read().request(request);
        let answer = answer.await;
        let mut answer = answer.map_err(|error| unanswered(&error, progress))?;
        progress.ttfb = Some((self.stopwatch)().saturating_sub(start));
        progress.status = Some(answer.status().as_u16());
        progress.learn(answer.extensions_mut());

        let (head, body) = answer.into_parts();
        let sample = read_sample(body, self.max_response_bytes).await;
        let body_sample = sample.map_err(|error| error::within_body(&error))?;
        Ok(Answered { status: head.status.as_u16(), headers: head.headers, body_sample })
    }

    fn timings(&self, start: Duration, progress: &Progress) -> Timings {
        let Phases { dns, connect, tls } = progress.phases;
        Timings { dns, connect, tls, ttfb: progress.ttfb, total: (self.stopwatch)().saturating_sub(start) }
    }
}

/// The request as hyper takes it, and the mark that tells whether it has left.
fn prepare(outbound: Outbound) -> (Request<Full<Payload>>, Arc<()>) {
    let Outbound { target, mut headers, body, timeout: _, owner: _ } = outbound;
    for name in &FRAMING {
        headers.remove(name);
    }
    headers.insert(header::HOST, target.host);
    let (payload, unsent) = Payload::new(body);
    let mut request = Request::new(Full::new(payload));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = target.uri;
    *request.headers_mut() = headers;
    (request, unsent)
}

fn unanswered(error: &legacy::Error, progress: &mut Progress) -> Verdict {
    if let Some(failed) = error::connect_failure(error) {
        progress.phases = failed.phases;
    }
    error::before_answer(error)
}

/// Reads a body to its end or to `limit`, whichever comes first, and keeps its beginning. A body that is
/// dropped before its end takes its connection with it.
///
/// The sample is a copy, because a slice would keep hyper's whole buffer alive.
async fn read_sample(mut body: Incoming, limit: usize) -> Result<Bytes, hyper::Error> {
    let mut sample = BytesMut::new();
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let wanted = data.len().min(SAMPLE_BYTES - sample.len());
        sample.extend_from_slice(&data[..wanted]);
        seen += data.len();
        if seen > limit {
            break;
        }
    }
    Ok(sample.freeze())
}

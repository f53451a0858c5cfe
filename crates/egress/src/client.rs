//! One HTTP exchange: a request sent and its response read, under one deadline.
//! This is the hot path: it must not parse, format or copy anything that can be prepared earlier.

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
use redrive_core::security::egress_rules::EgressRules;
use tokio::time::timeout;

use crate::{
    Config, EgressFailure, EgressResponse, Exchange, MAX_BUFFER_BYTES, OutboundRequest, Timings,
    connector::{Connector, REQUEST, RequestContext},
    error::{self, DescribedFailure, SetupError},
    stream::{ConnectionState, Payload, Phases, is_unsent},
};

/// Number of bytes of a response body that are kept.
const SAMPLE_BYTES: usize = 1024;
/// Maximum number of response headers.
const MAX_HEADERS: usize = 100;
/// Framing headers, which only hyper may write; otherwise two parsers could disagree on where a message ends.
const FRAMING: [HeaderName; 6] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// HTTP client that enforces the egress rules. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

type Pool = legacy::Client<Connector, Full<Payload>>;

struct Inner {
    /// Current connection pool; replaced when the rules change.
    pool: RwLock<Pool>,
    builder: legacy::Builder,
    connector: Connector,
    max_response_bytes: usize,
    stopwatch: fn() -> Duration,
}

/// Progress of an exchange, known even if it is cancelled.
struct Progress {
    phases: Phases,
    ttfb: Option<Duration>,
    status: Option<u16>,
    connection: CaptureConnection,
    link: Option<Arc<ConnectionState>>,
    unsent: Arc<()>,
}

impl Progress {
    fn new(connection: CaptureConnection, unsent: Arc<()>) -> Self {
        Self { phases: Phases::default(), ttfb: None, status: None, connection, link: None, unsent }
    }

    fn record_connection(&mut self, extensions: &mut Extensions) {
        self.link = extensions.remove::<Arc<ConnectionState>>();
        if let Some(phases) = self.link.as_ref().and_then(|link| link.take_phases()) {
            self.phases = phases;
        }
    }

    /// Reads the connection's phases even if no response arrived.
    fn finish_phases(&mut self) {
        if self.link.is_some() {
            return;
        }
        let mut extensions = Extensions::new();
        if let Some(connected) = self.connection.connection_metadata().as_ref() {
            connected.get_extras(&mut extensions);
        }
        self.record_connection(&mut extensions);
    }
}

/// Aborts the connection if the request is still being written when the exchange ends or is dropped.
impl Drop for Progress {
    fn drop(&mut self) {
        if !is_unsent(&self.unsent) {
            return;
        }
        self.finish_phases();
        if let Some(link) = &self.link {
            link.abort();
        }
    }
}

impl Client {
    /// Creates a client with its own connection pool.
    pub fn new(config: Config) -> Result<Self, SetupError> {
        let Config { max_response_bytes, monotonic_clock: stopwatch, .. } = config;
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(config.idle_timeout)
            .pool_max_idle_per_host(config.idle_per_host)
            // An attempt is exactly one request; retries are decided elsewhere.
            .retry_canceled_requests(false)
            .set_host(true)
            .http1_max_buf_size(MAX_BUFFER_BYTES)
            .http1_max_headers(MAX_HEADERS);
        let connector = Connector::new(config)?;
        let pool = RwLock::new(builder.build(connector.clone()));
        Ok(Self(Arc::new(Inner { pool, builder, connector, max_response_bytes, stopwatch })))
    }

    /// Replaces the rules. Every exchange that starts afterwards uses them, over new connections: idle connections are
    /// closed, and those in use are closed when their exchange ends. Must be called within a runtime.
    pub fn set_rules(&self, rules: EgressRules) {
        let Inner { pool, builder, connector, .. } = &*self.0;
        // In this order, so that no connection opened under the old rules can enter the new pool.
        connector.set_rules(rules);
        let old = mem::replace(&mut *pool.write(), builder.build(connector.clone()));
        drop(old);
        connector.retire_connections();
    }

    /// Returns the number of refused connections since the start, by reason label.
    pub fn refusals(&self) -> impl IntoIterator<Item = (&'static str, u64)> + use<> {
        self.0.connector.refusals()
    }

    /// Sends one POST and reads the response.
    ///
    /// It never follows a redirect, never sends the request twice, and always ends by the request's timeout. Dropping
    /// the future cancels the exchange.
    pub async fn post(&self, request: OutboundRequest) -> Exchange {
        let start = (self.0.stopwatch)();
        let context = RequestContext { tenant_key: request.tenant_key, timeout: request.timeout };
        let (mut request, unsent) = prepare(request);
        let mut progress = Progress::new(capture_connection(&mut request), unsent);
        let exchange = REQUEST.scope(context, self.0.exchange(request, start, &mut progress));
        let result = match timeout(context.timeout, exchange).await {
            Ok(result) => result,
            Err(_) => Err(error::timed_out(progress.status.is_some())),
        };
        let result = result.map_err(|DescribedFailure { failure, message }| EgressFailure {
            failure,
            message,
            status: progress.status,
        });
        progress.finish_phases();
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
    ) -> Result<EgressResponse, DescribedFailure> {
        let response = self.pool.read().request(request);
        let response = response.await;
        let mut response = response.map_err(|error| failed_exchange(&error, progress))?;
        progress.ttfb = Some((self.stopwatch)().saturating_sub(start));
        progress.status = Some(response.status().as_u16());
        progress.record_connection(response.extensions_mut());

        let (head, body) = response.into_parts();
        let sample = read_sample(body, self.max_response_bytes).await;
        let body_sample = sample.map_err(|error| error::body_failure(&error))?;
        Ok(EgressResponse { status: head.status.as_u16(), headers: head.headers, body_sample })
    }

    fn timings(&self, start: Duration, progress: &Progress) -> Timings {
        let Phases { dns, connect, tls } = progress.phases;
        Timings { dns, connect, tls, ttfb: progress.ttfb, total: (self.stopwatch)().saturating_sub(start) }
    }
}

/// Builds the request for hyper, and the marker that shows whether its body was written.
fn prepare(outbound: OutboundRequest) -> (Request<Full<Payload>>, Arc<()>) {
    let OutboundRequest { target, mut headers, body, timeout: _, tenant_key: _ } = outbound;
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

fn failed_exchange(error: &legacy::Error, progress: &mut Progress) -> DescribedFailure {
    if let Some(failed) = error::connect_failure(error) {
        progress.phases = failed.phases;
    }
    error::no_response(error)
}

/// Reads a body to its end or to `limit`, whichever comes first, and keeps its beginning. Dropping a body before
/// its end closes its connection.
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

//! Trace spans as the exporter receives them.

use prometheus_client::metrics::counter::Counter;
use redrive_core::event::trace::{SpanId, TraceId};
use tokio::sync::mpsc;

/// Destination of spans, and the sampling of new traces.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// Ratio of events without a trace of their publisher that start a sampled trace.
    pub sample_ratio: f64,
    /// Queue of the exporter.
    pub spans: mpsc::Sender<Span>,
    /// Number of spans dropped because the queue was full.
    pub dropped: Counter,
}

/// Kind of a span, as in OpenTelemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Internal operation.
    Internal,
    /// Handling of an incoming request.
    Server,
    /// Outgoing request.
    Client,
}

/// Value of a span attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// String value.
    Text(String),
    /// Integer value.
    Number(i64),
    /// Boolean value.
    Flag(bool),
}

/// A finished span.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Trace id.
    pub trace: TraceId,
    /// Span id.
    pub id: SpanId,
    /// Parent span.
    pub parent: Option<SpanId>,
    /// `tracestate` of the trace.
    pub state: Option<Box<str>>,
    /// Span name.
    pub name: &'static str,
    /// Span kind.
    pub kind: SpanKind,
    /// Start in nanoseconds since 1970.
    pub start: u64,
    /// End in nanoseconds since 1970.
    pub end: u64,
    /// Attributes.
    pub attributes: Vec<(&'static str, Value)>,
    /// Error, if the operation failed.
    pub error: Option<String>,
}

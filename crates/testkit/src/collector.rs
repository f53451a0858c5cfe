//! A trace collector that receives spans over OTLP/HTTP and decodes them with OpenTelemetry's own definitions.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value as Any},
    trace::v1::{Span, SpanFlags, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use serde_json::Value;

use crate::{ReceivedRequest, Receiver, Reply};

/// A collector on a free loopback port. It stops when it is dropped.
pub struct Collector {
    receiver: Receiver,
}

/// One received span.
#[derive(Clone, Debug)]
pub struct ReceivedSpan {
    /// The trace id in hexadecimal.
    pub trace: String,
    /// The span id.
    pub id: String,
    /// The id of the parent span; empty for a root span.
    pub parent: String,
    /// The name.
    pub name: String,
    /// The span kind.
    pub kind: SpanKind,
    /// The start time, in nanoseconds.
    pub start: u64,
    /// The end time, in nanoseconds.
    pub end: u64,
    /// The `tracestate`.
    pub state: String,
    /// The attributes.
    pub attributes: BTreeMap<String, Value>,
    /// The error message, if the status is an error.
    pub error: Option<String>,
    /// The attributes of the resource that sent it.
    pub resource: BTreeMap<String, Value>,
}

impl ReceivedSpan {
    /// Returns an attribute that must be a string.
    pub fn text(&self, key: &str) -> &str {
        self.attributes.get(key).and_then(Value::as_str).unwrap_or_else(|| panic!("no {key} in {self:#?}"))
    }

    /// Returns an attribute that must be a number.
    pub fn number(&self, key: &str) -> i64 {
        self.attributes.get(key).and_then(Value::as_i64).unwrap_or_else(|| panic!("no {key} in {self:#?}"))
    }
}

impl Collector {
    /// Starts a collector that accepts everything.
    pub async fn start() -> Self {
        Self { receiver: Receiver::start().await }
    }

    /// Starts a collector that responds as `response` returns.
    pub async fn with(response: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self { receiver: Receiver::with(response).await }
    }

    /// Returns the value for `tracing.otlp_endpoint`.
    pub fn url(&self) -> String {
        self.receiver.url_at("").trim_end_matches('/').to_owned()
    }

    /// Returns the receiver that records the export requests.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Returns every span received so far.
    pub fn spans(&self) -> Vec<ReceivedSpan> {
        spans(&self.receiver.arrivals())
    }

    /// Waits until `condition` holds for the spans; panics after `WAIT_TIMEOUT`.
    pub async fn wait_until(
        &self,
        what: &str,
        condition: impl Fn(&[ReceivedSpan]) -> bool,
    ) -> Vec<ReceivedSpan> {
        spans(&self.receiver.wait_until(what, |arrivals| condition(&spans(arrivals))).await)
    }
}

fn spans(arrivals: &[ReceivedRequest]) -> Vec<ReceivedSpan> {
    arrivals.iter().flat_map(read).collect()
}

fn read(arrival: &ReceivedRequest) -> Vec<ReceivedSpan> {
    assert_eq!((&*arrival.method, &*arrival.path), ("POST", "/v1/traces"));
    assert_eq!(arrival.header("content-type"), Some("application/x-protobuf"));
    let request = ExportTraceServiceRequest::decode(&arrival.body[..]).expect("an OTLP request");
    let mut details = Vec::new();
    for of_resource in request.resource_spans {
        let resource = of_resource.resource.map(|resource| table(resource.attributes)).unwrap_or_default();
        for of_scope in of_resource.scope_spans {
            assert_eq!(of_scope.scope.map(|scope| scope.name).as_deref(), Some("redrive"));
            details.extend(of_scope.spans.into_iter().map(|span| one(span, &resource)));
        }
    }
    details
}

fn one(span: Span, resource: &BTreeMap<String, Value>) -> ReceivedSpan {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    assert!(span.parent_span_id.is_empty() || span.parent_span_id.len() == 8);
    assert_eq!(span.flags & SpanFlags::TraceFlagsMask as u32, 1, "it is recorded");
    let status = span.status.clone().unwrap_or_default();
    ReceivedSpan {
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        kind: span.kind(),
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
        state: span.trace_state,
        error: (status.code() == StatusCode::Error).then_some(status.message),
        attributes: table(span.attributes),
        name: span.name,
        resource: resource.clone(),
    }
}

fn table(pairs: Vec<KeyValue>) -> BTreeMap<String, Value> {
    let value = |pair: KeyValue| {
        let value = match pair.value.and_then(|value| value.value) {
            Some(Any::StringValue(text)) => text.into(),
            Some(Any::IntValue(number)) => number.into(),
            Some(Any::BoolValue(flag)) => flag.into(),
            other => panic!("{} is {other:?}", pair.key),
        };
        (pair.key, value)
    };
    pairs.into_iter().map(value).collect()
}

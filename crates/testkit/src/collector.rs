//! A collector of traces: takes spans over OTLP/HTTP and reads them by OpenTelemetry's own definitions.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value as Any},
    trace::v1::{Span, SpanFlags, span::SpanKind, status::StatusCode},
};
use prost::Message as _;
use serde_json::Value;

use crate::{Arrival, Receiver, Reply};

/// A collector on a free loopback port. It stops when it is dropped.
pub struct Collector {
    receiver: Receiver,
}

/// One span as it came.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its trace, in hexadecimal digits.
    pub trace: String,
    /// Its id.
    pub id: String,
    /// What it is a part of; empty if of nothing.
    pub parent: String,
    /// What it is called.
    pub name: String,
    /// Who takes part.
    pub kind: SpanKind,
    /// When it began, in nanoseconds.
    pub start: u64,
    /// When it was over.
    pub end: u64,
    /// The trace's state.
    pub state: String,
    /// What is known of it.
    pub attributes: BTreeMap<String, Value>,
    /// What went wrong, if something did.
    pub error: Option<String>,
    /// Who sent it.
    pub resource: BTreeMap<String, Value>,
}

impl Seen {
    /// An attribute that must be a text.
    pub fn text(&self, key: &str) -> &str {
        self.attributes.get(key).and_then(Value::as_str).unwrap_or_else(|| panic!("no {key} in {self:#?}"))
    }

    /// An attribute that must be a number.
    pub fn number(&self, key: &str) -> i64 {
        self.attributes.get(key).and_then(Value::as_i64).unwrap_or_else(|| panic!("no {key} in {self:#?}"))
    }
}

impl Collector {
    /// A collector that takes everything.
    pub async fn start() -> Self {
        Self { receiver: Receiver::start().await }
    }

    /// A collector that answers as told.
    pub async fn with(answer: impl Fn(&Arrival) -> Reply + Send + Sync + 'static) -> Self {
        Self { receiver: Receiver::with(answer).await }
    }

    /// What to set `tracing.otlp_endpoint` to.
    pub fn url(&self) -> String {
        self.receiver.url_at("").trim_end_matches('/').to_owned()
    }

    /// The requests that came.
    pub fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    /// Every span that came so far.
    pub fn spans(&self) -> Vec<Seen> {
        spans(&self.receiver.arrivals())
    }

    /// Waits until `condition` holds for the spans; panics after 20 s.
    pub async fn wait_until(&self, what: &str, condition: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        spans(&self.receiver.wait_until(what, |arrivals| condition(&spans(arrivals))).await)
    }
}

fn spans(arrivals: &[Arrival]) -> Vec<Seen> {
    arrivals.iter().flat_map(read).collect()
}

fn read(arrival: &Arrival) -> Vec<Seen> {
    assert_eq!((&*arrival.method, &*arrival.path), ("POST", "/v1/traces"));
    assert_eq!(arrival.header("content-type"), Some("application/x-protobuf"));
    let request = ExportTraceServiceRequest::decode(&arrival.body[..]).expect("a request of OTLP");
    let mut seen = Vec::new();
    for of_resource in request.resource_spans {
        let resource = of_resource.resource.map(|resource| table(resource.attributes)).unwrap_or_default();
        for of_scope in of_resource.scope_spans {
            assert_eq!(of_scope.scope.map(|scope| scope.name).as_deref(), Some("redrive"));
            seen.extend(of_scope.spans.into_iter().map(|span| one(span, &resource)));
        }
    }
    seen
}

fn one(span: Span, resource: &BTreeMap<String, Value>) -> Seen {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
    assert!(span.parent_span_id.is_empty() || span.parent_span_id.len() == 8);
    assert_eq!(span.flags & SpanFlags::TraceFlagsMask as u32, 1, "it is recorded");
    let status = span.status.clone().unwrap_or_default();
    Seen {
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

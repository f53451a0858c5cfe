//! Spans in OTLP's protobuf encoding, limited to the messages in use. The testkit decodes them with
//! OpenTelemetry's own definitions.

use prost::{Message, Oneof};
use redrive_engine::{Span, SpanKind, Value};

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

/// Service that created the spans.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<WireSpan>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct WireSpan {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Kind", tags = "1, 2, 3")]
    value: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Flag(bool),
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// Response of a collector.
#[derive(Clone, PartialEq, Message)]
struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
}

/// Status code of a failed span.
const ERROR: i32 = 2;
/// Flag of sampled traces.
const SAMPLED: u32 = 1;

fn pair(key: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => Kind::Text(text),
        Value::Number(number) => Kind::Number(number),
        Value::Flag(flag) => Kind::Flag(flag),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

impl Resource {
    pub(super) fn new(service: &str, node: &str) -> Self {
        let text = |text: &str| Value::Text(text.to_owned());
        let attributes = vec![
            pair("service.name", text(service)),
            pair("service.version", text(env!("CARGO_PKG_VERSION"))),
            pair("service.instance.id", text(node)),
        ];
        Self { attributes }
    }
}

fn wire(span: Span) -> WireSpan {
    WireSpan {
        trace_id: span.trace.as_bytes().to_vec(),
        span_id: span.id.as_bytes().to_vec(),
        trace_state: span.state.map(String::from).unwrap_or_default(),
        parent_span_id: span.parent.map(|parent| parent.as_bytes().to_vec()).unwrap_or_default(),
        name: span.name.to_owned(),
        kind: match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        },
        start_time_unix_nano: span.start,
        end_time_unix_nano: span.end,
        attributes: span.attributes.into_iter().map(|(key, value)| pair(key, value)).collect(),
        status: span.error.map(|message| Status { message, code: ERROR }),
        flags: SAMPLED,
    }
}

/// Encodes a batch as a request body.
pub(super) fn encode(resource: &Resource, spans: Vec<Span>) -> Vec<u8> {
    let scope = Scope { name: "redrive".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
    let spans = ScopeSpans { scope: Some(scope), spans: spans.into_iter().map(wire).collect() };
    let of_this = ResourceSpans { resource: Some(resource.clone()), scope_spans: vec![spans] };
    Request { resource_spans: vec![of_this] }.encode_to_vec()
}

/// Returns the number of spans of a batch that the collector rejected.
pub(super) fn rejected(response: &[u8]) -> u64 {
    let response = ExportResponse::decode(response).unwrap_or_default();
    response.partial_success.map_or(0, |partial| partial.rejected_spans.max(0).unsigned_abs())
}

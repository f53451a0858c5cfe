//! Spans as OTLP messages.

use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    resource::v1::Resource,
    trace::v1::{ResourceSpans, ScopeSpans, Span as OtlpSpan, Status, span, status::StatusCode},
};
use prost::Message;
use redrive_engine::{Span, SpanKind, Value};

/// Flag of sampled traces, as in `traceparent`.
const SAMPLED: u32 = 1;

fn attribute(key: &str, value: Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::StringValue(text),
        Value::Number(number) => any_value::Value::IntValue(number),
        Value::Flag(flag) => any_value::Value::BoolValue(flag),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Returns the resource that creates the spans of this node.
pub(super) fn resource(service: &str, node: &str) -> Resource {
    let text = |text: &str| Value::Text(text.to_owned());
    let attributes = vec![
        attribute("service.name", text(service)),
        attribute("service.version", text(env!("CARGO_PKG_VERSION"))),
        attribute("service.instance.id", text(node)),
    ];
    Resource { attributes, ..Resource::default() }
}

fn to_message(span: Span) -> OtlpSpan {
    let kind = match span.kind {
        SpanKind::Internal => span::SpanKind::Internal,
        SpanKind::Server => span::SpanKind::Server,
        SpanKind::Client => span::SpanKind::Client,
    };
    OtlpSpan {
        trace_id: span.trace.as_bytes().to_vec(),
        span_id: span.id.as_bytes().to_vec(),
        trace_state: span.state.map(String::from).unwrap_or_default(),
        parent_span_id: span.parent.map(|parent| parent.as_bytes().to_vec()).unwrap_or_default(),
        name: span.name.to_owned(),
        kind: kind.into(),
        start_time_unix_nano: span.start,
        end_time_unix_nano: span.end,
        attributes: span.attributes.into_iter().map(|(key, value)| attribute(key, value)).collect(),
        status: span.error.map(|message| Status { message, code: StatusCode::Error.into() }),
        flags: SAMPLED,
        ..OtlpSpan::default()
    }
}

/// Encodes a batch as a request body.
pub(super) fn encode(resource: &Resource, spans: Vec<Span>) -> Vec<u8> {
    let scope = InstrumentationScope {
        name: "redrive".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let spans = ScopeSpans {
        scope: Some(scope),
        spans: spans.into_iter().map(to_message).collect(),
        ..ScopeSpans::default()
    };
    let resource_spans = ResourceSpans {
        resource: Some(resource.clone()),
        scope_spans: vec![spans],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }.encode_to_vec()
}

/// Returns the number of spans of a batch that the collector rejected.
pub(super) fn rejected(response: &[u8]) -> u64 {
    let response = ExportTraceServiceResponse::decode(response).unwrap_or_default();
    response.partial_success.map_or(0, |partial| partial.rejected_spans.max(0).unsigned_abs())
}

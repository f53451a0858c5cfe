//! Trace spans of events that belong to a sampled trace, passed to the exporter.
//!
//! publish → commit, and for each delivery → dispatch and attempt, with the attempt's phases. No spans are created
//! for other events. Nothing waits: spans that do not fit into the exporter's queue are dropped and counted. A
//! span contains no payload, no secret and no URL, since a URL's path may be a secret.

use std::{sync::Arc, time::Duration};

use prometheus_client::metrics::counter::Counter;
use redrive_core::{
    DeliveryStatus, Time,
    event::{
        Event,
        trace::{SpanId, Trace, TraceId},
    },
};
use redrive_egress::Timings;
use redrive_store::{Attempt, AttemptStatus, PublishResult, StoreError};
use tokio::sync::mpsc;

use crate::{Inner, PublishError, PublishReceipt, dispatch::LeasedDelivery, registry::ResolvedWebhook};

/// Indexes of child spans, from which their ids are derived.
const COMMIT: u8 = 1;
const DISPATCH: u8 = 5;

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

fn text(value: impl std::fmt::Display) -> Value {
    Value::Text(value.to_string())
}

fn number(value: impl TryInto<i64>) -> Value {
    Value::Number(value.try_into().unwrap_or(i64::MAX))
}

fn nanos(time: Time) -> u64 {
    time.millis().unsigned_abs().saturating_mul(1_000_000)
}

fn to_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sampled trace of an event, and the destination of its spans.
pub(crate) struct SampledTrace<'a> {
    tracing: &'a Tracing,
    trace: &'a Trace,
    event: &'a Event,
}

impl SampledTrace<'_> {
    fn emit(&self, span: Span) {
        if self.tracing.spans.try_send(span).is_err() {
            self.tracing.dropped.inc();
        }
    }

    fn span(&self, name: &'static str, id: SpanId, parent: Option<SpanId>, start: u64, end: u64) -> Span {
        Span {
            trace: self.trace.id,
            id,
            parent,
            state: self.trace.state().map(Into::into),
            name,
            kind: SpanKind::Internal,
            start,
            end: end.max(start),
            attributes: Vec::new(),
            error: None,
        }
    }

    /// Returns the span id of the publish.
    fn publish_id(&self) -> SpanId {
        SpanId::for_event(self.event.id)
    }

    fn about_delivery(&self, delivery: &LeasedDelivery) -> Vec<(&'static str, Value)> {
        vec![
            ("redrive.tenant", text(&self.event.tenant_id)),
            ("redrive.event_id", text(self.event.id)),
            ("redrive.delivery_id", text(delivery.id)),
            ("redrive.webhook_id", text(delivery.webhook_id)),
        ]
    }
}

/// Span of a publish in progress; emitted on drop, even if the publish is abandoned.
pub(crate) struct PublishSpan {
    inner: Arc<Inner>,
    event: Arc<Event>,
    became: Option<Result<PublishReceipt, String>>,
}

impl PublishSpan {
    /// Ends the span with the result of the publish.
    pub(crate) fn set_result(mut self, became: &Result<PublishReceipt, PublishError>) {
        self.became = Some(became.clone().map_err(|error| error.to_string()));
    }
}

impl Drop for PublishSpan {
    fn drop(&mut self) {
        let Some(recording) = self.inner.recording(&self.event) else { return };
        let event = &self.event;
        let (start, end) = (nanos(event.timestamp), self.inner.clock.nanos());
        let mut span = recording.span("publish", recording.publish_id(), recording.trace.parent, start, end);
        span.kind = SpanKind::Server;
        let id = match &self.became {
            Some(Ok(receipt)) => receipt.event_id,
            _ => event.id,
        };
        span.attributes = vec![
            ("redrive.tenant", text(&event.tenant_id)),
            ("redrive.event_id", text(id)),
            ("redrive.event_type", text(&event.event_type)),
        ];
        match self.became.take() {
            Some(Ok(receipt)) => {
                span.attributes.push(("redrive.duplicate", Value::Flag(receipt.duplicate)));
                span.attributes.extend(receipt.deliveries.map(|count| ("redrive.deliveries", number(count))));
            }
            Some(Err(error)) => span.error = Some(error),
            None => span.error = Some("the publisher disconnected before the response".into()),
        }
        recording.emit(span);
    }
}

impl Inner {
    /// Returns the sampled trace of an event, if it has one and spans are exported.
    pub(crate) fn recording<'a>(&'a self, event: &'a Event) -> Option<SampledTrace<'a>> {
        let tracing = self.settings.tracing.as_ref()?;
        let trace = event.trace.as_deref().filter(|trace| trace.is_sampled())?;
        Some(SampledTrace { tracing, trace, event })
    }

    /// Returns the time in nanoseconds if the event is sampled.
    pub(crate) fn nanos_if_sampled(&self, event: &Event) -> Option<u64> {
        self.recording(event).map(|_| self.clock.nanos())
    }

    /// Returns the trace of a new event: the caller's, or a new one by the sampling ratio.
    pub(crate) fn trace_of(
        &self,
        event_id: redrive_core::EventId,
        caller: Option<Box<Trace>>,
    ) -> Option<Box<Trace>> {
        let share = self.settings.tracing.as_ref().map_or(0.0, |tracing| tracing.sample_ratio);
        match caller {
            None if share <= 0.0 => None,
            caller => Trace::for_event(event_id, caller.map(|caller| *caller), share).map(Box::new),
        }
    }

    /// Starts the span of a publish.
    pub(crate) fn trace_publish(self: &Arc<Self>, event: &Arc<Event>) -> Option<PublishSpan> {
        self.recording(event)?;
        Some(PublishSpan { inner: self.clone(), event: event.clone(), became: None })
    }

    /// Emits the span of a commit that was submitted to the store at `started`.
    pub(crate) fn trace_commit(
        &self,
        event: &Event,
        started: Option<u64>,
        result: &Result<PublishResult, StoreError>,
    ) {
        // The commit is retried, and the retry gets the span.
        if matches!(result, Ok(PublishResult::ConfigChanged | PublishResult::Fenced)) {
            return;
        }
        let (Some(recording), Some(started)) = (self.recording(event), started) else { return };
        let publish = recording.publish_id();
        let mut span =
            recording.span("commit", publish.child(COMMIT), Some(publish), started, self.clock.nanos());
        span.attributes = vec![("redrive.event_id", text(event.id))];
        span.error = result.as_ref().err().map(ToString::to_string);
        recording.emit(span);
    }

    /// Emits the spans of an attempt that started at `started`, with its dispatch and phases.
    pub(crate) fn trace_attempt(
        &self,
        leased: &LeasedDelivery,
        webhook: &ResolvedWebhook,
        started: Option<u64>,
        attempt: &Attempt,
        timings: &Timings,
    ) {
        let (Some(recording), Some(started)) = (self.recording(&leased.event), started) else { return };
        let delivery = SpanId::for_delivery(leased.id);
        let id = SpanId::for_attempt(attempt.id);
        let due = nanos(leased.due).min(started);
        let mut dispatch = recording.span("dispatch", id.child(DISPATCH), Some(delivery), due, started);
        dispatch.attributes = recording.about_delivery(leased);
        dispatch.attributes.push(("redrive.attempt", number(attempt.number)));
        dispatch.attributes.push(("redrive.rescues", number(leased.rescues)));
        recording.emit(dispatch);
        let end = started.saturating_add(to_nanos(timings.total));
        let mut span = recording.span("attempt", id, Some(delivery), started, end);
        span.kind = SpanKind::Client;
        span.attributes = recording.about_delivery(leased);
        span.attributes.extend([
            ("redrive.attempt", number(attempt.number)),
            ("redrive.attempt_id", text(attempt.id)),
            ("redrive.worker", text(&attempt.worker)),
            ("http.request.method", text("POST")),
        ]);
        // Only the host: the path of a webhook URL may be a secret that allows calling it.
        if let Some(uri) = webhook.target().map(redrive_egress::Target::uri) {
            span.attributes.extend(uri.host().map(|host| ("server.address", text(host))));
            span.attributes.extend(uri.port_u16().map(|port| ("server.port", number(port))));
        }
        span.attributes
            .extend(attempt.http_status_code.map(|code| ("http.response.status_code", number(code))));
        span.attributes
            .extend(attempt.failure_category.map(|category| ("error.type", text(category.name()))));
        if attempt.status != AttemptStatus::Success {
            span.error = attempt.error_message.clone().or_else(|| Some("the attempt failed".into()));
        }
        recording.emit(span);
        for (n, (name, from, to)) in phases(timings).into_iter().flatten().enumerate() {
            let (from, to) =
                (started.saturating_add(to_nanos(from)), started.saturating_add(to_nanos(to)).min(end));
            recording.emit(recording.span(name, id.child(n as u8 + 1), Some(id), from.min(to), to));
        }
    }

    /// Emits the span of an ended delivery.
    pub(crate) fn trace_end(&self, delivery: &LeasedDelivery, status: DeliveryStatus, attempts: u32) {
        let Some(recording) = self.recording(&delivery.event) else { return };
        let id = SpanId::for_delivery(delivery.id);
        let (start, end) = (nanos(delivery.created_at), self.clock.nanos());
        let mut span = recording.span("delivery", id, Some(recording.publish_id()), start, end);
        span.attributes = recording.about_delivery(delivery);
        span.attributes.push(("redrive.event_type", text(&recording.event.event_type)));
        span.attributes.push(("redrive.status", text(status.name())));
        span.attributes.push(("redrive.attempts", number(attempts)));
        if status == DeliveryStatus::Dead {
            span.error = Some("the delivery is dead".into());
        }
        recording.emit(span);
    }
}

/// Returns the phases with their start and end relative to the start of the attempt: one after the other, except
/// the time to first byte, which is measured from the start as everywhere.
fn phases(timings: &Timings) -> [Option<(&'static str, Duration, Duration)>; 4] {
    let mut at = Duration::ZERO;
    let mut next = |name: &'static str, took: Option<Duration>| {
        took.map(|took| {
            let from = at;
            at += took;
            (name, from, at)
        })
    };
    let (dns, connect, tls) =
        (next("dns", timings.dns), next("connect", timings.connect), next("tls", timings.tls));
    [dns, connect, tls, timings.ttfb.map(|ttfb| ("ttfb", Duration::ZERO, ttfb))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_consecutive() {
        let millis = Duration::from_millis;
        let timings = Timings {
            dns: Some(millis(2)),
            connect: None,
            tls: Some(millis(5)),
            ttfb: Some(millis(20)),
            total: millis(30),
        };
        let reported: Vec<_> = phases(&timings).into_iter().flatten().collect();
        let expected =
            [("dns", millis(0), millis(2)), ("tls", millis(2), millis(7)), ("ttfb", millis(0), millis(20))];
        assert_eq!(reported, expected);
        assert_eq!(phases(&Timings::default()).into_iter().flatten().count(), 0);
    }
}

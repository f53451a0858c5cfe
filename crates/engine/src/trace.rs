//! Trace spans of events that belong to a sampled trace, passed to the exporter.
//!
//! publish → commit, and for each delivery → dispatch and attempt, with the attempt's phases. No spans are created
//! for other events. Nothing waits: spans that do not fit into the exporter's queue are dropped and counted. A
//! span contains no payload, no secret and no URL, since a URL's path may be a secret.

use redrive_core::delivery::outcome::AttemptStatus;
use std::time::Duration;

use redrive_core::{
    AttemptId, DeliveryStatus, Time,
    event::{
        Event,
        trace::{SpanId, Trace},
    },
};
use redrive_egress::Timings;
use redrive_store::Attempt;

use crate::{
    clock::Clock,
    dispatch::LeasedDelivery,
    routing::ResolvedWebhook,
    spans::{Span, SpanKind, Tracing, Value},
};

/// Indexes of child spans, from which their ids are derived.
pub(crate) const COMMIT: u8 = 1;
const DISPATCH: u8 = 5;

pub(crate) fn text(value: impl std::fmt::Display) -> Value {
    Value::Text(value.to_string())
}

pub(crate) fn number(value: impl TryInto<i64>) -> Value {
    Value::Number(value.try_into().unwrap_or(i64::MAX))
}

pub(crate) fn nanos(time: Time) -> u64 {
    time.millis().unsigned_abs().saturating_mul(1_000_000)
}

fn to_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sampled trace of an event, and the destination of its spans.
pub(crate) struct SampledTrace<'a> {
    tracing: &'a Tracing,
    pub(crate) trace: &'a Trace,
    event: &'a Event,
}

impl SampledTrace<'_> {
    pub(crate) fn emit(&self, span: Span) {
        if self.tracing.spans.try_send(span).is_err() {
            self.tracing.dropped.inc();
        }
    }

    pub(crate) fn span(
        &self,
        name: &'static str,
        id: SpanId,
        parent: Option<SpanId>,
        start: u64,
        end: u64,
    ) -> Span {
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
    pub(crate) fn publish_id(&self) -> SpanId {
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

/// Creates spans for the events that are sampled.
pub(crate) struct Tracer {
    tracing: Option<Tracing>,
    clock: Clock,
}

impl Tracer {
    pub(crate) fn new(tracing: Option<Tracing>, clock: Clock) -> Self {
        Self { tracing, clock }
    }

    /// Returns the sampled trace of an event, if it has one and spans are exported.
    pub(crate) fn recording<'a>(&'a self, event: &'a Event) -> Option<SampledTrace<'a>> {
        let tracing = self.tracing.as_ref()?;
        let trace = event.trace.as_deref().filter(|trace| trace.is_sampled())?;
        Some(SampledTrace { tracing, trace, event })
    }

    /// Returns the current time in nanoseconds.
    pub(crate) fn now_nanos(&self) -> u64 {
        self.clock.nanos()
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
        let share = self.tracing.as_ref().map_or(0.0, |tracing| tracing.sample_ratio);
        match caller {
            None if share <= 0.0 => None,
            caller => Trace::for_event(event_id, caller.map(|caller| *caller), share).map(Box::new),
        }
    }

    /// Returns the `traceparent` of a request: the attempt's span if the trace is recorded here, otherwise the
    /// publisher's context unchanged.
    pub(crate) fn traceparent(&self, event: &Event, attempt: AttemptId) -> Option<String> {
        let trace = event.trace.as_ref()?;
        let span = match self.recording(event) {
            Some(_) => SpanId::for_attempt(attempt),
            None => trace.parent.unwrap_or_else(|| SpanId::for_event(event.id)),
        };
        Some(trace.traceparent(span))
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
        dispatch.attributes.push(("redrive.rescues", number(leased.abnormal_releases)));
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

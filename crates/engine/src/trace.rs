//! Spans: what happened to events that belong to a recorded trace, for whoever exports them.
//!
//! publish → commit, and for each delivery → dispatch and attempt, with the attempt's phases. Nothing is made for
//! events of other traces or of none. Nothing waits: what finds no room with the exporter is dropped and counted.
//! A span holds no payload, no secret and no URL, whose path may be one.

use std::{sync::Arc, time::Duration};

use prometheus_client::metrics::counter::Counter;
use redrive_core::{
    DeliveryStatus, Time,
    event::Event,
    event::trace::{SpanId, Trace, TraceId},
};
use redrive_egress::Timings;
use redrive_store::{Attempt, AttemptStatus, Published, StoreError};
use tokio::sync::mpsc;

use crate::{Inner, PublishError, Receipt, dispatch::Ready, registry::Hook};

/// The parts of spans, by which they get ids of their own.
const COMMIT: u8 = 1;
const DISPATCH: u8 = 5;

/// Where spans go, and how many traces begin here.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// The share of events that begin a trace, of those that came without one.
    pub share: f64,
    /// Where spans go.
    pub spans: mpsc::Sender<Span>,
    /// How many found no room there.
    pub dropped: Counter,
}

/// Who takes part in what a span is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Something that goes on within.
    Internal,
    /// Something that somebody asked for.
    Server,
    /// Something that was asked of somebody.
    Client,
}

/// What is said about a span.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

/// Something that took its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its trace.
    pub trace: TraceId,
    /// Which one it is.
    pub id: SpanId,
    /// What it is a part of.
    pub parent: Option<SpanId>,
    /// What other systems have to say about the trace.
    pub state: Option<Box<str>>,
    /// What it is called.
    pub name: &'static str,
    /// Who takes part.
    pub kind: SpanKind,
    /// When it began, in nanoseconds since 1970.
    pub start: u64,
    /// When it was over.
    pub end: u64,
    /// What else is known.
    pub attributes: Vec<(&'static str, Value)>,
    /// What went wrong, if something did.
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

fn of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// An event's recorded trace, and where its spans go.
pub(crate) struct Recording<'a> {
    tracing: &'a Tracing,
    trace: &'a Trace,
    event: &'a Event,
}

impl Recording<'_> {
    fn give(&self, span: Span) {
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

    /// The span in which the event was taken in.
    fn publish_id(&self) -> SpanId {
        SpanId::of_event(self.event.id)
    }

    fn about_delivery(&self, ready: &Ready) -> Vec<(&'static str, Value)> {
        vec![
            ("redrive.tenant", text(&self.event.tenant)),
            ("redrive.event_id", text(self.event.id)),
            ("redrive.delivery_id", text(ready.id)),
            ("redrive.webhook_id", text(ready.webhook)),
        ]
    }
}

/// An event that is being taken in. Its span ends with this, however that comes about.
pub(crate) struct Publishing {
    inner: Arc<Inner>,
    event: Arc<Event>,
    became: Option<Result<Receipt, String>>,
}

impl Publishing {
    /// What became of it.
    pub(crate) fn ends(mut self, became: &Result<Receipt, PublishError>) {
        self.became = Some(became.clone().map_err(|error| error.to_string()));
    }
}

impl Drop for Publishing {
    fn drop(&mut self) {
        let Some(recording) = self.inner.recording(&self.event) else { return };
        let event = &self.event;
        let (start, end) = (nanos(event.timestamp), self.inner.clock.nanos());
        let mut span = recording.span("publish", recording.publish_id(), recording.trace.parent, start, end);
        span.kind = SpanKind::Server;
        let id = match &self.became {
            Some(Ok(receipt)) => receipt.event,
            _ => event.id,
        };
        span.attributes = vec![
            ("redrive.tenant", text(&event.tenant)),
            ("redrive.event_id", text(id)),
            ("redrive.event_type", text(&event.event_type)),
        ];
        match self.became.take() {
            Some(Ok(receipt)) => {
                span.attributes.push(("redrive.duplicate", Value::Flag(receipt.duplicate)));
                span.attributes.extend(receipt.deliveries.map(|count| ("redrive.deliveries", number(count))));
            }
            Some(Err(error)) => span.error = Some(error),
            None => span.error = Some("the publisher went away before it had its answer".into()),
        }
        recording.give(span);
    }
}

impl Inner {
    /// The recorded trace of an event, if it has one and spans are exported from here.
    pub(crate) fn recording<'a>(&'a self, event: &'a Event) -> Option<Recording<'a>> {
        let tracing = self.settings.tracing.as_ref()?;
        let trace = event.trace.as_deref().filter(|trace| trace.is_sampled())?;
        Some(Recording { tracing, trace, event })
    }

    /// The time in nanoseconds, if spans of this event need it.
    pub(crate) fn nanos_if_recorded(&self, event: &Event) -> Option<u64> {
        self.recording(event).map(|_| self.clock.nanos())
    }

    /// The trace of a new event.
    pub(crate) fn trace_of(
        &self,
        event: redrive_core::EventId,
        caller: Option<Box<Trace>>,
    ) -> Option<Box<Trace>> {
        let share = self.settings.tracing.as_ref().map_or(0.0, |tracing| tracing.share);
        match caller {
            None if share <= 0.0 => None,
            caller => Trace::of_event(event, caller.map(|caller| *caller), share).map(Box::new),
        }
    }

    /// Begins the span of a publish.
    pub(crate) fn trace_publish(self: &Arc<Self>, event: &Arc<Event>) -> Option<Publishing> {
        self.recording(event)?;
        Some(Publishing { inner: self.clone(), event: event.clone(), became: None })
    }

    /// An event was offered to the store at `began`.
    pub(crate) fn trace_commit(
        &self,
        event: &Event,
        began: Option<u64>,
        result: &Result<Published, StoreError>,
    ) {
        // It is offered again, and that is told.
        if matches!(result, Ok(Published::ConfigChanged | Published::Fenced)) {
            return;
        }
        let (Some(recording), Some(began)) = (self.recording(event), began) else { return };
        let publish = recording.publish_id();
        let mut span =
            recording.span("commit", publish.part(COMMIT), Some(publish), began, self.clock.nanos());
        span.attributes = vec![("redrive.event_id", text(event.id))];
        span.error = result.as_ref().err().map(ToString::to_string);
        recording.give(span);
    }

    /// An attempt was made that began at `began`.
    pub(crate) fn trace_attempt(
        &self,
        ready: &Ready,
        hook: &Hook,
        began: Option<u64>,
        attempt: &Attempt,
        timings: &Timings,
    ) {
        let (Some(recording), Some(began)) = (self.recording(&ready.event), began) else { return };
        let delivery = SpanId::of_delivery(ready.id);
        let id = SpanId::of_attempt(attempt.id);
        let due = nanos(ready.due).min(began);
        let mut dispatch = recording.span("dispatch", id.part(DISPATCH), Some(delivery), due, began);
        dispatch.attributes = recording.about_delivery(ready);
        dispatch.attributes.push(("redrive.attempt", number(attempt.number)));
        dispatch.attributes.push(("redrive.rescues", number(ready.rescues)));
        recording.give(dispatch);
        let end = began.saturating_add(of(timings.total));
        let mut span = recording.span("attempt", id, Some(delivery), began, end);
        span.kind = SpanKind::Client;
        span.attributes = recording.about_delivery(ready);
        span.attributes.extend([
            ("redrive.attempt", number(attempt.number)),
            ("redrive.attempt_id", text(attempt.id)),
            ("redrive.worker", text(&attempt.worker)),
            ("http.request.method", text("POST")),
        ]);
        // The host alone: whoever has the path of a webhook may be able to call it.
        if let Some(uri) = hook.target().map(redrive_egress::Target::uri) {
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
        recording.give(span);
        for (n, (name, from, to)) in phases(timings).into_iter().flatten().enumerate() {
            let (from, to) = (began.saturating_add(of(from)), began.saturating_add(of(to)).min(end));
            recording.give(recording.span(name, id.part(n as u8 + 1), Some(id), from.min(to), to));
        }
    }

    /// A delivery is over.
    pub(crate) fn trace_end(&self, ready: &Ready, status: DeliveryStatus, attempts: u32) {
        let Some(recording) = self.recording(&ready.event) else { return };
        let id = SpanId::of_delivery(ready.id);
        let (start, end) = (nanos(ready.created_at), self.clock.nanos());
        let mut span = recording.span("delivery", id, Some(recording.publish_id()), start, end);
        span.attributes = recording.about_delivery(ready);
        span.attributes.push(("redrive.event_type", text(&recording.event.event_type)));
        span.attributes.push(("redrive.status", text(status.name())));
        span.attributes.push(("redrive.attempts", number(attempts)));
        if status == DeliveryStatus::Dead {
            span.error = Some("the delivery was given up on".into());
        }
        recording.give(span);
    }
}

/// The phases that there were, each from when to when after the beginning: one after the other, but for the time to
/// the first byte, which is counted from the beginning as everywhere.
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
    fn phases_follow_one_another() {
        let millis = Duration::from_millis;
        let timings = Timings {
            dns: Some(millis(2)),
            connect: None,
            tls: Some(millis(5)),
            ttfb: Some(millis(20)),
            total: millis(30),
        };
        let told: Vec<_> = phases(&timings).into_iter().flatten().collect();
        let expected =
            [("dns", millis(0), millis(2)), ("tls", millis(2), millis(7)), ("ttfb", millis(0), millis(20))];
        assert_eq!(told, expected);
        assert_eq!(phases(&Timings::default()).into_iter().flatten().count(), 0);
    }
}
